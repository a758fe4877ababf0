"""From recorded data with good and bad actions: imitation takes their mean, the others the good ones."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import offpcc
from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.variants import TABLE
from offpcc.core import Batch, Step
from offpcc.envs.wrappers import ReturnToGo
from offpcc.networks import Recurrent
from offpcc.networks.cells import GPT
from offpcc.utils.errors import UserError

SPACES = Box(-np.inf, np.inf, (2,), np.float32), Box(-1, 1, (1,), np.float32)
OPTIONS = {
    "bc": {},
    "td3_bc": {"normalize_observations": False},
    "iql": {"beta": 10.0},
    "cql": {"conservative_weight": 0.5, "alpha": 0.1, "num_samples": 5},
    "bcq": {"vae_hidden_dims": (64,), "phi": 0.2},
    "awac": {"temperature": 0.1},
    "crr": {"weight_type": "binary"},
    "sac_n": {"alpha": 0.1},
    "edac": {"alpha": 0.1},
}


def recorded(draw, num_steps, size):
    """Episodes with a sign at their first step and actions near +/- 0.8; the last action's sign is to be the same.

    Four in ten last actions are right.
    """
    sign = 2.0 * torch.randint(0, 2, (size, 1), generator=draw) - 1.0
    right = (torch.rand(size, 1, generator=draw) < 0.4).float()
    observations = torch.zeros(size, num_steps + 1, 2)
    rewards, terminations = torch.zeros(2, size, num_steps, 1)
    observations[:, 0, 0] = sign[:, 0]
    observations[:, -2, 1] = 1.0
    actions = 2.0 * torch.rand(size, num_steps, 1, generator=draw) - 1.0
    actions[:, -1] = 0.8 * sign * (2.0 * right - 1.0) + 0.05 * torch.randn(size, 1, generator=draw)
    rewards[:, -1], terminations[:, -1] = right, 1.0
    none = torch.zeros(size, 1)
    ones = torch.ones(size, num_steps + 1, 1)
    return Batch(observations, actions, rewards, terminations, ones, ones[:, 1:], none, none)


def learned(name, num_steps, num_updates, **options):
    """The last actions after the signs 1 and -1."""
    draw = torch.Generator().manual_seed(0)
    plain = TABLE[name].algorithm
    agent = ALGORITHMS[name](*SPACES, seed=1, lr=3e-3, hidden_dims=(32, 32), **OPTIONS[plain], **options)
    for _ in range(num_updates):
        agent.update_networks(recorded(draw, num_steps, 64))
    memory, action = None, np.zeros((2, 1))
    for t in range(num_steps):
        observation = np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32) * (t == 0)
        observation[:, 1] = t == num_steps - 1
        step = Step(observation, action, np.zeros((2, 1)), np.full(2, t == 0))
        action, memory = agent.act(step, memory, deterministic=True)
    return action[:, 0] * [1.0, -1.0]


def test_imitation_takes_the_mean_of_what_was_done():
    np.testing.assert_allclose(learned("bc", 1, 300), -0.16, atol=0.1)


@pytest.mark.parametrize("name", ["td3_bc", "iql", "cql", "bcq", "awac", "crr", "sac_n", "edac"])
def test_the_better_of_recorded_actions_are_taken(name):
    action = learned(name, 1, 400, polyak=0.9)
    assert (action > 0.4).all(), action


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["riql", slow("riql_s"), slow("rtd3_bc"), slow("rcql"), slow("rbcq"), slow("rbcq_s"), slow("rawac")]
)
def test_a_memory_makes_the_difference_where_the_cue_is_earlier(name):
    memory = functools.partial(Recurrent, hidden_dim=16, num_layers=1, cell="gru")
    place = "shared_encoder" if name.endswith("_s") else "encoder"
    action = learned(name, 3, 400, polyak=0.9, **{place: memory})
    assert (action > 0.4).all(), action


def test_without_memory_there_is_no_difference():
    first, second = learned("iql", 3, 200, polyak=0.9)
    assert first == -second


def test_imitation_with_memory_makes_none():
    memory = functools.partial(Recurrent, hidden_dim=16, num_layers=1, cell="gru")
    assert np.abs(learned("rbc", 3, 300, encoder=memory)).max() < 0.3


# Conditioned on the return -----------------------------------------------------------------------------------------


class Lever(gym.Env):
    """Three steps, each with the reward 1 for an action above 0, and else -1. The observation says nothing."""

    observation_space = Box(-1, 1, (1,), np.float32)
    is_discrete = False

    def __init__(self):
        self.action_space = Discrete(2) if self.is_discrete else Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 2.0 * bool(np.sum(action) > 0) - 1.0, self.t == 3, False, {}


class Switch(Lever):
    is_discrete = True


def asking(target):
    return functools.partial(ReturnToGo, target_return=target)


@pytest.mark.parametrize(
    ("algorithm", "task", "options"),
    [
        (offpcc.BC, Lever, {}),
        (offpcc.RBC, Lever, {"cell": functools.partial(GPT, context_length=2), "hidden_dim": 16, "num_layers": 1}),
        (offpcc.DiscreteBC, Switch, {}),
    ],
)
def test_imitation_reaches_the_return_that_it_is_asked_for(algorithm, task, options):
    good = np.arange(120) // 3 % 2 == 0  # every second episode; without a return, both look the same
    data = offpcc.Dataset.from_arrays(
        observations=np.zeros((120, 1), np.float32),
        actions=good.astype(np.int64) if task.is_discrete else np.where(good, 0.8, -0.8)[:, None],
        rewards=np.where(good, 1.0, -1.0),
        terminations=np.arange(120) % 3 == 2,
        truncations=np.zeros(120, bool),
    )
    small = {"hidden_dims": (16,), "lr": 1e-2, "buffer": {"batch_size": 32}, "seed": 1, **options}
    learner = algorithm(task, dataset=data, make={"wrappers": [asking(3.0)]}, **small)
    agent = learner.train(num_epochs=1, num_steps_per_epoch=200, num_test_episodes_per_epoch=0)
    for target in (3.0, -3.0):
        with contextlib.closing(offpcc.make(task, wrappers=[asking(target)])) as env:
            assert list(offpcc.evaluate(agent, env, 2).returns) == [target, target]


def test_the_value_of_an_agent_that_is_asked_for_a_return_is_not_in_the_data():
    data = offpcc.collect(Lever, None, 6)
    agent = offpcc.BC(Lever, dataset=data, make={"wrappers": [asking(3.0)]}, hidden_dims=(4,)).algorithm
    offpcc.configure(None, "make.wrappers = [@ReturnToGo]", "ReturnToGo.target_return = 3.0")
    with pytest.raises(
        UserError, match="cannot value an agent that is asked for a return: in recorded data, ReturnToGo"
    ):
        offpcc.evaluate_from_data(agent, data, Lever, num_updates=1)
