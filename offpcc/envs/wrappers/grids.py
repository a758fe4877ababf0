"""Wrappers that show symbols as numbers that networks read: images of channels, and one-hot vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Tuple, flatdim, flatten, flatten_space
from gymnasium.utils import RecordConstructorArgs

from offpcc.envs.aliases import Array
from offpcc.envs.faults import SPACE, UnfitError
from offpcc.utils.spaces import LARGEST_BOX, channels_last, float32_box


@gin.configurable(denylist=["env"])
class OneHotObservation(gym.ObservationWrapper[Array, Any, Any], RecordConstructorArgs):
    """Shows `Discrete`, `MultiDiscrete` and `MultiBinary` observations, and Tuples with them, as one-hot vectors.

    It is `gymnasium.wrappers.FlattenObservation` with float32 vectors, so a Box is flattened. `make` applies it where
    no other wrapper has made an array of such observations.

    Args:
        env: The environment.

    Raises:
        ValueError: Observations have no fixed size, or too many numbers.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self._space = space = env.observation_space
        if not space.is_np_flattenable:
            raise ValueError(f"observations of {space} have no fixed size; show others")
        if (size := flatdim(space)) > LARGEST_BOX:
            raise ValueError(f"observations of {space} have {size:,} numbers, more than {LARGEST_BOX:,}; show others")
        self.observation_space = float32_box(flatten_space(space))

    def observation(self, observation: Any) -> Array:
        """Return the vector (F,).

        Raises:
            UnfitError: The observation is a choice that its space does not have.
        """
        if not _fits(observation, self._space):
            raise UnfitError(f"returned {observation!r} for an observation, but its space is {self._space},", SPACE)
        return np.asarray(flatten(self._space, observation), np.float32)


def _fits(observation: Any, space: gym.Space[Any]) -> bool:
    """Check the choices in an observation. Numbers may have another type, or lie out of bounds, as everywhere else."""
    if isinstance(space, Box):
        return np.asarray(observation).shape == space.shape
    if isinstance(space, Tuple):
        is_sequence = isinstance(observation, Sequence | np.ndarray) and len(observation) == len(space.spaces)
        return is_sequence and all(map(_fits, observation, space.spaces))
    if isinstance(space, Dict):
        is_mapping = isinstance(observation, Mapping) and observation.keys() == space.spaces.keys()
        return is_mapping and all(_fits(observation[key], part) for key, part in space.items())
    return bool(space.contains(observation))


@gin.configurable(denylist=["env"])
class OneHotGrid(gym.ObservationWrapper[Array, Any, Any], RecordConstructorArgs):
    """Shows a grid of symbols (height, width, K) as an image with a channel for each value of each symbol.

    The image is (channels, height, width), uint8, with 255 where a symbol has the channel's value, and 0 elsewhere. A
    network cannot read numbers of symbols well, because their order and distance mean nothing. A grid whose first axis
    is longer is shown with its axes swapped, because its image would be taken for one with the channels last.

    Args:
        env: An environment whose observation is such a grid of integers, or a Dict with one; all other entries are
            hidden, also a mission that changes.
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
        shape = sum(num_values), *space.shape[:2]
        self._is_swapped = channels_last(shape)
        shape = (shape[0], shape[2], shape[1]) if self._is_swapped else shape
        self.observation_space = Box(0, 255, shape, np.uint8)

    def observation(self, observation: Any) -> Array:
        """Return the image (channels, height, width)."""
        grid = np.asarray(observation if self._key is None else observation[self._key])
        grid = grid.swapaxes(0, 1) if self._is_swapped else grid
        channels = [grid[None, ..., place] == values for place, values in enumerate(self._values)]
        return np.concatenate(channels).astype(np.uint8) * np.uint8(255)
