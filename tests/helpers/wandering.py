"""Random episodes, and what is seen of their recordings."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from offpcc.envs.make import make
from offpcc.envs.recorded_observations import transform_observations
from offpcc.envs.wrappers import ObservationNoise
from offpcc.utils.errors import UserError

LENGTHS = (25, 1, 12)  # steps of each episode


class Tap(gym.Wrapper):
    """Notes what the environment itself observes."""

    def __init__(self, env):
        super().__init__(env)
        self.noted = []

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self.noted.append(np.array(observation))
        return observation, info

    def step(self, action):
        observation, *rest = self.env.step(action)
        self.noted.append(np.array(observation))
        return observation, *rest


class Wandering(gym.Env):
    """A random walk in a box; its reward is the sum of the first two actions."""

    def __init__(self, size=3, dtype=np.float32, shape=None):
        self.shape = shape or (size,)
        self.observation_space = Box(0, 255, self.shape, dtype) if shape else Box(-5, 5, self.shape, dtype)
        self.action_space = Box(np.float32([-2, 0]), np.float32([2, 3]))

    def observe(self):
        space = self.observation_space
        numbers = self.np_random.uniform(space.low, space.high).astype(np.float32)
        return numbers.astype(space.dtype)  # what float32 can hold, as recordings do

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        return self.observe(), float(np.sum(action)), False, False, {}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)


def wandering(*wrappers, **kwargs):
    gym.register("Wandering-v0", entry_point=lambda **given: Wandering(**given), max_episode_steps=100)
    try:
        return make("Wandering-v0", wrappers=list(wrappers), kwargs=kwargs, scale_actions=True)
    finally:
        del gym.registry["Wandering-v0"]


def record(env, lengths=LENGTHS, seed=0, into=np.float32):
    """Random episodes: what a recording of the environment's own observations holds, and what the wrappers showed."""
    innermost = env
    while isinstance(innermost.env, gym.Wrapper):
        innermost = innermost.env
    tap = innermost.env = Tap(innermost.env)
    generator = np.random.default_rng(seed)
    shown, actions, rewards, starts, stops = [], [], [], [], []
    for number, length in enumerate(lengths):
        starts.append(len(shown))
        shown.append(env.reset(seed=seed + number)[0])
        for _ in range(length):
            action = generator.uniform(-1, 1, env.action_space.shape).astype(np.float32)
            observation, reward, terminated, truncated, _ = env.step(action)
            shown.append(observation)
            actions.append(action)
            rewards.append([reward])
            if terminated or truncated:
                break
        actions.append(np.zeros_like(action))
        rewards.append([0.0])
        stops.append(len(shown))
    innermost.env = tap.env
    rows = {
        "observations": np.array(tap.noted).astype(into),
        "actions": np.array(actions),
        "rewards": np.array(rewards, np.float32),
        "starts": np.array(starts),
        "stops": np.array(stops),
    }
    return rows, np.array(shown)


def seen(env, rows, seed=0, **kwargs):
    return transform_observations(env, **rows, seed=seed, **kwargs)


def assert_same(got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def refusal(env, rows, **kwargs):
    with pytest.raises(UserError) as told:
        seen(env, rows, **kwargs)
    assert "\n" not in told.value.message
    return told.value.message


def noisy(std=0.5):
    return wandering(lambda env: ObservationNoise(env, std))
