"""Writes a dataset of frames; see `offpcc.data.datasets.frame_stacks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.frame_stacks import FRAME_STACK, FRAMES
from offpcc.data.recording.hdf5_writer import NUM_ACTIONS, NUM_WHOLE, Output
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import replacing
from offpcc.utils.version import __version__

STACK = 4
SIDE = 84  # pixels
CHUNK = 80  # frames that are compressed together: 16 transitions of 5 frames
BLOCK = 50 * CHUNK  # frames in memory


class FrameWriter:
    """Collects frames and steps, and writes full blocks of frames to an open file.

    Attributes:
        num_cut: number of last episodes that the end of the recording cut.
    """

    num_cut = 0

    def __init__(self, file: h5py.File) -> None:
        shape = (SIDE, SIDE)
        options: dict[str, Any] = {"compression": "gzip", "compression_opts": 1}
        self.stored = file.create_dataset(
            FRAMES, (0, *shape), np.uint8, maxshape=(None, *shape), chunks=(CHUNK, *shape), **options
        )
        self.block, self.filled = np.zeros((BLOCK, *shape), np.uint8), 0
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.terminals: list[bool] = []
        self.timeouts: list[bool] = []

    def add_frame(self, frame: Array) -> None:
        """Add a frame (84, 84)."""
        self.block[self.filled] = frame
        self.filled += 1
        if self.filled == BLOCK:
            self.flush()

    def add_step(self, action: int, reward: float, is_terminal: bool, is_cut: bool) -> None:
        """Add a step; `is_cut` says that its episode ends here without a termination."""
        self.actions.append(action)
        self.rewards.append(reward)
        self.terminals.append(is_terminal)
        self.timeouts.append(is_cut and not is_terminal)

    def flush(self) -> None:
        """Write the frames of the block."""
        signals.poll()
        start = len(self.stored)
        self.stored.resize(start + self.filled, axis=0)
        self.stored[start:] = self.block[: self.filled]
        self.filled = 0


@contextmanager
def writing(path: Path, num_actions: int, **metadata: Any) -> Iterator[FrameWriter]:
    """Yield a writer of a file that appears when the block ends without an error; `metadata` are facts about it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, Output(temporary) as output, h5py.File(output, "w", libver="v110") as file:
            writer = FrameWriter(file)
            yield writer
            writer.flush()
            file["actions"] = np.array(writer.actions, np.int64)
            file["rewards"] = np.array(writer.rewards, np.float32)
            file["terminals"] = np.array(writer.terminals, np.bool_)
            file["timeouts"] = np.array(writer.timeouts, np.bool_)
            num_episodes = sum(writer.terminals) + sum(writer.timeouts)
            facts: Mapping[str, Any] = {
                "offpcc": __version__,
                FRAME_STACK: STACK,
                NUM_ACTIONS: num_actions,
                "action_low": np.zeros(1, np.float32),
                "action_high": np.full(1, num_actions - 1, np.float32),
                NUM_WHOLE: num_episodes - writer.num_cut,
                **metadata,
            }
            for name, value in facts.items():
                file[f"metadata/{name}"] = value
            file.close()
            output.check()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({first_line(error)}); give another --buffer_dir") from error
