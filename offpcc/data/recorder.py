"""Recording what is played: a finished episode is on disk at once, and in the end all of them are one file of D4RL's.

While a recording goes on, its episodes lie in a folder beside the file, ``FILE.shards``, as records one after another
in shards ``000001.episodes``, ``000002.episodes`` and so on. An episode is appended in the moment in which it ends, and
nothing that was written is changed again. So a process that is killed loses the episodes that were under way and no
other: at most the record it was writing is not whole, which its length and its checksum tell, and which is dropped
when the recording is opened again. HDF5 is written only at the end, because a file of it that is open when the process
dies may be lost as a whole, and because a file for each episode would be thousands where episodes are short.

`Recorder.merge` reads the records one by one and writes the file, whose bytes depend on nothing but the episodes: not
on how they lie in shards, nor on how often the recording was stopped.
"""

from __future__ import annotations

import enum
import fcntl
import io
import itertools
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import h5py
import numpy as np
import torch

from offpcc import __version__
from offpcc.data.columns import BLOCK_BYTES, Array
from offpcc.data.recurrent_replay_buffer import Unfinished
from offpcc.domains.making import simulator
from offpcc.domains.playback import observation_wrappers
from offpcc.domains.wrappers import action_bounds
from offpcc.errors import UserError, first_line
from offpcc.files import read_json, replacing, write_json

SUFFIXES = (".hdf5", ".h5")
FORMAT = 1  # of the shards
SHARD_BYTES = 2**25  # after which another shard is begun
CHUNK_BYTES = 2**19  # of compressed images: one fits the cache that HDF5 has for each array, of 1 MiB
MARK = b"EPIS"
HEADER = struct.Struct("<4sIBQ")  # the mark, steps, how the episode ended, bytes that follow the checksum
CHECKSUM = struct.Struct("<I")
OURS = re.compile(r"about\.json|\d{6,}\.episodes|merged\.hdf5|\.(about|merged)\.tmp-.*")  # in the folder of shards


class Ending(enum.IntEnum):
    """How an episode ended."""

    CUT = 0  # by a time limit, or because it was left
    TERMINATED = 1
    UNFINISHED = 2  # the recording ended before it; played further if the recording goes on


class Episode(NamedTuple):
    """An episode of L steps."""

    observations: Array  # (L+1, *obs)
    actions: Array  # (L, A), float32, in the environment's units
    rewards: Array  # (L,), float32
    ending: Ending


class Record(NamedTuple):
    """Where an episode lies."""

    shard: int
    start: int  # bytes
    stop: int
    length: int  # steps
    ending: Ending


class Recorded(NamedTuple):
    """What a finished recording holds."""

    num_steps: int
    num_episodes: int
    num_whole: int  # episodes that ended before the recording did
    mean_return: float  # of those, undiscounted; NaN if there are none


class Finished(NamedTuple):
    """What a finished recording tells of itself."""

    settings: dict[str, Any]
    num_steps: int


class Shards:
    """Episodes on disk, to which others are appended.

    Args:
        folder: is made if it is not there.
        settings: what the recording is of; those of a folder that is there have to be the same.
        shape: of an observation.
        dtype: of observations; images, which are of bytes, are compressed.
        action_dim: numbers of an action.

    Raises:
        UserError: the settings are others, or another process has the folder.
        OSError: the folder cannot be read or written.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any], action_dim: int
    ) -> None:
        self.folder, self.shape, self.dtype, self.action_dim = folder, shape, dtype, action_dim
        self.records: list[Record] = []
        self._file: Any = None
        self._number = 0
        self._lock: int | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._hold()
        try:
            self._open({"format": FORMAT, "settings": dict(settings)})
        except BaseException:
            self.close()
            raise

    def _open(self, described: Mapping[str, Any]) -> None:
        about = self.folder / "about.json"
        if about.is_file():
            known = read_json(about)
            check_same({"format": FORMAT}, {"format": known["format"]}, self.folder)
            check_same(described["settings"], known["settings"], self.folder)
            self._scan()
        else:  # nothing is there, or what is left of a recording whose file is written
            clear(self.folder)
            write_json(about, described)
            self.keep(0)

    def _hold(self) -> None:
        """Keep other processes away, for as long as this one lives."""
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UserError(
                f"{self.folder} is being written by another process; wait for its end, or give another file"
            ) from None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.episodes"

    def _scan(self) -> None:
        """Find all whole episodes; whatever is behind the last of them is dropped."""
        number = 1
        while (path := self._path(number)).is_file():
            with path.open("rb") as file:
                while (record := self._read_record(file, number)) is not None:
                    self.records.append(record[0])
                if file.tell() < path.stat().st_size:
                    break
            number += 1
        self.keep(len(self.records))

    def _read_record(self, file: Any, number: int) -> tuple[Record, bytes] | None:
        """The next record of a shard and what it holds; None, and the place unchanged, if there is no whole one."""
        start = file.tell()
        head, checksum = file.read(HEADER.size), file.read(CHECKSUM.size)
        if len(head) == HEADER.size and len(checksum) == CHECKSUM.size:
            mark, length, ending, size = HEADER.unpack(head)
            content = file.read(size) if size <= os.fstat(file.fileno()).st_size else b""
            if mark == MARK and len(content) == size and CHECKSUM.unpack(checksum)[0] == _checksum(head, content):
                return Record(number, start, file.tell(), length, Ending(ending)), content
        file.seek(start)
        return None

    def append(self, episode: Episode) -> None:
        """Put an episode behind the others; from now on, only the machine's failure could lose it.

        Raises:
            OSError: it cannot be written; nothing of it is left.
        """
        content = b"".join(part.tobytes() for part in (episode.observations, episode.actions, episode.rewards))
        if self.dtype == np.uint8:
            content = zlib.compress(content, 1)
        head = HEADER.pack(MARK, len(episode.rewards), episode.ending, len(content))
        if self._file.seek(0, os.SEEK_END) >= SHARD_BYTES:
            self._begin(self._number + 1)
        start = self._file.seek(0, os.SEEK_END)
        data = head + CHECKSUM.pack(_checksum(head, content)) + content
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(start)
            raise
        self.records.append(Record(self._number, start, start + len(data), len(episode.rewards), episode.ending))

    def _begin(self, number: int) -> Any:
        """Append to another shard from now on; its file."""
        self.sync()
        if self._file is not None:
            self._file.close()
        self._file, self._number = self._path(number).open("ab", buffering=0), number
        return self._file

    def sync(self) -> None:
        """Wait until the disk itself has all that was appended."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def keep(self, number: int) -> None:
        """Forget all episodes but the first `number`."""
        shard, stop = (self.records[number - 1].shard, self.records[number - 1].stop) if number else (1, 0)
        for path in sorted(self.folder.glob("*.episodes"), reverse=True):  # the last first: what is left is whole
            if int(path.stem) > shard:
                path.unlink()
        self._begin(shard).truncate(stop)
        del self.records[number:]

    def __iter__(self) -> Iterator[Episode]:
        """All episodes, one at a time."""
        for number, records in itertools.groupby(self.records, key=lambda record: record.shard):
            with self._path(number).open("rb") as file:
                for record in records:
                    file.seek(record.start)
                    found = self._read_record(file, number)
                    if found is None:
                        raise UserError(f"{self._path(number)} was changed while it was recorded to; record anew")
                    yield self._episode(record, found[1])

    def _episode(self, record: Record, content: bytes) -> Episode:
        if self.dtype == np.uint8:
            content = zlib.decompress(content)
        length, at, parts = record.length, 0, []
        for shape, dtype in (
            ((length + 1, *self.shape), self.dtype),
            ((length, self.action_dim), np.dtype(np.float32)),
            ((length,), np.dtype(np.float32)),
        ):
            count = int(np.prod(shape))
            parts.append(np.frombuffer(content, dtype, count, at).reshape(shape))
            at += count * dtype.itemsize
        return Episode(parts[0], parts[1], parts[2], record.ending)

    def remove(self) -> None:
        """Remove the folder: first what says that there is a recording in it, then its parts."""
        (self.folder / "about.json").unlink()
        remove_leftovers(self.folder)
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            os.close(self._lock)
        self._file = self._lock = None


class Recorder:
    """Records transitions of N environments as D4RL's HDF5 file.

    Its columns are ``observations`` and ``next_observations`` (float32, or bytes for images) as an agent sees them in
    `env`, ``actions`` (float32) in the environment's own units, ``rewards``, ``terminals``, and ``timeouts``: where an
    episode was cut, by a time limit or otherwise, and did not terminate. Episodes are in the order in which they ended.

    A run that is resumed from a checkpoint puts the recorder's state back, and so drops the episodes that were
    recorded after the checkpoint: it plays them again.

    Args:
        file: what is to be written; its episodes lie in a folder beside it until `merge`.
        env: one like those that are played in, made by `offpcc.make`: tells spaces, bounds and wrappers.
        metadata: about the recording, in plain values; None for what is not known. With those of `env` they are in
            the file's group ``metadata``, and a recording that is gone on with has to have the same.
        num_envs: N.
        resume: whether to go on with a recording that is there, finished or not.

    Raises:
        UserError: the file cannot be written, it or a part of it is there and not to be gone on with, or was made with
            other metadata.
    """

    def __init__(
        self,
        file: Path,
        env: gymnasium.Env[Any, Any],
        *,
        metadata: Mapping[str, Any],
        num_envs: int = 1,
        resume: bool = False,
    ) -> None:
        assert env.observation_space.shape is not None
        self.file, self.settings = file, settings_of(env, metadata)
        self.shape: tuple[int, ...] = env.observation_space.shape
        self.dtype = np.dtype(np.uint8 if env.observation_space.dtype == np.uint8 else np.float32)
        low, high = action_bounds(env)
        self._low, self._high = low, high
        self._centre, self._radius = high / 2 + low / 2, high / 2 - low / 2  # as UnitAction has them
        self._unfinished = [Unfinished() for _ in range(num_envs)]
        check_output(file)
        if not resume:
            check_new(file)
        elif file.is_file():
            check_same(self.settings, read_finished(file).settings, file)
        with _writing(file):
            self.shards = Shards(
                shards_folder(file), self.settings, self.shape, self.dtype, int(np.prod(self._low.shape))
            )
            try:
                self._go_on()
            except BaseException:
                self.close()
                raise

    def _go_on(self) -> None:
        """Take over what a finished file has, and drop episodes that the recording had ended."""
        if self.file.is_file():
            for episode in read_episodes(self.file, first=len(self.shards.records)):
                self.shards.append(episode)
        whole = [record.ending is not Ending.UNFINISHED for record in self.shards.records]
        self.shards.keep(whole.index(False) if False in whole else len(whole))

    @property
    def num_episodes(self) -> int:
        """Those that have ended."""
        return len(self.shards.records)

    @property
    def lengths(self) -> list[int]:
        """Steps of those."""
        return [record.length for record in self.shards.records]

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
    ) -> None:
        """Record a transition; one that does not start where its environment's last ended begins a new episode.

        Args:
            observation: as the environment gave it.
            action: (A,) in [-1, 1].
            reward: received after it.
            next_observation: the true one also at an episode's end, never that of a reset.
            terminated: the task ended.
            truncated: the episode was cut.
            env: the number of its environment, from 0.

        Raises:
            UserError: a finished episode holds what is no number, or cannot be written.
            ValueError: a shape is not the environment's.
        """
        before, after = self._read(observation), self._read(next_observation)
        if self._unfinished[env].actions and not np.array_equal(before, self._unfinished[env].frames[-1]):
            self._finish(env, Ending.CUT)
        episode = self._unfinished[env]
        if not episode.actions:
            episode.frames.append(before)
        episode.frames.append(after)
        episode.actions.append(np.array(action, np.float32).reshape(self._low.shape))
        episode.rewards.append(float(reward))
        if terminated or truncated:
            self._finish(env, Ending.TERMINATED if terminated else Ending.CUT)

    def _read(self, observation: np.ndarray) -> Array:
        if np.shape(observation) != self.shape:
            raise ValueError(f"observation of shape {np.shape(observation)} recorded, but the space has {self.shape}")
        return np.array(observation, self.dtype)

    def _finish(self, env: int, ending: Ending) -> None:
        episode, self._unfinished[env] = self._unfinished[env], Unfinished()
        actions = np.clip(self._centre + np.stack(episode.actions) * self._radius, self._low, self._high)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
            rewards = np.array(episode.rewards).astype(np.float32)
        finished = Episode(np.stack(episode.frames), actions.astype(np.float32), rewards, ending)
        for name, numbers in zip(("observations", "actions", "rewards"), finished[:3], strict=True):
            if not np.isfinite(numbers).all():
                raise UserError(
                    f"{name} of an episode of {self.settings['env']} hold a NaN or an infinite number (as float32), "
                    f"and cannot be learned from; `offpcc check` looks for where it comes from"
                )
        with _writing(self.file):
            self.shards.append(finished)

    def keep(self, num_episodes: int) -> None:
        """Forget the unfinished episodes, and of the others all but the first `num_episodes`.

        Raises:
            UserError: there are fewer.
        """
        if num_episodes > self.num_episodes:
            raise UserError(
                f"{self.shards.folder} has {self.num_episodes:,} episodes, but the run that is gone on with had "
                f"recorded {num_episodes:,}; they were changed or removed: put them back, or start another run"
            )
        self._unfinished = [Unfinished() for _ in self._unfinished]
        with _writing(self.file):
            self.shards.keep(num_episodes)

    def flush(self) -> None:
        """Wait until the disk itself has all finished episodes; a process that is killed need not have done it."""
        with _writing(self.file):
            self.shards.sync()

    def state_dict(self) -> dict[str, Any]:
        """How many episodes are written, and those under way."""
        self.flush()
        return {
            "num_episodes": self.num_episodes,
            "unfinished": [
                {
                    "frames": torch.from_numpy(np.stack(episode.frames)) if episode.frames else None,
                    "actions": torch.from_numpy(np.stack(episode.actions)) if episode.actions else None,
                    "rewards": list(episode.rewards),
                }
                for episode in self._unfinished
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`: what was recorded since is dropped.

        Raises:
            UserError: what was recorded before is not there.
        """
        self.keep(state["num_episodes"])
        self._unfinished = [
            Unfinished(list(saved["frames"].numpy()), list(saved["actions"].numpy()), list(saved["rewards"]))
            if saved["rewards"]
            else Unfinished()
            for saved in state["unfinished"]
        ]

    def cut(self) -> None:
        """End the episodes under way, since the recording ends; one that goes on plays them again."""
        for env, episode in enumerate(self._unfinished):
            if episode.actions:
                self._finish(env, Ending.UNFINISHED)

    def merge(self) -> Recorded:
        """Write the file of all finished episodes, and remove the shards; the recorder is of no more use.

        Raises:
            UserError: the file cannot be written; the shards stay.
            ValueError: no episode has ended.
        """
        num_steps = sum(self.lengths)
        if not num_steps:
            raise ValueError("no episode has ended, so there is nothing to write; `cut` ends those under way")
        whole = [record.ending is not Ending.UNFINISHED for record in self.shards.records]
        returns = []
        with _writing(self.file):
            merged = self.shards.folder / "merged.hdf5"
            with replacing(merged) as temporary, _Output(temporary) as output, h5py.File(output, "w") as recorded:
                for name, value in {**self.settings, "whole_episodes": sum(whole)}.items():
                    recorded[f"metadata/{name}"] = np.asarray(value, np.float32) if isinstance(value, list) else value
                columns = _columns(recorded, num_steps, self.shape, self.dtype, self._low.shape)
                for episode in self.shards:
                    last = np.arange(len(episode.rewards)) == len(episode.rewards) - 1
                    columns["observations"].add(episode.observations[:-1])
                    columns["actions"].add(episode.actions)
                    columns["rewards"].add(episode.rewards)
                    columns["terminals"].add(last & (episode.ending is Ending.TERMINATED))
                    columns["timeouts"].add(last & (episode.ending is not Ending.TERMINATED))
                    columns["next_observations"].add(episode.observations[1:])
                    output.check()
                    if episode.ending is not Ending.UNFINISHED:
                        returns.append(episode.rewards.sum(dtype=np.float64))
                for column in columns.values():
                    column.flush()
                recorded.close()
                output.check()
            merged.replace(self.file)
            self.shards.remove()
        return Recorded(num_steps, len(whole), sum(whole), float(np.mean(returns)) if returns else float("nan"))

    def close(self) -> None:
        """Let go of the shards, which stay for another time."""
        self.shards.close()


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
    """

    def __init__(self, file: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], is_image: bool) -> None:
        row_bytes = max(1, int(np.prod(shape[1:])) * dtype.itemsize)
        rows = min(max(1, (CHUNK_BYTES if is_image else BLOCK_BYTES) // row_bytes), shape[0])
        chunks = {"chunks": (rows, *shape[1:]), "compression": "gzip", "compression_opts": 1} if is_image else {}
        self.dataset = file.create_dataset(name, shape, dtype, **chunks)
        self.block = np.empty((rows, *shape[1:]), dtype)
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


def _columns(
    file: Any, num_steps: int, shape: tuple[int, ...], dtype: np.dtype[Any], action_shape: tuple[int, ...]
) -> dict[str, _BlockColumn]:
    flag, number, is_image = np.dtype(np.bool_), np.dtype(np.float32), dtype == np.uint8
    return {
        "observations": _BlockColumn(file, "observations", (num_steps, *shape), dtype, is_image),
        "actions": _BlockColumn(file, "actions", (num_steps, *action_shape), number, False),
        "rewards": _BlockColumn(file, "rewards", (num_steps,), number, False),
        "terminals": _BlockColumn(file, "terminals", (num_steps,), flag, False),
        "timeouts": _BlockColumn(file, "timeouts", (num_steps,), flag, False),
        "next_observations": _BlockColumn(file, "next_observations", (num_steps, *shape), dtype, is_image),
    }


def read_episodes(file: Path, first: int = 0) -> Iterator[Episode]:
    """Episodes of a file that `Recorder.merge` wrote, one at a time, from number `first` on."""
    with h5py.File(file, "r") as recorded:
        terminals = recorded["terminals"][:]
        stops = np.flatnonzero(terminals | recorded["timeouts"][:]) + 1
        whole = int(recorded["metadata/whole_episodes"][()])
        for number in range(first, len(stops)):
            start, stop = int(stops[number - 1]) if number else 0, int(stops[number])
            last = recorded["next_observations"][stop - 1 : stop]
            yield Episode(
                np.concatenate([recorded["observations"][start:stop], last]),
                recorded["actions"][start:stop],
                recorded["rewards"][start:stop],
                Ending.UNFINISHED if number >= whole else Ending.TERMINATED if terminals[stop - 1] else Ending.CUT,
            )


def settings_of(env: gymnasium.Env[Any, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a recording tells of itself: `metadata`, and what the environment shows and takes."""
    low, high = action_bounds(env)
    told = {
        "env": env.spec.id if env.spec else type(env.unwrapped).__name__,
        "offpcc": __version__,
        "simulator": simulator(),
        "observation": f"{np.dtype(env.observation_space.dtype)} {env.observation_space.shape}",
        "action_low": low.astype(np.float32).tolist(),
        "action_high": high.astype(np.float32).tolist(),
        "seen_through": json.dumps(observation_wrappers(env)),
        **metadata,
    }
    return {name: value for name, value in told.items() if value is not None}


def shards_folder(file: Path) -> Path:
    """Where the episodes of an unfinished recording lie."""
    return file.with_name(f"{file.name}.shards")


def clear(folder: Path) -> None:
    """Remove what a recording has put into a folder, and nothing else."""
    for path in folder.iterdir():
        if OURS.fullmatch(path.name):
            path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove a folder of shards, if it is there and nobody else has put something into it."""
    if folder.is_dir():
        clear(folder)
        with suppress(OSError):
            folder.rmdir()


def is_unfinished(file: Path) -> bool:
    """Whether there are shards of a recording that goes into `file`."""
    return (shards_folder(file) / "about.json").is_file()


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
        there = next(folder for folder in file.absolute().parents if folder.exists())
    except OSError as error:
        raise UserError(f"{file} cannot be made ({first_line(error)}); name a file elsewhere") from None
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        fault = "cannot be written to" if there.is_dir() else "is a file, not a folder"
        raise UserError(f"{file} cannot be made: {there} {fault}; name a file elsewhere")


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


def read_finished(file: Path) -> Finished:
    """What a finished recording is of.

    Raises:
        UserError: the file cannot be read, or is no recording of offpcc's.
    """
    try:
        with h5py.File(file, "r") as recorded:
            settings = {name: _plain(value[()]) for name, value in recorded["metadata"].items()}
            del settings["whole_episodes"]
            return Finished(settings, len(recorded["rewards"]))
    except (AttributeError, KeyError, OSError, RuntimeError) as error:
        raise UserError(
            f"{file} is no recording of offpcc's, or is damaged ({first_line(error)}), so it cannot be gone on with; "
            f"give another file"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def check_same(now: Mapping[str, Any], before: Mapping[str, Any], where: Path) -> None:
    """Refuse to go on with other settings.

    Raises:
        UserError: naming the first that differs.
    """
    for name in (*now, *before):
        if now.get(name) != before.get(name):
            raise UserError(
                f"{name} is {now.get(name, 'not known')}, but {where} was recorded with "
                f"{before.get(name, 'no such value')}: a recording that is gone on with keeps its settings; give the "
                f"same, or another file"
            )


def _checksum(head: bytes, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(head))


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Tell of a disk that is full, or fails, in one message."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{file} cannot be written ({error.strerror or first_line(error)}); finished episodes are kept in "
            f"{shards_folder(file)}: make room or mend what is at fault, then go on by --resume"
        ) from error
