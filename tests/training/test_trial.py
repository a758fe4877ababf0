"""A user's algorithm makes updates with random numbers before its run begins."""

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


@pytest.mark.parametrize("error", [AssertionError("rewards are never negative"), ValueError(), MemoryError()])
def test_a_fault_that_other_numbers_may_not_have_is_left_to_the_run(error):
    calls = []

    def fail(usual, batch):
        calls.append(batch)
        raise error

    try_updates(*with_loss(offpcc.build("pendulum-v0", "td3"), "critic_loss", fail))
    assert calls


def test_algorithms_of_offpcc_are_not_tried(monkeypatch):
    learner = offpcc.build("pendulum-v0", "td3")
    monkeypatch.setattr(type(learner.algorithm), "critic_loss", None)
    try_updates(learner.algorithm, learner.buffer)


def test_what_cannot_be_copied_is_not_tried():
    learner = offpcc.build("pendulum-v0", "td3")
    learner.algorithm.lines = (line for line in "ab")  # generators cannot be copied
    try_updates(*with_loss(learner, "critic_loss", None))


def test_build_tries_and_leaves_no_trace():
    @offpcc.configurable
    class Tried(SAC):
        updates = 0

        def inner_update(self, batch):
            Tried.updates += 1
            return super().inner_update(batch)

    def numbers(cls):
        torch.manual_seed(0)
        learner = offpcc.build("pendulum-v0", cls, seed=1, algorithm={"hidden_dims": (8,), "fused": False})
        assert len(learner.buffer) == 0
        drawn = torch.rand(3)
        learner.train(num_epochs=1, num_steps_per_epoch=60, update_after=30, num_test_episodes_per_epoch=1)
        return [drawn, *(parameter.detach() for parameter in learner.algorithm.actor.parameters())]

    for mine, ours in zip(numbers(Tried), numbers(SAC), strict=True):
        assert torch.equal(mine, ours)
    assert Tried.updates == 2 + 30
