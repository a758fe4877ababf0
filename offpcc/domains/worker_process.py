"""The process of an environment, as it is seen from outside."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import gymnasium as gym
from gymnasium.vector.utils import CloudpickleWrapper

from offpcc import signals
from offpcc.domains.faults import EnvironmentFault, RemoteTracebackError
from offpcc.domains.worker import CLOSE, Failure, serve
from offpcc.errors import UserError

__all__ = ["DeadWorkerError", "Worker", "end"]

FAREWELL = 5.0  # seconds that a process is given to end by itself


class DeadWorkerError(Exception):
    """A process died, or does not answer; its message says what became of it."""


class Worker:
    """A process with an environment in it.

    Args:
        make_env: see `serve`.
        seed: see `serve`.
        which: see `serve`.
        bindings: see `serve`.
    """

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]], seed: int, which: str, bindings: str) -> None:
        # Not forked from this process: a fork in the midst of torch's threads may hang.
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        given = (theirs, CloudpickleWrapper(make_env), seed, which, bindings)
        self.process = context.Process(target=serve, args=given, name=which, daemon=True)
        try:
            self.process.start()
        finally:
            theirs.close()  # so that its end is noticed here
        _running.add(self)

    def send(self, command: str, given: Any = None) -> None:
        """Ask for something; whether there is anybody to do it shows in the answer."""
        try:
            self.pipe.send((command, given))
        except OSError:
            return

    def answer(self, timeout: float | None = None) -> Any:
        """What it gave.

        Args:
            timeout: seconds to wait; None for any time.

        Raises:
            DeadWorkerError: the process is dead, or so good as.
            UserError: the environment misbehaved.
        """
        try:
            if timeout is not None and not self.pipe.poll(timeout):
                raise DeadWorkerError("has not answered in the time of make.timeout")
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(FAREWELL)
            raise DeadWorkerError(_how_it_ended(self.process.exitcode)) from None
        if isinstance(answer, Failure):
            cause = RemoteTracebackError(answer.traceback)
            if answer.parts is None:
                raise UserError(answer.message) from cause
            raise EnvironmentFault(*answer.parts, cause)
        return answer

    def kill(self) -> None:
        """End it, whatever it does."""
        _running.discard(self)
        self.process.kill()
        with contextlib.suppress(OSError):  # an environment in this process may have closed what they use
            self.process.join()
            self.pipe.close()


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is None:
        return "has closed its pipe"
    if exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended with exit code {exitcode}"


_running = WeakSet[Worker]()


def _wake() -> None:
    """Continue processes that were stopped, for a run that is asked to end waits for their answers."""
    for worker in list(_running):
        if worker.process.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(worker.process.pid, signal.SIGCONT)


signals.WHEN_ASKED.append(_wake)


def end(workers: list[Worker], timeout: float | None = None) -> None:
    """End processes, in order if they have nothing else to do.

    Args:
        workers: the processes.
        timeout: seconds that an environment may take to close.
    """
    for worker in workers:
        worker.send(CLOSE)
    deadline = time.monotonic() + FAREWELL + (timeout or 0.0)
    for worker in workers:
        if worker.process.is_alive():
            worker.process.join(max(deadline - time.monotonic(), 0.0))
        worker.kill()
    workers.clear()
