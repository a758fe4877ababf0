"""`--jobs`: trains several runs at a time, each in its own process."""

import io
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, TextIO

from offpcc.utils import signals
from offpcc.utils.errors import UserError, command_line, drop_output, escape_unknown_letters, print_to_stderr


class PrefixedStream(io.TextIOBase):
    """A text stream that writes whole lines to another one, each with a prefix. It is not a terminal."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream, self._prefix, self._rest = stream, prefix, ""

    def write(self, text: str) -> int:
        """Write the lines that `text` completes; keep the rest. A line is written in one call, so lines never mix."""
        *lines, self._rest = (self._rest + text).split("\n")
        try:
            for line in lines:
                self._stream.write(f"{self._prefix}{line}\n" if line else "\n")
            if lines:
                self._stream.flush()
        except OSError:  # nobody reads it any more; the run goes on
            drop_output(self._stream.fileno())
        return len(text)

    def close_line(self) -> None:
        """Write the last line if it has no line end yet."""
        if self._rest:
            self.write("\n")

    def fileno(self) -> int:
        """Return the other stream's file descriptor."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The other stream's encoding."""
        return self._stream.encoding


Ended = Callable[[str, int], None]  # is told the name of a run that has ended, and its exit code


class OutOfTimeError(Exception):
    """The deadline has come before all runs were finished; the message says how many were not."""


def run_in_processes(
    function: Callable[..., int],
    runs: Sequence[tuple[str, dict[str, Any]]],
    num_jobs: int,
    ended: Ended = lambda name, code: None,
    deadline: float | None = None,
    remedy: str = "--resume continues",
) -> int:
    """Call a function for each run, each in its own process, at most `num_jobs` at a time.

    The processes are spawned, so each is like a separate program: it has its own threads and its own state of torch.
    Their lines begin with the run's name. A run that fails does not stop the others.

    Args:
        function: called in the process with the run's keyword arguments; its result is the exit code.
        runs: the name and the arguments of each run.
        num_jobs: the maximum number of processes at a time.
        ended: called after each run.
        deadline: time of `time.monotonic` at which the processes are asked to save their runs and to end.
        remedy: how a run goes on whose process was killed, for the message.

    Returns:
        The largest exit code, which is the worst; 128 + N for a process that signal N ended.

    Raises:
        Interrupted: the user asked to stop (Ctrl-C or SIGTERM); all processes have saved their runs and ended.
        OutOfTimeError: the deadline has come; the same.
    """
    context, waiting, codes = multiprocessing.get_context("spawn"), list(runs), list[int]()
    active: list[BaseProcess] = []
    try:
        while waiting or active:
            while waiting and len(active) < num_jobs:
                with signals.deferred():  # a signal between the start and the list would leave the process alone
                    name, arguments = waiting.pop(0)
                    process = context.Process(target=_child, args=(function, name, arguments), name=name)
                    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # `_child` unblocks it
                    try:
                        process.start()
                    finally:
                        signal.pthread_sigmask(signal.SIG_SETMASK, before)
                    active.append(process)
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0.0:
                raise OutOfTimeError(f"{len(active) + len(waiting)} runs are not finished")
            connection.wait([one.sentinel for one in active], rest)
            for over in [one for one in active if not one.is_alive()]:
                active.remove(over)
                codes.append(_exit_code(over, remedy))
                ended(over.name, codes[-1])
    except BaseException as stop:  # also an error of `ended`
        for one in active:
            one.terminate()
        for one in active:
            one.join()
        if not isinstance(stop, signals.Interrupted):
            raise
        training = [one for one in active if one.exitcode != 0]  # the others were finished by then
        stop.message = f"stopped; {len(training)} of {len(runs)} runs were training" + (
            f", and {len(waiting)} had not started" if waiting else ""
        )
        raise
    return max(codes, default=0)


def _exit_code(process: BaseProcess, remedy: str) -> int:
    """Return the exit code of a process that has ended, and say so if a signal ended it."""
    code = process.exitcode or 0
    if code >= 0:
        return code
    print_to_stderr(f"{process.name} was ended by signal {-code}; {remedy} from its last checkpoint, if there is one")
    return 128 - code


def _stop_with_parent() -> None:
    """Ask this process to save its run and to end when its parent has ended, also by SIGKILL."""
    if (parent := multiprocessing.parent_process()) is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _child(function: Callable[..., int], name: str, arguments: dict[str, Any]) -> None:
    """Call the function and end this process with its exit code."""
    os.setpgrp()  # Ctrl-C in a terminal reaches the parent alone, which then sends one SIGTERM
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops a Ctrl-C that came while this process started
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, handler)
    escape_unknown_letters(sys.stdout)
    out, err = PrefixedStream(sys.stdout, f"{name}: "), PrefixedStream(sys.stderr, f"{name}: ")
    sys.stdout, sys.stderr = out, err
    logging.raiseExceptions = False
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with command_line(), signals.handled(to_the_end=True):
        try:
            code = function(**arguments)
        except (UserError, signals.Interrupted) as error:
            code = error.report()
            if isinstance(error, signals.Interrupted) and error.is_late:
                code = 0  # the run was finished
    out.close_line()
    err.close_line()
    sys.exit(code)
