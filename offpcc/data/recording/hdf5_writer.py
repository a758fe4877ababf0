"""The file of a finished recording: HDF5 in D4RL's format.

The bytes of the file depend only on the episodes and the metadata.
"""

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces

from offpcc.core import PackedDict
from offpcc.data.datasets.columns import BLOCK_BYTES, Array, Column
from offpcc.data.datasets.dict_columns import DictColumn, with_states
from offpcc.data.datasets.frame_stacks import FRAME_STACK, FRAMES
from offpcc.data.recording.episode_log import Ending, Episode, is_unfinished, log_path
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import replacing
from offpcc.utils.paths import shown, why_no_folder
from offpcc.utils.spaces import STATE

SUFFIXES = (".hdf5", ".h5")
CHUNK_BYTES = 2**19  # of compressed images; a chunk fits into the 1 MiB cache that HDF5 has per dataset
NUM_ACTIONS = "num_actions"  # metadata of recordings with discrete actions
NUM_WHOLE = "whole_episodes"  # in the metadata: number of episodes that ended; a resume drops the later ones


def write_recording(
    file: Path,
    episodes: Iterable[Episode],
    *,
    num_steps: int,
    num_whole: int,
    settings: Mapping[str, Any],
    space: PackedDict | None = None,
    is_discrete: bool = False,
    num_frames: int = 0,
) -> list[float]:
    """Write episodes to a file, a few at a time. The file appears only when it is complete.

    Vectors are not compressed: a simulator's floats shrink by a tenth only, and reading takes several times as long.
    Images shrink to a fraction. They use gzip, which every HDF5 reader knows, at its fastest level, because the other
    levels gain little.

    Args:
        file: Path of the file.
        episodes: First the `num_whole` episodes that ended, then the episodes that the recording's end cut.
        num_steps: Number of steps in all episodes.
        num_whole: Number of episodes that ended.
        settings: Settings of the recording, which are saved as metadata.
        space: The space of Dict observations, whose entries become arrays of their own, such as "observations/camera".
        is_discrete: Whether actions are whole numbers, though `settings` do not say how many there are.
        num_frames: Number of frames in all episodes, if `settings` say that observations are stacks of frames.

    Returns:
        The undiscounted return of each episode.

    Raises:
        OSError: The file cannot be written.
        Interrupted: The user asked the command to stop.
    """
    returns: list[float] = []
    written: dict[str, int] = {}  # rows of each array
    with replacing(file) as temporary, Output(temporary) as output, h5py.File(output, "w") as recorded:
        for name, value in {**settings, NUM_WHOLE: num_whole}.items():
            recorded[f"metadata/{name}"] = np.asarray(value, np.float32) if isinstance(value, list) else value
        kind = np.int64 if is_discrete or NUM_ACTIONS in settings else np.float32
        for some in batches(episodes, BLOCK_BYTES):
            columns = {
                "actions": [np.asarray(episode.actions, kind) for episode in some],
                "rewards": [episode.rewards for episode in some],
                "terminals": [episode.terminations for episode in some],
                "timeouts": [episode.truncations for episode in some],
            }
            if FRAME_STACK in settings:
                columns[FRAMES] = [episode.observations for episode in some]
            else:
                columns["observations"] = [episode.observations[:-1] for episode in some]
                columns["next_observations"] = [episode.observations[1:] for episode in some]
            for name, rows in _arrays(columns, space):
                number, start = num_frames if name == FRAMES else num_steps, written.get(name, 0)
                if not start:
                    chunk = min(max(1, CHUNK_BYTES // max(1, rows[0].nbytes)), number)
                    options = {"chunks": (chunk, *rows.shape[1:]), "compression": "gzip", "compression_opts": 1}
                    shape, is_image = (number, *rows.shape[1:]), rows.dtype == np.uint8
                    recorded.create_dataset(name, shape, rows.dtype, **(options if is_image else {}))
                written[name] = start + len(rows)
                recorded[name][start : written[name]] = rows
            returns += [float(episode.rewards.sum(dtype=np.float64)) for episode in some]
            output.check()
        recorded.close()
        output.check()
    return returns


def _arrays(columns: Mapping[str, list[Array]], space: PackedDict | None) -> Iterator[tuple[str, Array]]:
    """Yield the name and the rows of each array of the file."""
    for name, parts in columns.items():
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)  # no copy of a long episode
        if space is None or "observations" not in name:
            yield name, rows
            continue
        seen: spaces.Box | None = space
        if space.state_key == STATE:
            rows, states = space.split_state(rows)
            seen = space.agent_space
            yield name.replace("observations", "states"), states
        if isinstance(seen, PackedDict):
            yield from ((f"{name}/{key}", part) for key, part in seen.split(rows).items())
        else:
            yield name, rows


def batches(episodes: Iterable[Episode], num_bytes: int) -> Iterator[list[Episode]]:
    """Yield lists of episodes with about `num_bytes` of observations each."""
    some: list[Episode] = []
    size = 0
    for episode in episodes:
        signals.poll()
        if some and size >= num_bytes:
            yield some
            some, size = [], 0
        some.append(episode)
        size += episode.observations.nbytes
    if some:
        yield some


class Output(io.FileIO):
    """A file for HDF5 whose writes never raise, because HDF5 does not survive that. `check` raises the error."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._fault: OSError | None = None

    def write(self, data: Any) -> int:
        """Write `data`, or store the error. Returns the full size in both cases."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and self._fault is None:
                left = left[super().write(left) :]
        except OSError as error:
            self._fault = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the file size, or store the error."""
        try:
            return super().truncate(size)
        except OSError as error:
            self._fault = self._fault or error
            return size or 0

    def __exit__(self, *raised: Any) -> None:
        """Close the file, and raise a stored error, which says more than HDF5's own error."""
        super().__exit__(*raised)
        self.check()

    def check(self) -> None:
        """Raise the stored error, if there is one."""
        if self._fault is not None:
            raise self._fault


def read_episodes(file: Path, first: int = 0) -> Iterator[Episode]:
    """Yield the episodes of a file from `write_recording`, one at a time, from number `first` on."""
    with h5py.File(file, "r") as recorded:
        terminals = recorded["terminals"][:]
        stops = np.flatnonzero(terminals | recorded["timeouts"][:]) + 1
        num_whole = int(recorded[f"metadata/{NUM_WHOLE}"][()])
        stack = int(recorded[f"metadata/{FRAME_STACK}"][()]) if FRAMES in recorded else 0
        if not stack:
            before, after = (_observed(recorded, name, file) for name in ("observations", "next_observations"))
        for number in range(first, len(stops)):
            start, stop = int(stops[number - 1]) if number else 0, int(stops[number])
            ending = Ending.TERMINATED if terminals[stop - 1] else Ending.TRUNCATED
            if stack:
                seen = recorded[FRAMES][start + stack * number : stop + stack * (number + 1)]
            else:
                seen = np.concatenate([before[start:stop], after[stop - 1 : stop]])
            yield Episode(
                seen,
                recorded["actions"][start:stop].astype(np.float32),
                recorded["rewards"][start:stop],
                ending if number < num_whole else Ending.UNFINISHED,
            )


def _observed(recorded: Any, name: str, file: Path) -> Column:
    """Return a column of observations: an array of the file, or a group of a Dict's entries; with the states."""
    item, states = recorded[name], name.replace("observations", "states")
    columns: dict[str, Column] = {}
    if isinstance(item, h5py.Group):
        item.visititems(lambda key, inside: columns.update({key: inside}) if isinstance(inside, h5py.Dataset) else None)
    elif states not in recorded:
        column: Column = item
        return column
    observed = DictColumn(columns, None, f"{file}: {item.name}") if columns else item
    return with_states(observed, recorded[states], f"{file}: {name}") if states in recorded else observed


def read_finished(file: Path) -> tuple[dict[str, Any], int]:
    """Return the settings and the number of steps of a finished recording."""
    try:
        with h5py.File(file, "r") as recorded:
            settings = {name: value[()] for name, value in recorded["metadata"].items()}
            del settings[NUM_WHOLE]
            for name, value in settings.items():
                settings[name] = value.decode() if isinstance(value, bytes) else value.tolist()
            return settings, len(recorded["rewards"])
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} is not a recording of offpcc, or is damaged ({first_line(error)}), so it cannot be resumed; give "
            f"another file"
        ) from None


def check_output(file: Path) -> None:
    """Check that a file can be written, without creating anything."""
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file} does not end in {' or '.join(SUFFIXES)}, but recordings are HDF5; rename it")
    try:
        if file.is_dir():
            raise UserError(f"{file} is a folder; name a file in it, such as {file / 'data.hdf5'}")
        if os.path.lexists(file) and not file.is_file():
            raise UserError(f"{file} is a device, a pipe or a broken link; name another file")
        is_unfinished(file)  # raises if the longer name of the log is not possible
    except OSError as error:
        raise UserError(f"{shown(file)} cannot be made ({first_line(error)}); name a file elsewhere") from None
    if fault := why_no_folder(file.absolute().parent):
        raise UserError(f"{file} cannot be made: {fault}; name a file elsewhere")


def check_new_hdf5(file: Path) -> None:
    """Check that no recording would be overwritten."""
    if is_unfinished(file):
        raise UserError(
            f"{log_path(file)} holds an unfinished recording, which is not overwritten; continue it with --resume, or "
            f"give another file, or remove it"
        )
    if file.exists():
        raise UserError(
            f"{file} exists and is not overwritten; give another file, remove it, or, if the same command recorded it, "
            f"continue it with --resume"
        )
