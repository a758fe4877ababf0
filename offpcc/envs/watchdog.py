"""Timeouts of calls into environments.

A thread looks now and then how long a call has taken. One that is too long is interrupted by a signal, which Python
heeds between two of its own operations and in its own waits. A call into C that is not left even so takes the process
with it, after a message, for nothing can end it from within. (One that also keeps Python's lock stops this thread, too:
only processes of their own help against that.)
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

GRACE = 1.0  # seconds that a call is given to heed the signal
SLOW = "mend it, or raise make.timeout"
LOOKS = 8  # in the time of a timeout; each takes the interpreter's lock for some microseconds


class OverdueError(BaseException):
    """A call took too long; no Exception, as an environment may catch all of those."""


def overdue(timeout: float, place: str | None) -> str:
    """What is told of a call that took too long.

    Args:
        timeout: seconds that it was given.
        place: where it hangs, if that is known.
    """
    return f"did not come back within make.timeout = {timeout:g} seconds" + (f" ({place})" if place else "")


class Watchdog:
    """Ends what runs inside of ``with watchdog:`` for too long.

    While any is open, SIGALRM is theirs, if the first was made in the main thread, and is then put back. In other
    threads there is no signal, and the process ends at once.

    Args:
        timeout: seconds that are not too long.
        last_words: what a process says that has to be ended, given where it hangs; its exit code.
    """

    _open: ClassVar[list[Watchdog]] = []
    _before: ClassVar[Any] = None  # who had the signal

    def __init__(self, timeout: float, last_words: Callable[[traceback.StackSummary], int]) -> None:
        self.timeout, self.last_words = timeout, last_words
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._deadline: float | None = None  # of the call under way
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
        with self._lock:  # a signal that is being sent arrives before the call counts as come back
            self._deadline = None

    @property
    def is_overdue(self) -> bool:
        """Whether the call under way was sent the signal."""
        return self._is_interrupted and self._deadline is not None

    def close(self) -> None:
        """Watch no longer."""
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
    """Take the signal, or pass on one that somebody else sent."""
    if any(watchdog.is_overdue for watchdog in Watchdog._open):
        raise OverdueError
    if callable(Watchdog._before):
        Watchdog._before(number, frame)
