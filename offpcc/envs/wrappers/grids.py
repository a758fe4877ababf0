"""Wrappers that show symbols and booleans as numbers that networks read: images of channels, and one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.utils import RecordConstructorArgs

from offpcc.envs.aliases import Array


@gin.configurable(denylist=["env"])
class BooleanGrid(gym.ObservationWrapper[Array, Any, Any], RecordConstructorArgs):
    """Shows booleans (height, width, channels), as those of MinAtar, as an image with 255 for True.

    The image is (channels, height, width), uint8.

    Args:
        env: An environment whose observation is a Box of booleans with three axes.

    Raises:
        ValueError: The observation is no such Box.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, Box) or space.dtype != np.bool_ or len(space.shape) != 3:
            raise ValueError(f"BooleanGrid needs booleans (height, width, channels), not {space}")
        height, width, channels = space.shape
        self.observation_space = Box(0, 255, (channels, height, width), np.uint8)

    def observation(self, observation: Any) -> Array:
        """Return the image (channels, height, width)."""
        return np.moveaxis(np.asarray(observation), -1, 0).astype(np.uint8) * np.uint8(255)


@gin.configurable(denylist=["env"])
class OneHotObservation(gym.ObservationWrapper[Array, Any, Any], RecordConstructorArgs):
    """Shows `Discrete`, `MultiDiscrete` and `MultiBinary` observations, and Tuples with them, as one-hot vectors.

    It is `gymnasium.wrappers.FlattenObservation` with float32 vectors, so a Box is flattened.

    Args:
        env: The environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        flat = gym.spaces.flatten_space(env.observation_space)
        if not isinstance(flat, Box):
            raise ValueError(f"observations of {env.observation_space} have no fixed size")
        self.observation_space = Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)

    def observation(self, observation: Any) -> Array:
        """Return the vector."""
        return np.asarray(gym.spaces.flatten(self.env.observation_space, observation), np.float32)


@gin.configurable(denylist=["env"])
class OneHotGrid(gym.ObservationWrapper[Array, Any, Any], RecordConstructorArgs):
    """Shows a grid of symbols (height, width, K) as an image with a channel for each value of each symbol.

    The image is (channels, height, width), uint8, with 255 where a symbol has the channel's value, and 0 elsewhere. A
    network cannot read numbers of symbols well, because their order and distance mean nothing.

    Args:
        env: An environment whose observation is such a grid of integers, or a Dict with one; all other entries are
            hidden.
        num_values: The number of values of each of the K symbols; default: those of MiniGrid, which are 11 objects, 6
            colours and 3 states of a door.
        key: The entry of Dict observations.

    Raises:
        ValueError: The observation is not a grid of K symbols.
    """

    def __init__(self, env: gym.Env[Any, Any], num_values: Sequence[int] = (11, 6, 3), key: str = "image") -> None:
        RecordConstructorArgs.__init__(self, num_values=num_values, key=key)
        gym.ObservationWrapper.__init__(self, env)
        seen = env.observation_space
        self._key = key if isinstance(seen, Dict) else None
        if isinstance(seen, Dict) and key not in seen.spaces:
            raise ValueError(f"observations have no entry {key!r}, but {', '.join(seen.spaces)}")
        space = seen[key] if isinstance(seen, Dict) else seen
        if not isinstance(space, Box) or space.dtype.kind not in "iu" or space.shape[2:] != (len(num_values),):
            raise ValueError(f"OneHotGrid needs a grid of {len(num_values)} symbols in each cell, not {space}")
        if not all(isinstance(num, int) and 1 <= num <= 256 for num in num_values):
            raise ValueError(f"num_values must be numbers from 1 to 256, not {list(num_values)}")
        self._values = [np.arange(num)[:, None, None] for num in num_values]
        self.observation_space = Box(0, 255, (sum(num_values), *space.shape[:2]), np.uint8)

    def observation(self, observation: Any) -> Array:
        """Return the image (channels, height, width)."""
        grid = np.asarray(observation if self._key is None else observation[self._key])
        channels = [grid[None, ..., place] == values for place, values in enumerate(self._values)]
        return np.concatenate(channels).astype(np.uint8) * np.uint8(255)
