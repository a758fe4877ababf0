"""Closes environments. An error in `close` becomes a one-line message and does not end the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from traceback import StackSummary, extract_tb
from typing import Any, TypeVar
from weakref import WeakSet

import gymnasium as gym

from offpcc.envs.faults import deed, place_in, remedy_of
from offpcc.envs.make import timeout_of
from offpcc.envs.watchdog import SLOW, OverdueError, Watchdog, overdue
from offpcc.envs.wrapper_chain import name_of
from offpcc.utils import signals
from offpcc.utils.errors import tell
from offpcc.utils.foreign import ForeignCall

__all__ = ["close", "opened"]

Env = TypeVar("Env", bound=gym.Env[Any, Any])

_told_of = WeakSet[type]()  # classes already reported; a run closes many environments of one class


def close(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any], timeout: float | None = None) -> None:
    """Close an environment. Report an error instead of raising it, once per environment class and process.

    If a hanging `close` does not react to the watchdog's signal, the process ends with a message.

    Args:
        env: the environment.
        timeout: maximum seconds; None for the `timeout` that `make` was called with.
    """
    seconds = timeout or timeout_of(env)
    watchdog: Watchdog | None = None
    watched: AbstractContextManager[None] = nullcontext()

    def last_words(stack: StackSummary) -> int:
        within = max(level for level, frame in enumerate(stack) if frame.filename == __file__)
        assert seconds is not None
        tell(_message(env, overdue(seconds, place_in(stack[within:])), SLOW, "the process ends here; "))
        return 2

    if seconds is not None:
        watched = watchdog = Watchdog(seconds, last_words)
    try:
        with ForeignCall(), watched:
            env.close()
    except signals.ANYTHING as error:
        signals.pass_on(error)
        kind = type(env.unwrapped)
        if kind in _told_of:
            return
        _told_of.add(kind)
        place = place_in(extract_tb(error.__traceback__))
        if isinstance(error, OverdueError):
            assert seconds is not None
            tell(_message(env, overdue(seconds, place), SLOW))
        else:
            tell(_message(env, deed(error) + (f" ({place})" if place else ""), remedy_of(error)))
    finally:
        if watchdog is not None:
            watchdog.close()


def _message(
    env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any],
    what: str,
    remedy: str,
    outcome: str = "nothing is lost by that, but ",
) -> str:
    mend = remedy.replace("mend it", "mend its close()") if "mend it" in remedy else f"in its close(), {remedy}"
    return f"{name_of(env)} {what} when it was closed; {outcome}{mend}"


@contextmanager
def opened(env: Env, timeout: float | None = None) -> Iterator[Env]:
    """Yield an environment, and `close` it at the end."""
    try:
        yield env
    finally:
        close(env, timeout)
