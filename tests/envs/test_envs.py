"""The table, and what is true of every environment in it."""

import json
import os
import pickle
import subprocess
import sys
from contextlib import ExitStack, closing
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Discrete
from gymnasium.utils.env_checker import check_env

import offpcc.envs
from offpcc.envs import ENVIRONMENTS, missing_package, rendering
from offpcc.envs.make import make
from offpcc.utils.spaces import action_size

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
    *(
        f"dmc-{task}-{suffix}-v0"
        for task in ("cartpole-balance", "walker-walk")
        for suffix in ("img", "mdp-img-concat3")
    ),
    *(
        f"{body}-{simulator}{suffix}-v0"
        for body in ("hopper", "walker2d", "halfcheetah", "ant")
        for simulator in ("bullet", "mujoco")
        for suffix in ("", "-p", "-v")
    ),
    "halfcheetah-p-v0",
    "ant-p-v0",
    "reacher-pomdp-v0",
    "reacher-mdp-v0",
    "water-maze-simple-pomdp-v0",
    "water-maze-simple-mdp-v0",
    "water-maze-simple-pomdp-concat10-v0",
    "bumps-normal-test-v0",
    *(f"corridor-{length}-v0" for length in (10, 30, 100, 300, 1000)),
}

MAY_END_EARLY = ("cartpole", "hopper", "walker2d", "ant", "bumps", "corridor")
NEEDS_OPENGL = ("dm-control", "mujoco")
OTHERS = range(4, 34)  # nearly always the first will do; in the water maze the same walk mostly looks the same


@pytest.fixture(params=ENVIRONMENTS, ids=lambda row: row.name, scope="module")
def row(request):
    if missing_package(request.param.name):
        pytest.skip(f"needs {request.param.package}")
    if is_slow_image(request.param) and rendering.backend() == "none":
        pytest.skip("no OpenGL on this machine")
    return request.param


@pytest.fixture(scope="module")
def opened(row):
    """Makes the row's environment by a function; all are closed after the row's last test."""
    with ExitStack() as stack:
        yield lambda function, **kwargs: stack.enter_context(closing(function(row.name, **kwargs)))


@pytest.fixture(scope="module")
def bare(opened):
    """The row's environment as Gymnasium makes it."""
    return opened(gymnasium.make)


@pytest.fixture(scope="module")
def shared(opened):
    """Two environments as agents are given them, which tests share: each begins with a reset."""
    return [opened(make, scale_actions=True) for _ in range(2)]


def is_slow_image(row):
    return len(row.observation_shape) == 3 and row.package == "dm-control"


def rollout(env, num_steps, seed=None, actions_seed=0):
    """Observations (T + 1, ...) and rewards (T,) under random actions, until `num_steps` or the episode's end."""
    generator = np.random.default_rng(actions_seed)
    observations, rewards = [env.reset(seed=seed)[0]], []
    for _ in range(num_steps):
        action = generator.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        action = int(action > 0) if isinstance(env.action_space, Discrete) else action
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            break
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
    offpcc.envs._register()
    assert all(gymnasium.registry[name] is spec for name, spec in before.items())
    assert len(gymnasium.registry) == len(before)
    assert not recwarn.list


def test_registering_imports_no_simulator():
    code = (
        "import offpcc.envs, sys; "
        "simulators = {'dm_control', 'mujoco', 'pybullet', 'pybullet_envs_gymnasium', 'pygame'}; "
        "print(*(simulators | {'offpcc.envs.wrappers'}) & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [
        ("dm_control", "dmc-cartpole-balance-v0", "dm-control"),
        ("dm_control", "dmc-walker-walk-img-v0", "dm-control"),
        ("mujoco", "hopper-mujoco-p-v0", "mujoco"),
        ("mujoco", "reacher-pomdp-v0", "mujoco"),
        ("pybullet_envs_gymnasium", "ant-bullet-v-v0", "pybullet-envs-gymnasium"),
        ("pybullet_envs_gymnasium", "halfcheetah-p-v0", "pybullet-envs-gymnasium"),
        ("pybullet", "bumps-normal-test-v0", "pybullet"),
    ],
)
def test_a_missing_simulator_is_named(monkeypatch, module, name, package):
    monkeypatch.setitem(sys.modules, module, None)
    assert missing_package(name) == package
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match=f"package {package}, .*`pip install {package}`"):
        gymnasium.make(name)


def test_nothing_is_missing_for_what_needs_no_simulator():
    assert missing_package("pendulum-v0") is None
    assert missing_package("CartPole-v1") is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasiums_checker_passes(bare):
    check_env(bare, skip_render_check=True)


def test_the_table_tells_the_truth(row, bare):
    assert bare.observation_space.shape == row.observation_shape
    assert bare.action_space.shape == (() if row.is_discrete else (row.action_size,))
    assert action_size(bare.action_space) == row.action_size
    assert bare.spec.max_episode_steps == row.max_episode_steps


@pytest.mark.slow
def test_spaces_and_episodes_hold_over_random_steps(row, opened):
    check_random_steps(row, opened(make, scale_actions=True), num_steps=max(row.max_episode_steps, 500))


@pytest.mark.slow
@pytest.mark.learning
def test_spaces_and_episodes_hold_over_many_random_steps(row, opened):
    check_random_steps(row, opened(make, scale_actions=True), num_steps=10_000)


def check_random_steps(row, env, num_steps):
    """The observation stays in its space, and the time limit, or a fall where one can fall, ends an episode."""
    env.action_space.seed(0)
    dtype = np.uint8 if len(row.observation_shape) == 3 else np.float32
    may_end_early = row.name.startswith(MAY_END_EARLY)
    observation, _ = env.reset(seed=0)
    length = 0
    for _ in range(num_steps):
        assert observation.dtype == dtype
        assert observation in env.observation_space
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        length += 1
        assert np.isfinite(reward)
        assert may_end_early or not terminated
        assert truncated == (length == row.max_episode_steps)
        if terminated or truncated:
            assert observation in env.observation_space
            observation, _ = env.reset()
            length = 0


def test_a_seed_fixes_the_episode(shared, opened):
    first, second = opened(make, scale_actions=True), shared[1]  # one that has never been reset, and one that may have
    observations, rewards = rollout(first, 20, seed=3)
    assert any(not np.array_equal(observations, rollout(second, 20, seed=seed)[0]) for seed in OTHERS)
    for env in (second, first):  # after an episode of another seed, and after its own
        again, rewards_again = rollout(env, 20, seed=3)
        np.testing.assert_array_equal(observations, again)
        np.testing.assert_array_equal(rewards, rewards_again)


def test_the_generators_state_fixes_the_episode(shared, opened):
    """Resuming a run restores `np_random` in a new environment and resets without a seed."""
    env = shared[0]
    rollout(env, 5, seed=3)
    state = env.unwrapped.np_random.bit_generator.state
    observations, rewards = rollout(env, 20)
    for is_used in (True, False):
        resumed = shared[1] if is_used else opened(make, scale_actions=True)
        if is_used:
            rollout(resumed, 7, seed=8)
        resumed.unwrapped.np_random.bit_generator.state = state
        again, rewards_again = rollout(resumed, 20)
        np.testing.assert_array_equal(observations, again)
        np.testing.assert_array_equal(rewards, rewards_again)
    assert any(not np.array_equal(observations, rollout(resumed, 20)[0]) for _ in OTHERS)


def test_frames_change_as_it_moves(row, opened):
    if row.package in NEEDS_OPENGL and rendering.backend() == "none":
        pytest.skip("no OpenGL on this machine")
    env = opened(make, scale_actions=True, render_mode="rgb_array")
    env.reset(seed=0)
    frames = [env.render()]
    for _ in range(2):
        for _ in range(3):
            env.step(np.ones(env.action_space.shape, np.float32))
        frames.append(env.render())
    assert all(frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3 for frame in frames)
    assert all((before != after).any() for before, after in pairwise(frames))


@pytest.mark.filterwarnings("ignore:.*HumanRendering:UserWarning")
@pytest.mark.parametrize("name", ["water-maze-simple-pomdp-v0", "bumps-normal-test-v0"])
def test_a_window_shows_the_frames(monkeypatch, name):
    pytest.importorskip("pygame")
    if missing_package(name):
        pytest.skip(f"needs {missing_package(name)}")
    monkeypatch.setitem(os.environ, "SDL_VIDEODRIVER", "dummy")
    with closing(gymnasium.make(name, render_mode="human")) as env:
        env.reset(seed=0)
        env.step(np.zeros(2, np.float32))


@pytest.mark.parametrize("row", [row for row in ENVIRONMENTS if row.package is None], ids=lambda row: row.name)
def test_pickling_keeps_the_episode(row):
    """Where no simulator holds a part of the state in memory of its own."""
    env = make(row.name)
    rollout(env, 5, seed=3)
    copy = pickle.loads(pickle.dumps(env))
    for _ in range(5):
        action = 1 if row.is_discrete else np.full(env.action_space.shape, 0.3, np.float32)
        observation, reward, *_ = env.step(action)
        same_observation, same_reward, *_ = copy.step(action)
        np.testing.assert_array_equal(observation, same_observation)
        assert reward == same_reward
    np.testing.assert_array_equal(env.reset()[0], copy.reset()[0])


def test_the_spec_rebuilds_the_environment(shared):
    env = shared[0]
    spec = EnvSpec.from_json(env.spec.to_json())
    with closing(gymnasium.make(spec)) as rebuilt:
        assert str(rebuilt) == str(env)
        assert json.loads(rebuilt.spec.to_json()) == json.loads(env.spec.to_json())
        np.testing.assert_array_equal(rollout(rebuilt, 5, seed=0)[0], rollout(env, 5, seed=0)[0])
