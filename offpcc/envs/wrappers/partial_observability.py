"""Wrappers that hide parts of observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs

from offpcc.envs.wrappers.base import Array, box

__all__ = ["DropIndices", "Flicker", "KeepIndices", "ObservationNoise"]


@gin.configurable(denylist=["env"])
class KeepIndices(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Shows some numbers of the observation and hides the others.

    Args:
        env: An environment whose observation is a vector.
        indices: Indices of the numbers to keep, in the order in which to show them.

    Raises:
        ValueError: The observation is not a vector, there are no indices, or an index is out of range.
    """

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        RecordConstructorArgs.__init__(self, indices=indices)
        gym.ObservationWrapper.__init__(self, env)
        space = box(env.observation_space, self, num_axes=1)
        (size,) = space.shape
        if not indices or not all(0 <= index < size for index in indices):
            raise ValueError(f"indices must be one or more of 0 ... {size - 1}, not {list(indices)}")
        self._indices = np.array(indices)
        self.observation_space = Box(space.low[self._indices], space.high[self._indices], dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """Return the kept numbers, (len(indices),)."""
        kept: Array = observation[self._indices]
        return kept


@gin.configurable(denylist=["env"])
class DropIndices(KeepIndices):
    """Hides some numbers of the observation and shows the others.

    Args:
        env: An environment whose observation is a vector.
        indices: Indices of the numbers to hide.

    Raises:
        ValueError: The observation is not a vector, an index is out of range, or no number would be left.
    """

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        (size,) = box(env.observation_space, self, num_axes=1).shape
        if not all(0 <= index < size for index in indices):
            raise ValueError(f"indices must be some of 0 ... {size - 1}, not {list(indices)}")
        super().__init__(env, [index for index in range(size) if index not in set(indices)])
        self._saved_kwargs = {"indices": indices}


@gin.configurable(denylist=["env"])
class Flicker(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Replaces the whole observation with zeros at random (Hausknecht & Stone 2015, arXiv:1507.06527, section 5).

    Args:
        env: An environment whose observation is a Box.
        probability: Probability of zeros, at each step and reset.

    Raises:
        ValueError: `probability` is not in [0, 1], or the observation is not a Box.
    """

    def __init__(self, env: gym.Env[Any, Any], probability: float) -> None:
        RecordConstructorArgs.__init__(self, probability=probability)
        gym.ObservationWrapper.__init__(self, env)
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"probability must be from 0 to 1, not {probability}")
        self._probability = probability
        space = box(env.observation_space, self)
        self.observation_space = Box(np.minimum(space.low, 0), np.maximum(space.high, 0), dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """Return `observation` or zeros."""
        return np.zeros_like(observation) if self.np_random.random() < self._probability else observation


@gin.configurable(denylist=["env"])
class ObservationNoise(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Adds Gaussian noise to each number of the observation.

    Args:
        env: An environment whose observation is a Box of floats.
        std: Standard deviation of the noise, in the units of the observation: one for all numbers, or one for each.

    Raises:
        ValueError: `std` is negative or infinite or has the wrong shape, or the observation is not a Box of floats.
    """

    def __init__(self, env: gym.Env[Any, Any], std: float | Sequence[float]) -> None:
        RecordConstructorArgs.__init__(self, std=std)
        gym.ObservationWrapper.__init__(self, env)
        space = box(env.observation_space, self)
        with np.errstate(over="ignore"):
            self._std = np.asarray(std, space.dtype)
        if not np.issubdtype(space.dtype, np.floating):
            raise ValueError(f"ObservationNoise needs observations of floats, not of {space.dtype}")
        is_sound = np.isfinite(self._std).all() and (self._std >= 0).all()
        if not is_sound or self._std.shape not in ((), space.shape):
            raise ValueError(f"std must be one finite number, or {space.shape}, none below 0, not {std}")
        self.observation_space = Box(-np.inf, np.inf, space.shape, space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """Return `observation` with noise."""
        noise = self.np_random.standard_normal(observation.shape).astype(observation.dtype)
        return np.asarray(observation + self._std * noise, observation.dtype)
