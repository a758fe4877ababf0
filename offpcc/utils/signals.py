"""SIGINT and SIGTERM: stop a command at the next safe point, without a traceback.

Normally, a signal raises `Interrupted` immediately, at any point of the program. Inside `deferred`, which protects work
that must be completed, a signal waits for the next `poll`. Only the command line, `fit` and `train` install the
handlers; otherwise, `poll` does nothing.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from offpcc.utils.errors import print_to_stderr

HANDLED = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h"


class Interrupted(KeyboardInterrupt):
    """The user or the system asked the program to stop.

    Args:
        number: number of the signal.

    Attributes:
        code: exit code of the program.
        message: message for the user.
        is_late: whether the work was already complete.
        is_second: whether it did not wait for the end of the work, because the user asked twice.
    """

    def __init__(self, number: int, is_second: bool = False) -> None:
        super().__init__(number)
        self.code, self.message, self.is_late, self.is_second = 128 + number, "stopped", False, is_second

    def __str__(self) -> str:
        """Return the message, which a traceback in Python ends with."""
        return self.message

    def report(self) -> int:
        """Print the message and return the exit code."""
        print_to_stderr(self.message)
        return self.code


_received: list[int] = []  # signals since `handled` was entered
_depth = 0  # number of nested `deferred`
_second_ends = True  # whether a second SIGINT ends the process


@contextmanager
def handled(to_the_end: bool = False, second_ends: bool = True, like_python: bool = False) -> Iterator[None]:
    """Handle SIGINT and SIGTERM as the module describes; restore the previous handlers at the end.

    Inside of another `handled`, this does nothing. A signal that is ignored at the start stays ignored, such as SIGINT
    in a background job of a script.

    Args:
        to_the_end: whether the interpreter exits after the block; a signal then ends the program immediately.
        second_ends: whether a second SIGINT ends the process at once; else it raises `Interrupted` at once.
        like_python: whether only Python's own handler of SIGINT is replaced, and a plain `KeyboardInterrupt` leaves the
            block: from a script, only this ends the process by SIGINT, and so also a shell's loop around it.
    """
    global _second_ends
    is_main = threading.current_thread() is threading.main_thread()  # Python handles signals only in this thread
    if not is_main or any(signal.getsignal(number) is _handle for number in HANDLED):
        yield
        return
    _received.clear()
    _second_ends = second_ends
    before = {number: signal.getsignal(number) for number in HANDLED}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    if like_python:
        ours = [number for number in ours if before[number] is signal.default_int_handler]
    try:
        for number in ours:  # in the `try`, because a signal may arrive at once
            signal.signal(number, _handle)
        yield
    except Interrupted as stop:
        if like_python and _received:  # else a callback raised it, which keeps its class
            raise KeyboardInterrupt(stop.message) from None
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL if to_the_end else before[number])
        _received.clear()


@contextmanager
def deferred() -> Iterator[None]:
    """Delay signals until the next `poll`; entering and leaving the block also poll."""
    global _depth
    poll()
    is_main = threading.current_thread() is threading.main_thread()  # which alone gets signals, and counts
    _depth += is_main
    try:
        yield
    finally:
        _depth -= is_main
    poll()


@contextmanager
def blocked() -> Iterator[None]:
    """Block signals, also in processes that start meanwhile: Ctrl-C in a terminal would end a compiler, too.

    A signal that arrives meanwhile is handled at the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def poll() -> None:
    """Stop here if a signal has arrived.

    Raises:
        Interrupted: a signal has arrived.
    """
    if _received:
        raise Interrupted(_received[0])


def interrupted() -> Interrupted:
    """Return the `Interrupted` for a `KeyboardInterrupt` of code outside offpcc."""
    return Interrupted(_received[0] if _received else signal.SIGINT)


def show_cursor() -> None:
    """Show the terminal's cursor again, which a progress bar hides; for a process that ends immediately."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), SHOW_CURSOR)


def _handle(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if _received.count(signal.SIGINT) > 1:  # not for SIGTERM, which a shutdown may send several times
        if _second_ends:
            for child in multiprocessing.active_children():
                child.kill()
            show_cursor()
            os._exit(128 + signal.SIGINT)
        raise Interrupted(number, is_second=True)
    if len(_received) == 1 and not _depth:
        raise Interrupted(number)
