"""The reacher: what of the goal is shown when, and what a step is worth."""

import warnings

import gymnasium
import numpy as np
import pytest

import offpcc.envs  # noqa: F401

pytest.importorskip("mujoco")

GOAL = [4, 5, 8, 9, 10]


def episode(name, seed=1, num_steps=50):
    env = gymnasium.make(name)
    env.action_space.seed(0)
    observations = [env.reset(seed=seed)[0]]
    for _ in range(num_steps):
        observations.append(env.step(env.action_space.sample())[0])
    return np.array(observations)


def test_the_goal_is_shown_once():
    whole, part = episode("reacher-mdp-v0"), episode("reacher-pomdp-v0")
    np.testing.assert_array_equal(part[0], whole[0])
    assert (part[0, [4, 5, 8, 9]] != 0).all()
    assert not part[1:, GOAL].any()
    others = np.setdiff1d(np.arange(13), GOAL)
    np.testing.assert_array_equal(part[:, others], whole[:, others])


def test_the_fully_observed_twin_shows_it_always():
    whole = episode("reacher-mdp-v0")
    np.testing.assert_array_equal(whole[:, 4:6], whole[:1, 4:6].repeat(51, axis=0))
    assert (whole[:, [4, 5, 8, 9]] != 0).all()
    assert not whole[:, 10:].any()


def test_every_episode_shows_a_goal_of_its_own():
    env = gymnasium.make("reacher-pomdp-v0")
    goals = [tuple(env.reset(seed=0)[0][4:6])]
    for _ in range(3):
        env.step(env.action_space.sample())
        goals.append(tuple(env.reset()[0][4:6]))
    assert len(set(goals)) == 4
    assert all(0 < np.hypot(*goal) < 0.2 for goal in goals)


def test_the_numbers_are_the_simulations():
    env = gymnasium.make("reacher-mdp-v0")
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    data = env.unwrapped.data
    for _ in range(20):
        apart = data.body("fingertip").xpos - data.body("target").xpos
        expected = np.concatenate([np.cos(data.qpos[:2]), np.sin(data.qpos[:2]), data.qpos[2:], data.qvel[:2], apart])
        np.testing.assert_allclose(observation[:11], expected, atol=1e-6)
        np.testing.assert_array_equal(observation[11:], [0, 0])
        observation, *_ = env.step(env.action_space.sample())


@pytest.mark.parametrize("name", ["reacher-mdp-v0", "reacher-pomdp-v0"])
def test_the_reward_is_of_the_distance_after_the_step(name):
    env = gymnasium.make(name)
    env.action_space.seed(0)
    env.reset(seed=0)
    data = env.unwrapped.data
    for _ in range(20):
        action = env.action_space.sample()
        _, reward, *_ = env.step(action)
        distance = np.linalg.norm(data.body("fingertip").xpos - data.body("target").xpos)
        assert reward == pytest.approx(-distance - np.sum(np.square(action)), rel=1e-6)


def test_only_the_time_limit_ends_it():
    env = gymnasium.make("reacher-pomdp-v0")
    env.reset(seed=0)
    ends = [env.step(np.ones(2, np.float32))[2:4] for _ in range(50)]
    assert ends == [(False, False)] * 49 + [(False, True)]


def test_nothing_is_deprecated():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium.make("reacher-pomdp-v0").reset(seed=0)
