"""What stands around an environment that somebody else wrote, so that whatever it does comes to one message."""

from __future__ import annotations

import contextlib
import sys
from traceback import StackSummary, extract_tb
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc import signals
from offpcc.domains.closing import close
from offpcc.domains.faults import EnvironmentFault, deed, kind_of, place_in, remedy_of, told
from offpcc.domains.inspection import Inspection, UnfitError
from offpcc.domains.levels import name_of
from offpcc.domains.making import by_gin
from offpcc.domains.watchdog import SLOW, OverdueError, Watchdog, overdue
from offpcc.errors import UserError
from offpcc.foreign import ForeignCall

__all__ = ["Guard", "guarded"]

Array = NDArray[Any]
Info = dict[str, Any]

READABLE = (
    "return (observation, reward, terminated, truncated, info) from step and (observation, info) from reset; an "
    "environment of the old gym goes into offpcc.domains.old_gym.OldGym"
)
NOBODY = contextlib.nullcontext()  # watches where there is no timeout
PICTURE = "return an array (height, width, 3) of uint8 from render"


class Guard(gym.Wrapper[Array, Any, Array, Any]):
    """Passes on what an environment returns, in the types that its space promises, and refuses what is unfit.

    Args:
        env: its observation is a Box.
        which: of several side by side it is, such as "environment 2".
        timeout: seconds that a reset, a step, a drawing or the closing may take; None for any time.
    """

    def __init__(self, env: gym.Env[Any, Any], which: str = "", timeout: float | None = None) -> None:
        gym.Wrapper.__init__(self, env)
        assert isinstance(env.observation_space, Box)
        self._inspection = Inspection(env.observation_space)
        self._which, self._timeout = which, timeout
        self._watchdog: Any = NOBODY
        if timeout is not None:
            self._watchdog = Watchdog(timeout, self._last_words)
        self._length = 0
        self._seed: int | None = None
        self._action: Array | None = None  # of the step under way
        self._is_drawing = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Starts an episode.

        Raises:
            EnvironmentFault: the environment raised, took too long, or returned what is unfit.
        """
        self._length, self._seed, self._action = 0, seed, None
        try:
            with ForeignCall(), self._watchdog:
                observation, info = self.env.reset(seed=seed, options=options)
            return self._inspection.observation(observation), info
        except signals.ANYTHING as error:
            self._refuse(error)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Takes a step.

        Raises:
            EnvironmentFault: the environment raised, took too long, or returned what is unfit.
        """
        self._length, self._action = self._length + 1, action
        inspection = self._inspection
        try:
            with ForeignCall(), self._watchdog:
                observation, reward, terminated, truncated, info = self.env.step(action)
            return (
                inspection.observation(observation),
                inspection.reward(reward),
                inspection.flag("terminated", terminated),
                inspection.flag("truncated", truncated),
                info,
            )
        except signals.ANYTHING as error:
            self._refuse(error)

    def render(self) -> Any:
        """Draws the environment.

        Raises:
            EnvironmentFault: the environment raised, took too long, or returned no picture where one was promised.
        """
        self._is_drawing = True
        try:
            with ForeignCall(), self._watchdog:
                drawn = self.env.render()
            if self.env.render_mode == "rgb_array":
                _check_picture(drawn)
            return drawn
        except signals.ANYTHING as error:
            self._refuse(error)
        finally:
            self._is_drawing = False

    def release(self) -> None:
        """Watches the environment no longer, which stays open."""
        if isinstance(self._watchdog, Watchdog):
            self._watchdog.close()

    def close(self) -> None:
        """Closes the environment, whatever it raises."""
        self.release()
        close(self.env, self._timeout)

    def _refuse(self, error: BaseException) -> NoReturn:
        signals.pass_on(error)
        if isinstance(error, UserError):  # it says all there is to say
            raise error
        if isinstance(error, UnfitError):
            raise self._fault(error.what, error.remedy) from None
        place = place_in(extract_tb(error.__traceback__))
        if isinstance(error, OverdueError):
            raise self._fault(overdue(self._watchdog.timeout, place), SLOW, error)
        if place is None and isinstance(error, Exception):
            raise self._fault(f"returned what cannot be read ({told(error)})", READABLE, error)
        raise self._fault(deed(error) + (f" ({place})" if place else ""), remedy_of(error), error)

    def _fault(self, what: str, remedy: str, cause: BaseException | None = None) -> EnvironmentFault:
        name = name_of(self.env)
        episode = "its episode" if self._seed is None else f"its episode of seed {self._seed}"
        moment = f"in the reset of {episode}"
        if self._is_drawing:
            moment = f"when it was drawn, after step {self._length:,} of {episode}"
        elif self._action is not None:
            action = np.array2string(np.asarray(self._action), precision=4, threshold=8, max_line_width=sys.maxsize)
            moment = f"in step {self._length:,} of {episode}, on the action {action}"
        return EnvironmentFault(f"{name} ({self._which})" if self._which else name, what, moment, remedy, cause)

    def _last_words(self, stack: StackSummary) -> int:
        within = max(level for level, frame in enumerate(stack) if frame.filename == __file__)
        fault = self._fault(overdue(self._watchdog.timeout, place_in(stack[within:])), SLOW)
        return (fault.in_run(None) if self._which else fault).report()


def _check_picture(drawn: Any) -> None:
    picture = np.asarray(drawn)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise UnfitError(f"returned {kind_of(drawn)} for a picture", PICTURE)


def guarded(env: gym.Env[Any, Any], which: str = "") -> Guard:
    """An environment in a `Guard`, with gin's timeout; see `Guard`."""
    return Guard(env, which, by_gin().timeout)
