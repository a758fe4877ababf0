"""What happens beside the loop: checkpoints and actors."""

from __future__ import annotations

import math
import time

import gin

from offpcc.agent import save_actor
from offpcc.assembly import Learner
from offpcc.checkpoints import save_checkpoint
from offpcc.checks import PositiveInteger, PositiveNumber, check, rules_of
from offpcc.run_fns import Run
from offpcc.runs import RunFolder


@gin.configurable(allowlist=["every", "every_steps", "every_minutes"])
class Checkpoints:
    """Saves the run now and then and at its end, the best actor so far at the ends of epochs, the last when it is over.

    A checkpoint is written when any of the three intervals has passed; the run comes to the same whatever they are.

    Args:
        folder: the run's.
        learner: its parts.
        config: its operative config, kept in the checkpoint.
        last_epoch: after which a checkpoint is always written.
        every: epochs between two checkpoints, written at their ends.
        every_steps: environment steps.
        every_minutes: minutes between the end of one and the beginning of the next.
    """

    def __init__(
        self,
        folder: RunFolder,
        learner: Learner,
        config: str,
        last_epoch: int,
        *,
        every: PositiveInteger | None = None,
        every_steps: PositiveInteger | None = None,
        every_minutes: PositiveNumber | None = 1.0,
    ) -> None:
        given = {"every": every, "every_steps": every_steps, "every_minutes": every_minutes}
        check("Checkpoints", rules_of(Checkpoints), given)
        self.folder, self.learner, self.config = folder, learner, config
        self.last_epoch, self.every = last_epoch, every
        self.every_steps = every_steps or math.inf
        self.every_seconds = math.inf if every_minutes is None else 60.0 * every_minutes
        self._schedule()

    def _schedule(self) -> None:
        """When the next one is due; steps count from the run's beginning, so that a stop moves none."""
        self._due_step = (self.learner.loop.step // self.every_steps + 1) * self.every_steps
        self._due_time = time.monotonic() + self.every_seconds

    def on_start(self, run: Run) -> None:
        """Nothing yet."""

    def on_progress(self, run: Run) -> None:
        """A checkpoint, if one is due by steps or minutes."""
        if run.loop.step >= self._due_step or time.monotonic() >= self._due_time:
            self.save()

    def on_epoch(self, run: Run) -> None:
        """The best actor first, so that it is never older than the checkpoint that knows its return."""
        if run.loop.is_best or run.loop.best_return is None:  # without a test, the latest is the best that is known
            save_actor(self.learner.algorithm, self.folder.actor_best)
        is_due = self.every is not None and run.loop.epoch % self.every == 0
        if is_due or run.loop.epoch == self.last_epoch or run.loop.stopped:
            self.save()

    def on_end(self, run: Run) -> None:
        """The actor after the last update."""
        save_actor(self.learner.algorithm, self.folder.actor_last)

    def save(self) -> None:
        """Write a checkpoint now."""
        save_checkpoint(self.folder.checkpoint, self.learner, self.config, self.last_epoch)
        self._schedule()
