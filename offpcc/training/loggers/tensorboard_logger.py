"""Logger for TensorBoard event files."""

import io
import itertools
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from offpcc.training.loggers.base import Logger, Row

NAME = re.compile(r"events\.out\.tfevents\.(\d{10}\.\d{6})\.")  # with the time at which the file was created
_numbers = itertools.count()  # make names unique within a process


class TensorBoardLogger(Logger):
    """Writes every number of an epoch as a scalar over environment steps.

    The events of an epoch are on the disk when `epoch` returns. TensorBoard's own writer uses a thread instead: if the
    disk is full, the thread prints a traceback and dies, and the run notices an epoch later or never.

    TensorBoard is imported when the first logger is built, because the import is slow.

    Args:
        folder: The run's folder; the events go to its subfolder `tensorboard`.
        purge_step: After a resume, the next environment step. TensorBoard hides what the interrupted run logged from
            that step on.

    Raises:
        OSError: The file cannot be written. The methods raise it, too.
    """

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        # TensorBoard imports TensorFlow if it is installed, and TensorFlow prints pages of device logs.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from tensorboard.compat.proto import event_pb2, summary_pb2

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        events = folder / "tensorboard"
        events.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, so a later file needs a later name despite a wrong clock.
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
            self._file.truncate(end)  # TensorBoard reads nothing after an incomplete record
            self._file.seek(end)
            raise

    def epoch(self, row: Row) -> None:
        """Write the row's numbers at `row["step"]` environment steps."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if value is not None and name != "step"
        ]
        self._write([self._event(step=row["step"], summary=self._summary(value=[value])) for value in values])

    def close(self) -> None:
        """Close the event file."""
        self._file.close()
