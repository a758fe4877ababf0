"""The table, and what is true of every environment in it."""

import json
import pickle
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import offpcc.domains
from offpcc.domains import ENVIRONMENTS, missing_package
from offpcc.domains.making import make

NAMES = {
    "pendulum-v0",
    "pendulum-p-v0",
    "pendulum-v-v0",
    "pendulum-va-v0",
    "pendulum-p-concat5-v0",
    "pendulum-v-concat10-v0",
    "pendulum-va-concat10-v0",
    "pendulum-img-v0",
    *(
        f"dmc-cartpole-{task}{suffix}-v0"
        for task in ("balance", "swingup")
        for suffix in ("", "-p", "-va", "-p-concat5", "-va-concat10")
    ),
}


@pytest.fixture(params=ENVIRONMENTS, ids=lambda row: row.name)
def row(request):
    if missing_package(request.param.name):
        pytest.skip(f"needs {request.param.package}")
    return request.param


def rollout(env, num_steps, seed=None, actions_seed=0):
    """Observations (num_steps + 1, ...) and rewards (num_steps,) under random actions, within one episode."""
    generator = np.random.default_rng(actions_seed)
    observations, rewards = [env.reset(seed=seed)[0]], []
    for _ in range(num_steps):
        action = generator.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        observation, reward, *_ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
    return np.array(observations), np.array(rewards)


def test_the_table_holds_these_names():
    assert {row.name for row in ENVIRONMENTS} >= NAMES
    assert len({row.name for row in ENVIRONMENTS}) == len(ENVIRONMENTS)


def test_every_row_is_registered():
    for row in ENVIRONMENTS:
        assert gymnasium.spec(row.name).max_episode_steps == row.max_episode_steps
        assert row.hidden and row.family


def test_registering_twice_changes_nothing(recwarn):
    before = dict(gymnasium.registry)
    offpcc.domains._register()
    assert all(gymnasium.registry[name] is spec for name, spec in before.items())
    assert len(gymnasium.registry) == len(before)
    assert not recwarn.list


def test_registering_imports_no_simulator():
    code = (
        "import offpcc.domains, sys; "
        "print(*{'dm_control', 'mujoco', 'pygame', 'offpcc.domains.wrappers'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_missing_package(monkeypatch):
    assert missing_package("pendulum-v0") is None
    assert missing_package("CartPole-v1") is None
    monkeypatch.setitem(sys.modules, "dm_control", None)
    assert missing_package("dmc-cartpole-balance-v0") == "dm-control"
    assert missing_package("pendulum-v0") is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasiums_checker_passes(row):
    check_env(gymnasium.make(row.name), skip_render_check=True)


def test_the_table_tells_the_truth(row):
    env = gymnasium.make(row.name)
    assert env.observation_space.shape == row.observation_shape
    assert env.action_space.shape == (row.action_size,)
    assert env.spec.max_episode_steps == row.max_episode_steps


def test_spaces_and_episodes_hold_over_random_steps(row):
    check_random_steps(row, num_steps=2_000)


@pytest.mark.slow
def test_spaces_and_episodes_hold_over_many_random_steps(row):
    check_random_steps(row, num_steps=10_000)


def check_random_steps(row, num_steps):
    """The observation stays in its space, and the time limit alone, exactly, ends an episode."""
    env = make(row.name)
    env.action_space.seed(0)
    dtype = np.uint8 if len(row.observation_shape) == 3 else np.float32
    observation, _ = env.reset(seed=0)
    length = 0
    for _ in range(num_steps):
        assert observation.dtype == dtype
        assert observation in env.observation_space
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        length += 1
        assert np.isfinite(reward)
        assert not terminated
        assert truncated == (length == row.max_episode_steps)
        if truncated:
            assert observation in env.observation_space
            observation, _ = env.reset()
            length = 0


def test_a_seed_fixes_the_episode(row):
    first, second = make(row.name), make(row.name)
    observations, rewards = rollout(first, 20, seed=3)
    again, rewards_again = rollout(second, 20, seed=3)
    np.testing.assert_array_equal(observations, again)
    np.testing.assert_array_equal(rewards, rewards_again)
    other, _ = rollout(second, 20, seed=4)
    assert not np.array_equal(observations, other)


def test_the_generators_state_fixes_the_episode(row):
    """Resuming a run restores `np_random` in a new environment and resets without a seed."""
    env = make(row.name)
    rollout(env, 5, seed=3)
    state = env.unwrapped.np_random.bit_generator.state
    observations, rewards = rollout(env, 20)
    resumed = make(row.name)
    rollout(resumed, 7, seed=8)
    resumed.unwrapped.np_random.bit_generator.state = state
    again, rewards_again = rollout(resumed, 20)
    np.testing.assert_array_equal(observations, again)
    np.testing.assert_array_equal(rewards, rewards_again)
    third, _ = rollout(resumed, 20)
    assert not np.array_equal(observations, third)


def test_pickling_keeps_the_episode(row):
    env = make(row.name)
    rollout(env, 5, seed=3)
    copy = pickle.loads(pickle.dumps(env))
    for _ in range(5):
        action = np.full(env.action_space.shape, 0.3, np.float32)
        observation, reward, *_ = env.step(action)
        same_observation, same_reward, *_ = copy.step(action)
        np.testing.assert_array_equal(observation, same_observation)
        assert reward == same_reward
    np.testing.assert_array_equal(env.reset()[0], copy.reset()[0])


def test_the_spec_rebuilds_the_environment(row):
    env = make(row.name)
    spec = EnvSpec.from_json(env.spec.to_json())
    rebuilt = gymnasium.make(spec)
    assert str(rebuilt) == str(env)
    assert json.loads(rebuilt.spec.to_json()) == json.loads(env.spec.to_json())
    np.testing.assert_array_equal(rollout(rebuilt, 5, seed=0)[0], rollout(env, 5, seed=0)[0])
