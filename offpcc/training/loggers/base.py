"""The interface of loggers, and `Loggers`, which combines several and survives their exceptions."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol

from offpcc.config.synonyms import LOGGER_METHODS, refuse_uncalled
from offpcc.utils.errors import format_error, print_to_stderr

ONCE = "the run goes on; further errors of it are not shown"
METHODS = ("progress", "epoch", "artifact")  # that pass something to a logger
Row = Mapping[str, float | int | None]
"""An epoch's numbers by name, `step` among them; None where there is no number yet."""


class Progress(NamedTuple):
    """Progress of a run.

    Attributes:
        step: Environment steps done.
        num_steps: Environment steps of the whole run.
        steps_per_second: Recent environment steps per second, including the time for updates and tests.
        seconds_left: Expected time to the end of the run, in seconds.
        train_return: Return of the latest training episode or episodes, None before the first.
        test_return: Mean return of the latest test episodes, None before the first.
        phase: "exploring at random", "learning" or "testing".
    """

    step: int
    num_steps: int
    steps_per_second: float
    seconds_left: float
    train_return: float | None
    test_return: float | None
    phase: str


class Logger(Protocol):
    """Protocol of a logger, which receives a run's numbers and files. A subclass inherits methods that do nothing.

    An exception in a logger is reported once, and the run continues. If a run must not lose the logger's data, set the
    attribute ``keeps_data = True``; then an exception ends the run.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Open the logger of a run in this folder; None without one."""
        return

    def progress(self, progress: Progress) -> None:
        """Show the progress of the run; called up to a few times per second, so it must be cheap."""
        return

    def epoch(self, row: Row) -> None:
        """Log an epoch's numbers; `row["step"]` is the number of environment steps so far."""
        return

    def artifact(self, kind: str, file: Path) -> None:
        """Log a finished file; `kind` is "actor", "curve" or "video"."""
        return

    def close(self) -> None:
        """Close the logger; no other method is called afterwards."""
        return


class Loggers:
    """Several loggers as one. An exception in one logger affects neither the others nor the run; see `Logger`."""

    keeps_data = True  # `_guarded` handles each logger separately

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._loggers = list(loggers)
        for logger in self._loggers:
            if Logger in type(logger).__mro__:  # else it need not have the names of ours
                refuse_uncalled(type(logger), Logger, METHODS, LOGGER_METHODS)
        self._reported: set[str] = set()

    def _guarded(self, logger: Logger) -> AbstractContextManager[None]:
        if getattr(logger, "keeps_data", False):
            return nullcontext()
        return report_errors(type(logger).__name__, self._reported)

    def progress(self, progress: Progress) -> None:
        """Send the progress to all loggers."""
        for logger in self._loggers:
            with self._guarded(logger):
                logger.progress(progress)

    def epoch(self, row: Row) -> None:
        """Send an epoch's numbers to all loggers."""
        for logger in self._loggers:
            with self._guarded(logger):
                logger.epoch(row)

    def artifact(self, kind: str, file: Path) -> None:
        """Send a finished file to all loggers."""
        for logger in self._loggers:
            with self._guarded(logger):
                logger.artifact(kind, file)

    def close(self) -> None:
        """Close all loggers, even if one fails. Then raise the exception of a logger with ``keeps_data``, if any."""
        with ExitStack() as stack:
            for logger in reversed(self._loggers):
                stack.callback(self._close, logger)

    def _close(self, logger: Logger) -> None:
        with self._guarded(logger):
            logger.close()


@contextmanager
def report_errors(what: str, reported: set[str] | None = None) -> Iterator[None]:
    """Catch and report exceptions in the body, for code that only displays a run.

    Args:
        what: the name of the code in the body, for the message.
        reported: the names whose failures were already reported; they are not reported again. The name is added on
            failure. None to report every failure.

    Raises:
        Interrupted: the user stopped the run.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if reported is None or what not in reported:
            effect = "the run goes on without it" if reported is None else ONCE
            print_to_stderr(f"{what} failed ({format_error(error)}); {effect}")
        if reported is not None:
            reported.add(what)
