"""What happens beside the loop: checkpoints and actors."""

from __future__ import annotations

import gin

from offpcc.agent import save_actor
from offpcc.assembly import Learner
from offpcc.checks import PositiveInteger, check, rules_of
from offpcc.run_fns import Run
from offpcc.runs import RunFolder, save_checkpoint


@gin.configurable(allowlist=["every"])
class Checkpoints:
    """Saves the run, and the best actor so far, at the ends of epochs; the last actor when it is over.

    Args:
        folder: the run's.
        learner: its parts.
        config: its operative config, kept in the checkpoint.
        last_epoch: after which a checkpoint is always written.
        every: epochs between two checkpoints.
    """

    def __init__(
        self, folder: RunFolder, learner: Learner, config: str, last_epoch: int, *, every: PositiveInteger = 1
    ) -> None:
        check("Checkpoints", rules_of(Checkpoints), {"every": every})
        self.folder, self.learner, self.config = folder, learner, config
        self.last_epoch, self.every = last_epoch, every

    def on_start(self, run: Run) -> None:
        """Nothing yet."""

    def on_progress(self, run: Run) -> None:
        """Nothing yet."""

    def on_epoch(self, run: Run) -> None:
        """The best actor first, so that it is never older than the checkpoint that knows its return."""
        if run.loop.is_best or not self.folder.actor_best.exists():
            save_actor(self.learner.algorithm, self.folder.actor_best)
        if run.loop.epoch % self.every == 0 or run.loop.epoch == self.last_epoch or run.loop.stopped:
            self.save()

    def save(self) -> None:
        """Save the run as it stands."""
        save_checkpoint(self.folder.checkpoint, self.learner, self.config, self.last_epoch)

    def on_end(self, run: Run) -> None:
        """The actor after the last update."""
        save_actor(self.learner.algorithm, self.folder.actor_last)
