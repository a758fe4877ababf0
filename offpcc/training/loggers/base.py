"""The interface of loggers."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol

from offpcc.training.loggers.failures import going_on_without

Row = Mapping[str, float | int | None]
"""An epoch's numbers by name, `step` among them; None where there is nothing to tell yet."""


class Progress(NamedTuple):
    """How far a run has come.

    Attributes:
        step: Environment steps done.
        num_steps: Environment steps of the whole run.
        steps_per_second: Environment steps per second of late, with their updates and with tests.
        seconds_left: Expected time to the end of the run, in seconds.
        train_return: Return of the latest training episode or episodes, None before the first.
        test_return: Mean return of the latest test episodes, None before the first.
        phase: What the run is busy with: "exploring at random", "learning", "testing".
    """

    step: int
    num_steps: int
    steps_per_second: float
    seconds_left: float
    train_return: float | None
    test_return: float | None
    phase: str


class Logger(Protocol):
    """A place for a run's numbers and files; satisfied by structure.

    What a logger raises is reported once, and the run goes on. A logger whose numbers are data, which a run must not
    lose, has the attribute ``keeps_data = True``; what it raises ends the run.
    """

    def progress(self, progress: Progress) -> None:
        """Tell how far the run is; called up to some times a second, so it must be cheap."""

    def epoch(self, row: Row) -> None:
        """Log an epoch's numbers; `row["step"]` is the number of environment steps so far."""

    def artifact(self, kind: str, file: Path) -> None:
        """Take note of a finished file; `kind` is "actor", "curve" or "video"."""

    def close(self) -> None:
        """Finish; nothing is logged afterwards."""


class Loggers:
    """Several loggers as one. What one of them raises is kept from the others and from the run, see `Logger`.

    Args:
        loggers: Those that are told everything, in this order.
    """

    keeps_data = True  # each of its loggers is treated on its own

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._loggers = list(loggers)
        self._reported: set[str] = set()

    def _guarded(self, logger: Logger) -> AbstractContextManager[None]:
        if getattr(logger, "keeps_data", False):
            return nullcontext()
        return going_on_without(type(logger).__name__, self._reported)

    def progress(self, progress: Progress) -> None:
        """Tell all loggers how far the run is."""
        for logger in self._loggers:
            with self._guarded(logger):
                logger.progress(progress)

    def epoch(self, row: Row) -> None:
        """Give an epoch's numbers to all loggers."""
        for logger in self._loggers:
            with self._guarded(logger):
                logger.epoch(row)

    def artifact(self, kind: str, file: Path) -> None:
        """Tell all loggers of a finished file."""
        for logger in self._loggers:
            with self._guarded(logger):
                logger.artifact(kind, file)

    def close(self) -> None:
        """Close all loggers, those after a failing one too; then raise what one that keeps data raised."""
        with ExitStack() as stack:
            for logger in reversed(self._loggers):
                stack.callback(self._close, logger)

    def _close(self, logger: Logger) -> None:
        with self._guarded(logger):
            logger.close()
