"""TensorBoard's event files."""

import io
import itertools
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from offpcc.training.loggers.base import Progress, Row

NAME = re.compile(r"events\.out\.tfevents\.(\d{10}\.\d{6})\.")  # with the time at which a file was begun
_numbers = itertools.count()  # tell apart the files that a process begins within a second


class TensorBoardLogger:
    """Writes every number of an epoch as a scalar over environment steps.

    An epoch's events are on the disk when `epoch` returns. TensorBoard's own writer has a thread for that: when the
    disk is full it prints a traceback and is dead, and the run learns of it an epoch later or never.

    TensorBoard is imported when the first logger is built, since the import takes long.

    Args:
        folder: The run's folder; the events go to `tensorboard` inside it.
        purge_step: When resuming, the first environment step to come: TensorBoard then hides what an
            earlier, interrupted part of the run logged from that step on.

    Raises:
        OSError: The file cannot be written; so do the methods.
    """

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        # Where TensorFlow is installed, TensorBoard imports it, and that prints pages of device logs.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from tensorboard.compat.proto import event_pb2, summary_pb2

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        events = folder / "tensorboard"
        events.mkdir(parents=True, exist_ok=True)
        # Read in the order of their names: what a resumed run began later is to come later, whatever the clock says.
        earlier = (NAME.match(file.name) for file in events.iterdir())
        begun_at = max([time.time(), *(float(found[1]) + 1e-5 for found in earlier if found)])
        name = f"events.out.tfevents.{begun_at:017.6f}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"
        self._file = (events / name).open("xb", buffering=0)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        begun = [self._event(file_version="brain.Event:2")]
        self._write(begun if purge_step is None else [*begun, self._event(step=purge_step, session_log=start)])

    def _write(self, events: list[Any]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        records = io.BytesIO()
        writer, now = RecordWriter(records), time.time()
        for event in events:
            event.wall_time = now
            writer.write(event.SerializeToString())
        left, end = records.getbuffer(), self._file.tell()
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(end)  # TensorBoard reads nothing behind a record that is cut
            self._file.seek(end)
            raise

    def progress(self, progress: Progress) -> None:
        """Nothing to do."""

    def epoch(self, row: Row) -> None:
        """Write the row's numbers at `row["step"]` environment steps."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if value is not None and name != "step"
        ]
        self._write([self._event(step=row["step"], summary=self._summary(value=[value])) for value in values])

    def artifact(self, kind: str, file: Path) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Close the event file."""
        self._file.close()
