"""Timeouts of calls into environments.

A thread checks at intervals how long a call has taken. If a call takes too long, the thread interrupts it with a
signal. Python handles signals between two of its own operations and in its own waits. A call that hangs in C code does
not react. The process then prints a message and ends, because nothing inside it can end such a call. A call that also
holds Python's global interpreter lock stops the thread, too. Only worker processes help against that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ClassVar

from offpcc.utils.signals import show_cursor

__all__ = ["SLOW", "OverdueError", "Watchdog", "overdue"]

GRACE = 1.0  # seconds that a call has to react to the signal
SLOW = "mend it, or raise make.timeout"
LOOKS = 8  # checks per timeout; each holds the interpreter's lock for some microseconds


class OverdueError(BaseException):
    """A call took too long. This is not an Exception, because an environment may catch every Exception."""


def overdue(timeout: float, place: str | None) -> str:
    """Return the message about a call that took too long.

    Args:
        timeout: maximum seconds of the call.
        place: where it hangs, if known.
    """
    return f"did not come back within make.timeout = {timeout:g} seconds" + (f" ({place})" if place else "")


class Watchdog:
    """Context manager that interrupts its body if it runs too long.

    The first open watchdog installs a SIGALRM handler if it is made in the main thread. When the last one is closed,
    the previous handler is put back. In other threads there is no signal, and the process ends at once.

    Args:
        timeout: maximum seconds of a call.
        last_words: called with the stack of the hanging call if the process must end; it prints a message and returns
            the exit code.
    """

    _open: ClassVar[list[Watchdog]] = []
    _before: ClassVar[Any] = None  # the previous handler of SIGALRM

    def __init__(self, timeout: float, last_words: Callable[[traceback.StackSummary], int]) -> None:
        self.timeout, self.last_words = timeout, last_words
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._deadline: float | None = None  # of the current call
        self._thread, self._is_interrupted = 0, False
        if not Watchdog._open and threading.current_thread() is threading.main_thread():
            Watchdog._before = signal.signal(signal.SIGALRM, _interrupt)
        Watchdog._open.append(self)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def __enter__(self) -> None:
        self._thread, self._is_interrupted = threading.get_ident(), False
        self._deadline = time.monotonic() + self.timeout

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # a signal that is being sent must arrive before the call counts as finished
            self._deadline = None

    @property
    def is_overdue(self) -> bool:
        """True if the current call was sent the signal."""
        return self._is_interrupted and self._deadline is not None

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self not in Watchdog._open:
            return
        Watchdog._open.remove(self)
        is_main = threading.current_thread() is threading.main_thread()
        if not Watchdog._open and is_main and signal.getsignal(signal.SIGALRM) is _interrupt:
            signal.signal(signal.SIGALRM, signal.SIG_DFL if Watchdog._before is None else Watchdog._before)

    def _watch(self) -> None:
        main = threading.main_thread().ident
        while not self._closed.wait(min(self.timeout / LOOKS, GRACE)):
            with self._lock:
                if self._deadline is None or time.monotonic() <= self._deadline:
                    continue
                hears = self._thread == main and signal.getsignal(signal.SIGALRM) is _interrupt
                if not hears or self._is_interrupted:
                    self._end()
                self._is_interrupted, self._deadline = True, time.monotonic() + GRACE
                signal.pthread_kill(self._thread, signal.SIGALRM)

    def _end(self) -> None:
        code = self.last_words(traceback.extract_stack(sys._current_frames()[self._thread]))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        show_cursor()
        os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGALRM: raise `OverdueError`, or call the previous handler if the signal came from elsewhere."""
    if any(watchdog.is_overdue for watchdog in Watchdog._open):
        raise OverdueError
    if callable(Watchdog._before):
        Watchdog._before(number, frame)
