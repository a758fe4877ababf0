"""A user's algorithm makes updates with random numbers before its run begins."""

import contextlib
import random
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import offpcc
from offpcc.algorithms import SAC
from offpcc.data import PrioritizedReplayBuffer
from offpcc.envs.wrappers import Concatenate
from offpcc.training.trial import try_updates
from offpcc.utils.errors import UserError


class Both(gymnasium.Env):
    """An environment whose observations are a vector and an image, and whose state is in `info`."""

    observation_space = spaces.Dict(
        {"speed": spaces.Box(-np.inf, np.inf, (2,), np.float32), "camera": spaces.Box(0, 255, (36, 36, 1), np.uint8)}
    )
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {"state": np.zeros(3, np.float32)}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {"state": np.zeros(3, np.float32)}


def both():
    return TimeLimit(Both(), 20)


def stacked(env):
    return Concatenate(env, num=3)


def with_loss(learner, loss, function):
    """Give the algorithm of a learner, as a user's class, another loss; its first argument is the usual loss."""
    cls = type(learner.algorithm)
    usual = getattr(cls, loss)
    members = {loss: lambda self, h, batch: function(lambda: usual(self, h, batch), batch), "__module__": "mine"}
    learner.algorithm.__class__ = type("Mine", (cls,), members)
    return learner.algorithm, learner.buffer


@pytest.mark.parametrize("loss", ["critic_loss", "actor_loss"])
@pytest.mark.parametrize(
    ("env", "algo", "options"),
    [
        ("pendulum-v0", "td3", {}),
        ("pendulum-v0", "sac", {"buffer_class": PrioritizedReplayBuffer}),
        ("pendulum-v0", "td3", {"algorithm": {"n_step": 5, "compile": True}}),
        ("pendulum-v0", "mbpo", {}),
        ("pendulum-p-v0", "rsac", {}),
        ("pendulum-p-v0", "rsac_s", {"buffer": {"segment_len": 5}}),
        ("pendulum-v0", "sac", {"make": {"wrappers": [stacked]}}),
        ("pendulum-v0", "sac", {"environments": {"num_envs": 3}}),
        ("cartpole-p-v0", "rdsac", {}),
        (both, "crtd3", {}),
        (both, "csac", {"make": {"state": "info"}, "algorithm": {"critic_inputs": "history+state"}}),
        (both, "ctd3", {"make": {"wrappers": [stacked]}}),
    ],
)
def test_a_fault_in_a_loss_is_found(env, algo, options, loss):
    calls = []

    def fail(usual, batch):
        calls.append(batch)
        if len(calls) == 2 or (loss == "actor_loss" and "td3" in algo):  # TD3's actor learns every second time
            raise TypeError("of my own")
        return usual()

    small = {"hidden_dims": (8,), **({"hidden_dim": 8} if "r" in algo.removesuffix("_s")[:2] else {})}
    learner = offpcc.build(env, algo, **{**options, "algorithm": small | options.get("algorithm", {})})
    with pytest.raises(UserError, match=r"Mine cannot learn: .* TypeError: of my own \(.*test_trial.py:\d+\)"):
        try_updates(*with_loss(learner, loss, fail))
    assert len(calls[0].rewards) == learner.buffer.batch_size


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AssertionError("rewards are negative here"), "rewards are negative here"),
        (ValueError("of my own"), "of my own"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "mat1 and mat2"),
        (IndexError("Target 3 is out of bounds."), "Target 3"),
        (MemoryError(), None),
        (ZeroDivisionError(), None),
    ],
)
def test_a_fault_that_other_numbers_may_not_have_is_a_warning(error, words):
    def fail(usual, batch):
        raise error

    learner = with_loss(offpcc.build("pendulum-v0", "td3"), "critic_loss", fail)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try_updates(*learner)
    assert [words in str(one.message) and "test_trial.py:" in str(one.message) for one in told] == [True] * bool(words)


def test_algorithms_of_offpcc_are_not_tried(monkeypatch):
    learner = offpcc.build("pendulum-v0", "td3")
    monkeypatch.setattr(type(learner.algorithm), "critic_loss", None)
    try_updates(learner.algorithm, learner.buffer)


def test_what_cannot_be_copied_is_not_tried():
    learner = offpcc.build("pendulum-v0", "td3")
    learner.algorithm.lines = (line for line in "ab")  # generators cannot be copied
    try_updates(*with_loss(learner, "critic_loss", None))


class Sets(offpcc.Callback):
    """A callback that gives the algorithm what its loss reads."""

    def __init__(self, method):
        setattr(self, method, lambda run: setattr(run.algorithm, "coef", 1.0))


@offpcc.configurable
class Reading(SAC):
    """An algorithm that reads an attribute which somebody else sets; it counts its updates."""

    updates = 0

    def inner_update(self, batch):
        Reading.updates += 1
        np.random.random()
        random.random()
        return {**super().inner_update(batch), "q": torch.tensor(float(self.coef))}


SHORT = {"num_epochs": 1, "num_steps_per_epoch": 60, "update_after": 30, "num_test_episodes_per_epoch": 1}
TINY = {"hidden_dims": (8,), "fused": False}


def test_a_run_begins_with_a_trial():
    learner = offpcc.build("pendulum-v0", Reading, algorithm=TINY)
    with pytest.raises(UserError, match=r"Reading cannot learn: .* no attribute 'coef'"):
        learner.train(**SHORT)
    assert learner.loop.step == 0


@pytest.mark.parametrize("method", ["on_start", "before_updates"])
def test_what_callbacks_set_is_no_fault(method):
    learner = offpcc.build("pendulum-v0", Reading, algorithm=TINY)
    context = pytest.warns(match="Reading may be unable") if method == "before_updates" else contextlib.nullcontext()
    with context:
        learner.train(callbacks=[Sets(method)], **SHORT)
    assert learner.loop.num_updates == 30


@pytest.mark.parametrize(("low", "high"), [(270, 370), (0, np.inf), (-np.inf, np.inf), (-3, -2), (-np.inf, -5)])
def test_any_bounds_of_observations_are_filled(low, high):
    class Hot(Both):
        observation_space = spaces.Box(low, high, (2,), np.float32)

    calls = []

    def note(usual, batch):
        calls.append(batch.observations)
        return usual()

    learner = offpcc.build(lambda: TimeLimit(Hot(), 20), "td3", algorithm={"hidden_dims": (8,)})
    try_updates(*with_loss(learner, "critic_loss", note))
    assert calls and calls[0].isfinite().all() and len(calls[0].unique()) > 10


def test_a_trial_leaves_no_trace():
    def numbers(cls):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        learner = offpcc.build("pendulum-v0", cls, seed=1, algorithm=TINY)
        learner.algorithm.coef = 1.0
        try_updates(learner.algorithm, learner.buffer)
        assert len(learner.buffer) == 0
        drawn = [torch.rand(3), torch.tensor([np.random.random(), random.random()])]
        learner.train(**SHORT)
        return [*drawn, *(parameter.detach() for parameter in learner.algorithm.actor.parameters())]

    Reading.updates = 0
    for mine, ours in zip(numbers(Reading), numbers(SAC), strict=True):
        assert torch.equal(mine, ours)
    assert Reading.updates == 2 + 2 + 30
