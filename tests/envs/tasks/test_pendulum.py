"""The pendulum, and which part of its state each of its twins shows."""

from itertools import pairwise

import gymnasium
import numpy as np
import pytest

import offpcc.envs  # noqa: F401
from offpcc.envs.tasks.pendulum import Pendulum

SECONDS_PER_STEP = 0.05


def episode(name, num_steps=200):
    """Observations (num_steps + 1, n) of one episode, the same for all twins."""
    env = gymnasium.make(name)
    generator = np.random.default_rng(1)
    observations = [env.reset(seed=1)[0]]
    for _ in range(num_steps):
        observations.append(env.step(generator.uniform(-2, 2, 1).astype(np.float32))[0])
    return np.array(observations)


def test_it_is_gymnasiums_pendulum():
    ours, theirs = gymnasium.make("pendulum-v0"), gymnasium.make("Pendulum-v1", g=10.0)
    np.testing.assert_array_equal(ours.reset(seed=0)[0], theirs.reset(seed=0)[0])
    for torque in np.linspace(-2, 2, 50, dtype=np.float32):
        observation, reward, *_ = ours.step(np.array([torque]))
        expected, expected_reward, *_ = theirs.step(np.array([torque]))
        np.testing.assert_array_equal(observation, expected)
        assert reward == expected_reward


def test_the_twins_show_their_part_of_the_whole():
    whole = episode("pendulum-v0")
    np.testing.assert_array_equal(episode("pendulum-p-v0"), whole[:, :2])
    np.testing.assert_array_equal(episode("pendulum-v-v0"), whole[:, 2:])
    np.testing.assert_array_equal(episode("pendulum-va-v0")[:, :1], whole[:, 2:])


def test_v_shows_the_velocity_that_p_hides():
    position, velocity = episode("pendulum-p-v0"), episode("pendulum-v-v0")
    np.testing.assert_allclose(np.linalg.norm(position, axis=1), 1, atol=1e-6)
    angle = np.unwrap(np.arctan2(position[:, 1], position[:, 0]))
    np.testing.assert_allclose(np.diff(angle) / SECONDS_PER_STEP, velocity[1:, 0], atol=1e-4)


def test_va_shows_the_torque_that_was_executed():
    env = gymnasium.make("pendulum-va-v0")
    assert env.reset(seed=0)[0][1] == 0
    for torque, executed in [(1.5, 1.5), (7.0, 2.0), (-7.0, -2.0), (0.25, 0.25)]:
        observation, *_ = env.step(np.array([torque], dtype=np.float32))
        assert observation[1] == executed == env.unwrapped.last_u
    assert env.reset()[0][1] == 0


def test_concatenated_twins_show_the_past():
    part, stacked = episode("pendulum-va-v0", 30), episode("pendulum-va-concat10-v0", 30)
    padded = np.concatenate([np.zeros((9, 2), np.float32), part])
    for t in range(31):
        np.testing.assert_array_equal(stacked[t], padded[t : t + 10].reshape(-1))


@pytest.mark.parametrize("name", ["pendulum-p-v0", "pendulum-img-v0"])
def test_it_renders_without_a_screen(name, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = gymnasium.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    frames = [env.render()]
    for _ in range(3):
        env.step(np.array([2.0], dtype=np.float32))
        frames.append(env.render())
    env.close()
    assert all(frame.shape == (500, 500, 3) and frame.dtype == np.uint8 for frame in frames)
    assert all((before != after).any() for before, after in pairwise(frames))


@pytest.mark.parametrize(
    ("screen", "render_mode", "driver"),
    [(False, "rgb_array", "dummy"), (True, "rgb_array", None), (False, None, None), (False, "human", None)],
)
def test_the_dummy_driver_is_for_frames_without_a_screen(monkeypatch, screen, render_mode, driver):
    monkeypatch.setattr("offpcc.envs.rendering.has_screen", lambda: screen)
    environ = {}
    monkeypatch.setattr("os.environ", environ)
    Pendulum(render_mode=render_mode)
    assert environ.get("SDL_VIDEODRIVER") == driver


def test_the_users_driver_stays(monkeypatch):
    environ = {"SDL_VIDEODRIVER": "offscreen"}
    monkeypatch.setattr("os.environ", environ)
    Pendulum(render_mode="rgb_array")
    assert environ["SDL_VIDEODRIVER"] == "offscreen"
