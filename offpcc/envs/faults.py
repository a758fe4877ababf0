"""Faults of environments: `EnvironmentFault`, one message about what went wrong, and `Watchdog`, the timeout of calls.

The watchdog is a thread that checks at intervals how long a call has taken. If a call takes too long, the thread
interrupts it with a signal. Python handles signals between two of its own operations and in its own waits. A call that
hangs in C code does not react. The process then prints a message and ends, because nothing inside it can end such a
call. A call that also holds Python's global interpreter lock stops the thread, too. Only worker processes help against
that.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar

import gymnasium
import numpy as np

from offpcc.utils.errors import UserError, format_error
from offpcc.utils.signals import show_cursor

FILE = "environment_faults.txt"
OFFPCC, GYMNASIUM = Path(__file__).parents[1], Path(gymnasium.__file__).parent
RESUME = "--resume continues from the run's last checkpoint"
LIBRARIES = ("site-packages", "dist-packages")
# Our code that calls an environment. If a traceback has no other frames, the error is about a returned value.
CALLING_FILES = tuple(
    f"{OFFPCC / 'envs' / name}.py"
    for name in ("check", "faults", "guard", "make", "episode_replay", "recorded_observations")
)
WRAPPERS = OFFPCC / "envs" / "wrappers"
SPACE = "return what observation_space promises"
READABLE = (
    "return (observation, reward, terminated, truncated, info) from step and (observation, info) from reset; for an "
    "environment of the old gym, use offpcc.envs.wrappers.old_gym.OldGym"
)


class EnvironmentFault(UserError):  # noqa: N818 (the error is in the environment)
    """An environment raised, hung, or returned a value that is unfit for learning.

    Args:
        env: name of the environment, with its number if there are several.
        what: what it did, such as "raised ValueError: too far (lab.py:31)".
        moment: when it did this, such as "in step 17 of its episode".
        remedy: advice to the user.
        cause: the exception that the environment raised, if any.
    """

    def __init__(self, env: str, what: str, moment: str, remedy: str, cause: BaseException | None = None) -> None:
        self.parts = (env, what, moment, remedy)
        super().__init__(f"{env} {what} {moment}; {remedy}")
        self.cause = cause  # gin replaces exceptions that pass through it, but keeps this attribute
        self.__cause__ = cause

    def _extended(self, moment: str = "", remedy: str = "") -> EnvironmentFault:
        """Return the same fault with more text after its moment and its remedy."""
        env, what, before, advice = self.parts
        return EnvironmentFault(env, what, before + moment, advice + remedy, self.cause)

    def with_run_step(self, step: int) -> EnvironmentFault:
        """Return the same fault with its step in a run, which had taken `step` environment steps before."""
        return self._extended(moment=f", step {step + 1:,} of the run")

    def with_resume(self) -> EnvironmentFault:
        """Return the same fault with the advice to resume its run."""
        return self._extended(remedy=f"; then {RESUME}")

    def written_to(self, folder: Path) -> EnvironmentFault:
        """Append the fault and its traceback to a file in a run's folder, and return the fault with the file's name."""
        file, trace = folder / FILE, "".join(traceback.format_exception(self.cause)) if self.cause else ""
        try:
            with file.open("a", encoding="utf-8", errors="backslashreplace") as opened:
                opened.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.message}\n{trace}\n")
        except OSError:  # the message matters more than the file
            return self
        return self._extended(remedy=f" (its traceback is in {file})")

    def without_gin(self) -> EnvironmentFault:
        """Return the fault as a plain `EnvironmentFault`; gin raises a proxy in its place."""
        return self._extended()


class UnfitError(ValueError):
    """A returned value is unfit for learning."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class RemoteTracebackError(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"in a worker process\n{self.args[0]}"


def locate_env_line(stack: Sequence[traceback.FrameSummary]) -> str | None:
    """Return the place in an environment's code where a stack ends, as "FILE:LINE"; None if there is no such code.

    This is the last line in a user's own file. If there is none, it is the last line in any file but those that call
    environments.
    """
    frames = [(frame.filename, f"{frame.filename}:{frame.lineno}") for frame in stack]
    inside = [(file, place) for file, place in frames if not _is_calling_code(file)]
    own = [place for file, place in inside if not _is_library(file)]
    return next(iter(reversed(own or [place for _, place in inside])), None)


def format_env_error(error: BaseException) -> str:
    """Return an environment's error in one line, with the place in its code if there is one."""
    place = locate_env_line(traceback.extract_tb(error.__traceback__))
    return format_error(error) + (f" ({place})" if place else "")


def kind_of(value: object) -> str:
    """Describe a value that has the wrong type."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    if value is None:
        return "None"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


def _is_calling_code(file: str) -> bool:
    is_environment = file.startswith(f"{GYMNASIUM / 'envs'}{os.sep}") and "registration" not in file
    return file in CALLING_FILES or (_is_below(file, [GYMNASIUM, WRAPPERS]) and not is_environment)


def _is_library(file: str) -> bool:
    parts = Path(file).parts
    return (
        file.startswith("<")
        or any(library in parts for library in LIBRARIES)
        or _is_below(file, [OFFPCC, Path(sysconfig.get_paths()["stdlib"])])
    )


def _is_below(file: str, folders: Sequence[Path]) -> bool:
    return any(file.startswith(f"{folder}{os.sep}") for folder in folders)


# Timeouts ---------------------------------------------------------------------------------------------------------

GRACE = 1.0  # seconds that a call has to react to the signal
SLOW = "fix it, or raise make.timeout"
NUM_CHECKS = 8  # per timeout; each holds the interpreter's lock for some microseconds


class OverdueError(BaseException):
    """A call took too long. This is not an Exception, because an environment may catch every Exception."""


def overdue(timeout: float, place: str | None) -> str:
    """Return the message about a call that took longer than `timeout` seconds, at `place` if it is known."""
    return f"did not return within make.timeout = {timeout:g} seconds" + (f" ({place})" if place else "")


class Watchdog:
    """Context manager that interrupts its body if it runs longer than `timeout` seconds.

    The first open watchdog installs a SIGALRM handler if it is made in the main thread. When the last one is closed,
    the previous handler is put back. In other threads there is no signal, and the process ends at once.

    If the process must end, `on_hang` is called with the stack of the hanging call. It prints a message and returns the
    exit code.
    """

    _open: ClassVar[list[Watchdog]] = []
    _before: ClassVar[Any] = None  # the previous handler of SIGALRM

    def __init__(self, timeout: float, on_hang: Callable[[traceback.StackSummary], int]) -> None:
        self.timeout, self.on_hang = timeout, on_hang
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._deadline: float | None = None  # of the current call
        self._thread, self._is_interrupted = 0, False
        if not Watchdog._open and threading.current_thread() is threading.main_thread():
            Watchdog._before = signal.signal(signal.SIGALRM, _interrupt)
        Watchdog._open.append(self)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def __enter__(self) -> None:
        self._thread, self._is_interrupted = threading.get_ident(), False
        self._deadline = time.monotonic() + self.timeout

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # a signal that is being sent must arrive before the call counts as finished
            self._deadline = None

    @property
    def is_overdue(self) -> bool:
        """True if the current call was sent the signal."""
        return self._is_interrupted and self._deadline is not None

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self not in Watchdog._open:
            return
        Watchdog._open.remove(self)
        is_main = threading.current_thread() is threading.main_thread()
        if not Watchdog._open and is_main and signal.getsignal(signal.SIGALRM) is _interrupt:
            signal.signal(signal.SIGALRM, signal.SIG_DFL if Watchdog._before is None else Watchdog._before)

    def _watch(self) -> None:
        main = threading.main_thread().ident
        while not self._closed.wait(min(self.timeout / NUM_CHECKS, GRACE)):
            with self._lock:
                if self._deadline is None or time.monotonic() <= self._deadline:
                    continue
                can_interrupt = self._thread == main and signal.getsignal(signal.SIGALRM) is _interrupt
                if not can_interrupt or self._is_interrupted:
                    self._end()
                self._is_interrupted, self._deadline = True, time.monotonic() + GRACE
                signal.pthread_kill(self._thread, signal.SIGALRM)

    def _end(self) -> None:
        code = self.on_hang(traceback.extract_stack(sys._current_frames()[self._thread]))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        show_cursor()
        os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGALRM: raise `OverdueError`, or call the previous handler if the signal came from elsewhere."""
    if any(watchdog.is_overdue for watchdog in Watchdog._open):
        raise OverdueError
    if callable(Watchdog._before):
        Watchdog._before(number, frame)
