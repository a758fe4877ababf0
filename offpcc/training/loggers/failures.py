"""Reports what a display, logger or picture raises, so that the run goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from offpcc.utils import signals
from offpcc.utils.errors import first_line


@contextmanager
def going_on_without(what: str, reported: set[str] | None = None) -> Iterator[None]:
    """Keep a failure of something that only shows a run away from the run.

    Args:
        what: runs in the body, for the message.
        reported: the failures that a message has reported; none of them is reported again. None reports this one.

    Raises:
        Interrupted: the command line was asked to stop.
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
    """Print one line, where that is possible: the terminal itself may have failed, or the error's own text."""
    for stream in (sys.stdout, sys.stderr):
        try:
            fault = type(error).__name__
            fault += f": {first_line(error)}" if str(error).strip() else ""
            print(f"offpcc: {what} failed ({fault}); the run goes on without it", file=stream, flush=True)
        except signals.ANYTHING as another:
            signals.pass_on(another)
        else:
            return
