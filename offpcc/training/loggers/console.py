"""Display of progress and results in the terminal."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich import progress
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from offpcc.training.loggers.base import Logger, Progress, Row, report_errors

SHOWN_WITHOUT_RETURNS = ("critic_loss", "actor_loss", "q")
LONGEST = timedelta(days=10_000)  # the longest time left that the display shows
REDRAWN_AFTER = 0.2  # seconds between redraws of a progress bar


def standard_console() -> Console:
    """Return the console for the standard output, which counts as a terminal only if lines can be drawn again there.

    Files, pipes and notebooks get plain text. Jupyter sets FORCE_COLOR, so rich would draw again nevertheless. Jupyter
    runs a command such as ``!offpcc`` in a pseudo-terminal, but shows all that was drawn, one below the other.
    """
    with contextlib.suppress(AttributeError, ValueError):  # there is no standard output, or it is closed
        if sys.stdout.isatty() and "JPY_PARENT_PID" not in os.environ:
            return Console()
    return Console(force_terminal=False, force_jupyter=False)


class ConsoleLogger(Logger):
    """Shows one live display in a terminal, and prints one plain line per epoch elsewhere, as in a notebook.

    The display holds the run's title and phase, a bar with the steps done, steps per second, time left, and
    the latest training and test return. Output of other code to the standard streams appears above the display. If not
    `has_train_returns`, as for a run from recorded data alone, there are no training episodes.
    """

    def __init__(self, title: str, *, console: Console | None = None, has_train_returns: bool = True) -> None:
        self._title = title
        self._has_train_returns = has_train_returns
        self._console = console or standard_console()
        self._latest = Progress(0, 0, math.nan, math.nan, None, None, "starting")
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        # No auto-refresh: its thread would take time from learning, and forking with threads is unsafe.
        self._live = Live(console=self._console, auto_refresh=False, get_renderable=self._display)

    def progress(self, progress: Progress) -> None:
        """Redraw the display."""
        self._latest = progress
        if self._is_live:
            self._live.start()
            self._live.refresh()

    def epoch(self, row: Row) -> None:
        """Show the epoch's returns (`train/return` and `test/return`); without a terminal, print a line."""
        step, train_return, test_return = row["step"], row.get("train/return"), row.get("test/return")
        latest = self._latest._replace(
            step=self._latest.step if step is None else int(step),
            train_return=self._latest.train_return if train_return is None else train_return,
            test_return=self._latest.test_return if test_return is None else test_return,
        )
        self.progress(latest)
        if not self._is_live:
            results = _losses(row, latest) or self._returns(latest)
            self.print("  ".join([self._title, _steps(latest), *results, *_rates(latest)]))

    def close(self) -> None:
        """Stop the display; its last state stays visible."""
        self._live.stop()

    def print(self, text: str) -> None:
        """Print text without formatting; above the display if it is running."""
        self._console.out(text, highlight=False)

    def _returns(self, progress: Progress) -> list[str]:
        train_return = [f"train return {_return(progress.train_return)}"] if self._has_train_returns else []
        return [f"test return {_return(progress.test_return)}", *train_return]

    def _display(self) -> Group:
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(total=self._latest.num_steps, completed=self._latest.step), _steps(self._latest))
        title = Text.assemble((self._title, "bold"), "  ", (self._latest.phase, "cyan"))
        # The most important first, because narrow terminals cut the end.
        figures = Text("   ".join([*self._returns(self._latest), *_rates(self._latest)]))
        for line in (title, figures):
            # One row each, also in a narrow terminal: a display that changes its height leaves old lines behind.
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(title, bar, figures)


@contextmanager
def progress_bar(
    console: Console | None = None, prints: bool = True
) -> Iterator[Callable[[int, int | None, str], None]]:
    """Show the progress of work: a bar in a terminal, elsewhere a line at each tenth. The first call shows the bar.

    It redraws the bar itself, because rich's refresh thread would slow down the work.

    Args:
        console: The console to write to; standard output by default.
        prints: Whether to print lines where there is no terminal.

    Yields:
        A function to call with the work done, all work or None, and a line about it. It reports an exception of the
        display once, and raises none (but see `Interrupted` in `report_errors`).
    """
    console = console or standard_console()
    is_live = console.is_terminal and not console.is_dumb_terminal
    columns = (progress.BarColumn(None), progress.TextColumn("{task.description}"), progress.TimeRemainingColumn())
    bar = progress.Progress(
        *columns, console=console, transient=True, auto_refresh=False, expand=True, disable=not is_live
    )
    task = bar.add_task("", total=None, visible=False)
    drawn, tenths, reported = -math.inf, 0, set[str]()

    def show(done: int, whole: int | None, line: str) -> None:
        nonlocal drawn, tenths
        with report_errors("the progress bar", reported):
            if is_live and (time.monotonic() - drawn > REDRAWN_AFTER or done == whole):
                drawn = time.monotonic()
                bar.update(task, completed=done, total=whole, description=line, visible=True, refresh=True)
            elif not is_live and prints and whole and 10 * done // whole > tenths:
                tenths = 10 * done // whole
                print(line, flush=True)

    with report_errors("the progress bar", reported):
        bar.start()
    try:
        yield show
    finally:
        with report_errors("the progress bar", reported):
            bar.stop()


@contextmanager
def download_bar(console: Console | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """Show the progress of a download in a terminal; yield a function of received bytes, and of all bytes or None."""
    with progress_bar(console, prints=False) as show:
        yield lambda done, whole: show(
            done, whole, f"downloading, {done / 1e6:,.1f}{'' if whole is None else f' of {whole / 1e6:,.1f}'} MB"
        )


def _steps(progress: Progress) -> str:
    return f"{progress.step:,} of {progress.num_steps:,} steps"


def _losses(row: Row, latest: Progress) -> list[str]:
    """Return losses and values of an epoch that has no returns, as of a run from recorded data without tests."""
    if latest.test_return is not None or latest.train_return is not None:
        return []
    known = ((name, row.get(f"update/{name}")) for name in SHOWN_WITHOUT_RETURNS)
    return [f"{name} {value:.4g}" for name, value in known if value is not None and not math.isnan(value)]


def _rates(progress: Progress) -> list[str]:
    figures = []
    if math.isfinite(progress.seconds_left):
        figures.append(f"{format_time_left(progress.seconds_left)} left")
    if progress.steps_per_second > 0.0:
        figures.append(f"{progress.steps_per_second:,.1f} steps/s")
    return figures


def format_time_left(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds."""
    if seconds > LONGEST.total_seconds():  # may be too large for `timedelta`
        return f"more than {LONGEST.days:,} days"
    return str(timedelta(seconds=max(round(seconds), 0)))


def return_decimals(mean: float) -> int:
    """Return how many decimals of returns with this mean to show: 2 below 10, as in tasks of success or failure."""
    return 2 if abs(mean) < 10.0 else 1


def format_return(value: float) -> str:
    """Return a single return, or a mean of returns, as text."""
    return f"{value:.{return_decimals(value)}f}"


def _return(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:,.{return_decimals(value)}f}"
