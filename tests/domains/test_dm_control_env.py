"""DM Control's tasks: rewards, ends, actions, pictures, and the cartpoles' observations."""

import os
import sys
from itertools import pairwise

import gymnasium
import numpy as np
import pytest

import offpcc.domains  # noqa: F401
from offpcc.domains.dm_control_env import DMControl

pytest.importorskip("dm_control")


def episode(name, num_steps=100, **kwargs):
    """Observations (num_steps + 1, n) of one episode under smooth actions, the same for all twins."""
    env = gymnasium.make(name, **kwargs)
    observations = [env.reset(seed=1)[0]]
    for t in range(num_steps):
        observations.append(env.step(np.array([np.sin(t / 5)], dtype=np.float32))[0])
    return np.array(observations)


@pytest.mark.parametrize("task", ["balance", "swingup"])
def test_the_twins_show_their_part_of_the_whole(task):
    whole = episode(f"dmc-cartpole-{task}-v0")
    np.testing.assert_array_equal(episode(f"dmc-cartpole-{task}-p-v0"), whole[:, :3])
    np.testing.assert_array_equal(episode(f"dmc-cartpole-{task}-va-v0")[:, :2], whole[:, 3:])


@pytest.mark.parametrize("task", ["balance", "swingup"])
def test_va_shows_the_velocities_that_p_hides(task):
    seconds_per_step = 0.01  # without the repeat, so that differences are close to derivatives
    position = episode(f"dmc-cartpole-{task}-p-v0", 200, action_repeat=1)
    velocity = episode(f"dmc-cartpole-{task}-va-v0", 200, action_repeat=1)
    cart, angle = position[:, 0], np.unwrap(np.arctan2(position[:, 2], position[:, 1]))
    for places, velocities in ((cart, velocity[:, 0]), (angle, velocity[:, 1])):
        mean_velocity = (velocities[1:] + velocities[:-1]) / 2
        error = np.diff(places) / seconds_per_step - mean_velocity
        assert np.abs(velocities).max() > 0.5
        assert np.abs(error).max() < 0.01 * np.abs(velocities).max()


def test_va_shows_the_action_that_was_executed():
    env = gymnasium.make("dmc-cartpole-balance-va-v0")
    assert env.reset(seed=0)[0][2] == 0
    for action, executed in [(0.5, 0.5), (7.0, 1.0), (-7.0, -1.0)]:
        observation, *_ = env.step(np.array([action], dtype=np.float32))
        assert observation[2] == executed == env.unwrapped._environment.physics.control()[0]
    assert env.reset()[0][2] == 0


def test_concatenated_twins_show_the_past():
    part, stacked = episode("dmc-cartpole-balance-p-v0", 12), episode("dmc-cartpole-balance-p-concat5-v0", 12)
    padded = np.concatenate([np.zeros((4, 3), np.float32), part])
    for t in range(13):
        np.testing.assert_array_equal(stacked[t], padded[t : t + 5].reshape(-1))


def test_the_reward_is_summed_over_the_repeat():
    once, repeated = DMControl("cartpole", "balance"), DMControl("cartpole", "balance", action_repeat=5)
    np.testing.assert_array_equal(once.reset(seed=0)[0], repeated.reset(seed=0)[0])
    for action in np.linspace(-1, 1, 10, dtype=np.float32)[:, None]:
        steps = [once.step(action) for _ in range(5)]
        observation, reward, *_ = repeated.step(action)
        np.testing.assert_array_equal(observation, steps[-1][0])
        assert reward == pytest.approx(sum(step[1] for step in steps), abs=1e-12)
        assert reward > max(step[1] for step in steps)


def test_a_perfect_balance_is_worth_1000():
    env = gymnasium.make("dmc-cartpole-balance-v0")
    env.reset(seed=0)
    simulation = env.unwrapped._environment
    with simulation.physics.reset_context():
        simulation.physics.data.qpos[:] = simulation.physics.data.qvel[:] = 0
    total, truncated = 0.0, False
    while not truncated:
        _, reward, _, truncated, _ = env.step(np.zeros(1, dtype=np.float32))
        assert 0 <= reward <= 5
        total += reward
    assert total == pytest.approx(1000, abs=1e-3)
    assert total <= 1000 + 1e-9


@pytest.mark.parametrize("action_repeat", [5, 300])
def test_time_up_is_a_truncation(action_repeat):
    """The task's own clock, without a wrapper, which cuts the last repeat short if need be."""
    env = DMControl("cartpole", "balance", action_repeat=action_repeat)
    env.reset(seed=0)
    num_steps = -(-1000 // action_repeat)
    ends = [env.step(np.zeros(1, dtype=np.float32))[2:4] for _ in range(num_steps)]
    assert ends == [(False, False)] * (num_steps - 1) + [(False, True)]


def test_a_discount_of_0_is_a_termination(monkeypatch):
    env = DMControl("cartpole", "balance", action_repeat=5)
    env.reset(seed=0)
    monkeypatch.setattr(env._environment.task, "get_termination", lambda physics: 0.0)
    _, reward, terminated, truncated, _ = env.step(np.zeros(1, dtype=np.float32))
    assert (terminated, truncated) == (True, False)
    assert reward <= 1


def test_an_action_outside_of_its_bounds_is_the_bound():
    inside, outside = DMControl("cartpole", "balance"), DMControl("cartpole", "balance")
    inside.reset(seed=0)
    outside.reset(seed=0)
    expected, expected_reward, *_ = inside.step(np.array([1.0], dtype=np.float32))
    observation, reward, *_ = outside.step(np.array([3.0], dtype=np.float32))
    assert outside._environment.physics.control() == 1
    np.testing.assert_array_equal(observation, expected)
    assert reward == expected_reward


def test_parts_are_shown_in_the_order_of_the_keys():
    forward, backward = (
        DMControl("cartpole", "balance", keys=keys).reset(seed=0)[0]
        for keys in (["position", "velocity"], ["velocity", "position"])
    )
    np.testing.assert_array_equal(forward, np.roll(backward, 3))
    np.testing.assert_array_equal(forward, DMControl("cartpole", "balance").reset(seed=0)[0])


def test_a_part_of_one_number_counts():
    """Walker's observation holds its height as a number without axes."""
    env = DMControl("walker", "walk", keys=["height", "velocity"])
    assert env.reset(seed=0)[0].shape == env.observation_space.shape == (10,)


def test_an_unknown_key_is_named():
    with pytest.raises(ValueError, match=r"does not observe \['speed'\].*\['position', 'velocity'\]"):
        DMControl("cartpole", "balance", keys=["position", "speed"])


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(gymnasium.error.DependencyNotInstalled) as raised:
        gymnasium.make("dmc-cartpole-swingup-p-v0")
    for part in ("dmc-cartpole-swingup", "dm-control", "`pip install dm-control`"):
        assert part in str(raised.value)


def test_rendered_frames_change():
    env = gymnasium.make("dmc-cartpole-swingup-p-v0", render_mode="rgb_array")
    if os.environ.get("MUJOCO_GL") == "disable":
        pytest.skip("no OpenGL on this machine")
    env.reset(seed=0)
    frames = [env.render()]
    for _ in range(3):
        env.step(np.ones(1, dtype=np.float32))
        frames.append(env.render())
    env.close()
    assert all(frame.shape == (240, 320, 3) and frame.dtype == np.uint8 for frame in frames)
    assert all((before != after).any() for before, after in pairwise(frames))
    assert env.metadata["render_fps"] == 20


def test_nothing_is_rendered_without_a_mode():
    assert DMControl("cartpole", "balance").render() is None
