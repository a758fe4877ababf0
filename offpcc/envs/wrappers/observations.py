"""Wrappers that change what agents observe: they hide parts, or add earlier observations or actions."""

from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import gin
import gymnasium as gym
import numpy as np
from gymnasium import wrappers as gymnasiums
from gymnasium.spaces import Box, Dict
from gymnasium.utils import RecordConstructorArgs

from offpcc.config.validation import MOST_PARTS, NumParts, check_arguments, rules_of
from offpcc.envs.aliases import Array, Info
from offpcc.envs.wrappers.base import EpisodeReturn, UnitAction, box
from offpcc.utils.spaces import STATE, channels_first, channels_last


class Hiding(gym.ObservationWrapper[Any, Any, Any]):
    """Parent of wrappers that hide something: ``info["state"]`` has what they get, if there is no state yet."""

    @property
    def state_space(self) -> gym.Space[Any]:
        """The space of the state; this resets an environment that names none, to see if its `info` has a state."""
        try:
            space: gym.Space[Any] = self.env.get_wrapper_attr("state_space")
        except AttributeError:
            state = self.env.reset()[1].get(STATE)
            space = self.env.observation_space if state is None else Box(-np.inf, np.inf, np.shape(state), np.float32)
        return space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.observation(observation), {STATE: observation, **info}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Info]:
        """Take an environment step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.observation(observation), reward, terminated, truncated, {STATE: observation, **info}


@gin.configurable(denylist=["env"])
class KeepIndices(Hiding, RecordConstructorArgs):
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
        if set(indices) == set(range(size)):
            raise ValueError(f"indices are {list(indices)}, all numbers of the observation; leave one or more")
        super().__init__(env, [index for index in range(size) if index not in set(indices)])
        self._saved_kwargs = {"indices": indices}


@gin.configurable(denylist=["env"])
class Flicker(Hiding, RecordConstructorArgs):
    """Replaces the whole observation with zeros at random (Hausknecht & Stone 2015, arXiv:1507.06527, section 5).

    Args:
        env: An environment whose observation is a Box, or a Dict of such spaces.
        probability: Probability of zeros, at each step and reset; of a Dict, all entries become zeros together.

    Raises:
        ValueError: `probability` is not in [0, 1], or an observation is not a Box.
    """

    def __init__(self, env: gym.Env[Any, Any], probability: float) -> None:
        RecordConstructorArgs.__init__(self, probability=probability)
        gym.ObservationWrapper.__init__(self, env)
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"probability must be from 0 to 1, not {probability}")
        self._probability = probability
        self.observation_space = self._with_zeros(env.observation_space)

    def _with_zeros(self, space: gym.Space[Any]) -> gym.Space[Any]:
        if isinstance(space, Dict):
            return Dict({key: self._with_zeros(part) for key, part in space.items()})
        bounds = box(space, self)
        return Box(np.minimum(bounds.low, 0), np.maximum(bounds.high, 0), dtype=bounds.dtype.type)

    def observation(self, observation: Any) -> Any:
        """Return `observation` or zeros."""
        return _zeros(observation) if self.np_random.random() < self._probability else observation


def _zeros(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: _zeros(part) for key, part in observation.items()}
    return np.zeros_like(observation)


@gin.configurable(denylist=["env"])
class ObservationNoise(Hiding, RecordConstructorArgs):
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


@gin.configurable(denylist=["env"])
class PreviousAction(gym.Wrapper[Array, Array, Array, Array], RecordConstructorArgs):
    """Appends the last executed action to the observation, or zeros after a reset.

    The action is in the units of `env` and clipped to its bounds, and `env` gets the same action. A wrapper that
    changes actions, such as StickyAction, must be outside of this one.

    Args:
        env: An environment whose observations and actions are vectors of floats.

    Raises:
        ValueError: They are not.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        observations = box(env.observation_space, self, num_axes=1)
        if observations.dtype.kind != "f":
            raise ValueError(f"PreviousAction needs observations of floats, not {observations.dtype}")
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

    Observations are joined along the first axis. Vectors (n,) become (num * n,), and images (c, h, w) or (h, w, c)
    become (num * c, h, w). The bounds include zero. In Gymnasium's FrameStackObservation, they may not.

    Args:
        env: An environment whose observation is a Box.
        num: The number of observations to show, including the current one.

    Raises:
        ValueError: `num` is less than 1 or more than 1,000, the observation is not a Box, or height and width would
            be taken for the channels of the stacked image.
    """

    def __init__(self, env: gym.Env[Any, Any], num: int) -> None:
        RecordConstructorArgs.__init__(self, num=num)
        gym.Wrapper.__init__(self, env)
        if not 1 <= num <= MOST_PARTS:
            raise ValueError(f"num must be from 1 to {MOST_PARTS}, not {num}")
        self.num = num
        space = box(env.observation_space, self)
        self._frame_shape = space.shape
        if len(space.shape) == 3 and channels_last(space.shape):
            low, high = (channels_first(bound, space.shape) for bound in (space.low, space.high))
            space = Box(low, high, dtype=space.dtype.type)
        if len(space.shape) == 3 and channels_last(stacked := (num * space.shape[0], *space.shape[1:])):
            raise ValueError(f"images {stacked} would be taken for (height, width, channels); swap height and width")
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
        frame = channels_first(observation, self._frame_shape) if len(self._frame_shape) == 3 else observation
        self._recent = [*self._recent[1:], np.array(frame)]  # a copy: some environments reuse one array
        return np.concatenate(self._recent)


class FrameStackObservation(gymnasiums.FrameStackObservation):
    """Gymnasium's wrapper with at most 1,000 frames, because it allocates all of them at once.

    Args:
        env: See Gymnasium.
        stack_size: The number of observations to show, including the current one.
        padding_type: See Gymnasium.

    Raises:
        UserError: `stack_size` is out of range.
    """

    def __init__(self, env: gym.Env[Any, Any], stack_size: NumParts, *, padding_type: Any = "reset") -> None:
        check_arguments("gymnasium.FrameStackObservation", rules_of(FrameStackObservation), {"stack_size": stack_size})
        super().__init__(env, stack_size, padding_type=padding_type)


def num_stacked(env: gym.Env[Any, Any]) -> int:
    """Return the number of consecutive frames that an observation stacks, oldest first.

    This is `Concatenate.num` if no wrapper outside of it changes the observation, else 1.
    """
    unchanging = (EpisodeReturn, UnitAction, gymnasiums.TimeLimit, gymnasiums.OrderEnforcing)
    while isinstance(env, unchanging):
        env = env.env
    return env.num if isinstance(env, Concatenate) else 1
