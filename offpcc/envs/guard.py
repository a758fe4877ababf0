"""Safe use of environments: `Guard` turns errors and wrong return values into one message, and `close` never raises."""

import math
import numbers
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from traceback import StackSummary, extract_tb
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box

from offpcc.envs.aliases import Array, Info
from offpcc.envs.faults import (
    READABLE,
    SLOW,
    SPACE,
    EnvironmentFault,
    OverdueError,
    UnfitError,
    Watchdog,
    format_env_error,
    kind_of,
    locate_env_line,
    overdue,
)
from offpcc.envs.make import timeout_of
from offpcc.envs.wrapper_chain import name_of
from offpcc.utils.errors import UserError, format_error, print_to_stderr
from offpcc.utils.spaces import OneHot
from offpcc.utils.torch_settings import torch_settings_kept

Env = TypeVar("Env", bound=gym.Env[Any, Any])
MaybeEnv = TypeVar("MaybeEnv", bound=gym.Env[Any, Any] | None)
RAISED = (Exception, SystemExit, OverdueError)  # by an environment's code, which may also exit
LARGEST = float(np.finfo(np.float32).max)  # buffers and networks hold float32

DIVERGES = "look for a division by 0 or a simulation that diverges, and end the episode before it"


class Inspection:
    """Validates the observations, rewards and flags of one environment.

    Numbers of other types, lists of numbers and NumPy's booleans are common and harmless, so they are converted.
    """

    def __init__(self, space: spaces.Box) -> None:
        self.shape, self.dtype = space.shape, space.dtype
        self._holds_floats = np.issubdtype(space.dtype, np.floating)

    def observation(self, returned: Any) -> Array:
        """Return an observation in the shape and dtype of its space, or raise `UnfitError`."""
        is_expected = type(returned) is np.ndarray and returned.dtype is self.dtype and returned.shape == self.shape
        if is_expected and (not self._holds_floats or np.isfinite(returned).all()):
            return returned  # type: ignore[no-any-return]
        return self._read(returned)

    def _read(self, returned: Any) -> Array:
        try:
            array = np.asarray(returned)
        except ValueError:  # a ragged list
            raise UnfitError(f"returned {kind_of(returned)} for an observation", SPACE) from None
        if array.shape != self.shape or array.dtype.kind not in "biuf":
            expected = f"but its space has dtype {self.dtype} and shape {self.shape}"
            raise UnfitError(f"returned {kind_of(returned)} for an observation, {expected},", SPACE)
        with np.errstate(all="ignore"):
            read = array.astype(self.dtype, copy=False)
            is_lost = ~np.isfinite(read) if self.dtype.kind == "f" else read != array  # NaN is unequal
        if is_lost.any():
            index = tuple(int(place) for place in np.argwhere(is_lost)[0])
            number = f"{array[index]:.6g} at index {index[0] if len(index) == 1 else index} of its observation"
            if np.isfinite(array[index]):
                raise UnfitError(f"returned {number}, which {self.dtype} cannot hold,", SPACE)
            raise UnfitError(f"returned {number}", DIVERGES)
        return read

    def reward(self, returned: Any) -> float:
        """Return a reward as a float, or raise `UnfitError`: it has to be a number that fits into float32."""
        try:
            if math.fabs(returned) <= LARGEST:
                return float(returned)
            number = f"{float(returned):.6g}"
        except Exception:  # the returned object may raise any exception
            raise UnfitError(f"returned {kind_of(returned)} for a reward", "return a number: float(reward)") from None
        raise UnfitError(f"returned the reward {number}", DIVERGES)

    @staticmethod
    def flag(name: str, returned: Any) -> bool:
        """Return a flag as a bool, or raise `UnfitError`; `name` is "terminated" or "truncated"."""
        with suppress(Exception):  # the returned object may raise any exception
            if returned == 0 or returned == 1:
                return bool(returned)
        value = returned if isinstance(returned, numbers.Real) else kind_of(returned)
        raise UnfitError(f"returned {value} for {name}", f"return True or False: bool({name})")

    def info(self, returned: Any) -> Info:
        """Return the info, or raise `UnfitError`: it has to be a dictionary."""
        if isinstance(returned, Mapping):
            return returned  # type: ignore[return-value]
        raise UnfitError(
            f"returned {kind_of(returned)} for an info",
            "return a dictionary, such as {}, after the observation from reset, and after truncated from step",
        )


FRAME = "return an array (height, width, 3) of uint8 from render"


class Guard(gym.Wrapper[Array, Any, Array, Any]):
    """Wrapper that validates what an environment returns and converts it to the types of its space.

    Args:
        env: its observation space is a Box.
        which: name among several environments, such as "environment 2".
        timeout: maximum seconds of a reset, a step, a rendering or the closing; None for no limit.
    """

    def __init__(self, env: gym.Env[Any, Any], which: str = "", timeout: float | None = None) -> None:
        gym.Wrapper.__init__(self, env)
        assert isinstance(env.observation_space, Box)
        self._inspection = Inspection(env.observation_space)
        self._which, self._timeout = which, timeout
        self._watchdog: Any = nullcontext() if timeout is None else Watchdog(timeout, self._on_hang)
        self._length = 0
        self._seed: int | None = None
        self._action: Array | None = None  # of the current step
        self._is_rendering = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; any misbehaviour of the environment becomes an `EnvironmentFault`."""
        self._length, self._seed, self._action = 0, seed, None
        try:
            with torch_settings_kept(name_of(self.env)), self._watchdog:
                observation, info = self.env.reset(seed=seed, options=options)
            # First, because an observation of two numbers without an info is unpacked into both, too.
            info = self._inspection.info(info)
            return self._inspection.observation(observation), info
        except RAISED as error:
            self._refuse(error)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Take an environment step; any misbehaviour of the environment becomes an `EnvironmentFault`."""
        self._length, self._action = self._length + 1, action
        inspection = self._inspection
        try:
            with self._watchdog:
                observation, reward, terminated, truncated, info = self.env.step(action)
            return (
                inspection.observation(observation),
                inspection.reward(reward),
                inspection.flag("terminated", terminated),
                inspection.flag("truncated", truncated),
                inspection.info(info),
            )
        except RAISED as error:
            self._refuse(error)

    def render(self) -> Any:
        """Render the environment; any misbehaviour of the environment becomes an `EnvironmentFault`."""
        self._is_rendering = True
        try:
            with self._watchdog:
                rendered = self.env.render()
            if self.env.render_mode == "rgb_array":
                frame = np.asarray(rendered)
                if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
                    raise UnfitError(f"returned {kind_of(rendered)} for a frame", FRAME)
            return rendered
        except RAISED as error:
            self._refuse(error)
        finally:
            self._is_rendering = False

    def release(self) -> None:
        """Stop the watchdog; the environment stays open."""
        if isinstance(self._watchdog, Watchdog):
            self._watchdog.close()

    def close(self) -> None:
        """Close the environment; an error is reported, not raised."""
        self.release()
        close(self.env, self._timeout)

    def _refuse(self, error: BaseException) -> NoReturn:
        if isinstance(error, UserError):  # its message is complete
            raise error
        if isinstance(error, UnfitError):
            raise self._fault(error.what, error.remedy) from None
        if isinstance(error, Exception) and locate_env_line(extract_tb(error.__traceback__)) is None:
            if "unexpected keyword argument" in str(error):  # such as the seed, which the old gym's reset does not take
                remedy = f"define reset(self, *, seed=None, options=None) and step(self, action); {READABLE}"
                raise self._fault(f"cannot be called as Gymnasium does ({format_error(error)})", remedy, error)
            raise self._fault(f"returned a value that cannot be read ({format_error(error)})", READABLE, error)
        raise self._fault(*_explain(error, self._timeout or 0.0), error)

    def _fault(self, what: str, remedy: str, cause: BaseException | None = None) -> EnvironmentFault:
        name = name_of(self.env)
        episode = "its episode" if self._seed is None else f"its episode of seed {self._seed}"
        moment = f"in the reset of {episode}"
        if self._is_rendering:
            moment = f"when it was rendered, after step {self._length:,} of {episode}"
        elif self._action is not None:
            space, action = self.env.action_space, np.asarray(self._action)
            if isinstance(space, OneHot):  # the number that the environment gets
                action = np.asarray(space.discrete.start + action.argmax())
            shown = np.array2string(action, precision=4, threshold=8, max_line_width=sys.maxsize)
            moment = f"in step {self._length:,} of {episode}, on the action {shown}"
        return EnvironmentFault(f"{name} ({self._which})" if self._which else name, what, moment, remedy, cause)

    def _on_hang(self, stack: StackSummary) -> int:
        fault = self._fault(overdue(self._watchdog.timeout, _place_of_hang(stack)), SLOW)
        return (fault.with_resume() if self._which else fault).report()


def guarded(env: gym.Env[Any, Any], which: str = "") -> Guard:
    """Return an environment in a `Guard`, with the `timeout` that `make` was called with."""
    return Guard(env, which, timeout_of(env))


_reported = WeakSet[type]()  # classes whose `close` failed; a run closes many environments of one class


def close(env: gym.Env[Any, Any], timeout: float | None = None) -> None:
    """Close an environment. Report an error instead of raising it, once per environment class and process.

    If a hanging `close` does not react to the watchdog's signal, the process ends with a message.
    """
    seconds = timeout or timeout_of(env) or 0.0

    def report(what: str, remedy: str, outcome: str = "no data is lost, but") -> int:
        advice = remedy.replace("fix it", "fix its close()") if "fix it" in remedy else f"in its close(), {remedy}"
        print_to_stderr(f"{name_of(env)} {what} when it was closed; {outcome} {advice}")
        return 2

    def on_hang(stack: StackSummary) -> int:
        return report(overdue(seconds, _place_of_hang(stack)), SLOW, "the process ends here;")

    watchdog = Watchdog(seconds, on_hang) if seconds else None
    try:
        with watchdog or nullcontext():
            env.close()
    except RAISED as error:
        if type(env.unwrapped) not in _reported:
            _reported.add(type(env.unwrapped))
            report(*_explain(error, seconds))
    finally:
        if watchdog is not None:
            watchdog.close()


@contextmanager
def opened(env: MaybeEnv, timeout: float | None = None) -> Iterator[MaybeEnv]:
    """Yield an environment, and `close` it at the end. Without an environment, yield None."""
    try:
        yield env
    finally:
        if env is not None:
            close(env, timeout)


def _explain(error: BaseException, timeout: float) -> tuple[str, str]:
    """Return a description of an environment's error, with its place, and the remedy."""
    if isinstance(error, OverdueError):
        return overdue(timeout, locate_env_line(extract_tb(error.__traceback__))), SLOW
    return f"raised {format_env_error(error)}", "fix it"


def _place_of_hang(stack: StackSummary) -> str | None:
    """Return where a call hangs, from the stack of its thread."""
    caller = max(level for level, frame in enumerate(stack) if frame.filename == __file__)
    return locate_env_line(stack[caller:])
