"""Types of command-line arguments for argparse, and checks of environment variables."""

import argparse
import functools
from pathlib import Path
from typing import Any

from offpcc.config.validation import LARGEST_SEED, MOST_ENVS, MOST_PARTS
from offpcc.utils.errors import UserError
from offpcc.utils.paths import as_path, shown

MOST_THREADS = 1024
MOST_JOBS = 1024


def whole_number(text: str, least: int, most: int, words: str = "") -> int:
    """Convert a whole number.

    Raises:
        ArgumentTypeError: the text is not a valid number, as for the other functions here.
    """
    short = text.isdecimal() and len(text) <= 20  # Python refuses to convert thousands of digits
    if not (short and least <= int(text) <= most):
        words = words or f"from {least} to {most}"
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} is no whole number {words}, such as 1")
    return int(text)


run_id = functools.partial(whole_number, least=0, most=LARGEST_SEED)  # or a seed
positive = functools.partial(whole_number, least=1, most=2**63 - 1, words="above 0")
num_envs = functools.partial(whole_number, least=1, most=MOST_ENVS)
port = functools.partial(whole_number, least=1, most=65_535)
num_threads = functools.partial(whole_number, least=1, most=MOST_THREADS)
num_jobs = functools.partial(whole_number, least=1, most=MOST_JOBS)
width = functools.partial(whole_number, least=1, most=10_000)  # of a layer
num_networks = functools.partial(whole_number, least=1, most=MOST_PARTS)


def path(text: str, is_file: bool = False) -> Path:
    """Convert a path; expand ~. See `as_path` for `is_file`."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no name of a file or folder; name one")
    try:
        return as_path(text, is_file=is_file)
    except UserError as error:
        raise argparse.ArgumentTypeError(error.message) from error


file = functools.partial(path, is_file=True)  # an output file


def module(text: str) -> str:
    """Convert the name of a module, as in an import."""
    if not all(part.isidentifier() for part in text.split(".")) or text.endswith(".py"):
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} is no name of a module; for my_lab.py it is my_lab")
    return text


def fraction(text: str) -> float:
    """Convert a number above 0 and at most 1."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and at most 1, such as 0.1")
    return number


class ReplacesActor(argparse.Action):
    """Stores the value of an option with which `--actor` is not required."""

    replaced = "actor"

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Store the value."""
        setattr(namespace, self.dest, values)
        for action in parser._actions:
            action.required = action.required and action.dest != self.replaced


class ReplacesEnv(ReplacesActor):
    """Stores the value of an option with which `--env` is not required."""

    replaced = "env"
