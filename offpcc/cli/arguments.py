"""Types of command-line arguments for argparse, and checks of environment variables."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from offpcc.config.validation import MOST_ENVS
from offpcc.utils.errors import UserError
from offpcc.utils.paths import as_path, ends_in_slash, shown

MOST_THREADS = 1024


def _whole(text: str, least: int, most: int) -> int | None:
    short = text.isdecimal() and len(text) <= 20  # Python refuses to read thousands of digits
    return int(text) if short and least <= int(text) <= most else None


def run_id(text: str) -> int:
    """A run's id, or a seed.

    Raises:
        ArgumentTypeError: it is none.
    """
    if (number := _whole(text, 0, 2**31 - 1)) is None:
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} is no whole number from 0 to 2147483647, such as 1")
    return number


def positive(text: str) -> int:
    """A whole number above 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    if (number := _whole(text, 1, 2**63 - 1)) is None:
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} is no whole number above 0, such as 1")
    return number


def num_envs(text: str) -> int:
    """A number of environments.

    Raises:
        ArgumentTypeError: it is none.
    """
    if (number := _whole(text, 1, MOST_ENVS)) is None:
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} is no whole number from 1 to {MOST_ENVS}, such as 1")
    return number


def num_threads(text: str) -> int:
    """A number of threads.

    Raises:
        ArgumentTypeError: it is none.
    """
    if (number := _whole(text, 1, MOST_THREADS)) is None:
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} is no whole number from 1 to {MOST_THREADS}, such as 1")
    return number


def path(text: str) -> Path:
    """A path, with ~ replaced.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text:
        raise argparse.ArgumentTypeError("'' is no name of a file or folder; name one")
    try:
        return as_path(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(error.message) from error


def file(text: str) -> Path:
    """A path of a file that is to be written, with ~ replaced.

    Raises:
        ArgumentTypeError: it is none.
    """
    if ends_in_slash(text):
        raise argparse.ArgumentTypeError(f"{shown(text)} names a folder; name a file")
    return path(text)


def module(text: str) -> str:
    """A module's name, as Python imports it.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not all(part.isidentifier() for part in text.split(".")) or text.endswith(".py"):
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} is no name of a module; for my_lab.py it is my_lab")
    return text


def imported(options: argparse.Namespace) -> list[str]:
    """The modules that a command names by --import."""
    modules: list[str] = vars(options).get("import", [])  # a keyword is no attribute's name
    return modules


def fraction(text: str) -> float:
    """A number above 0 and at most 1.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and at most 1, such as 0.1")
    return number


class Kind(NamedTuple):
    """What a variable may be."""

    pattern: re.Pattern[str]  # of the whole value
    words: str  # after "it has to be"


THREADS = Kind(re.compile(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*"), "a number of threads, such as 1")
NAME = Kind(
    re.compile(r"[^/\\#?%:\s\0]([^/\\#?%:\0]{0,126}[^/\\#?%:\s\0])?"), "a name of 128 letters at most, none of /\\#?%:"
)
ALLOWED = {
    "OFFPCC_KEEP_MEMORY": Kind(re.compile("[01]"), "0 or 1"),
    "OFFPCC_WANDB_PROJECT": NAME,
    "OFFPCC_WANDB_ENTITY": NAME,
    "WANDB_MODE": Kind(re.compile("online|offline|disabled|dryrun|run|shared"), "online, offline or disabled"),
    "OMP_NUM_THREADS": THREADS,
    "MKL_NUM_THREADS": THREADS,
    "OPENBLAS_NUM_THREADS": THREADS,
    "MUJOCO_GL": Kind(
        re.compile("egl|osmesa|glfw|glx|wgl|cgl|disabled?|enabled?|on|off|true|false|0|1", re.IGNORECASE),
        "egl, osmesa, glfw or disable",
    ),
}


def check_variables(given: Mapping[str, str] = os.environ) -> None:
    """Refuse nonsense in an environment variable; an empty one is none.

    Raises:
        UserError: naming the first.
    """
    for name, (pattern, words) in ALLOWED.items():
        value = given.get(name, "")
        if value and not pattern.fullmatch(value):
            raise UserError(f"the environment variable {name} is {shown(value)}; it has to be {words}; or unset it")
