"""What a CUDA graph of an update does on the host: counts, kinds and copies. The graph itself is a stand-in here.

`tests/algorithms/test_gpu.py` has the real ones, on a GPU.
"""

import contextlib
import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from test_contract import ACTIONS, CASES, VECTORS, Case, act_along, parameters

from offpcc.algorithms import SAC, cuda_graphs
from offpcc.algorithms.cuda_graphs import WARM_UP, GraphedUpdates
from offpcc.algorithms.execution import Execution
from offpcc.algorithms.numpy_policy import HostCopy, NumpyPolicy
from offpcc.algorithms.optim import LinearDecay, Optimizer
from offpcc.data.buffers.device import free_bytes
from offpcc.networks import Identity
from offpcc.networks.noise import Noise
from offpcc.utils.errors import UserError
from offpcc.utils.system import GPU_LOCK


class StandIn:
    """Records a function for an agent on the CPU: the recording changes no tensor, and each repetition calls it."""

    def __init__(self, agent):
        self.agent, self.recorded = agent, 0

    def counts(self):
        optimizers = [part for part in vars(self.agent).values() if isinstance(part, Optimizer)]
        return optimizers, [optimizer.num_updates for optimizer in optimizers]

    def __call__(self, function, noise, pool):
        self.recorded += 1
        parts, random_state = self.agent.stateful_parts(), noise.generator.get_state()
        del parts["nonfinite_guard"]  # it counts at the end of an update
        before = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
        numbers, names, others = function()
        after = self.counts()
        for name, part in parts.items():
            part.load_state_dict(before[name])
        for optimizer, count in zip(*after, strict=True):  # a recording counts, as a real one does
            optimizer.num_updates = count
        noise.generator.set_state(random_state)

        def repeat():
            optimizers, counts = self.counts()
            made, _, more = function()
            numbers.copy_(made)
            for name, value in more.items():
                others[name].copy_(value)
            for optimizer, count in zip(optimizers, counts, strict=True):
                optimizer.num_updates = count

        return repeat, (numbers, names, others)


def graphed(case, **options):
    agent = case.build(**options)
    recorder = StandIn(agent)
    agent._graphed = GraphedUpdates(True, recorder)
    return agent, recorder


SOME = [
    case for case in CASES if str(case) in ("sac", "td3", "rsac-lstm", "rtd3_s-lstm", "cql", "bc", "dqn", "crsac-lstm")
]


@pytest.mark.parametrize("case", SOME, ids=str)
def test_updates_are_those_without_graphs(case):
    options = {} if case.cls.fused_update is None else {"fused": False}
    plain, (agent, recorder) = case.build(**options), graphed(case, **options)
    for seed in range(12):
        expected, stats = (one.update_networks(case.batch(seed)) for one in (plain, agent))
        assert stats.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(stats[name], value, rtol=0, atol=0)
    assert recorder.recorded == len(agent._graphed.graphs) == case.delay
    torch.testing.assert_close(parameters(agent), parameters(plain), rtol=0, atol=0)
    for ours, theirs in zip(*(StandIn(one).counts()[1] for one in (agent, plain)), strict=True):
        assert ours == theirs
    assert agent.nonfinite_guard.num_updates == 12


def test_statistics_are_not_overwritten_by_the_next_update():
    case = Case("sac")
    agent, _ = graphed(case, fused=False)
    told = [agent.update_networks(case.batch(seed))["critic_loss"] for seed in range(8)]
    assert len({float(loss) for loss in told}) == 8


def test_td_errors_of_importance_weights():
    case = Case("sac")
    agent, _ = graphed(case, fused=False)
    batch = case.batch()._replace(weights=torch.tensor([0.1, 0.5, 1.0]).view(3, 1, 1))
    told = [agent.update_networks(batch)["td_error"] for _ in range(6)]
    assert agent._graphed.graphs and told[-1].shape == (3, 1, 1)
    assert not torch.equal(told[-1], told[-2])


def test_each_kind_of_update_has_a_graph_of_its_own():
    case = Case("cql")
    agent, recorder = graphed(case, bc_steps=10)
    for seed in range(10):
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 1
    for seed in range(WARM_UP + 1):
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 2
    for seed in range(WARM_UP + 1):
        agent.update_networks(case.batch(seed, [1, 1]))
    assert recorder.recorded == 3
    agent.conservative_weight *= 0.5
    for seed in range(WARM_UP + 1):
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 4


def test_a_coefficient_that_changes_in_each_update_is_told_of_once(monkeypatch, capsys):
    monkeypatch.setattr(cuda_graphs, "MOST_KINDS", 5)
    case = Case("cql")
    agent, recorder = graphed(case)
    for seed in range(14):
        agent.conservative_weight = 1.0 + seed
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 0 and len(agent._graphed.seen) <= 5
    told = "CQL.cuda_graphs is True, but no update is like another one, so none was repeated: 5 updates differed"
    assert capsys.readouterr().err.count(told) == 1


def test_the_share_of_random_actions_is_that_of_the_moment():
    case = Case("dqn")
    agent, _ = graphed(case)
    told = []
    for seed in range(6):
        agent.count_steps(1_000)
        told.append(float(agent.update_networks(case.batch(seed))["epsilon"]))
    assert agent._graphed.graphs
    np.testing.assert_allclose(np.diff(told), np.diff(told)[0], rtol=1e-4)
    assert told[-1] < told[0]


def test_a_copy_records_graphs_of_its_own():
    case = Case("sac")
    agent, recorder = graphed(case, fused=False)
    for seed in range(6):
        agent.update_networks(case.batch(seed))
    other = copy.deepcopy(agent)
    assert recorder.recorded == 1 and not other._graphed.graphs and not other._graphed.seen
    assert other._graphed.capture is cuda_graphs.capture


@pytest.mark.parametrize("name", ["sac", "td3", "rsac"])
def test_schedules(name):
    """A stand-in cannot read a rate on a device, so this compares the rates that are set for it."""
    case = Case(name, "lstm" if name.startswith("r") else None)
    options = {"fused": False, "lr": LinearDecay(1e-2, 1e-3, 10), "policy_delay": 2}
    plain, (agent, _) = case.build(**options), graphed(case, **options)
    for seed in range(14):
        for one in (plain, agent):
            one.update_networks(case.batch(seed))
        for part in ("critic_optimizer", "actor_optimizer"):
            ours, theirs = ([group.latest_rate for group in getattr(one, part).groups] for one in (agent, plain))
            assert ours == theirs
    assert len(agent._graphed.graphs) == 2
    graph = next(iter(agent._graphed.graphs.values()))
    assert all(float(rate) == pytest.approx(group.latest_rate, abs=2e-3) for group, rate, *_ in graph.schedules)
    assert all(group.device_rate is None for group in agent.critic_optimizer.groups)
    torch.testing.assert_close(parameters(agent), parameters(plain), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_recorded_is_refused():
    def refuses(function, noise, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    agent = Case("sac").build(fused=False)
    agent._graphed = GraphedUpdates(True, refuses)
    with pytest.raises(
        UserError, match=r"of SAC cannot be recorded as a CUDA graph \(operation not permitted.* = False"
    ):
        for seed in range(WARM_UP + 1):
            agent.update_networks(Case("sac").batch(seed))


def test_where_graphs_may_be_used():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert Execution().may_use_graphs(gpu) and not Execution(cuda_graphs=True).may_use_graphs(cpu)
    assert not Execution(cuda_graphs=False).may_use_graphs(gpu)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_algorithm_has_graphs_by_default(case):
    assert cuda_graphs.has_known_code(case.build())


def test_by_default_code_of_the_user_has_no_graphs():
    class MyEncoder(Identity):
        pass

    class MySAC(SAC):
        pass

    def is_on(cls=SAC, change=lambda agent: None, **options):
        agent = cls(VECTORS, ACTIONS, hidden_dims=(4,), fused=False, **options)
        change(agent)
        agent._graphed = GraphedUpdates(False, StandIn(agent))
        agent.update_networks(Case("sac").batch())
        return agent._graphed.is_on

    assert is_on()
    assert not is_on(MySAC)
    assert not is_on(encoder=MyEncoder)
    assert not is_on(change=lambda agent: agent.actor.register_forward_hook(lambda *given: None))
    assert not is_on(change=lambda agent: next(agent.actor.parameters()).register_hook(lambda gradient: None))
    assert not is_on(change=lambda agent: setattr(agent, "td_loss", lambda *given: SAC.td_loss(agent, *given)))


def test_code_of_the_user_that_comes_later_is_not_recorded():
    case = Case("sac")
    agent, recorder = graphed(case, fused=False)
    agent._graphed = GraphedUpdates(False, recorder)
    for seed in range(WARM_UP + 1):
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 1
    agent.td_loss = lambda *given: SAC.td_loss(agent, *given)
    for seed in range(WARM_UP + 1):
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 1 and agent._graphed.is_on is False


def test_on_a_cpu_the_setting_has_no_effect_and_is_told():
    agent = Case("sac").build(cuda_graphs=True)
    assert agent._graphed is None
    assert agent.unused_parameters()["cuda_graphs"] == "the device is no GPU"


@pytest.mark.parametrize("case", [Case("sac"), Case("td3_bc"), Case("rsac", "lstm"), Case("rtd3_s", "gru")], ids=str)
def test_a_copy_on_the_host_has_the_weights_of_the_last_refresh(case):
    agent = case.build()
    copied = HostCopy(agent.actor_parts())
    copied.refresh(0)
    reader = copy.copy(agent)
    reader._mirror = NumpyPolicy.of(copied.parts, agent.memoryless)
    reader._mirrored = lambda num_envs, any_begins: reader._mirror
    expected = act_along(agent, case)
    np.testing.assert_array_equal(act_along(reader, case), expected)
    agent.update_networks(case.batch())
    agent.update_networks(case.batch(1))
    assert not np.array_equal(act_along(agent, case), expected)
    np.testing.assert_array_equal(act_along(reader, case), expected)
    copied.refresh(1)
    np.testing.assert_array_equal(act_along(reader, case), act_along(agent, case))


def test_a_copy_on_the_host_notices_weights_that_were_loaded_and_updates_by_a_graph():
    agent, other = (Case("sac").build(seed) for seed in (0, 1))
    copied = HostCopy(agent.actor_parts())
    copied.refresh(0)
    agent.actor.load_state_dict(other.actor.state_dict())
    copied.refresh(0)
    before = copied.flat.clone()
    assert torch.equal(before, weights_of(other))
    with torch.no_grad():
        for weight in agent.actor.parameters():
            weight.data.zero_()  # PyTorch does not count this change, as those by a graph
    copied.refresh(0)
    assert torch.equal(copied.flat, before)
    copied.refresh(1)
    assert not copied.flat.any()


def weights_of(agent):
    return torch.cat([weight.detach().flatten() for weight in agent.actor.parameters()])


@pytest.mark.parametrize("change", ["rate", "max_grad_norm", "target_entropy", "polyak", "frozen", "moved"])
def test_a_part_that_a_user_changed_gets_a_graph_of_its_own(change):
    """Such as a learning rate that a callback sets: a graph has the number from its recording."""
    case = Case("sac")
    agent, recorder = graphed(case, fused=False)
    for seed in range(WARM_UP + 2):
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 1
    weight = agent.actor_optimizer.parameters[0]
    if change == "rate":
        agent.actor_optimizer.groups[0].rate *= 0.5
    elif change == "max_grad_norm":
        agent.actor_optimizer.max_grad_norm = 1.0
    elif change == "target_entropy":
        agent.temperature.target_entropy -= 1.0
    elif change == "polyak":
        agent._targets.polyak = 0.5
    elif change == "frozen":
        weight.requires_grad_(False)
    else:
        weight.data = weight.data.clone()
    before = weight.detach().clone()
    for seed in range(WARM_UP + 1):
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 2
    assert torch.equal(weight, before) == (change == "frozen")


def test_numbers_of_numpy_count_by_value():
    case = Case("cql")
    agent, recorder = graphed(case)
    for seed in range(WARM_UP + 3):
        agent.conservative_weight = np.float32(5.0)
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 1
    for seed in range(10):
        agent.conservative_weight = np.float32(seed)
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 1


def test_a_graph_keeps_what_it_has_recorded():
    """Else a new object might get the id of an attribute that was replaced, and the wrong graph."""
    case = Case("sac")
    agent, _ = graphed(case, fused=False)
    agent.extra = np.zeros(3)
    replaced = weakref.ref(agent.extra)
    for seed in range(WARM_UP + 1):
        agent.update_networks(case.batch(seed))
    agent.extra = np.ones(3)
    assert replaced() is not None
    agent._graphed.graphs.clear()
    gc.collect()  # the stand-in refers to its graph
    assert replaced() is None


def test_exploration_changes_no_graph():
    case = Case("td3")
    agent, recorder = graphed(case, fused=False, policy_delay=1)
    for seed in range(WARM_UP + 5):
        agent.action_noise *= 0.9
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == len(agent._graphed.seen) == 1


def test_many_graphs_are_forgotten_and_the_next_ones_wait_longer(monkeypatch):
    """A coefficient that falls has a graph for each value. After its fall, there are graphs again."""
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 2)
    case = Case("cql")
    agent, recorder = graphed(case)
    for value in range(4):
        agent.conservative_weight = 1.0 + value
        for seed in range(WARM_UP + 2):
            agent.update_networks(case.batch(seed))
    assert recorder.recorded == 2 and not agent._graphed.graphs
    for seed in range(8 * WARM_UP + 1):
        agent.update_networks(case.batch(seed))
    assert recorder.recorded == 3


def test_without_room_there_are_no_more_graphs(monkeypatch, capsys):
    case = Case("sac")
    agent, recorder = graphed(case, fused=False)
    for seed in range(WARM_UP + 1):
        agent.update_networks(case.batch(seed))
    monkeypatch.setattr(cuda_graphs, "has_room", lambda device: False)
    for seed in range(WARM_UP + 3):
        agent.update_networks(case.batch(seed, [1, 1]))
    agent.update_networks(case.batch())
    assert recorder.recorded == 1
    assert capsys.readouterr().err.count("the GPU has little free memory, so SAC makes further kinds of updates") == 1


def test_room_is_twice_what_the_largest_update_needed(monkeypatch):
    numbers = {"memory_allocated": 10, "memory_reserved": 30, "max_memory_allocated": 60, "mem_get_info": (79, 200)}
    for name, value in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert not cuda_graphs.has_room(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80, 200))
    assert cuda_graphs.has_room(torch.device("cuda"))


def test_a_recording_leaves_no_gradients():
    """They are memory of a graph, which another graph overwrites."""
    case = Case("sac")
    agent, _ = graphed(case, fused=False)
    held = []
    note, agent._graphed.capture = agent._graphed.capture, lambda *given: held.append(note(*given)) or held[-1]
    for seed in range(WARM_UP):
        agent.update_networks(case.batch(seed))
    assert agent.actor_optimizer.parameters[0].grad is not None
    agent._graphed.seen = dict.fromkeys(agent._graphed.seen, WARM_UP)
    graph = cuda_graphs.UpdateGraph(agent, case.batch(), agent._graphed.capture, None)
    assert held and graph.steps
    assert all(weight.grad is None for weight in agent.actor_optimizer.parameters)


def test_one_thread_records_at_a_time(monkeypatch):
    """PyTorch has one stream for all recordings, and none may free memory meanwhile."""

    class Graph:
        def register_generator_state(self, generator):
            pass

        def replay(self):
            pass

    is_held = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *given, **options: contextlib.nullcontext())
    _, result = cuda_graphs.capture(
        lambda: is_held.append((GPU_LOCK.locked(), gc.isenabled())), Noise(0, torch.device("cpu")), None
    )
    assert is_held == [(True, False)] and gc.isenabled() and not GPU_LOCK.locked() and result is None
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: is_held.append((GPU_LOCK.locked(), True)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 8))
    assert free_bytes(torch.device("cuda")) == 7
    assert is_held[-1] == (True, True) and not GPU_LOCK.locked()
