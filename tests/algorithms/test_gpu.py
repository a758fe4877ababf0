"""Agents on a GPU: updates, CUDA graphs, acting, saving and whole runs. Without a GPU, these tests are skipped.

OFFPCC_TEST_DEVICE=cpu runs those tests of this module on the CPU that need nothing of a GPU, to see that they run.
"""

import copy
import os

import numpy as np
import pytest
import torch
from conftest import QUICK, merged
from test_contract import ACTION_DIM, ACTIONS, CASES, ONE_CELL, VECTORS, Case, act_along, parameters

import offpcc
from offpcc.algorithms import SAC, cuda_graphs
from offpcc.algorithms.agent import load_actor, save_actor
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.algorithms.optim import LinearDecay
from offpcc.config import loading
from offpcc.networks.noise import Noise
from offpcc.training.build import build
from offpcc.training.checkpoint import Checkpoints, read_checkpoint, resume
from offpcc.training.loggers import Loggers
from offpcc.training.run_dir import RunFolder
from offpcc.utils.errors import UserError

DEVICE = os.environ.get("OFFPCC_TEST_DEVICE", "cuda")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
needs_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="this needs a GPU")
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_name = pytest.mark.parametrize("case", ONE_CELL, ids=str)


@pytest.fixture(autouse=True)
def in_float32():
    """cuDNN's layers compute in TF32 by default, with 10 bits."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


class NoiseOfTheHost(Noise):
    """The same random numbers on each device."""

    def __init__(self, target):
        super().__init__(3, torch.device("cpu"))
        self.target = target

    def normal(self, like):
        return super().normal(like.cpu()).to(self.target)

    def uniform(self, like):
        return super().uniform(like.cpu()).to(self.target)

    def integers(self, low, high, shape):
        return super().integers(low, high, shape).to(self.target)

    def subset(self, num, size):
        return super().subset(num, size).to(self.target)


def on_device(batch):
    return batch.to(torch.device(DEVICE))


def pair(case, **options):
    """The same agent on the CPU and on the GPU. A large epsilon: Adam's first step is the sign of a gradient else."""
    options = {"adam_eps": 1e-2, "cuda_graphs": False, **options}
    agents = [case.build(device=device, **options) for device in ("cpu", DEVICE)]
    for agent in agents:
        agent.noise = NoiseOfTheHost(agent.device)
    return agents


def plain_and_graphed(case, **options):
    """The same agent on the GPU, without CUDA graphs and with them."""
    options = {"device": DEVICE, "adam_eps": 1e-2, **options}
    return [case.build(cuda_graphs=flag, **options) for flag in (False, True)]


def assert_near(ours, expected, rtol=2e-3, atol=2e-4):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            ours[name].cpu(), value.cpu(), rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


# Updates --------------------------------------------------------------------------------------------------------


@every_case
def test_updates_are_those_of_a_cpu(case):
    ours, theirs = pair(case)
    assert_near(parameters(theirs), parameters(ours), 0, 0)
    for seed in range(4):
        stats = ours.update_networks(case.batch(seed)), theirs.update_networks(on_device(case.batch(seed)))
        assert_near(stats[1], stats[0])
    assert_near(parameters(theirs), parameters(ours))


@every_case
@needs_gpu
def test_an_update_waits_for_nothing(case):
    agent, batches = case.build(device=DEVICE), [on_device(case.batch(seed)) for seed in range(8)]
    for batch in batches[:4]:
        agent.update_networks(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[4:]:
            agent.update_networks(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_name
@needs_gpu
def test_in_bfloat16(case):
    full, half = (case.build(device=DEVICE, adam_eps=1e-2, precision=p) for p in ("float32", "bfloat16"))
    for seed in range(4):
        batch = on_device(case.batch(seed))
        stats = full.update_networks(batch), half.update_networks(batch)
        told = [dict(one) for one in stats]
        if case.plain == "fql":  # divided by the mean |Q| of three rows
            told = [{name: value for name, value in one.items() if name != "actor_loss"} for one in told]
        assert_near(told[1], told[0], 0.1, 0.3)
    assert all(value.isfinite().all() for value in parameters(half).values())


# CUDA graphs ----------------------------------------------------------------------------------------------------


@every_case
@needs_gpu
def test_graphs_make_the_same_updates(case):
    plain, graphed = plain_and_graphed(case)
    for seed in range(16):
        batch = on_device(case.batch(seed))
        stats = plain.update_networks(batch), graphed.update_networks(batch)
        assert_near(stats[1], stats[0], 1e-3, 1e-4)
    kinds = graphed._graphed.graphs
    assert len(kinds) == case.delay
    assert_near(parameters(graphed), parameters(plain), 1e-3, 1e-4)
    torch.testing.assert_close(graphed.noise.generator.get_state(), plain.noise.generator.get_state())
    assert graphed.nonfinite_guard.num_updates == 16
    if case.cls.has_critics:
        assert graphed.critic_optimizer.num_updates == 16
    before = parameters(graphed)
    copied = copy.deepcopy(graphed)
    for seed in range(8):
        copied.update_networks(on_device(case.batch(seed)))
    assert_near(parameters(graphed), before, 0, 0)


@needs_gpu
def test_graphs_of_other_shapes_and_coefficients():
    case = Case("sac")
    plain, graphed = plain_and_graphed(case)
    for seed in range(20):
        for agent in (plain, graphed):
            agent.gamma = 0.9 if seed < 10 else 0.5
            agent.update_networks(on_device(case.batch(seed, [1] * (3 + seed % 2))))
    assert len(graphed._graphed.graphs) == 4
    assert_near(parameters(graphed), parameters(plain), 1e-3, 1e-4)


@needs_gpu
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_bad_update(cuda_graphs, nonfinite):
    case = Case("rsac", "lstm")
    agent = case.build(device=DEVICE, cuda_graphs=cuda_graphs, nonfinite=nonfinite)
    for seed in range(8):
        agent.update_networks(on_device(case.batch(seed)))
    before, batch = parameters(agent), on_device(case.batch(9))
    rewards = torch.where(batch.loss_mask > 0, torch.inf, batch.rewards)
    agent.update_networks(batch._replace(rewards=rewards))
    if nonfinite == "skip":
        agent.nonfinite_guard.synchronize(agent)
    else:
        with pytest.raises(NonFiniteError, match="the batch's rewards"):
            agent.nonfinite_guard.synchronize(agent)
    assert_near(parameters(agent), before, 0, 0)
    assert agent.critic_optimizer.num_updates == 8 + (nonfinite == "raise")


@needs_gpu
@pytest.mark.parametrize("name", ["sac", "td3", "bc"])
def test_graphs_with_schedules(name):
    case = Case(name)
    plain, graphed = plain_and_graphed(case, lr=LinearDecay(1e-2, 1e-3, 12))
    for seed in range(16):
        for agent in (plain, graphed):
            agent.update_networks(on_device(case.batch(seed)))
    assert len(graphed._graphed.graphs) == case.delay
    assert_near(parameters(graphed), parameters(plain), 1e-3, 1e-4)


@needs_gpu
def test_graphs_with_batches_of_the_host():
    case = Case("sac")
    plain, graphed = plain_and_graphed(case)
    for seed in range(8):
        for agent in (plain, graphed):
            agent.update_networks(case.batch(seed))
    assert len(graphed._graphed.graphs) == 1
    assert_near(parameters(graphed), parameters(plain), 1e-3, 1e-4)


@needs_gpu
def test_a_rate_that_is_set_and_a_part_that_is_frozen_between_updates():
    case = Case("sac")
    plain, graphed = plain_and_graphed(case)
    for seed in range(18):
        for agent in (plain, graphed):
            if seed == 6:
                agent.actor_optimizer.groups[0].rate *= 0.1
            if seed == 12:
                agent.actor.requires_grad_(False)
            agent.update_networks(on_device(case.batch(seed)))
    assert len(graphed._graphed.graphs) == 3
    assert_near(parameters(graphed), parameters(plain), 1e-3, 1e-4)


@needs_gpu
def test_graphs_are_recorded_after_all_were_forgotten(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 1)
    case = Case("sac")
    plain, graphed = plain_and_graphed(case)
    for seed in range(40):
        for agent in (plain, graphed):
            agent.gamma = 0.9 if seed < 6 else 0.5
            agent.update_networks(on_device(case.batch(seed)))
    assert len(graphed._graphed.graphs) == 1 and graphed._graphed.warm_up > cuda_graphs.WARM_UP
    assert_near(parameters(graphed), parameters(plain), 1e-3, 1e-4)


class Waiting(SAC):
    """Reads a number of the GPU, which no graph can record."""

    def critic_loss(self, h, batch):
        assert batch.rewards.sum().item() < 1e9
        return super().critic_loss(h, batch)


@needs_gpu
def test_what_cannot_be_recorded():
    agent = Waiting(VECTORS, ACTIONS, cuda_graphs=True, device=DEVICE, hidden_dims=(8,))
    with pytest.raises(UserError, match="an update of Waiting cannot be recorded"):
        for seed in range(8):
            agent.update_networks(on_device(Case("sac").batch(seed)))


@every_name
@needs_gpu
def test_graphs_change_no_bit(case):
    """So a run that stops and goes on has the same weights, though it makes other updates without a graph."""
    plain, graphed = (case.build(device=DEVICE, cuda_graphs=flag) for flag in (False, True))
    for seed in range(12):
        for agent in (plain, graphed):
            agent.update_networks(on_device(case.batch(seed)))
    assert_near(parameters(graphed), parameters(plain), 0, 0)


# Acting and saving ----------------------------------------------------------------------------------------------


@every_case
def test_acting_is_that_of_a_cpu_also_from_a_file(case, tmp_path):
    ours, theirs = pair(case)
    for agent in (ours, theirs):
        agent.update_networks(case.batch())
    expected, actions = act_along(ours, case), act_along(theirs, case)
    np.testing.assert_allclose(actions, expected, rtol=2e-3, atol=2e-3)
    save_actor(theirs, tmp_path / "actor.pt")
    np.testing.assert_allclose(act_along(load_actor(tmp_path / "actor.pt"), case), actions, rtol=2e-3, atol=2e-3)
    assert actions.shape[-1] == ACTION_DIM


@every_name
def test_a_saved_state_goes_on_and_goes_to_a_cpu(case):
    agent, other, moved = (case.build(seed, device=device) for seed, device in enumerate((DEVICE, DEVICE, "cpu")))
    for seed in range(3):
        agent.update_networks(on_device(case.batch(seed)))
    for one in (other, moved):
        for name, part in one.stateful_parts().items():
            part.load_state_dict(copy.deepcopy(agent.stateful_parts()[name].state_dict()))
    assert_near(parameters(moved), parameters(agent), 0, 0)
    for seed in range(3, 6):
        stats = agent.update_networks(on_device(case.batch(seed))), other.update_networks(on_device(case.batch(seed)))
        assert_near(stats[1], stats[0], 1e-4, 1e-5)
        moved.update_networks(case.batch(seed))
    assert_near(parameters(other), parameters(agent), 1e-3, 1e-4)


# Whole runs -----------------------------------------------------------------------------------------------------

# Epochs of 130 steps end in mid-episode, with updates owed and a memory under way.
ODD = ("train.num_steps_per_epoch=130", "train.update_after=110", "train.updates_per_step=0.2")
SEGMENTS = "RecurrentReplayBuffer.segment_len=10"
RUNS = {
    "sac": ("pendulum-v0", ()),
    "sac eager": ("pendulum-v0", ("ActorCritic.cuda_graphs=False",)),
    "td3": ("pendulum-v0", ("ActorCritic.lr=@LinearDecay()",)),
    "rsac": ("pendulum-p-v0", ()),
    "rsac eager": ("pendulum-p-v0", ("ActorCritic.cuda_graphs=False",)),
    "rsac_s": ("pendulum-p-v0", (SEGMENTS,)),
    "rtd3 gru": ("pendulum-p-v0", ("Recurrent.cell=@GRU",)),
    "rtd3 bfloat16": ("pendulum-p-v0", ('ActorCritic.precision="bfloat16"', "Recurrent.cell=@MinGRU")),
    "dqn": ("cartpole-p-v0", ()),
    "rdqn": ("cartpole-p-v0", (SEGMENTS,)),
    "csac": ("pendulum-img-v0", ()),
    "crsac_s": ("pendulum-img-v0", ()),
    "mbpo": ("pendulum-v0", ("DynamicsModel.hidden_dims=(16, 16)",)),
}


def train(results, name, num_epochs):
    """Train to `num_epochs`, from the checkpoint if there is one; the learner."""
    algo, env, bindings = name.split()[0], *RUNS[name]
    loading.load_gin_config("test/template_short.gin", merged(*QUICK, *ODD, *bindings))
    learner, folder = build(env, algo, seed=5, device=DEVICE), RunFolder(results, env, algo, 5)
    if folder.checkpoint.exists():
        assert resume(read_checkpoint(folder.checkpoint), learner) == []
    folder.path.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder, learner, "", num_epochs)
    learner.train(Loggers([]), [checkpoints], num_epochs=num_epochs, num_test_episodes_per_epoch=1)
    return learner


@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_and_goes_on(name, tmp_path):
    whole = train(tmp_path / "whole", name, 2)
    train(tmp_path / "halves", name, 1)
    halves = train(tmp_path / "halves", name, 2)
    assert whole.loop.num_updates == halves.loop.num_updates > 0
    assert whole.loop.step == halves.loop.step == 260
    assert_near(parameters(halves.algorithm), parameters(whole.algorithm), 1e-2, 1e-3)
    if DEVICE == "cuda":
        assert bool(whole.algorithm._graphed and whole.algorithm._graphed.graphs) != ("eager" in name)


@pytest.mark.parametrize("algo", ["bc", "td3_bc", "iql", "cql", "rcql", "bcq", "edac", "fql", "riql", "rebrac"])
def test_learning_from_data(algo):
    draw = np.random.default_rng(0)
    data = offpcc.Dataset.from_arrays(
        observations=draw.normal(size=(400, 3)),
        actions=draw.uniform(-1, 1, (400, 1)),
        rewards=draw.normal(size=400),
        terminations=np.zeros(400, bool),
        truncations=np.arange(1, 401) % 40 == 0,
    )
    learner = offpcc.build("pendulum-v0", algo, dataset=data, seed=5, device=DEVICE)
    learner.train(Loggers([]), num_steps_per_epoch=30, num_epochs=1, num_test_episodes_per_epoch=1)
    assert learner.loop.num_updates == 30
    weights = {name: value for name, value in parameters(learner.algorithm).items() if not name.endswith(".count")}
    assert all(value.isfinite().all() for value in weights.values())
