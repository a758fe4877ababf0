"""TensorBoard's event files."""

import os
from pathlib import Path

from offpcc.loggers.base import Progress, Row


class TensorBoardLogger:
    """Writes every number of an epoch as a scalar over environment steps.

    TensorBoard is imported when the first logger is built, since the import takes long.

    Args:
        folder: The run's folder; the events go to `tensorboard` inside it.
        purge_step: When resuming, the first environment step to come: TensorBoard then hides what an
            earlier, interrupted part of the run logged from that step on.
    """

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        # Where TensorFlow is installed, TensorBoard imports it, and that prints pages of device logs.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step)

    def progress(self, progress: Progress) -> None:
        """Nothing to do."""

    def epoch(self, row: Row) -> None:
        """Write the row's numbers at `row["step"]` environment steps."""
        for name, value in row.items():
            if value is not None and name != "step":
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def artifact(self, kind: str, file: Path) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
