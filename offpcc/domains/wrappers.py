"""Wrappers: what of the state the agent sees, how it acts, and the returns it is judged by.

All of them can be pickled, in the middle of an episode too, and rebuilt from `env.spec`. Gymnasium's own that
do similar things (RescaleAction, DtypeObservation, FlattenObservation after FrameStackObservation) hold local
functions, which cannot be pickled, and differ as the docstrings say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

__all__ = [
    "Concatenate",
    "EpisodeReturn",
    "Float32Observation",
    "KeepIndices",
    "PreviousAction",
    "UnitAction",
]

Array = NDArray[Any]
Info = dict[str, Any]


def _box(space: gym.Space[Any], wrapper: object, num_axes: int | None = None) -> Box:
    if not isinstance(space, Box) or (num_axes is not None and len(space.shape) != num_axes):
        wanted = "a Box" if num_axes is None else f"a Box with {num_axes} axis"
        raise ValueError(f"{type(wrapper).__name__} needs {wanted}, not {space}; flatten or convert it before")
    return space


class KeepIndices(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Shows some numbers of the observation and hides the others.

    Args:
        env: Its observation is a vector.
        indices: The places of the numbers that are kept, in the order they are shown.

    Raises:
        ValueError: The observation is no vector, or has no such place.
    """

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        RecordConstructorArgs.__init__(self, indices=indices)
        gym.ObservationWrapper.__init__(self, env)
        space = _box(env.observation_space, self, num_axes=1)
        (size,) = space.shape
        if not indices or not all(0 <= index < size for index in indices):
            raise ValueError(f"indices must be one or more of 0 ... {size - 1}, not {list(indices)}")
        self._indices = np.array(indices)
        self.observation_space = Box(space.low[self._indices], space.high[self._indices], dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """Returns the kept numbers, (len(indices),)."""
        kept: Array = observation[self._indices]
        return kept


class PreviousAction(gym.Wrapper[Array, Array, Array, Array], RecordConstructorArgs):
    """Appends the action that was just executed to the observation: zeros after a reset.

    It is in the units of `env` and clipped to its bounds, which is also what `env` is given.

    Args:
        env: Its observation and its action are vectors.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        observations = _box(env.observation_space, self, num_axes=1)
        self._actions = _box(env.action_space, self, num_axes=1)
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


class Concatenate(gym.Wrapper[Array, Any, Array, Any], RecordConstructorArgs):
    """Shows the last `num` observations at once, oldest first, with zeros for those before the first.

    They are joined along their first axis: vectors (n,) to (num * n,), images (c, h, w) to (num * c, h, w).
    The bounds contain the zeros, which those of Gymnasium's FrameStackObservation need not.

    Args:
        env: Its observation is a Box.
        num: How many observations are shown, the present one included.

    Raises:
        ValueError: `num` is less than 1, or the observation is no Box.
    """

    def __init__(self, env: gym.Env[Any, Any], num: int) -> None:
        RecordConstructorArgs.__init__(self, num=num)
        gym.Wrapper.__init__(self, env)
        if num < 1:
            raise ValueError(f"num must be at least 1, not {num}")
        space = _box(env.observation_space, self)
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
        self._recent = [*self._recent[1:], observation]
        return np.concatenate(self._recent)


class Float32Observation(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Shows the observation in float32.

    Args:
        env: Its observation is a Box.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        space = _box(env.observation_space, self)
        with np.errstate(over="ignore"):  # the largest float64, some tasks' word for "no bound", becomes infinity
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        self.observation_space = Box(low, high, dtype=np.float32)

    def observation(self, observation: Array) -> Array:
        """Returns the same numbers in float32."""
        return np.asarray(observation, dtype=np.float32)


class UnitAction(gym.ActionWrapper[Any, Array, Array], RecordConstructorArgs):
    """Takes actions in [-1, 1], float32, and stretches them linearly to the bounds of `env`.

    An action outside of [-1, 1] is clipped, and none leaves the bounds of `env`, not even by a rounding error
    (as 1 and -1 may with Gymnasium's RescaleAction). Where the bounds are [-1, 1], actions pass unchanged.

    Args:
        env: Its action is a Box with finite bounds.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        space = _box(env.action_space, self)
        self._low, self._high = space.low, space.high
        # Halved before they are added or subtracted: wide bounds do not overflow.
        self._centre = space.high / 2 + space.low / 2
        self._radius = space.high / 2 - space.low / 2
        self.action_space = Box(-1.0, 1.0, space.shape, np.float32)

    def action(self, action: Array) -> Array:
        """Returns the action in the units of `env`."""
        unit = np.asarray(action, dtype=np.float32)
        return np.clip(self._centre + unit * self._radius, self._low, self._high)


class EpisodeReturn(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Puts the sum of an episode's rewards, and its length, into the `info` of the step that ends it.

    ``info["final_eval_reward"]`` is the undiscounted return, ``info["episode_length"]`` counts its steps.
    Time limits belong inside: an episode that a wrapper further out cuts short is not seen to end.

    Args:
        env: Any environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self._return, self._length = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts an episode and its count."""
        self._return, self._length = 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Info]:
        """Takes a step, and counts it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        self._length += 1
        if terminated or truncated:
            info = {**info, "final_eval_reward": self._return, "episode_length": self._length}
        return observation, reward, terminated, truncated, info
