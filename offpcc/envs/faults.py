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
# What stands between an environment and who calls it: an error that only these were in is about what was returned.
BETWEEN = (
    f"{OFFPCC / 'utils' / 'foreign.py'}",
    *(f"{OFFPCC / 'envs' / name}" for name in ("closing.py", "guard.py", "make.py", "resume.py", "watchdog.py")),
)
WRAPPERS = OFFPCC / "envs" / "wrappers"


class EnvironmentFault(UserError):  # noqa: N818 (it is the environment that errs)
    """An environment raised, did not come back, or returned what cannot be learned from.

    Args:
        env: its name, and which of several it is.
        what: it did, such as "raised ValueError: too far (lab.py:31)".
        moment: when, such as "in step 17 of its episode".
        remedy: what to do about it.
        cause: what was raised in it, if anything was.
    """

    def __init__(self, env: str, what: str, moment: str, remedy: str, cause: BaseException | None = None) -> None:
        self.parts = (env, what, moment, remedy)
        super().__init__(f"{env} {what} {moment}; {remedy}")
        self.cause = cause  # as an attribute, too, it survives what gin does to exceptions that pass through it
        self.__cause__ = cause

    def in_run(self, step: int | None) -> EnvironmentFault:
        """The same in a run, which can be gone on with.

        Args:
            step: environment steps that the run had taken before; None in a test episode.
        """
        env, what, moment, remedy = self.parts
        if step is not None:
            moment = f"{moment}, step {step + 1:,} of the run"
        return EnvironmentFault(env, what, moment, f"{remedy}, then {GOES_ON}", self.cause)

    def kept_in(self, folder: Path) -> EnvironmentFault:
        """The same, after it and what was raised have been added to a file in a run's folder."""
        file, trace = folder / FILE, "".join(traceback.format_exception(self.cause)) if self.cause else ""
        try:
            with open_regular(file, "a", encoding="utf-8", errors="backslashreplace") as opened:
                opened.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.message}\n{trace}\n")
        except OSError:  # the message is worth more than the file
            return self
        env, what, moment, remedy = self.parts
        return EnvironmentFault(env, what, moment, f"{remedy} (its traceback is in {file})", self.cause)

    def without_gin(self) -> EnvironmentFault:
        """The same, which gin puts something of its own in the place of."""
        return EnvironmentFault(*self.parts, self.cause)


class RemoteTracebackError(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"in a worker process\n{self.args[0]}"


def place_in(stack: Sequence[traceback.FrameSummary]) -> str | None:
    """Where in an environment a stack ends, "FILE:LINE"; None if no environment took part.

    The last line in a file of the user's own, else in any file that is not between the environment and its caller.
    """
    frames = [(frame.filename, f"{frame.filename}:{frame.lineno}") for frame in stack]
    inside = [(file, place) for file, place in frames if not _is_between(file)]
    own = [place for file, place in inside if not _is_library(file)]
    return next(iter(reversed(own or [place for _, place in inside])), None)


def format_error(error: BaseException) -> str:
    """An exception in one line."""
    return named(error)


def deed(error: BaseException) -> str:
    """What code did that ended in an exception, such as "raised ValueError: too far"."""
    return error.what if isinstance(error, MisuseError) else f"raised {format_error(error)}"


def remedy_of(error: BaseException) -> str:
    """What to do about such code."""
    return error.remedy if isinstance(error, MisuseError) else "mend it"


def kind_of(value: object) -> str:
    """What something is that should have been something else."""
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
