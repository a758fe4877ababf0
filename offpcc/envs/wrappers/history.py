"""Wrappers that add earlier observations or actions."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gin
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from offpcc.config.validation import MOST_PARTS
from offpcc.envs.wrappers.base import Array, EpisodeReturn, Info, UnitAction, box

__all__ = ["Concatenate", "PreviousAction", "num_stacked"]


@gin.configurable(denylist=["env"])
class PreviousAction(gym.Wrapper[Array, Array, Array, Array], RecordConstructorArgs):
    """Appends the last executed action to the observation, or zeros after a reset.

    The action is in the units of `env` and clipped to its bounds, and `env` gets the same action. A wrapper that
    changes actions, such as StickyAction, must be outside of this one.

    Args:
        env: An environment whose observations and actions are vectors.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        observations = box(env.observation_space, self, num_axes=1)
        self._actions = box(env.action_space, self, num_axes=1)
        self.observation_space = Box(
            np.concatenate([observations.low, np.minimum(self._actions.low, 0)]),
            np.concatenate([observations.high, np.maximum(self._actions.high, 0)]),
            dtype=observations.dtype.type,
        )

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode, with zeros in place of an action."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._append(observation, np.zeros(self._actions.shape)), info

    def step(self, action: Array) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Execute `action`, clipped, and append it to the observation."""
        executed = np.clip(action, self._actions.low, self._actions.high)
        observation, reward, terminated, truncated, info = self.env.step(executed)
        return self._append(observation, executed), reward, terminated, truncated, info

    def _append(self, observation: Array, action: Array) -> Array:
        return np.concatenate([observation, action], dtype=observation.dtype, casting="same_kind")


@gin.configurable(denylist=["env"])
class Concatenate(gym.Wrapper[Array, Any, Array, Any], RecordConstructorArgs):
    """Shows the last `num` observations together, oldest first. Zeros replace observations before the first one.

    Observations are joined along the first axis. Vectors (n,) become (num * n,), and images (c, h, w) become (num * c,
    h, w), so images must have their channels first. The bounds include the zeros, which those of Gymnasium's
    FrameStackObservation may not.

    Args:
        env: An environment whose observation is a Box.
        num: The number of observations to show, including the current one.

    Raises:
        ValueError: `num` is less than 1 or more than 1,000, the observation is not a Box, or it is an image with its
            channels last.
    """

    def __init__(self, env: gym.Env[Any, Any], num: int) -> None:
        RecordConstructorArgs.__init__(self, num=num)
        gym.Wrapper.__init__(self, env)
        if not 1 <= num <= MOST_PARTS:
            raise ValueError(f"num must be from 1 to {MOST_PARTS}, not {num}")
        self.num = num
        space = box(env.observation_space, self)
        if len(space.shape) == 3 and space.shape[2] < min(space.shape[:2]):
            raise ValueError(f"images have to be (channels, height, width), not {space.shape}; transpose them before")
        low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)
        self.observation_space = Box(np.concatenate([low] * num), np.concatenate([high] * num), dtype=space.dtype.type)
        self._recent: list[Array] = []
        self._none = [np.zeros(space.shape, space.dtype)] * num

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode and forget the last one."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._recent = self._none
        return self._append(observation), info

    def step(self, action: Any) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Take an environment step and show its observation after the earlier ones."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._append(observation), reward, terminated, truncated, info

    def _append(self, observation: Array) -> Array:
        self._recent = [*self._recent[1:], np.array(observation)]  # a copy: some environments reuse one array
        return np.concatenate(self._recent)


def num_stacked(env: gym.Env[Any, Any]) -> int:
    """Return the number of consecutive frames that an observation stacks, oldest first.

    This is `Concatenate.num` if no wrapper outside of it changes the observation, else 1.
    """
    unchanging = (EpisodeReturn, UnitAction, TimeLimit, OrderEnforcing)
    while isinstance(env, unchanging):
        env = env.env
    return env.num if isinstance(env, Concatenate) else 1
