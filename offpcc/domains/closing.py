"""Closing an environment that somebody else wrote: what it raises over that is told, and nothing else comes of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import extract_tb
from typing import Any, TypeVar
from weakref import WeakSet

import gymnasium as gym

from offpcc import signals
from offpcc.domains.faults import place_in, told
from offpcc.domains.levels import name_of

__all__ = ["close", "opened"]

Env = TypeVar("Env", bound=gym.Env[Any, Any])

_told_of = WeakSet[type]()  # classes of environments; a run closes many of one


def close(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> None:
    """Close an environment, whatever it raises; of each class of environments that is told once in a process."""
    try:
        env.close()
    except signals.ANYTHING as error:
        signals.pass_on(error)
        kind = type(env.unwrapped)
        if kind in _told_of:
            return
        _told_of.add(kind)
        place = place_in(extract_tb(error.__traceback__))
        where = f" ({place})" if place else ""
        print(
            f"offpcc: {name_of(env)} raised {told(error)}{where} when it was closed; nothing is lost by that, but "
            f"mend its close()",
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def opened(env: Env) -> Iterator[Env]:
    """Give an environment, and `close` it in the end."""
    try:
        yield env
    finally:
        close(env)
