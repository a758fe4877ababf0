"""What the benchmarks' command lines share: numbers of options, faults as one line, files that several runs write."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin

from benchmarks.cases import CaseError
from benchmarks.results import DamagedError
from offpcc.config.loading import plain_values
from offpcc.utils.errors import UserError


def command(main: Callable[..., int | None]) -> Callable[..., int]:
    """Let a command return an exit code: 2 after a fault in what was asked for, which is printed as one line."""

    @functools.wraps(main)
    def run(*arguments: Any) -> int:
        try:
            return main(*arguments) or 0
        except (UserError, CaseError, DamagedError) as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 2

    return run


def positive(text: str) -> int:
    """Return a whole number, 1 or more, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def above_zero(text: str) -> float:
    """Return a number more than 0, for argparse."""
    number = float(text)
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return number


def bound_values() -> dict[str, Any]:
    """Return gin's bindings by class and parameter, such as "ActorCritic.lr"."""
    return {".".join(name.split(".")[-2:]): gin.query_parameter(name) for name in plain_values(gin.config_str())}


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep other benchmarks from reading or writing the results in a file's folder; wait until they have ended."""
    file.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
