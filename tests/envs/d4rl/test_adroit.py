"""Rewards and ends of Adroit's hands are those that D4RL's data was recorded with."""

import functools
import os
from pathlib import Path

import numpy as np
import pytest
from made_tasks import make_task

from offpcc.data import Dataset
from offpcc.data.datasets.load import load_dataset
from offpcc.data.offline import read
from offpcc.envs.d4rl import catalog
from offpcc.envs.d4rl.make import _door
from offpcc.envs.make import make
from offpcc.envs.wrapper_chain import observation_wrappers

SHARED = Path(os.environ.get("OFFPCC_SHARED_DATA", "no data"))
PALM = {  # from the palm to the thing
    "hammer": lambda shown: shown[33:36] - shown[36:39],
    "door": lambda shown: shown[35:38],
    "relocate": lambda shown: shown[30:33],
}
STATES = {  # positions that bring bonuses
    "hammer": ({26: 0.09}, {26: 0.08}, {28: 0.3}),
    "door": ({28: 0.3}, {28: 1.1}, {28: 1.4}),
    "relocate": ({32: 0.1}, {32: 0.3}),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")


@pytest.fixture
def made(request):
    return functools.partial(make_task, request)


@pytest.mark.parametrize("hand", ["pen", *PALM])
def test_recorded_episodes_are_not_played_through_a_hand(made, hand):
    """They lack its simulator, from which its rewards are computed."""
    env = make(f"{hand}-human-v1", scale_actions=True)
    size, num = env.observation_space.shape[0], 5
    data = Dataset.from_arrays(
        observations=np.zeros((num, size), np.float32),
        actions=np.zeros((num, env.action_space.shape[0]), np.float32),
        rewards=np.ones(num),
        terminations=np.zeros(num, bool),
        truncations=np.arange(num) == num - 1,
    )
    rows = read(data, env).rows
    assert rows.observations.shape[1:] == (size,) and not observation_wrappers(env)[1:]
    env.close()


@pytest.mark.parametrize("hand", PALM)
def test_rewards_of_hands_fall_with_the_distance_of_the_palm(made, hand):
    env, package = made(f"{hand}-human-v1"), made(catalog.task(f"{hand}-human-v1"))
    rewards = set()
    for changes in ({}, *STATES[hand]):
        for one in (env, package):
            one.reset(seed=0)
            positions = one.unwrapped.init_qpos.copy()
            positions[[*changes]] = [*changes.values()]
            one.unwrapped.set_state(positions, one.unwrapped.init_qvel)
        action = env.action_space.sample()
        shown, reward, *_ = env.step(action)
        theirs = package.step(action)[1]
        differences = theirs - reward - np.array([0.2, 0.0]) * np.linalg.norm(PALM[hand](shown))
        assert np.abs(differences).min() < 1e-9  # with the package's own sign, or the one it had before 1.2.1
        rewards.add(round(reward, 1))
    assert len(rewards) > 1


def test_a_goal_that_the_ball_is_at_is_rewarded(made):
    env = made("relocate-human-v1")
    env.reset(seed=0)
    simulated = env.unwrapped
    simulated.model.site("target").pos[:] = simulated.data.body("Object").xpos
    simulated.set_state(simulated.init_qpos, simulated.init_qvel)
    assert 29.0 < env.step(np.zeros(30, np.float32))[1] < 30.0


def test_rewards_of_recorded_doors_lack_the_cost_of_speed_alone():
    file = SHARED / "door-human-dapg.hdf5"
    if not file.exists():
        pytest.skip(f"needs {file.name}")
    data = load_dataset(file)
    inside = np.setdiff1d(np.arange(data.num_steps), data.stops - 1)[::10]
    still = type("Data", (), {"qvel": np.zeros(30)})
    computed = [_door(data.next_observations[step].astype(np.float64), still) for step in inside]
    costs = np.array(computed) - data.rewards[inside]
    assert costs.min() > -1e-3 and np.median(costs) < 0.01


def test_a_dropped_pen_ends_its_episode(made):
    env = made("pen-human-v1")
    env.reset(seed=0)
    assert not env.step(np.zeros(24, np.float32))[2]
    positions = env.unwrapped.init_qpos.copy()
    positions[24] = 0.3
    env.unwrapped.set_state(positions, env.unwrapped.init_qvel)
    observation, _, terminated, *_ = env.step(np.zeros(24, np.float32))
    assert terminated and observation[26] < 0.075
