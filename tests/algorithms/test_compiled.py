"""Compiled updates give what the plain ones give. Most tests run the recorded operations without a compiler."""

import copy
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from test_contract import ACTIONS, CASES, CELLS, VECTORS, Case, parameters

from offpcc.algorithms import SAC, cuda_graphs
from offpcc.algorithms.agent import load_actor, save_actor
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.algorithms.optim import LinearDecay, clip
from offpcc.core import Step
from offpcc.networks.cells import LRU, LSTM, Cell, run_chunked
from offpcc.networks.cells.compiled import run_as_one
from offpcc.utils import torch_private
from offpcc.utils.errors import UserError
from offpcc.utils.torch_private import compile_operations, is_compiling


def updated(case, num_updates=4, rtol=1e-3, atol=1e-4, **options):
    """A plain agent and a compiled one after the same updates, whose statistics were compared."""
    is_fused = {} if case.cls.fused_update is None else {"fused": False}
    plain, compiled = case.build(**is_fused, **options), case.build(compile=True, **options)
    for seed in range(num_updates):
        expected, stats = (agent.update_networks(case.batch(seed)) for agent in (plain, compiled))
        assert stats.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(stats[name], value, rtol=rtol, atol=atol, msg=name)
    torch.testing.assert_close(parameters(compiled), parameters(plain), rtol=rtol, atol=0.1 * atol)
    return plain, compiled


# Without those whose updates are SAC's or RLPD's.
VECTORIAL = [
    case for case in CASES if not case.cell and not case.images and case.name not in ("mbpo", "mopo", "sac_n", "neubay")
]
IMAGES = [Case("csac"), Case("cdqn")]
# To record an update takes seconds for each of its memories: DDPG with a shared one has two, and SAC five.
REMEMBERING = [Case("rsac", "lstm"), Case("crsac_s", "lstm"), Case("r2d2", "lstm")]
REMEMBERING += [Case("rdpg_s", cell) for cell in CELLS if cell != "lstm"]


@pytest.mark.parametrize("case", [*VECTORIAL, *IMAGES, *REMEMBERING], ids=str)
def test_updates_are_those_that_are_not_compiled(case, recorded):
    _, compiled = updated(case)
    assert len(compiled._graphed.graphs) == case.delay


COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


@pytest.mark.slow
@COMPILER
@pytest.mark.parametrize("case", [Case("cql"), Case("crdpg_s", "gru")], ids=str)
def test_updates_by_the_compiler(case):
    updated(case)


def check_bfloat16(case):
    _, compiled = updated(case, rtol=1e-2, atol=1e-2, precision="bfloat16")
    exact = case.build()
    for seed in range(4):
        exact.update_networks(case.batch(seed))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(parameters(compiled), parameters(exact), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@COMPILER
def test_bfloat16_by_the_compiler():
    check_bfloat16(Case("ddpg"))


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_bfloat16_with_memory(cell, recorded):
    check_bfloat16(Case("rdpg_s", cell))


@pytest.mark.parametrize(
    "options",
    [
        {"lr": LinearDecay(1e-2, 1e-3, 3), "max_grad_norm": 0.1},
        {"weight_decay": 0.5, "adam_eps": 0.1, "n_step": 2, "reward_scale": 3.0},
        {"normalize_observations": True, "target_subset": 1, "num_critics": 3, "polyak": 0.5},
        {"dropout": 0.5, "layer_norm": True, "policy_delay": 2, "target_update_interval": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options(options, recorded):
    updated(Case("sac"), 5, **options)


def test_importance_weights(recorded):
    case = Case("sac")
    batch = case.batch()._replace(weights=torch.tensor([0.1, 0.5, 1.0]).view(3, 1, 1))
    plain, compiled = (case.build(**given).update_networks(batch) for given in ({"fused": False}, {"compile": True}))
    torch.testing.assert_close(compiled["td_error"], plain["td_error"], rtol=1e-4, atol=1e-5)


def test_one_that_was_loaded_goes_on_as_one_that_was_not(recorded):
    case = Case("td3")
    whole, half = case.build(compile=True), case.build(compile=True)
    for seed in range(3):
        whole.update_networks(case.batch(seed))
        half.update_networks(case.batch(seed))
    loaded = case.build(compile=True)
    for name, part in half.stateful_parts().items():
        loaded.stateful_parts()[name].load_state_dict(copy.deepcopy(part.state_dict()))
    for seed in range(3, 7):
        whole.update_networks(case.batch(seed))
        loaded.update_networks(case.batch(seed))
    torch.testing.assert_close(parameters(loaded), parameters(whole), rtol=0, atol=0)


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_bad_update_changes_nothing_and_is_named(nonfinite, recorded):
    case = Case("sac")
    agent = case.build(compile=True, nonfinite=nonfinite)
    agent.update_networks(case.batch(0))
    before = parameters(agent)
    good = case.batch(1)
    bad = good._replace(rewards=good.rewards.clone().fill_(torch.nan))
    stats = agent.update_networks(bad)
    torch.testing.assert_close(parameters(agent), before, rtol=0, atol=0)
    if nonfinite == "skip":
        assert stats["skipped"] == 1.0 and stats["critic_loss"].isnan()
        agent.update_networks(good)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(parameters(agent), before)
        return
    with pytest.raises(NonFiniteError, match=r"update 2: the batch's rewards is nan"):
        for _ in range(50):
            agent.update_networks(good)


def test_a_copy_and_an_actors_file_are_of_their_own(tmp_path, recorded):
    case = Case("sac")
    agent = case.build(compile=True)
    agent.update_networks(case.batch(0))
    other, before = copy.deepcopy(agent), parameters(agent)
    other.update_networks(case.batch(1))
    assert other._graphed.compiles and len(other._graphed.graphs) == 1
    torch.testing.assert_close(parameters(agent), before, rtol=0, atol=0)
    assert not torch.equal(other.critics.net[0].weight, agent.critics.net[0].weight)
    save_actor(agent, tmp_path / "actor.pt")
    step = Step(np.ones((1, *VECTORS.shape), np.float32), np.zeros((1, 2)), np.zeros((1, 1)), np.ones(1))
    ours, theirs = (one.act(step, deterministic=True)[0] for one in (agent, load_actor(tmp_path / "actor.pt")))
    np.testing.assert_array_equal(ours, theirs)


class Reads(SAC):
    def actor_loss(self, h, batch):
        loss, stats = super().actor_loss(h, batch)
        return (2.0 * loss if loss.item() > 0 else loss), stats


def test_what_cannot_be_compiled_is_refused(monkeypatch, recorded):
    with pytest.raises(UserError, match=r"SAC\.fused is True, but compile is True"):
        Case("sac").build(compile=True, fused=True)
    case = Case("sac")
    with pytest.raises(
        UserError, match=r"an update of Reads cannot be compiled \(.*; bind ActorCritic.compile = False"
    ):
        Reads(VECTORS, ACTIONS, compile=True, hidden_dims=(4,)).update_networks(case.batch())
    monkeypatch.setattr(cuda_graphs, "MOST_COMPILED", 2)
    agent = case.build(compile=True)
    with pytest.raises(UserError, match=r"SAC\.compile is True, but there are more than 2 kinds of updates for "):
        for number in range(3):
            agent.gamma = 0.9 + 0.01 * number
            agent.update_networks(case.batch())


def test_the_compilers_own_line_is_told(monkeypatch):
    said = "x.cpp:3:10: fatal error: omp.h: No such file or directory"

    def fail(function):
        raise RuntimeError(
            f"CppCompileError: C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\n{said}\n 3 | #include"
        )

    monkeypatch.setattr(torch_private, "compile_operations", fail)
    with pytest.raises(UserError, match=rf"cannot be compiled \({said}\); correct the C\+\+ compiler.* = False$"):
        Case("sac").build(compile=True).update_networks(Case("sac").batch())


def test_updates_of_many_shapes_are_all_compiled(monkeypatch, recorded):
    """A plain update rounds otherwise, so a resumed run would differ."""
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 1)
    case = Case("sac")
    agent = case.build(compile=True)
    for number in (1, 2, 3):
        agent.update_networks(case.batch(lengths=[1] * number))
    assert len(agent._graphed.graphs) == 3


class Forgets(SAC):
    def actor_loss(self, h, batch):
        return super().actor_loss(h, batch)[0]


def test_a_mistake_in_an_update_is_told_as_without_compilation(recorded):
    with pytest.raises(UserError, match=r"^Forgets\.actor_loss returns a \w*Tensor; return the loss and a dictionary"):
        Forgets(VECTORS, ACTIONS, compile=True, hidden_dims=(4,)).update_networks(Case("sac").batch())


def test_ctrl_c_ends_no_compiler(monkeypatch):
    def compile_fx(module, given):
        command = [sys.executable, "-c", "import signal; print([*map(int, signal.pthread_sigmask(0, []))])"]
        events.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        signal.raise_signal(signal.SIGINT)
        events.append("compiled")
        return module

    events = []
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    before = signal.signal(signal.SIGINT, lambda number, frame: events.append("handled"))
    try:
        Case("sac").build(compile=True).update_networks(Case("sac").batch())
    finally:
        signal.signal(signal.SIGINT, before)
    assert events == [f"[{int(signal.SIGINT)}, {int(signal.SIGTERM)}]", "compiled", "handled"]


def test_threads_compile_one_after_another(monkeypatch):
    """The compiler has global state."""

    def compile_fx(module, given):
        inside.append(module)
        time.sleep(0.2)
        numbers.append(len(inside))
        inside.remove(module)
        return module

    inside, numbers = [], []
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    agents = [Case("sac").build(compile=True) for _ in range(2)]
    threads = [threading.Thread(target=agent.update_networks, args=(Case("sac").batch(),)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == [1, 1]
    torch.testing.assert_close(parameters(agents[0]), parameters(agents[1]), rtol=0, atol=0)


def test_a_missing_compiler_is_told(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(
        UserError, match=r"SAC\.compile is True, but there is no C\+\+ compiler no-such-compiler; install"
    ):
        Case("sac").build(compile=True)


def test_burn_in(recorded):
    def batch(seed):
        whole = case.batch(seed, lengths=[6, 4, 5])
        warmed = whole._replace(burn_in=2, loss_mask=whole.loss_mask.clone())
        warmed.loss_mask[:, :2] = 0.0
        return warmed

    case = next(case for case in CASES if str(case) == "rsac-lstm")
    plain, compiled = (case.build(**given) for given in ({}, {"compile": True}))
    for seed in range(3):
        expected, stats = (agent.update_networks(batch(seed)) for agent in (plain, compiled))
        torch.testing.assert_close(stats, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parameters(compiled), parameters(plain), rtol=1e-3, atol=1e-5)


class Shares(Cell):
    """Its state is memory of its summaries and of its inputs."""

    def __init__(self, num_in, hidden_dim, num_layers):
        super().__init__()
        self.dim, self.scale = num_in, torch.nn.Parameter(torch.ones(num_in))

    def forward(self, x, state=None):
        h = x * self.scale + (0.0 if state is None else state[0].unsqueeze(1) * state[1].unsqueeze(1))
        return h, (h[:, -1], x[:, -1])


@pytest.mark.slow
@COMPILER
@pytest.mark.parametrize("cell", [LSTM, LRU, Shares])
def test_a_cell_that_is_run_twice_learns_in_between(cell):
    torch.manual_seed(0)
    memory, x, start = cell(num_in=3, hidden_dim=4, num_layers=2), torch.randn(2, 5, 3), None
    own = copy.deepcopy(memory)

    def update(memory):
        run = run_as_one if is_compiling() else run_chunked
        results = []
        for _ in range(2):
            h, state = run(memory, x, start)
            again, _ = run(memory, x[:, :2], state)
            loss = h.square().mean() + again.sin().sum()
            gradients = torch.autograd.grad(loss, [*memory.parameters()], allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                for weight, gradient in zip(memory.parameters(), gradients, strict=True):
                    weight -= 0.1 * gradient
            results.append(loss.detach())
        return results

    for _ in range(3):
        expected = update(own)
    compiled = compile_operations(lambda: update(memory))
    for _ in range(3):
        results = compiled()
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close([*memory.parameters()], [*own.parameters()])


def test_a_program_keeps_no_memory_for_its_cells(monkeypatch):
    """There may be one for each of 40 lengths, and each run needs hundreds of megabytes."""

    class Watched(Shares):
        def forward(self, x, state=None):
            h, state = super().forward(x, state)
            summaries.append(weakref.ref(h))
            return h, state

    summaries, inputs = [], []
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda module, given: inputs.extend(given) or module)
    cell, x = Watched(num_in=3, hidden_dim=3, num_layers=1), torch.randn(2, 5, 3)
    run = compile_operations(lambda: [*torch.autograd.grad(run_as_one(cell, x)[0].sum(), [*cell.parameters()])])
    torch.testing.assert_close(run(), [x.sum((0, 1))])
    assert len(summaries) == 2 and not any(summary() is not None for summary in summaries)
    assert [tuple(tensor.shape) for tensor in inputs] == [(3,), (2, 5, 3)]


class Counts(Shares):
    """It counts its calls in a buffer, also in eval mode."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.register_buffer("num_calls", torch.zeros(()))

    def forward(self, x, state=None):
        self.num_calls += 1.0
        return super().forward(x, state)


def test_recording_changes_no_buffer_of_a_cell(recorded):
    """A resumed run records once more, so its buffers would differ."""
    cell, x = Counts(num_in=3, hidden_dim=3, num_layers=1), torch.randn(2, 5, 3)
    run = compile_operations(lambda: [run_as_one(cell, x)[0]])
    assert cell.num_calls == 0.0
    run()
    assert cell.num_calls == 1.0


def test_gradients_are_clipped_by_operations_that_the_compiler_has(monkeypatch):
    modules, weights, clipped = [], [torch.nn.Parameter(torch.zeros(size)) for size in (3, 4)], torch.zeros(7)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda module, given: modules.append(module) or module)

    def update():
        for weight in weights:
            weight.grad = torch.arange(1.0, len(weight) + 1)
        clip(weights, 0.5)
        clipped.copy_(torch.cat([weight.grad for weight in weights]))
        for weight in weights:
            weight.grad = None

    compile_operations(update)()
    given = torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(clipped, 0.5 * given / given.norm())
    assert "foreach_norm" not in modules[0].code  # else PyTorch warns, and calls a slower function
