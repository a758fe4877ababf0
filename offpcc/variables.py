"""Environment variables that are read: what each may be. What libraries would make of nonsense is not one message."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from offpcc.errors import UserError
from offpcc.places import shown


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
