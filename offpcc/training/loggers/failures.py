"""Handling of exceptions in displays, loggers and plots, so that the run continues."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from offpcc.utils import signals
from offpcc.utils.errors import first_line


@contextmanager
def going_on_without(what: str, reported: set[str] | None = None) -> Iterator[None]:
    """Catch and report exceptions in the body, for code that only displays a run.

    Args:
        what: the name of the code in the body, for the message.
        reported: the names whose failures were already reported; they are not reported again. The name is added on
            failure. None to report every failure.

    Raises:
        Interrupted: the user asked the command line to stop.
    """
    try:
        yield
    except signals.ANYTHING as error:
        signals.pass_on(error)
        if reported is None or what not in reported:
            _report(what, error)
        if reported is not None:
            reported.add(what)


def _report(what: str, error: BaseException) -> None:
    """Print one line if possible. The terminal may have failed, or the conversion of the error to text may fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            fault = type(error).__name__
            fault += f": {first_line(error)}" if str(error).strip() else ""
            print(f"offpcc: {what} failed ({fault}); the run goes on without it", file=stream, flush=True)
        except signals.ANYTHING as another:
            signals.pass_on(another)
        else:
            return
