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
    """Appends the action that was just executed to the observation: zeros after a reset.

    It is in the units of `env` and clipped to its bounds, which is also what `env` is given. A wrapper that changes
    actions, such as StickyAction, belongs outside of this one.

    Args:
        env: Its observation and its action are vectors.
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
        """Starts an episode, with zeros in the place of an action."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._append(observation, np.zeros(self._actions.shape)), info

    def step(self, action: Array) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Executes `action`, clipped, and shows it."""
        executed = np.clip(action, self._actions.low, self._actions.high)
        observation, reward, terminated, truncated, info = self.env.step(executed)
        return self._append(observation, executed), reward, terminated, truncated, info

    def _append(self, observation: Array, action: Array) -> Array:
        return np.concatenate([observation, action], dtype=observation.dtype, casting="same_kind")


@gin.configurable(denylist=["env"])
class Concatenate(gym.Wrapper[Array, Any, Array, Any], RecordConstructorArgs):
    """Shows the last `num` observations at once, oldest first, with zeros for those before the first.

    They are joined along their first axis: vectors (n,) to (num * n,), images (c, h, w) to (num * c, h, w), whose
    channels come first.
    The bounds contain the zeros, which those of Gymnasium's FrameStackObservation need not.

    Args:
        env: Its observation is a Box.
        num: How many observations are shown, the present one included.

    Raises:
        ValueError: `num` is less than 1 or more than 1,000, the observation is no Box, or it is an image whose channels
            come last.
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
        """Starts an episode, forgetting the last one."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._recent = self._none
        return self._append(observation), info

    def step(self, action: Any) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Takes a step and shows what followed from it beside what came before."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._append(observation), reward, terminated, truncated, info

    def _append(self, observation: Array) -> Array:
        self._recent = [*self._recent[1:], np.array(observation)]  # a copy: some write into one array for ever
        return np.concatenate(self._recent)


def num_stacked(env: gym.Env[Any, Any]) -> int:
    """How many frames an observation is a stack of, oldest first, each the following one's neighbour in time.

    That is `Concatenate.num`, if nothing further out changes the observation, else 1.
    """
    unchanging = (EpisodeReturn, UnitAction, TimeLimit, OrderEnforcing)
    while isinstance(env, unchanging):
        env = env.env
    return env.num if isinstance(env, Concatenate) else 1
