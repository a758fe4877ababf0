"""Stacked observations of recorded data, of which each frame is stored once.

A file holds ``frames`` (R, *frame) and, in its metadata, ``frame_stack`` = k. An episode of L steps has k - 1 + L + 1
frames: the older frames of its first observation, then one frame per observation. So an episode is the same as in
`ReplayBuffer`, and the observation of a step is k frames in a row. Transitions without order are episodes of one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offpcc.data.buffers.storage import Storage, TransitionTable, recorded_frames
from offpcc.data.datasets.columns import BLOCK_BYTES, Array, check_room
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.system import available_bytes

FRAMES, FRAME_STACK, SHUFFLED = "frames", "frame_stack", "shuffled"


class FrameFile:
    """The frames of a file, read when they are needed, and only those that are needed.

    Args:
        path: the file.
        shape: (R, H, W), shape of its ``frames``.
        name: the name of the data, for messages.
        memory_limit: maximum size of frames in memory, in bytes; more of them are in a temporary file. None to use all
            memory that is free.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], name: str, memory_limit: int | None = None) -> None:
        self.path, self.shape, self.name, self.memory_limit = path, shape, name, memory_limit
        self._first, self._frames = 0, np.zeros((0, *shape[1:]), np.uint8)

    def windows(self, first: int, last: int, depth: int) -> tuple[int, Array]:
        """Return the number of the first row that was read, and all stacks of `depth` frames from there on, a view.

        Those that begin at rows `first` to `last` are among them.
        """
        stop = last + depth
        if first < self._first or stop > self._first + len(self._frames):
            stop = min(stop + 1, self.shape[0])  # the next observation, which is asked for next
            self._first, self._frames = first, np.zeros((0, *self.shape[1:]), np.uint8)
            self._frames = self._read(first, stop)
        seen = np.lib.stride_tricks.sliding_window_view(self._frames, depth, axis=0)
        return self._first, np.moveaxis(seen, -1, 1)

    def _read(self, first: int, stop: int) -> Array:
        limits = [limit for limit in (self.memory_limit, available_bytes()) if limit is not None]
        shape = (stop - first, *self.shape[1:])
        frames = recorded_frames(shape, np.dtype(np.uint8), min(limits, default=None), self.name)
        try:
            with h5py.File(self.path, "r", rdcc_nbytes=0) as file:
                stored = file[FRAMES]
                if stored.shape != self.shape or stored.dtype != np.uint8:
                    raise ValueError("it has changed")
                chunk = (stored.chunks or (1,))[0]
                size = math.ceil(BLOCK_BYTES / max(math.prod(self.shape[1:]) * chunk, 1)) * chunk
                for start in range(first // chunk * chunk, stop, size):  # whole chunks, so that none is read twice
                    rows = slice(max(start, first), min(start + size, stop))
                    stored.read_direct(frames, rows, slice(rows.start - first, rows.stop - first))
        except (OSError, RuntimeError, LookupError, ValueError) as error:
            raise UserError(
                f"{self.path} is damaged or incomplete ({first_line(error)}); fetch or convert it again"
            ) from error
        return frames


@dataclass(frozen=True, eq=False)
class FrameStacks:
    """Observations (S, k, H, W), uint8, that are read from a file when they are used.

    An index gives a new array, as it does for arrays. `pick` gives a part that is read later.

    Attributes:
        file: the frames.
        first: (S,), the row of the oldest frame of each observation.
        depth: k, number of frames in an observation; fewer than those that were recorded after `newest`.
    """

    file: FrameFile
    first: Array
    depth: int

    dtype = np.dtype(np.uint8)
    ndim = 4

    @property
    def shape(self) -> tuple[int, ...]:
        """(S, k, H, W)."""
        return len(self.first), self.depth, *self.file.shape[1:]

    @property
    def nbytes(self) -> int:
        """Bytes of the frames between the first and the last of these observations, each counted once."""
        if not len(self.first):
            return 0
        return int(self.first.max() + self.depth - self.first.min()) * math.prod(self.file.shape[1:])

    def __len__(self) -> int:
        return len(self.first)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return all observations as an array of their own, which takes k times the memory of the frames."""
        check_room(math.prod(self.shape), f"{self.file.name}: {len(self):,} stacks of frames")
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, tuple):
            whole: Array = self[rows[0]][(slice(None), *rows[1:])]
            return whole
        chosen = self.first[rows]
        if not chosen.size:
            return np.zeros((*chosen.shape, *self.shape[1:]), np.uint8)
        start, windows = self.file.windows(int(chosen.min()), int(chosen.max()), self.depth)
        return np.ascontiguousarray(windows[chosen - start])

    def windows(self) -> tuple[int, Array]:
        """See `FrameFile.windows`; the stack after the last observation is among them."""
        first, last = int(self.first.min()), int(self.first.max()) + 1
        start, seen = self.file.windows(first, last, self.depth)
        return first, seen[first - start : last - start + 1]  # whatever else was read before

    def newest(self, depth: int) -> FrameStacks:
        """Return the newest frames of each observation."""
        return replace(self, first=self.first + self.depth - depth, depth=depth)

    def pick(self, rows: Any) -> FrameStacks:
        """Return some of the observations, without reading them."""
        return replace(self, first=self.first[rows])

    def table(
        self, starts: Array, stops: Array, actions: Array, rewards: Array, terminations: Array
    ) -> TransitionTable:
        """Return the transitions of E episodes in the format of the buffers; it shares the frames' memory.

        Episode i has the steps from `starts[i]` on and before `stops[i]`. `actions` (S, A) are as agents take them.
        """
        begin, windows = self.windows()
        rows = self.first - begin
        storage = Storage.of(len(windows), (0,), self.dtype, actions.shape[1])
        storage.actions[rows], storage.is_start[rows] = actions, True
        storage.rewards[rows, 0], storage.terminations[rows, 0] = rewards, terminations
        return TransitionTable(
            **(vars(storage) | {"observations": windows}), starts=rows[starts], stops=rows[stops - 1] + 2
        )


def pick_observations(observations: Any, rows: Any) -> Any:
    """Return some of the observations; of `FrameStacks`, without reading them."""
    return observations.pick(rows) if isinstance(observations, FrameStacks) else observations[rows]


def first_rows(is_end: Array, num_frames: int, frame_stack: int, name: str) -> Array:
    """Return the row of the oldest frame of each step's observation, (S,), in a file of so many frames.

    `is_end` (S,) says whether a step is the last of its episode.
    """
    number = np.cumsum(is_end) - is_end  # of the episode
    needed = len(is_end) + frame_stack * int(is_end.sum())
    if not len(is_end) or not is_end[-1] or needed != num_frames:
        raise UserError(
            f"{name}: {num_frames:,} frames, but {len(is_end):,} steps in {int(is_end.sum()):,} episodes with stacks "
            f"of {frame_stack} frames need {needed:,}; convert the data again"
        )
    rows: Array = np.arange(len(is_end)) + frame_stack * number
    return rows
