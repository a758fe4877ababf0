"""Wrappers that change what agents observe: they hide parts, or add earlier observations, actions or the return."""

import math
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
from offpcc.utils.spaces import OBSERVATION, STATE, channels_first, channels_last

RETURN_TO_GO = "return_to_go"  # key of Dict observations


class Hiding(gym.ObservationWrapper[Any, Any, Any]):
    """Base class of wrappers that hide something; ``info["state"]`` keeps what they get, unless it has a state."""

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
        env: An environment whose observation is a Box of floats, or a Dict with such entries; others, such as images
            of bytes, stay as they are.
        std: Standard deviation of the noise, in the units of the observation: one for all numbers, or one for each; of
            a Dict, one for all numbers, or a dictionary such as {"place": 0.1} for some entries.

    Raises:
        ValueError: `std` is negative or infinite or does not fit, or the observation has no floats.
    """

    def __init__(self, env: gym.Env[Any, Any], std: float | Sequence[float] | Mapping[str, Any]) -> None:
        RecordConstructorArgs.__init__(self, std=std)
        gym.ObservationWrapper.__init__(self, env)
        self.observation_space, self._std = self._with_noise(env.observation_space, std)

    def _with_noise(self, space: gym.Space[Any], std: Any) -> tuple[gym.Space[Any], Any]:
        """Return the space of observations with noise, and the standard deviations in the form of observations."""
        if isinstance(space, Dict):
            entries: dict[str, gym.Space[Any]] = {key: part for key, part in space.items() if _has_floats(part)}
            wanted = std if isinstance(std, Mapping) else dict.fromkeys(entries, std)
            if not wanted or not wanted.keys() <= entries.keys():
                fault = f"std must be a number or a dictionary of entries with floats, not {std}"
                raise ValueError(f"{fault}; the entries with floats are: {', '.join(entries) or 'none'}")
            noisy = {key: self._with_noise(entries[key], of_entry) for key, of_entry in wanted.items()}
            spaces = {**space.spaces, **{key: part for key, (part, _) in noisy.items()}}
            return Dict(spaces), {key: of_entry for key, (_, of_entry) in noisy.items()}
        bounds = box(space, self)
        if not np.issubdtype(bounds.dtype, np.floating):
            raise ValueError(f"ObservationNoise needs observations of floats, not of {bounds.dtype}")
        with np.errstate(over="ignore"):
            deviations = np.asarray(np.nan if isinstance(std, Mapping) else std, bounds.dtype)
        is_sound = np.isfinite(deviations).all() and (deviations >= 0).all()
        if not is_sound or deviations.shape not in ((), bounds.shape):
            raise ValueError(f"std must be one finite number, or {bounds.shape}, none below 0, not {std}")
        return Box(-np.inf, np.inf, bounds.shape, bounds.dtype.type), deviations

    def observation(self, observation: Any) -> Any:
        """Return `observation` with noise."""
        return self._add(observation, self._std)

    def _add(self, observation: Any, std: Any) -> Any:
        if isinstance(std, dict):
            return {**observation, **{key: self._add(observation[key], of_entry) for key, of_entry in std.items()}}
        noise = self.np_random.standard_normal(observation.shape).astype(observation.dtype)
        return np.asarray(observation + std * noise, observation.dtype)


def _has_floats(space: gym.Space[Any]) -> bool:
    if isinstance(space, Dict):
        return any(map(_has_floats, space.values()))
    return isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)


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
class ReturnToGo(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Shows the return that the agent is asked to reach from here on, for policies that are conditioned on it.

    In the environment, this is `target_return` minus the rewards of the episode so far. In recorded data, it is the sum
    of the rewards that follow, up to the end of the recorded episode. So an agent that imitates the data learns which
    actions led to which return, and `target_return` then chooses among them (Decision Transformer, Chen et al. 2021,
    arXiv:2106.01345; without memory RvS-R, Emmons et al. 2021, arXiv:2112.10751). Returns are not discounted.

    It is the last number of an observation that is a vector of floats. Other observations become a Dict with the keys
    ``observation`` and ``return_to_go``, and a Dict gets the key ``return_to_go``.

    Args:
        env: An environment.
        target_return: The return to ask for, in the units of the environment's rewards.

    Raises:
        ValueError: `target_return` is not finite, or a Dict has this key already.
    """

    def __init__(self, env: gym.Env[Any, Any], target_return: float) -> None:
        RecordConstructorArgs.__init__(self, target_return=target_return)
        gym.Wrapper.__init__(self, env)
        if not math.isfinite(target_return):
            raise ValueError(f"target_return must be a finite number, not {target_return}")
        self.target_return = target_return
        space, number = env.observation_space, Box(-np.inf, np.inf, (1,), np.float32)
        if isinstance(space, Dict):
            if RETURN_TO_GO in space.spaces:
                raise ValueError(f"the observation has the key {RETURN_TO_GO!r} already; rename it")
            self.observation_space = Dict({**space.spaces, RETURN_TO_GO: number})
        elif isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
            kind = space.dtype.type
            low, high = np.append(space.low, kind(-np.inf)), np.append(space.high, kind(np.inf))
            self.observation_space = Box(low, high, dtype=kind)
        else:
            self.observation_space = Dict({OBSERVATION: space, RETURN_TO_GO: number})
        self._reached = 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._reached = 0.0
        return self._with_return(observation), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Info]:
        """Take an environment step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._reached += float(reward)
        return self._with_return(observation), reward, terminated, truncated, info

    def _with_return(self, observation: Any) -> Any:
        recorded = getattr(self.unwrapped, "recorded_return_to_go", None)  # of a `Playback`, which knows what follows
        left = np.array([self.target_return - self._reached if recorded is None else recorded], np.float32)
        if isinstance(observation, Mapping):
            return {**observation, RETURN_TO_GO: left}
        if isinstance(self.observation_space, Dict):
            return {OBSERVATION: observation, RETURN_TO_GO: left}
        return np.append(observation, left.astype(observation.dtype))


@gin.configurable(denylist=["env"])
class Concatenate(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Shows the last `num` observations together, oldest first. Zeros replace observations before the first one.

    Observations are joined along the first axis. Vectors (n,) become (num * n,), and images (c, h, w) or (h, w, c)
    become (num * c, h, w). The entries of a Dict are joined each. The bounds include zero. In Gymnasium's
    FrameStackObservation, they may not.

    Args:
        env: An environment whose observation is a Box, or a Dict of such spaces.
        num: The number of observations to show, including the current one.

    Raises:
        ValueError: `num` is less than 1 or more than 1,000, an observation is not a Box, or height and width would be
            taken for the channels of the stacked image.
    """

    def __init__(self, env: gym.Env[Any, Any], num: int) -> None:
        RecordConstructorArgs.__init__(self, num=num)
        gym.ObservationWrapper.__init__(self, env)
        if not 1 <= num <= MOST_PARTS:
            raise ValueError(f"num must be from 1 to {MOST_PARTS}, not {num}")
        self.num = num
        self.observation_space = self._stacked(env.observation_space)
        self._recent: list[Any] = []

    def _stacked(self, space: gym.Space[Any]) -> gym.Space[Any]:
        if isinstance(space, Dict):
            for key, part in space.items():
                if not isinstance(part, Dict) and not (isinstance(part, Box) and part.shape):
                    raise ValueError(f"Concatenate needs a Box with an axis for each entry; {key!r} is {part}")
            return Dict({key: self._stacked(part) for key, part in space.items()})
        bounds, num = box(space, self), self.num
        low, high = np.minimum(bounds.low, 0), np.maximum(bounds.high, 0)
        if len(bounds.shape) == 3 and channels_last(bounds.shape):
            low, high = (channels_first(bound, bounds.shape) for bound in (low, high))
        if len(low.shape) == 3 and channels_last(stacked := (num * low.shape[0], *low.shape[1:])):
            raise ValueError(f"images {stacked} would be taken for (height, width, channels); swap height and width")
        return Box(np.concatenate([low] * num), np.concatenate([high] * num), dtype=bounds.dtype.type)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode and forget the last one."""
        self._recent = []
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> Any:
        """Return the observation after the earlier ones."""
        frame = _as_frame(observation)
        before = self._recent or [_zeros(frame)] * self.num
        self._recent = [*before[1:], frame]
        return _joined(self._recent)


def _as_frame(observation: Any) -> Any:
    """Return a copy, because some environments reuse one array; of images, with channels first."""
    if isinstance(observation, Mapping):
        return {key: _as_frame(part) for key, part in observation.items()}
    shape = np.shape(observation)
    return np.array(channels_first(observation, shape) if len(shape) == 3 else observation)


def _joined(frames: Sequence[Any]) -> Any:
    if isinstance(frames[0], Mapping):
        return {key: _joined([frame[key] for frame in frames]) for key in frames[0]}
    return np.concatenate(frames)


class FrameStackObservation(gymnasiums.FrameStackObservation):
    """Gymnasium's wrapper with at most 1,000 frames, because it allocates all of them at once.

    Args:
        env: See Gymnasium.
        stack_size: The number of observations to show, including the current one.
        padding_type: See Gymnasium.
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
