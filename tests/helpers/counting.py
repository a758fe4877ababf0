"""A small environment whose every number is known."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box


class Counter(gym.Env):
    """At step t it shows (10 t + 1, 10 t + 2, 10 t + 3), and its reward is t."""

    def __init__(self, observations=None, low=-2.0, high=4.0, ends_after=None):
        self.observation_space = observations or Box(
            np.array([1, 2, 3], np.float32), np.array([1000, 2000, 3000], np.float32)
        )
        self.action_space = Box(low, high, (2,), np.float32)
        self.ends_after = ends_after
        self.t = 0

    def observe(self):
        shape = self.observation_space.shape
        numbers = 10 * self.t + 1 + np.arange(np.prod(shape, dtype=int))
        return numbers.reshape(shape).astype(self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        self.executed = action
        return self.observe(), float(self.t), self.t == self.ends_after, False, {"t": self.t}


def action(*numbers):
    return np.array(numbers, dtype=np.float32)


def shown(env, num_steps=200, seed=0):
    """Observations of an episode, (num_steps + 1, n)."""
    observations = [env.reset(seed=seed)[0]]
    return np.array(observations + [env.step(action(0, 0))[0] for _ in range(num_steps)])
