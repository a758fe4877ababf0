"""Writes a recording as D4RL's HDF5.

Its bytes depend on nothing but the episodes and what is told of them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from offpcc.data.datasets.columns import BLOCK_BYTES, Array
from offpcc.data.recording.episode_log import Ending, Episode, is_unfinished, shards_folder
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import check_regular, replacing
from offpcc.utils.paths import shown, why_no_folder

SUFFIXES = (".hdf5", ".h5")
CHUNK_BYTES = 2**19  # of compressed images: one fits the cache that HDF5 has for each array, of 1 MiB
NUM_WHOLE = "whole_episodes"  # in the metadata; the episodes behind them are gone on with


class Finished(NamedTuple):
    """What a finished recording tells of itself."""

    settings: dict[str, Any]
    num_steps: int


def write_recording(
    file: Path, episodes: Iterable[Episode], *, num_steps: int, num_whole: int, settings: Mapping[str, Any]
) -> list[float]:
    """Write episodes, one at a time, into a file, which is there wholly or not at all.

    Args:
        file: to be written.
        episodes: those that ended first, then those that were cut where the recording ended.
        num_steps: of all episodes.
        num_whole: how many episodes ended.
        settings: what the recording is of.

    Returns:
        The undiscounted return of each episode.

    Raises:
        OSError: it cannot be written.
        Interrupted: the command line was asked to stop.
    """
    columns: dict[str, _BlockColumn] = {}
    returns: list[float] = []
    with replacing(file) as temporary, _Output(temporary) as output, h5py.File(output, "w") as recorded:
        for name, value in {**settings, NUM_WHOLE: num_whole}.items():
            recorded[f"metadata/{name}"] = np.asarray(value, np.float32) if isinstance(value, list) else value
        for episode in episodes:
            signals.poll()
            parts = {
                "observations": episode.observations[:-1],
                "actions": episode.actions,
                "rewards": episode.rewards,
                "terminals": episode.terminations,
                "timeouts": episode.truncations,
                "next_observations": episode.observations[1:],
            }
            columns = columns or {name: _BlockColumn(recorded, name, num_steps, part) for name, part in parts.items()}
            for name, part in parts.items():
                columns[name].add(part)
            returns.append(float(episode.rewards.sum(dtype=np.float64)))
            output.check()
        for column in columns.values():
            column.flush()
        recorded.close()
        output.check()
    return returns


class _Output(io.FileIO):
    """A file for HDF5 that never fails, because HDF5 does not survive it; `check` tells that it did."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._fault: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`, or note why not."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and self._fault is None:
                left = left[super().write(left) :]
        except OSError as error:
            self._fault = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size, or note why not."""
        try:
            return super().truncate(size)
        except OSError as error:
            self._fault = self._fault or error
            return size or 0

    def __exit__(self, *raised: Any) -> None:
        """Close the file; what went wrong with it says more than what HDF5 makes of that."""
        super().__exit__(*raised)
        self.check()

    def check(self) -> None:
        """Raise what went wrong.

        Raises:
            OSError: something was not written.
        """
        if self._fault is not None:
            raise self._fault


class _BlockColumn:
    """An array in a file, written in blocks of its own size, whatever comes at a time.

    Vectors are not compressed: floats of a simulator shrink by a tenth, and take several times as long to read.
    Images shrink to a fraction; by gzip, which every reader of HDF5 knows, at its fastest level, as the others gain
    little.

    Args:
        file: an open one.
        name: of the array.
        num_rows: of the whole array.
        example: some rows like those that come.
    """

    def __init__(self, file: Any, name: str, num_rows: int, example: Array) -> None:
        shape, dtype, is_image = example.shape[1:], example.dtype, example.dtype == np.uint8
        row_bytes = max(1, int(np.prod(shape)) * dtype.itemsize)
        rows = min(max(1, (CHUNK_BYTES if is_image else BLOCK_BYTES) // row_bytes), num_rows)
        chunks = {"chunks": (rows, *shape), "compression": "gzip", "compression_opts": 1} if is_image else {}
        self.dataset = file.create_dataset(name, (num_rows, *shape), dtype, **chunks)
        self.block = np.empty((rows, *shape), dtype)
        self.filled = self.written = 0

    def add(self, rows: Array) -> None:
        """Put rows behind those before."""
        while len(rows):
            part = rows[: len(self.block) - self.filled]
            self.block[self.filled : self.filled + len(part)] = part
            self.filled += len(part)
            rows = rows[len(part) :]
            if self.filled == len(self.block):
                self.flush()

    def flush(self) -> None:
        """Write what is left."""
        if self.filled:
            self.dataset[self.written : self.written + self.filled] = self.block[: self.filled]
            self.written += self.filled
            self.filled = 0


def read_episodes(file: Path, first: int = 0) -> Iterator[Episode]:
    """Episodes of a file that `write_recording` wrote, one at a time, from number `first` on."""
    check_regular(file)
    with h5py.File(file, "r") as recorded:
        terminals = recorded["terminals"][:]
        stops = np.flatnonzero(terminals | recorded["timeouts"][:]) + 1
        num_whole = int(recorded[f"metadata/{NUM_WHOLE}"][()])
        for number in range(first, len(stops)):
            start, stop = int(stops[number - 1]) if number else 0, int(stops[number])
            last = recorded["next_observations"][stop - 1 : stop]
            yield Episode(
                np.concatenate([recorded["observations"][start:stop], last]),
                recorded["actions"][start:stop],
                recorded["rewards"][start:stop],
                Ending.UNFINISHED
                if number >= num_whole
                else Ending.TERMINATED
                if terminals[stop - 1]
                else Ending.TRUNCATED,
            )


def read_finished(file: Path) -> Finished:
    """What a finished recording is of.

    Raises:
        UserError: the file cannot be read, or is no recording of offpcc's.
    """
    try:
        check_regular(file)
        with h5py.File(file, "r") as recorded:
            settings = {name: _setting(value[()]) for name, value in recorded["metadata"].items()}
            del settings[NUM_WHOLE]
            return Finished(settings, len(recorded["rewards"]))
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} is no recording of offpcc's, or is damaged ({first_line(error)}), so it cannot be gone on with; "
            f"give another file"
        ) from None


def _setting(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def check_output(file: Path) -> None:
    """Refuse a file that could not be written; nothing is made.

    Raises:
        UserError: naming why.
    """
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file} does not end in {' or '.join(SUFFIXES)}, and HDF5 is what is written; rename it")
    try:
        if file.is_dir():
            raise UserError(f"{file} is a folder; name a file in it, such as {file / 'data.hdf5'}")
        if os.path.lexists(file) and not file.is_file():
            raise UserError(f"{file} is a device, a pipe or a link to nothing; name another file")
        is_unfinished(file)  # its folder of shards has a longer name
    except OSError as error:
        raise UserError(f"{shown(file)} cannot be made ({first_line(error)}); name a file elsewhere") from None
    if fault := why_no_folder(file.absolute().parent):
        raise UserError(f"{file} cannot be made: {fault}; name a file elsewhere")


def check_new(file: Path) -> None:
    """Refuse to overwrite a recording.

    Raises:
        UserError: there is one, finished or not.
    """
    if is_unfinished(file):
        raise UserError(
            f"{shards_folder(file)} holds an unfinished recording, which is not overwritten; go on with it by "
            f"--resume, or give another file, or remove the folder"
        )
    if file.exists():
        raise UserError(
            f"{file} is there and is not overwritten; give another file, remove it, or if it is a recording of the "
            f"same command go on with it by --resume"
        )
