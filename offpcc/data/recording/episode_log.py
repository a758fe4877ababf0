"""The log of recorded episodes: append-only files whose records have checksums.

The records are in the files ``000001.episodes``, ``000002.episodes``, ... in the folder ``FILE.shards`` beside the
final file. Written records never change. A killed process loses only its unfinished episodes and at most the record
that it was writing. A resume drops that incomplete record.

The log is not HDF5: an HDF5 file that is open when its process dies may be lost. One HDF5 file per episode would make
thousands of small files.
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
HEADER = struct.Struct("<4sIBQ")  # `MARK`, steps, `Ending`, bytes after the checksum
CHECKSUM = struct.Struct("<I")


class Ending(enum.IntEnum):
    """How an episode ended."""

    TRUNCATED = 0  # by a time limit, or abandoned
    TERMINATED = 1
    UNFINISHED = 2  # cut by the recording's end; a resume drops it and plays it again


class Episode(NamedTuple):
    """An episode of L steps."""

    observations: Array  # (L+1, *obs)
    actions: Array  # (L, A), float32, in the environment's units
    rewards: Array  # (L,), float32
    ending: Ending

    @property
    def terminations(self) -> Array:
        """(L,), bool: True at a step where the task ended."""
        return self._last & (self.ending is Ending.TERMINATED)

    @property
    def truncations(self) -> Array:
        """(L,), bool: True at a step where the episode was cut."""
        return self._last & (self.ending is not Ending.TERMINATED)

    @property
    def _last(self) -> Array:
        last: Array = np.arange(len(self.rewards)) == len(self.rewards) - 1
        return last


class Record(NamedTuple):
    """An episode as it is stored in a file."""

    length: int  # steps
    ending: Ending
    content: bytes


class Layout(NamedTuple):
    """Shapes and dtype of an environment's episodes; converts episodes to records and back."""

    shape: tuple[int, ...]  # of an observation
    dtype: np.dtype[Any]  # of observations: float32, or uint8 for images
    action_dim: int

    @property
    def is_compressed(self) -> bool:
        """True if records are compressed. Only images are: they shrink to a fraction."""
        return self.dtype == np.uint8

    def pack(self, episode: Episode) -> bytes:
        """Return the bytes of an episode's record."""
        content = b"".join(part.tobytes() for part in (episode.observations, episode.actions, episode.rewards))
        if self.is_compressed:
            content = zlib.compress(content, 1)
        head = HEADER.pack(MARK, len(episode.rewards), episode.ending, len(content))
        return head + CHECKSUM.pack(_checksum(head, content)) + content

    def unpack(self, record: Record) -> Episode:
        """Return the episode of a record."""
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
    """Read the next record of a file. If there is no whole one, return None and keep the file position."""
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
    """Check whether a whole record exists somewhere after the file position; changes the position."""
    start = file.tell()
    for found in re.finditer(re.escape(MARK), file.read()):
        file.seek(start + found.start())
        if read_record(file) is not None:
            return True
    return False


def _checksum(head: bytes, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(head))


FORMAT = 1
SHARD_BYTES = 2**25  # size after which a new shard begins
# Our files in the shards folder.
OURS = re.compile(r"about\.json|\d{6,}\.episodes|merged\.hdf5|\.(about|merged)\.tmp-.*")


class Place(NamedTuple):
    """Position, length and ending of an episode in the log."""

    shard: int
    start: int  # first byte
    stop: int
    length: int  # steps
    ending: Ending


class Shards:
    """Append-only log of episodes on disk.

    Args:
        folder: Folder of the log; created if missing.
        settings: Settings of the recording. If the folder has a log, `go_on` compares them with its settings.
        layout: Layout of the episodes.

    Raises:
        UserError: The settings differ, episodes are damaged, or another process uses the folder.
        OSError: The folder cannot be read or written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], layout: Layout) -> None:
        self.folder, self.layout = folder, layout
        self.places: list[Place] = []
        self.message: str | None = None  # why this resume may not be exact; None if nothing is known
        self._file: FileIO | None = None  # the shard to append to; None while dropped episodes may be on disk
        self._number = 0  # of that shard
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = self._hold()
        try:
            self._open(dict(settings))
        except BaseException:
            self.close()
            raise

    def _hold(self) -> int:
        """Lock the folder against other processes. The OS frees the lock when this process ends, even by SIGKILL.

        Raises:
            UserError: Another process has locked it.
        """
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
        else:  # a new folder, or leftovers of a recording whose final file is written
            self.settings = settings
            clear(self.folder)
            self._describe()

    def _describe(self) -> None:
        write_json(self.folder / "about.json", {"format": FORMAT, "settings": self.settings})

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.episodes"

    def _numbers(self) -> list[int]:
        """Return the sorted numbers of the shards on disk."""
        return sorted(int(path.stem) for path in self.folder.glob("*.episodes") if OURS.fullmatch(path.name))

    def _scan(self) -> None:
        """Find all whole episodes.

        Raises:
            UserError: A shard is missing, or data after the whole episodes is not just one interrupted write.
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
        """Return the error that the episode at a position is damaged or missing, although later ones exist."""
        path, later = self._path(number), [self._path(other) for other in numbers if other > number]
        cut = [shlex.join(["truncate", "-s", str(start), str(path)])] if number in numbers else []
        removal = [shlex.join(["rm", *map(str, later)])] if later else []
        fault = f"is damaged at byte {start:,}" if cut else "is missing"
        return UserError(
            f"{path} {fault}, and episodes that were recorded after it are there: put it back from a copy, or keep the "
            f"{len(self.places):,} episodes before it and record the others anew, after `{' && '.join(cut + removal)}`"
        )

    def append(self, episode: Episode) -> None:
        """Append an episode. After that, only a failure of the machine can lose it; see `sync`.

        Raises:
            OSError: The episode cannot be written. Its partial record is removed.
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
        """Wait until all appended episodes are on the disk itself (fsync)."""
        os.fsync(self._settle().fileno())

    def keep(self, number: int) -> None:
        """Drop all episodes except the first `number`. The next write removes them from the disk."""
        del self.places[number:]
        self._let_go()

    def _settle(self) -> FileIO:
        """Remove dropped episodes from the disk, and return the file to append to."""
        if self._file is not None:
            return self._file
        assert self._lock is not None
        if self.message is not None:
            self._describe()
        shard, stop = (self.places[-1].shard, self.places[-1].stop) if self.places else (1, 0)
        for number in reversed(self._numbers()):  # the last one first, so an interruption leaves no gap
            if number > shard:
                self._path(number).unlink()
        return self._begin(shard, stop)

    def _begin(self, number: int, size: int) -> FileIO:
        """Cut a shard to its first `size` bytes, open it for appending, and return its file."""
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
        """Yield all episodes, one at a time.

        Raises:
            UserError: A shard was changed by something else.
        """
        for number, places in itertools.groupby(self.places, key=lambda place: place.shard):
            with open_regular(self._path(number)) as file:
                for place in places:
                    file.seek(place.start)
                    record = read_record(file)
                    if record is None:
                        raise UserError(f"{self._path(number)} was changed while it was recorded to; record anew")
                    yield self.layout.unpack(record)

    def remove(self) -> None:
        """Remove the folder. ``about.json`` goes first, so that what an interruption leaves is no recording."""
        (self.folder / "about.json").unlink()
        remove_leftovers(self.folder)
        self.close()

    def close(self) -> None:
        """Close the file and free the lock."""
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
    """Return the folder with the log of an unfinished recording."""
    return file.with_name(f"{file.name}.shards")


def is_unfinished(file: Path) -> bool:
    """Check whether the log of an unfinished recording for `file` exists."""
    try:
        (shards_folder(file) / "about.json").lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def clear(folder: Path) -> None:
    """Remove the files that a recording has written to a folder. Other files stay."""
    for path in folder.iterdir():
        if OURS.fullmatch(path.name):
            path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove the log's files, and its folder if nothing else is in it. A missing folder is fine."""
    if folder.is_dir():
        clear(folder)
        with suppress(OSError):
            folder.rmdir()
