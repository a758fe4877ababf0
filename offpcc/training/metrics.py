"""The state of the training loop, statistics of updates, columns of the table, and the remaining time."""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from offpcc.core import Stats
from offpcc.training.interaction import EpisodeResult, success_rate
from offpcc.training.loggers import Logger, Progress, report_errors
from offpcc.utils import torch_private
from offpcc.utils.errors import UserError, print_to_stderr

REPORT_INTERVAL = 0.25  # seconds between two refreshes of the progress display
WINDOW, FEWEST = 30.0, 5  # seconds, and entries, in the window for the rate
EXPLORING = "exploring at random"
K = TypeVar("K")
SWITCH = ("switch_step", "switch_epoch")  # fields of `Loop`
SUCCESS_RATE = "test/success_rate"
SKIPPED = "skipped"  # name of the statistic that is 1 for a skipped update


class AverageStats:
    """Means of update statistics. Sums stay on their device and are copied to the host once, when read.

    Updates whose statistic `skipped` is 1 do not count.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        # Number of skipped updates in `counts`, by the tuple of an update's names: one addition for all its names.
        self.left_out: dict[tuple[str, ...], Tensor] = {}

    def add(self, stats: Stats) -> None:
        """Add the statistics of one update."""
        skipped = stats.get(SKIPPED)
        if skipped is not None:
            is_made = skipped == 0.0
            stats = {name: torch.where(is_made, value, 0.0) for name, value in stats.items()} | {SKIPPED: skipped}
            names = tuple(name for name in stats if name != SKIPPED)
            before = self.left_out.get(names)
            self.left_out[names] = skipped if before is None else before.to(skipped.device) + skipped
        for name in stats:
            self.counts[name] = self.counts.get(name, 0) + 1
        known = {name: total.to(stats[name].device) for name, total in self.sums.items() if name in stats}
        self.sums |= stats
        if known:  # in one operation
            added = torch_private.foreach_add([*known.values()], [stats[name] for name in known])
            self.sums |= dict(zip(known, added, strict=True))

    def num_skipped(self) -> tuple[int, int]:
        """Return the numbers of skipped updates and of all updates since the last call of `means`."""
        if SKIPPED not in self.sums:
            return 0, 0
        return int(self.sums[SKIPPED]), self.counts[SKIPPED]

    def means(self) -> dict[str, float]:
        """Return the means since the last call, without statistics whose updates were all skipped."""
        sums, left_out = _read(self.sums), _read(self.left_out)
        numbers: dict[str, float] = dict(self.counts)
        for names, number in left_out.items():
            numbers |= {name: numbers[name] - number for name in names}
        self.sums, self.counts, self.left_out = {}, {}, {}
        return {name: total / numbers[name] for name, total in sums.items() if numbers[name] > 0.0}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far."""
        return {"sums": dict(self.sums), "counts": dict(self.counts), "left_out": dict(self.left_out)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the sums from `state`."""
        self.sums, self.counts = dict(state["sums"]), dict(state["counts"])
        self.left_out = dict(state["left_out"])


def _read(sums: dict[K, Tensor]) -> dict[K, float]:
    """Return all sums as floats, with one copy from the device."""
    if not sums:
        return {}
    device = next(iter(sums.values())).device  # sums from a checkpoint may be on another device
    values: list[float] = torch.stack([total.to(device).double() for total in sums.values()]).tolist()
    return dict(zip(sums, values, strict=True))


@dataclass
class Loop:
    """State of the training loop; part of a checkpoint."""

    step: int = 0  # environment steps taken (offline: steps of the loop)
    epoch: int = 0  # finished epochs
    epoch_start: int = 0  # the step at which the last epoch ended
    num_updates: int = 0
    pending_updates: float = 0.0  # updates to do, with the fraction that is not due yet
    updating: bool = False  # whether the loop is doing the pending updates now
    best_return: float | None = None  # mean test return of the best actor so far
    is_best: bool = False  # whether this epoch's test gave `best_return`
    stopped: bool = False  # whether the run ends early: the last tests reached `stop_return`, or a callback set it
    seconds: float = 0.0  # of training, including the time before a resume
    train_return: float | None = None  # the latest returns, for the display
    test_return: float | None = None
    rows: list[dict[str, float | None]] = field(default_factory=list)  # of the table, one per finished epoch
    stats: AverageStats = field(default_factory=AverageStats, compare=False)  # of the current epoch
    switch_step: int | None = None  # where a run from recorded data went on in its environment; None if it did not
    switch_epoch: int = 0  # finished epochs at that time

    def go_online(self) -> None:
        """Begin the online phase here; an unfinished epoch ends without a row."""
        self.switch_step, self.switch_epoch, self.epoch_start = self.step, self.epoch, self.step
        self.pending_updates, self.updating, self.stats = 0.0, False, AverageStats()

    def note_test(self, test_return: float | None) -> None:
        """Set `best_return` and `is_best` by the mean return of a test; None for an epoch without a test."""
        self.is_best = False
        if test_return is not None and not math.isnan(test_return):
            self.is_best = self.best_return is None or test_return > self.best_return
            self.best_return = test_return if self.is_best else self.best_return

    def last_tests_reach(self, level: float, number: int) -> bool:
        """Check whether each of the last `number` tests of this phase has a mean return of at least `level`."""
        returns = [row["test/return"] for row in self.rows[self.switch_epoch :]][-number:]
        return len(returns) == number and all(value is not None and value >= level for value in returns)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data and tensors; of a run with one phase, without the switch."""
        state = {**vars(self), "rows": [*self.rows], "stats": self.stats.state_dict()}
        return {name: value for name, value in state.items() if self.switch_step is not None or name not in SWITCH}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load `state`.

        Raises:
            ValueError: `state` is not the state of a loop.
        """
        numbers = [value for name, value in state.items() if name not in ("rows", "stats")]
        state = {"switch_step": None, "switch_epoch": 0, **state}
        if state.keys() != vars(self).keys() or not all(isinstance(value, float | int | None) for value in numbers):
            raise ValueError("it is not the state of a loop")
        vars(self).update(state, rows=[*state["rows"]], stats=self.stats)
        self.stats.load_state_dict(state["stats"])


def report_skipped_updates(stats: AverageStats, epoch: int | None, algorithm: str) -> None:
    """Print how many updates were skipped, if any; `epoch` is None for updates after the last epoch."""
    skipped, number = stats.num_skipped()
    if not skipped:
        return
    if epoch is None or skipped < number:
        those = "the last" if epoch is None else f"epoch {epoch:,}'s"
        message = f"{skipped:,} of {those} {number:,} updates were skipped, because they met NaN or infinity"
        print_to_stderr(message)
        return
    raise UserError(
        f"all updates of epoch {epoch:,} ({number:,}) met NaN or infinity and were skipped, so nothing was learned; a "
        f"run with a smaller learning rate or with max_grad_norm may avoid this, and --resume --gin "
        f"\"{algorithm}.nonfinite='raise'\" names the first bad tensor and saves its batch"
    )


def warn_no_updates(loop: Loop, update_after: int, updates_per_step: float, has_data: bool) -> None:
    """Print why a run in environments ended without an update; `has_data` is whether the buffer is not empty."""
    if not updates_per_step:
        why = "as train.updates_per_step is 0"
    elif not has_data:
        why = (
            f"as no episode ended in its {loop.step:,} steps, and an agent with memory learns only from finished "
            f"episodes; raise train.num_epochs, or give episodes an earlier end, such as make.kwargs = "
            f"{{'max_episode_steps': 200}}"
        )
    elif loop.stopped:
        why = "as it was ended early, by train.stop_return or by a callback, before the first update was due"
    else:
        why = (
            f"as no update was due in its {loop.step:,} steps: each step after the first {update_after:,} "
            f"(train.update_after) adds {updates_per_step:g} updates, {loop.pending_updates:g} in total; raise "
            f"train.num_epochs, or "
            + ("lower train.update_after" if loop.step <= update_after else "raise train.updates_per_step")
        )
    print_to_stderr(f"the run ended without an update, {why}")


def summarize_episodes(
    kind: str, results: Sequence[EpisodeResult], references: tuple[float, float] | None = None
) -> dict[str, float | None]:
    """Return mean return and mean length of episodes; for tests also standard deviation, score and rate of successes.

    The normalised score is 100 (R - R_0) / (R_100 - R_0), with the `references` R_0 and R_100 (Fu et al. 2020,
    arXiv:2004.07219).
    """
    if not results:
        return {}
    returns = [result.episode_return for result in results]
    row: dict[str, float | None] = {
        f"{kind}/return": float(np.mean(returns)),
        f"{kind}/length": float(np.mean([r.length for r in results])),
    }
    if kind == "test":
        row["test/return_std"] = float(np.std(returns))
        if (rate := success_rate(results)) is not None:
            row[SUCCESS_RATE] = rate
        if references is not None:
            lowest, highest = references
            row["test/normalized_score"] = 100.0 * (float(np.mean(returns)) - lowest) / (highest - lowest)
    return row


class Clock:
    """Measures the elapsed time and estimates the remaining time.

    A step counts as done when its updates are done. An agent with memory does its updates at the end of an episode,
    sometimes for minutes without a step. So the rate is measured from a moment without pending updates to now. Within
    an episode the number of done steps is constant up to rounding errors; `least` keeps these errors out of the rate.
    """

    def __init__(self, loop: Loop, num_steps: int, updates_per_step: float, logger: Logger) -> None:
        self.loop, self.num_steps, self.logger = loop, num_steps, logger
        self.updates_per_step = updates_per_step
        self.least = 0.5 * min(1.0, 1.0 / updates_per_step) if updates_per_step else -1.0  # fewer steps are no progress
        self.counted = self.epoch_started = time.monotonic()
        self.steps_before = loop.step - loop.epoch_start  # steps of the current epoch that an earlier process took
        self.reported = 0.0
        self.phase = ""
        self.settled = (self.counted, self._num_done())  # the last time without pending updates, and the steps by then
        self.window = deque([self.settled])  # recent values of `settled`
        self.failed: set[str] = set()

    def _num_done(self) -> float:
        return self.loop.step - (self.loop.pending_updates / self.updates_per_step if self.updates_per_step else 0.0)

    def report(self, phase: str, now: bool = False) -> None:
        """Send the progress to the logger, at most a few times per second unless `now` is True."""
        time_now = time.monotonic()
        if self.loop.pending_updates < 1.0 and (done := self._num_done()) - self.settled[1] > self.least:
            self.settled = time_now, done
        if time_now - self.reported < REPORT_INTERVAL and not now:
            return
        self.reported = time_now
        self._count(time_now)
        with report_errors("the time-left display", self.failed):
            loop, (rate, left) = self.loop, self._rate_and_seconds_left(phase, time_now)
            self.logger.progress(
                Progress(loop.step, self.num_steps, rate, left, loop.train_return, loop.test_return, phase)
            )

    def _rate_and_seconds_left(self, phase: str, now: float) -> tuple[float, float]:
        """Return recent steps per second and the seconds left; 0 and infinity if no step was done recently."""
        window = self.window
        if self.phase == EXPLORING != phase:  # exploring is faster than learning
            window.clear()
        self.phase = phase
        if not window or self.settled[0] > window[-1][0]:
            window.append(self.settled)
        while len(window) > FEWEST and window[1][0] < now - WINDOW:
            window.popleft()
        (since, done_then), done = window[0], self._num_done()
        rate = (done - done_then) / max(now - since, 1e-3) if done - done_then > max(self.least, 0.0) else 0.0
        return rate, (self.num_steps - done) / rate if rate > 0.0 else math.inf

    def latest(self, row: Mapping[str, float | None]) -> None:
        """Store the latest returns for the display, and refresh it."""
        if row["train/return"] is not None:
            self.loop.train_return = row["train/return"]
        self.loop.test_return = row["test/return"]
        self.report("learning", now=True)

    def row(self) -> dict[str, float]:
        """Return the time columns for the epoch that ends now."""
        now = time.monotonic()
        self._count(now)
        seconds, self.epoch_started = now - self.epoch_started, now
        num_steps = self.loop.step - self.loop.epoch_start - self.steps_before
        self.loop.epoch_start, self.steps_before = self.loop.step, 0
        return {"time/hours": self.loop.seconds / 3600.0, "time/steps_per_second": num_steps / max(seconds, 1e-9)}

    def _count(self, now: float) -> None:
        self.loop.seconds += now - self.counted
        self.counted = now
