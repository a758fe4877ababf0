"""Wrappers: what of the state the agent sees, how it acts, and the returns it is judged by.

Those that hide something can be put on any environment by gin, in any order, beside Gymnasium's own::

    make.wrappers = [@DropIndices, @Flicker, @gymnasium.TimeLimit]
    DropIndices.indices = (2,)
    Flicker.probability = 0.1
    gymnasium.TimeLimit.max_episode_steps = 100

All of them can be pickled, in the middle of an episode too, and rebuilt from `env.spec`. Gymnasium's own that
do similar things (RescaleAction, DtypeObservation, FlattenObservation after FrameStackObservation) hold local
functions, which cannot be pickled, and differ as the docstrings say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat

import gin
import gymnasium as gym
import numpy as np
from gymnasium import wrappers as gymnasiums
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

__all__ = [
    "Concatenate",
    "DropIndices",
    "EpisodeReturn",
    "Flicker",
    "Float32Observation",
    "KeepIndices",
    "ObservationNoise",
    "PreviousAction",
    "UnitAction",
    "num_stacked",
]

# Gymnasium's own that suit an agent which does not see everything, as `gymnasium.NAME` in gin files. Those that
# learn as they go, such as NormalizeObservation, are not among them: an actor's file would not have what they know.
for _wrapper in (
    gymnasiums.ClipReward,
    gymnasiums.DelayObservation,
    gymnasiums.DtypeObservation,
    gymnasiums.FilterObservation,
    gymnasiums.FlattenObservation,
    gymnasiums.FrameStackObservation,
    gymnasiums.MaxAndSkipObservation,
    gymnasiums.RescaleObservation,
    gymnasiums.ReshapeObservation,
    gymnasiums.StickyAction,
    gymnasiums.TimeAwareObservation,
    gymnasiums.TimeLimit,
):
    gin.external_configurable(_wrapper, module="gymnasium")

Array = NDArray[Any]
Info = dict[str, Any]


def _box(space: gym.Space[Any], wrapper: object, num_axes: int | None = None) -> Box:
    if not isinstance(space, Box) or (num_axes is not None and len(space.shape) != num_axes):
        wanted = "a Box" if num_axes is None else f"a Box with {num_axes} axis"
        raise ValueError(f"{type(wrapper).__name__} needs {wanted}, not {space}; flatten or convert it before")
    return space


@gin.configurable(denylist=["env"])
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


@gin.configurable(denylist=["env"])
class DropIndices(KeepIndices):
    """Hides some numbers of the observation and shows the others.

    Args:
        env: Its observation is a vector.
        indices: The places of the numbers that are hidden.

    Raises:
        ValueError: The observation is no vector, has no such place, or nothing of it would be left.
    """

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        (size,) = _box(env.observation_space, self, num_axes=1).shape
        if not all(0 <= index < size for index in indices):
            raise ValueError(f"indices must be some of 0 ... {size - 1}, not {list(indices)}")
        super().__init__(env, [index for index in range(size) if index not in set(indices)])
        self._saved_kwargs = {"indices": indices}


@gin.configurable(denylist=["env"])
class Flicker(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Blanks the whole observation now and then (Hausknecht & Stone 2015, arXiv:1507.06527, section 5).

    Args:
        env: Its observation is a Box.
        probability: Of zeros in the place of an observation, at each step and reset.

    Raises:
        ValueError: `probability` is not one, or the observation is no Box.
    """

    def __init__(self, env: gym.Env[Any, Any], probability: float) -> None:
        RecordConstructorArgs.__init__(self, probability=probability)
        gym.ObservationWrapper.__init__(self, env)
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"probability must be from 0 to 1, not {probability}")
        self._probability = probability
        space = _box(env.observation_space, self)
        self.observation_space = Box(np.minimum(space.low, 0), np.maximum(space.high, 0), dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """Returns `observation`, or zeros."""
        return np.zeros_like(observation) if self.np_random.random() < self._probability else observation


@gin.configurable(denylist=["env"])
class ObservationNoise(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Adds Gaussian noise to each number of the observation.

    Args:
        env: Its observation is a Box of floats.
        std: The noise's standard deviation: one for all numbers, or one for each, in their units.

    Raises:
        ValueError: `std` is negative or does not fit, or the observation is no Box of floats.
    """

    def __init__(self, env: gym.Env[Any, Any], std: float | Sequence[float]) -> None:
        RecordConstructorArgs.__init__(self, std=std)
        gym.ObservationWrapper.__init__(self, env)
        space = _box(env.observation_space, self)
        self._std = np.asarray(std, space.dtype)
        if not np.issubdtype(space.dtype, np.floating):
            raise ValueError(f"ObservationNoise needs observations of floats, not of {space.dtype}")
        if (self._std < 0).any() or self._std.shape not in ((), space.shape):
            raise ValueError(f"std must be one number, or {space.shape}, none below 0, not {std}")
        self.observation_space = Box(-np.inf, np.inf, space.shape, space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """Returns `observation` with noise."""
        noise = self.np_random.standard_normal(observation.shape).astype(observation.dtype)
        return np.asarray(observation + self._std * noise, observation.dtype)


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
        ValueError: `num` is less than 1, the observation is no Box, or an image whose channels come last.
    """

    def __init__(self, env: gym.Env[Any, Any], num: int) -> None:
        RecordConstructorArgs.__init__(self, num=num)
        gym.Wrapper.__init__(self, env)
        if num < 1:
            raise ValueError(f"num must be at least 1, not {num}")
        self.num = num
        space = _box(env.observation_space, self)
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


def action_bounds(env: gym.Env[Any, Any]) -> tuple[Array, Array]:
    """The lowest and the highest action that an environment takes below the `UnitAction` around it."""
    while isinstance(env, gym.Wrapper) and not isinstance(env, UnitAction):
        env = env.env
    space = _box(env.env.action_space if isinstance(env, UnitAction) else env.action_space, env)
    return space.low, space.high


def num_stacked(env: gym.Env[Any, Any]) -> int:
    """How many frames an observation is a stack of, oldest first, each the following one's neighbour in time.

    That is `Concatenate.num`, if nothing further out changes the observation, else 1.
    """
    unchanging = (EpisodeReturn, UnitAction, gymnasiums.TimeLimit, gymnasiums.OrderEnforcing)
    while isinstance(env, unchanging):
        env = env.env
    return env.num if isinstance(env, Concatenate) else 1
