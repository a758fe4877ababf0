"""Wrappers that `make` applies: float32 or packed observations, scaled actions, episode returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import gin
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.utils import RecordConstructorArgs

from offpcc.envs.aliases import Array, Info
from offpcc.envs.faults import READABLE, SPACE, UnfitError, kind_of
from offpcc.utils.errors import UserError
from offpcc.utils.paths import as_path, check_folder
from offpcc.utils.spaces import OBSERVATION, STATE, OneHot, PackedDict, float32_box, without_state
from offpcc.utils.video import video

NO_STATE = "return the state from reset and step, a vector, or remove make.state"
MOST_COMBINATIONS = 2**16  # of choices in one action; networks have an output for each
OF_RECORDED_TASKS = ("get_dataset", "get_normalized_score", "ref_min_score", "ref_max_score")  # of D4RL's environments


def box(space: gym.Space[Any], wrapper: object, num_axes: int | None = None) -> Box:
    """Return `space`, or raise ValueError if it is not the Box of `num_axes` axes that `wrapper` needs."""
    if not isinstance(space, Box) or (num_axes is not None and len(space.shape) != num_axes):
        wanted = "a Box" if num_axes is None else f"a Box with {num_axes} axis"
        remedy = "flatten or convert it first"
        if isinstance(space, Dict):
            remedy = (
                "change its entries by a gymnasium.ObservationWrapper of your own, or choose some by FilterObservation"
            )
        raise ValueError(f"{type(wrapper).__name__} needs {wanted}, not {space}; {remedy}")
    return space


class Float32Observation(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Converts observations to float32."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self.observation_space = float32_box(box(env.observation_space, self))

    def observation(self, observation: Array) -> Array:
        """Return the same numbers in float32."""
        return np.asarray(observation, dtype=np.float32)


class PackedObservation(gym.ObservationWrapper[Array, Any, Any], RecordConstructorArgs):
    """Packs Dict observations into bytes, as buffers, recordings and datasets store them; see `PackedDict`."""

    _packed: PackedDict

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self._set_space(None)

    def _set_space(self, state_key: str | None) -> None:
        assert isinstance(self.env.observation_space, Dict)
        self.observation_space = self._packed = PackedDict(self.env.observation_space, state_key)

    def observation(self, observation: Any) -> Array:
        """Return the bytes (D,) of an observation.

        Raises:
            UnfitError: It is not in the Dict space, or a number is NaN or infinite.
        """
        if isinstance(observation, str):  # a Dict without reward or info is unpacked into its keys
            raise UnfitError(f"returned a Dict alone, as its key {observation!r} came for the observation,", READABLE)
        if not isinstance(observation, Mapping):
            raise UnfitError(f"returned {kind_of(observation)} for an observation, but its space is a Dict,", SPACE)
        try:
            return self._packed.pack(observation)
        except ValueError as error:
            raise UnfitError(f"returned an observation in which {error}", SPACE) from None


class PackedStateObservation(PackedObservation):
    """Packs Dict observations of which one entry, `state_key`, is for critics only."""

    def __init__(self, env: gym.Env[Any, Any], state_key: str) -> None:
        RecordConstructorArgs.__init__(self, state_key=state_key)  # the first call counts
        PackedObservation.__init__(self, env)
        self._set_space(state_key)


class StateObservation(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Adds ``info["state"]``, a vector, to the observation, as the entry "state" of a Dict, for critics that read it.

    An array becomes the entry "observation". The space of the state is the environment's attribute ``state_space``;
    without it, the shape is that of the first state, after a reset.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        seen = env.observation_space
        entries = dict(seen.spaces) if isinstance(seen, Dict) else {OBSERVATION: seen}
        if STATE in entries:
            raise UserError('the observation has an entry "state" already; bind make.state = "state"')
        try:
            space = env.get_wrapper_attr("state_space")
        except AttributeError:
            shape = self._state(env.reset()[1]).shape
            space = Box(-np.inf, np.inf, shape, np.float32)
        self.observation_space = Dict({**entries, STATE: space})

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._join(observation, info), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Info]:
        """Take an environment step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._join(observation, info), reward, terminated, truncated, info

    def _join(self, observation: Any, info: Info) -> dict[str, Any]:
        entries = observation if isinstance(observation, Mapping) else {OBSERVATION: observation}
        return {**entries, STATE: self._state(info)}

    def _state(self, info: Info) -> Array:
        if STATE not in info:
            raise UnfitError('returned an info without "state", which make.state = "info" reads,', NO_STATE)
        state = np.asarray(info[STATE])
        if state.ndim != 1:
            raise UnfitError(f'returned info["state"] of shape {state.shape}, which is no vector,', NO_STATE)
        return state


class WithoutState(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Hides the entry `key` of a Dict, which only critics read. If only "observation" is left, it is the array."""

    def __init__(self, env: gym.Env[Any, Any], key: str) -> None:
        RecordConstructorArgs.__init__(self, key=key)
        gym.ObservationWrapper.__init__(self, env)
        assert isinstance(env.observation_space, Dict)
        self.key = key
        self.observation_space = without_state(env.observation_space, key)

    def observation(self, observation: Any) -> Any:
        """Return the other entries."""
        if not isinstance(self.observation_space, Dict):
            return observation[OBSERVATION]
        return {key: entry for key, entry in observation.items() if key != self.key}


class ActionScale(NamedTuple):
    """Scales actions linearly from [-1, 1] to the bounds of a Box."""

    low: Array
    high: Array
    centre: Array
    radius: Array

    @classmethod
    def of(cls, low: Array, high: Array) -> ActionScale:
        """Return the scale of these bounds, which have the shape of an action."""
        # Halve before adding and subtracting, so that wide bounds do not overflow.
        return cls(low, high, high / 2 + low / 2, high / 2 - low / 2)

    def stretch(self, unit: Array) -> Array:
        """Return actions in units of the bounds. Actions outside of [-1, 1] are clipped to the bounds."""
        clipped: Array = np.clip(self.centre + unit * self.radius, self.low, self.high)
        return clipped

    def shrink(self, action: Array) -> Array:
        """Return actions in [-1, 1]; the inverse of `stretch`."""
        units = (action - self.centre) / np.where(self.radius > 0, self.radius, 1.0)
        return np.asarray(np.clip(units, -1.0, 1.0), np.float32)


class ActionIndex(NamedTuple):
    """Converts one-hot vectors to discrete actions; the counterpart of `ActionScale`."""

    start: int
    num: int

    def stretch(self, unit: Array) -> Any:
        """Return the discrete actions (...) of one-hot vectors (..., A): the place of the largest number."""
        return self.start + np.argmax(unit, -1)

    def shrink(self, action: Array) -> Array:
        """Return one-hot vectors (..., A) of discrete actions (...)."""
        vectors: Array = np.eye(self.num, dtype=np.float32)[np.asarray(action) - self.start]
        return vectors


def scale_of(space: gym.Space[Any]) -> ActionScale | ActionIndex:
    """Return the conversion of an agent's actions to those of `space`."""
    if isinstance(space, Discrete):
        return ActionIndex(int(space.start), int(space.n))
    assert isinstance(space, Box)
    return ActionScale.of(space.low, space.high)


@gin.configurable(denylist=["env"])
class MultiDiscreteToDiscrete(gym.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """Takes one whole number for the several choices of a `MultiDiscrete` or `MultiBinary` action.

    There is a number for each combination. The last choice changes first, as in ``numpy.unravel_index``: with the
    choices [3, 2], the action 3 stands for [1, 1]. So the agent has the product of the numbers of choices as actions.

    Args:
        env: The environment.

    Raises:
        ValueError: Actions are of another kind, or there are too many combinations.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        self._space = space = env.action_space
        if not isinstance(space, MultiDiscrete | MultiBinary):
            raise ValueError(f"MultiDiscreteToDiscrete needs MultiDiscrete or MultiBinary actions, not {space}")
        sizes = space.nvec if isinstance(space, MultiDiscrete) else np.full(space.shape, 2)
        self._sizes = tuple(int(size) for size in np.ravel(sizes))
        if (number := math.prod(self._sizes)) > MOST_COMBINATIONS:
            raise ValueError(
                f"the actions {space} have {number:,} combinations, more than {MOST_COMBINATIONS:,}; leave choices out "
                f"in a gymnasium.ActionWrapper"
            )
        self.action_space = Discrete(number)

    def action(self, action: Any) -> Array:
        """Return the choices, as `env` takes them."""
        space: Any = self._space
        places = np.reshape(np.unravel_index(int(action), self._sizes), space.shape)
        return np.asarray(places + getattr(space, "start", 0), space.dtype)


class UnitAction(gym.ActionWrapper[Any, Array, Any], RecordConstructorArgs):
    """Takes actions as agents give them: float32 in [-1, 1], or one-hot vectors for discrete actions.

    It scales numbers linearly to the bounds of `env`, which are finite, and gives discrete actions as whole numbers.

    Actions outside of [-1, 1] are clipped. Results never leave the bounds of `env`; with Gymnasium's RescaleAction, the
    actions 1 and -1 may leave them by a rounding error. If the bounds are [-1, 1], actions pass unchanged.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        space = env.action_space
        if isinstance(space, Discrete):
            self.action_space = OneHot(space)
        else:
            self.action_space = Box(-1.0, 1.0, box(space, self).shape, np.float32)
        self._scale = scale_of(space)

    def action(self, action: Array) -> Any:
        """Return the action in the units of `env`."""
        return self._scale.stretch(np.asarray(action, dtype=np.float32))


class SaveReplay(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Records a video of each episode, `<folder>/episode_<number>.mp4`; it is complete when the episode ends."""

    def __init__(self, env: gym.Env[Any, Any], folder: Path) -> None:
        RecordConstructorArgs.__init__(self, folder=folder)
        gym.Wrapper.__init__(self, env)
        self.folder, self.number, self._open = folder, 0, ExitStack()
        self._add: Callable[[Any], Any] | None = None  # takes a picture; None between episodes

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode and its video."""
        self.finish()
        started = self.env.reset(seed=seed, options=options)
        self.number += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        fps = round(self.env.metadata.get("render_fps") or 30)
        self._add = self._open.enter_context(video(self.folder / f"episode_{self.number}.mp4", fps))
        self._add(self.env.render())
        return started

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Info]:
        """Take an environment step and add its picture; write the video at the episode's end."""
        result = self.env.step(action)
        if self._add is not None:
            self._add(self.env.render())
        if result[2] or result[3]:
            self.finish()
        return result

    def finish(self) -> None:
        """Write the video of the current episode, if there is one."""
        self._add = None
        self._open.close()

    def close(self) -> None:
        """Write the video of an unfinished episode, and close the environment."""
        self.finish()
        super().close()


class EpisodeReturn(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Puts the return and the length of an episode into the `info` of its last step.

    ``info["final_eval_reward"]`` is the undiscounted return, and ``info["episode_length"]`` is the number of steps.
    Time limits must be inside of this wrapper: it does not notice that an outer wrapper truncates an episode.

    Args:
        env: Any environment.
        timeout: Not used here; `make` stores its argument of this name, for `guarded` and `close`.
    """

    def __init__(self, env: gym.Env[Any, Any], timeout: float | None = None) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self.timeout = timeout
        self._return, self._length = 0.0, 0

    def __getattr__(self, name: str) -> Any:
        """Return what D4RL's users expect on the outermost wrapper, such as `get_dataset`."""
        if name in OF_RECORDED_TASKS:
            return self.env.get_wrapper_attr(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def random_action(self) -> Any:
        """Return a random action; ``env.action_space.seed(N)`` makes the sequence of actions repeatable."""
        return self.action_space.sample()

    def enable_save_replay(self, replay_path: str | Path = "./video") -> None:
        """Record a video of each episode from the next reset on, `<replay_path>/episode_<number>.mp4`."""
        if self.env.render_mode != "rgb_array":
            raise UserError(
                f"videos need the render_mode 'rgb_array', but the environment has {self.env.render_mode!r}; make it "
                f'by offpcc.make(NAME, render_mode="rgb_array") or offpcc.make(NAME, lazy=True)'
            )
        check_folder(folder := as_path(replay_path, "replay_path"), "replay_path")
        if isinstance(self.env, SaveReplay):
            self.env.finish()
        self.env = SaveReplay(self.env.env if isinstance(self.env, SaveReplay) else self.env, folder)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode and reset the sums."""
        self._return, self._length = 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Info]:
        """Take an environment step and add it to the sums."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        try:
            self._return += float(reward)
        except (TypeError, ValueError):  # no number, which training refuses
            self._return = np.nan
        self._length += 1
        if terminated or truncated:
            info = {**info, "final_eval_reward": self._return, "episode_length": self._length}
        return observation, reward, terminated, truncated, info


class LazyEpisodeReturn(EpisodeReturn):
    """`EpisodeReturn` whose environment is made at its first reset, or when something of it is needed."""

    def __init__(self, make: Callable[..., EpisodeReturn], timeout: float | None = None) -> None:
        self._make = make
        self._made: gym.Env[Any, Any] | None = None
        super().__init__(gym.Env(), timeout)  # which the property below replaces

    @property
    def env(self) -> gym.Env[Any, Any]:
        """The environment."""
        if self._made is None:
            self._made = self._make().env
        return self._made

    @env.setter
    def env(self, env: gym.Env[Any, Any]) -> None:
        self._made = None if type(env) is gym.Env else env

    def __str__(self) -> str:
        return "<an environment that is not made yet>" if self._made is None else f"<{type(self).__name__}{self._made}>"

    def enable_save_replay(self, replay_path: str | Path = "./video") -> None:
        """See `EpisodeReturn`; an environment that is not made yet gets the render mode by itself."""
        before = self._make
        if self._made is None:
            self._make = partial(self._make, render_mode="rgb_array")
        try:
            super().enable_save_replay(replay_path)
        except BaseException:
            self._make = before
            raise

    def close(self) -> None:
        """Close the environment, if it was made."""
        if self._made is not None:
            super().close()


def bounds_of(space: Box | Discrete) -> tuple[Array, Array]:
    """Return the lowest and the highest action, (A,) each; of discrete actions, the first and the last, (1,) each."""
    if isinstance(space, Discrete):
        return np.array([space.start]), np.array([space.start + space.n - 1])
    return space.low.ravel(), space.high.ravel()


def raw_actions(env: gym.Env[Any, Any]) -> Box | Discrete:
    """Return the action space of an environment, inside of its `UnitAction` if there is one."""
    while isinstance(env, gym.Wrapper) and not isinstance(env, UnitAction):
        env = env.env
    space = env.env.action_space if isinstance(env, UnitAction) else env.action_space
    return space if isinstance(space, Discrete) else box(space, env)
