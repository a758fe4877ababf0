"""SIGINT and SIGTERM: a command stops at the next safe point, without a traceback.

A command begins in a state in which a signal raises `Interrupted` wherever the program is. Where that could leave
something half done, the command says `deferred`: there a signal only waits for the next `poll`. Handlers are installed
by the command line alone; for others, `poll` does nothing.

Code of somebody else's may raise what is no `Exception`, too, such as `SystemExit`. Where that is a fault like any
other, it is ``except signals.ANYTHING as error: signals.pass_on(error)``, and then told.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import _exit  # in an environment's call, os._exit is refused (`foreign`)
from types import FrameType

from offpcc.utils.errors import tell

HANDLED = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h"
ANYTHING = BaseException


class Interrupted(KeyboardInterrupt):
    """The user, or the system, has asked the program to stop.

    Args:
        number: of the signal.

    Attributes:
        code: what the program exits with.
        message: what there is to tell the user.
        is_late: whether all was done already that it was to stop.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code, self.message, self.is_late = 128 + number, "stopped", False

    def report(self) -> int:
        """Print the message; the exit code."""
        tell(self.message)
        return self.code


WHEN_ASKED: list[Callable[[], None]] = []  # called when the program is asked to stop
_received: list[int] = []  # signals since `handled` began
_depth = 0  # of `deferred`


@contextmanager
def handled(to_the_end: bool = False) -> Iterator[None]:
    """Handle SIGINT and SIGTERM as this module says; afterwards, they are what they were.

    What is ignored when the program starts, as SIGINT is in the background of a script, stays ignored.

    Args:
        to_the_end: whether nothing but the interpreter's end follows: then a signal ends the program at once.
    """
    if threading.current_thread() is not threading.main_thread():  # Python handles signals there alone
        yield
        return
    _received.clear()
    before = {number: signal.getsignal(number) for number in HANDLED}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, _handle)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL if to_the_end else before[number])
        _received.clear()


@contextmanager
def deferred() -> Iterator[None]:
    """Until its end, a signal raises `Interrupted` at the next `poll` and nowhere else; the end is such a place."""
    global _depth
    poll()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    poll()


def poll() -> None:
    """Stop here, if that was asked for.

    Raises:
        Interrupted: it was.
    """
    if _received:
        raise Interrupted(_received[0])


def pass_on(error: BaseException) -> None:
    """Raise `error` again if it may come from a signal, so that it is nobody's fault."""
    if isinstance(error, BaseExceptionGroup):
        if (interrupts := error.subgroup(KeyboardInterrupt)) is not None:
            pass_on(interrupts.exceptions[0])
    elif isinstance(error, KeyboardInterrupt):
        handler = signal.getsignal(signal.SIGINT)
        is_anothers = callable(handler) and handler is not _handle  # Python's own, for one
        if isinstance(error, Interrupted) or _received or is_anothers:
            raise error


def interrupted() -> Interrupted:
    """What a `KeyboardInterrupt` that was passed on stands for."""
    return Interrupted(_received[0] if _received else signal.SIGINT)


def show_cursor() -> None:
    """Show a terminal's cursor, which a progress display has hidden, before a process ends at once."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), SHOW_CURSOR)


def _handle(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    for call in WHEN_ASKED:
        call()
    if _received.count(signal.SIGINT) > 1:  # SIGTERM may come several times from what stops a machine
        _end_at_once(128 + signal.SIGINT)
    if len(_received) == 1 and not _depth:
        raise Interrupted(number)


def _end_at_once(code: int) -> None:
    for child in multiprocessing.active_children():
        child.kill()
    show_cursor()
    _exit(code)
