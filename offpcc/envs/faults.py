"""`EnvironmentFault`: one message about an environment that raised, hung or returned a wrong value."""

from __future__ import annotations

import os
import sysconfig
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import numpy as np

from offpcc.utils.errors import UserError, named
from offpcc.utils.files import open_regular
from offpcc.utils.foreign import MisuseError

__all__ = ["EnvironmentFault", "RemoteTracebackError", "deed", "format_error", "kind_of", "place_in", "remedy_of"]

FILE = "environment_faults.txt"
OFFPCC, GYMNASIUM = Path(__file__).parents[1], Path(gymnasium.__file__).parent
GOES_ON = "--resume goes on from where the run was last saved"
LIBRARIES = ("site-packages", "dist-packages")
# Code between an environment and its caller. If a traceback has no other frames, the error is about a returned value.
BETWEEN = (
    f"{OFFPCC / 'utils' / 'foreign.py'}",
    *(f"{OFFPCC / 'envs' / name}" for name in ("closing.py", "guard.py", "make.py", "resume.py", "watchdog.py")),
)
WRAPPERS = OFFPCC / "envs" / "wrappers"


class EnvironmentFault(UserError):  # noqa: N818 (it is the environment that errs)
    """An environment raised, hung, or returned a value that is unfit for learning.

    Args:
        env: its name, and its number if there are several.
        what: what it did, such as "raised ValueError: too far (lab.py:31)".
        moment: when, such as "in step 17 of its episode".
        remedy: what to do about it.
        cause: the exception raised in it, if any.
    """

    def __init__(self, env: str, what: str, moment: str, remedy: str, cause: BaseException | None = None) -> None:
        self.parts = (env, what, moment, remedy)
        super().__init__(f"{env} {what} {moment}; {remedy}")
        self.cause = cause  # gin replaces exceptions that pass through it, but keeps this attribute
        self.__cause__ = cause

    def in_run(self, step: int | None) -> EnvironmentFault:
        """Return the same fault with its step in a run, and with the advice to resume the run.

        Args:
            step: environment steps that the run had taken before; None in a test episode.
        """
        env, what, moment, remedy = self.parts
        if step is not None:
            moment = f"{moment}, step {step + 1:,} of the run"
        return EnvironmentFault(env, what, moment, f"{remedy}, then {GOES_ON}", self.cause)

    def kept_in(self, folder: Path) -> EnvironmentFault:
        """Append the fault and its traceback to a file in a run's folder, and return the fault with the file's name."""
        file, trace = folder / FILE, "".join(traceback.format_exception(self.cause)) if self.cause else ""
        try:
            with open_regular(file, "a", encoding="utf-8", errors="backslashreplace") as opened:
                opened.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.message}\n{trace}\n")
        except OSError:  # the message matters more than the file
            return self
        env, what, moment, remedy = self.parts
        return EnvironmentFault(env, what, moment, f"{remedy} (its traceback is in {file})", self.cause)

    def without_gin(self) -> EnvironmentFault:
        """Return the fault as a plain `EnvironmentFault`; gin raises a proxy in its place."""
        return EnvironmentFault(*self.parts, self.cause)


class RemoteTracebackError(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"in a worker process\n{self.args[0]}"


def place_in(stack: Sequence[traceback.FrameSummary]) -> str | None:
    """Return where in an environment a stack ends, as "FILE:LINE"; None if no environment code took part.

    This is the last line in a user's own file. If there is none, it is the last line in any file that is not between
    the environment and its caller.
    """
    frames = [(frame.filename, f"{frame.filename}:{frame.lineno}") for frame in stack]
    inside = [(file, place) for file, place in frames if not _is_between(file)]
    own = [place for file, place in inside if not _is_library(file)]
    return next(iter(reversed(own or [place for _, place in inside])), None)


def format_error(error: BaseException) -> str:
    """Return an exception's class and message in one line."""
    return named(error)


def deed(error: BaseException) -> str:
    """Return what some code did before an exception, such as "raised ValueError: too far"."""
    return error.what if isinstance(error, MisuseError) else f"raised {format_error(error)}"


def remedy_of(error: BaseException) -> str:
    """Return what to do about code that caused this exception."""
    return error.remedy if isinstance(error, MisuseError) else "mend it"


def kind_of(value: object) -> str:
    """Describe a value that has the wrong type."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    if value is None:
        return "None"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


def _is_between(file: str) -> bool:
    is_environment = file.startswith(f"{GYMNASIUM / 'envs'}{os.sep}") and "registration" not in file
    return file in BETWEEN or (_is_below(file, [GYMNASIUM, WRAPPERS]) and not is_environment)


def _is_library(file: str) -> bool:
    parts = Path(file).parts
    return (
        file.startswith("<")
        or any(library in parts for library in LIBRARIES)
        or _is_below(file, [OFFPCC, Path(sysconfig.get_paths()["stdlib"])])
    )


def _is_below(file: str, folders: Sequence[Path]) -> bool:
    return any(file.startswith(f"{folder}{os.sep}") for folder in folders)
