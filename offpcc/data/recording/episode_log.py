"""The log of recorded episodes: append-only files whose records show whether they are whole.

Records lie one after another in the files ``000001.episodes``, ``000002.episodes``, ... of the folder ``FILE.shards``
beside the final file. Written records never change. A process that is killed loses only unfinished episodes and at
most the record that it was writing, which is dropped on resume.

The log is not HDF5, because an HDF5 file that is open when its process dies may be lost, and because one file per
episode would make thousands of small files.
"""

from __future__ import annotations

import enum
import fcntl
import itertools
import os
import re
import shlex
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from offpcc.data.datasets.columns import Array
from offpcc.data.recording.metadata import go_on
from offpcc.utils.errors import UserError
from offpcc.utils.files import open_regular, read_json, write_json

MARK = b"EPIS"
HEADER = struct.Struct("<4sIBQ")  # the mark, steps, how the episode ended, bytes that follow the checksum
CHECKSUM = struct.Struct("<I")


class Ending(enum.IntEnum):
    """How an episode ended."""

    TRUNCATED = 0  # by a time limit, or because it was left
    TERMINATED = 1
    UNFINISHED = 2  # the recording ended before it; played further if the recording goes on


class Episode(NamedTuple):
    """An episode of L steps."""

    observations: Array  # (L+1, *obs)
    actions: Array  # (L, A), float32, in the environment's units
    rewards: Array  # (L,), float32
    ending: Ending

    @property
    def terminations(self) -> Array:
        """(L,) of bool: where the task ended."""
        return self._last & (self.ending is Ending.TERMINATED)

    @property
    def truncations(self) -> Array:
        """(L,) of bool: where the episode was cut."""
        return self._last & (self.ending is not Ending.TERMINATED)

    @property
    def _last(self) -> Array:
        last: Array = np.arange(len(self.rewards)) == len(self.rewards) - 1
        return last


class Record(NamedTuple):
    """An episode as it was read back."""

    length: int  # steps
    ending: Ending
    content: bytes


class Layout(NamedTuple):
    """What the episodes of an environment are made of."""

    shape: tuple[int, ...]  # of an observation
    dtype: np.dtype[Any]  # of observations: float32, or bytes for images
    action_dim: int

    @property
    def is_compressed(self) -> bool:
        """Whether records are; images shrink to a fraction."""
        return self.dtype == np.uint8

    def pack(self, episode: Episode) -> bytes:
        """An episode's record."""
        content = b"".join(part.tobytes() for part in (episode.observations, episode.actions, episode.rewards))
        if self.is_compressed:
            content = zlib.compress(content, 1)
        head = HEADER.pack(MARK, len(episode.rewards), episode.ending, len(content))
        return head + CHECKSUM.pack(_checksum(head, content)) + content

    def unpack(self, record: Record) -> Episode:
        """A record's episode."""
        content = zlib.decompress(record.content) if self.is_compressed else record.content
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


def read_record(file: IO[bytes]) -> Record | None:
    """The next record of a file; None, and the place unchanged, if there is no whole one."""
    start = file.tell()
    head, checksum = file.read(HEADER.size), file.read(CHECKSUM.size)
    if len(head) == HEADER.size and len(checksum) == CHECKSUM.size:
        mark, length, ending, size = HEADER.unpack(head)
        content = file.read(size) if size <= os.fstat(file.fileno()).st_size else b""
        if mark == MARK and len(content) == size and CHECKSUM.unpack(checksum)[0] == _checksum(head, content):
            return Record(length, Ending(ending), content)
    file.seek(start)
    return None


def is_followed(file: IO[bytes]) -> bool:
    """Whether a whole record lies somewhere behind the place in a file, at which there is none."""
    start = file.tell()
    for found in re.finditer(re.escape(MARK), file.read()):
        file.seek(start + found.start())
        if read_record(file) is not None:
            return True
    return False


def _checksum(head: bytes, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(head))


FORMAT = 1
SHARD_BYTES = 2**25  # after which another shard is begun
OURS = re.compile(r"about\.json|\d{6,}\.episodes|merged\.hdf5|\.(about|merged)\.tmp-.*")  # in the folder of shards


class Place(NamedTuple):
    """Where an episode lies, and what is known of it."""

    shard: int
    start: int  # bytes
    stop: int
    length: int  # steps
    ending: Ending


class Shards:
    """Episodes on disk, to which others are appended.

    Args:
        folder: is made if it is not there.
        settings: what the recording is of; see `go_on` for a folder that is there.
        layout: of the episodes.

    Raises:
        UserError: the settings are others, episodes are damaged, or another process has the folder.
        OSError: the folder cannot be read or written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], layout: Layout) -> None:
        self.folder, self.layout = folder, layout
        self.places: list[Place] = []
        self.message: str | None = None  # what is not exact
        self._file: FileIO | None = None  # the shard that is appended to, while all that is dropped is removed
        self._number = 0  # of it
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = self._hold()
        try:
            self._open(dict(settings))
        except BaseException:
            self.close()
            raise

    def _hold(self) -> int:
        """Keep other processes away, for as long as this one lives."""
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise UserError(
                f"{self.folder} is being written by another process; wait for its end, or give another file"
            ) from None
        return lock

    def _open(self, settings: dict[str, Any]) -> None:
        about = self.folder / "about.json"
        if os.path.lexists(about):
            self.settings, self.message = go_on(settings, _described(about), self.folder)
            self._scan()
        else:  # nothing is there, or what is left of a recording whose file is written
            self.settings = settings
            clear(self.folder)
            self._describe()

    def _describe(self) -> None:
        write_json(self.folder / "about.json", {"format": FORMAT, "settings": self.settings})

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.episodes"

    def _numbers(self) -> list[int]:
        """Of the shards that are there."""
        return sorted(int(path.stem) for path in self.folder.glob("*.episodes") if OURS.fullmatch(path.name))

    def _scan(self) -> None:
        """Find all whole episodes.

        Raises:
            UserError: what lies behind them is more than the rest of a write that was broken off.
        """
        numbers = self._numbers()
        for number, found in enumerate(numbers, 1):
            if found != number:
                raise self._damage(number, 0, numbers)
            with open_regular(self._path(number)) as file:
                start = 0
                while (record := read_record(file)) is not None:
                    stop = file.tell()
                    self.places.append(Place(number, start, stop, record.length, record.ending))
                    start = stop
                is_full = 0 < start == os.fstat(file.fileno()).st_size
                if is_followed(file) if number == numbers[-1] else not is_full:
                    raise self._damage(number, start, numbers)

    def _damage(self, number: int, start: int, numbers: list[int]) -> UserError:
        """That the episode at a place is lost, while others behind it are there."""
        path, later = self._path(number), [self._path(other) for other in numbers if other > number]
        cut = [shlex.join(["truncate", "-s", str(start), str(path)])] if number in numbers else []
        removal = [shlex.join(["rm", *map(str, later)])] if later else []
        fault = f"is damaged at byte {start:,}" if cut else "is missing"
        return UserError(
            f"{path} {fault}, and episodes that were recorded after it are there: put it back from a copy, or keep the "
            f"{len(self.places):,} episodes before it and record the others anew, after `{' && '.join(cut + removal)}`"
        )

    def append(self, episode: Episode) -> None:
        """Put an episode behind the others; from now on, only the machine's failure could lose it.

        Raises:
            OSError: it cannot be written; nothing of it is left.
        """
        file = self._settle()
        start = file.seek(0, os.SEEK_END)
        if start >= SHARD_BYTES:
            self.sync()
            file, start = self._begin(self._number + 1, 0), 0
        data = self.layout.pack(episode)
        left = memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):
                file.truncate(start)
            raise
        self.places.append(Place(self._number, start, start + len(data), len(episode.rewards), episode.ending))

    def sync(self) -> None:
        """Wait until the disk itself has all that was appended."""
        os.fsync(self._settle().fileno())

    def keep(self, number: int) -> None:
        """Forget all episodes but the first `number`; they are removed where something else is about to be written."""
        del self.places[number:]
        self._let_go()

    def _settle(self) -> FileIO:
        """Have nothing on disk but the places, and the file to append to."""
        if self._file is not None:
            return self._file
        assert self._lock is not None
        if self.message is not None:
            self._describe()
        shard, stop = (self.places[-1].shard, self.places[-1].stop) if self.places else (1, 0)
        for number in reversed(self._numbers()):  # the last first: what is left is whole
            if number > shard:
                self._path(number).unlink()
        return self._begin(shard, stop)

    def _begin(self, number: int, size: int) -> FileIO:
        """Append to a shard from now on, behind its first bytes; its file."""
        self._let_go()
        file: FileIO = open_regular(self._path(number), "ab", buffering=0)
        try:
            file.truncate(size)
        except OSError:
            file.close()
            raise
        self._file, self._number = file, number
        return file

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def __iter__(self) -> Iterator[Episode]:
        """All episodes, one at a time."""
        for number, places in itertools.groupby(self.places, key=lambda place: place.shard):
            with open_regular(self._path(number)) as file:
                for place in places:
                    file.seek(place.start)
                    record = read_record(file)
                    if record is None:
                        raise UserError(f"{self._path(number)} was changed while it was recorded to; record anew")
                    yield self.layout.unpack(record)

    def remove(self) -> None:
        """Remove the folder: first what says that there is a recording in it, then its parts."""
        (self.folder / "about.json").unlink()
        remove_leftovers(self.folder)
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        self._let_go()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def _described(about: Path) -> dict[str, Any]:
    try:
        known = read_json(about)
        version, settings = known["format"], dict(known["settings"])
    except OSError as error:
        raise UserError(f"{about} cannot be read ({error.strerror}); put it back, or give another file") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{about} is damaged, or of something else; remove its folder, or give another file") from None
    if version != FORMAT:
        raise UserError(
            f"{about} is of format {version}, and this offpcc writes {FORMAT}; go on with the one that began it, or "
            f"give another file"
        )
    return settings


def shards_folder(file: Path) -> Path:
    """Where the episodes of an unfinished recording lie."""
    return file.with_name(f"{file.name}.shards")


def is_unfinished(file: Path) -> bool:
    """Whether there are shards of a recording that goes into `file`."""
    try:
        (shards_folder(file) / "about.json").lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


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
