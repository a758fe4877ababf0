"""The log of an unfinished recording: an append-only file of episodes, ``FILE.episode_log`` beside the final file.

Each record has a checksum, and written records never change. A killed process loses only its unfinished episodes and
at most the record that it was writing, which a resume drops. The first record holds the settings of the recording. A
resume that changes them, such as by another version of the simulator, appends a record with the new ones.

The log is not HDF5, because an HDF5 file that is open when its process dies may be lost.
"""

import enum
import fcntl
import json
import mmap
import os
import shlex
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError

FORMAT = 1
MARK = b"EPIS"
HEADER = struct.Struct("<4sIBQ")  # `MARK`, steps, `Ending` or `SETTINGS`, bytes after the checksum
CHECKSUM = struct.Struct("<I")
SETTINGS = 255  # in place of an `Ending`: the record holds settings as JSON


class Ending(enum.IntEnum):
    """How an episode ended."""

    TRUNCATED = 0  # by a time limit, or abandoned
    TERMINATED = 1
    UNFINISHED = 2  # cut by the recording's end; a resume drops it and plays it again


class Episode(NamedTuple):
    """An episode of L steps."""

    observations: Array  # (L+1, *obs); of stacks of k frames the frames, each once, oldest first, (L+k, H, W)
    actions: Array  # (L, A), float32, in the environment's units
    rewards: Array  # (L,), float32
    ending: Ending

    @property
    def terminations(self) -> Array:
        """(L,), bool: True at a step where the task ended."""
        ended: Array = np.arange(len(self.rewards), 0, -1) == int(self.ending is Ending.TERMINATED)
        return ended

    @property
    def truncations(self) -> Array:
        """(L,), bool: True at a step where the episode was cut."""
        cut: Array = np.arange(len(self.rewards), 0, -1) == int(self.ending is not Ending.TERMINATED)
        return cut

    def stacked(self, number: int) -> Array:
        """Return the observations (L+1, *obs), of which each shows `number` frames; 1 for no stacks."""
        if number == 1:
            return self.observations
        return np.moveaxis(np.lib.stride_tricks.sliding_window_view(self.observations, number, axis=0), -1, 1)


class Record(NamedTuple):
    """A record as it is stored in the file."""

    length: int  # steps
    kind: int  # an `Ending`, or `SETTINGS`
    content: bytes


class Layout(NamedTuple):
    """Shapes and dtype of an environment's episodes; converts episodes to records and back."""

    shape: tuple[int, ...]  # of an observation, or of a frame
    dtype: np.dtype[Any]  # of observations: float32, or uint8 for images, whose records are compressed
    action_dim: int
    frame_stack: int = 1  # number of frames in an observation; with more than 1, each frame is stored once

    def pack(self, episode: Episode) -> bytes:
        """Return the bytes of an episode's record."""
        content = b"".join(part.tobytes() for part in (episode.observations, episode.actions, episode.rewards))
        is_image = self.dtype == np.uint8
        return pack(len(episode.rewards), episode.ending, zlib.compress(content, 1) if is_image else content)

    def unpack(self, record: Record) -> Episode:
        """Return the episode of a record."""
        content = zlib.decompress(record.content) if self.dtype == np.uint8 else record.content
        num_steps, num_numbers = record.length, (record.length + self.frame_stack) * int(np.prod(self.shape))
        observations = np.frombuffer(content, self.dtype, num_numbers).reshape(-1, *self.shape)
        actions, rewards = np.split(
            np.frombuffer(content, np.float32, offset=observations.nbytes), [num_steps * self.action_dim]
        )
        return Episode(observations, actions.reshape(num_steps, self.action_dim), rewards, Ending(record.kind))


def pack(length: int, kind: int, content: bytes) -> bytes:
    """Return the bytes of a record."""
    head = HEADER.pack(MARK, length, kind, len(content))
    return head + CHECKSUM.pack(zlib.crc32(content, zlib.crc32(head))) + content


def read_record(file: IO[bytes]) -> Record | None:
    """Read the next record of a file. If there is no whole one, return None and keep the file position."""
    start = file.tell()
    head, checksum = file.read(HEADER.size), file.read(CHECKSUM.size)
    if len(head) == HEADER.size and len(checksum) == CHECKSUM.size:
        mark, length, kind, size = HEADER.unpack(head)
        content = file.read(size) if size <= os.fstat(file.fileno()).st_size else b""
        is_whole = mark == MARK and len(content) == size
        if is_whole and CHECKSUM.unpack(checksum)[0] == zlib.crc32(content, zlib.crc32(head)):
            return Record(length, kind, content)
    file.seek(start)
    return None


def is_followed(file: IO[bytes]) -> bool:
    """Check whether a whole record exists somewhere after the file position; changes the position."""
    start = file.tell()
    if start == os.fstat(file.fileno()).st_size:
        return False
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while (start := content.find(MARK, start)) >= 0:
            file.seek(start)
            if read_record(file) is not None:
                return True
            start += 1
    return False


class Place(NamedTuple):
    """Position, length and ending of an episode in the log."""

    start: int  # first byte
    stop: int
    length: int  # steps
    ending: Ending


class EpisodeLog:
    """Append-only log of episodes on disk, locked against other processes. It is created with its folder if missing.

    Attributes:
        settings: Settings of the recording, read from an existing log. The next write saves a change of them.
        places: Places of the episodes.

    Raises:
        OSError: The file cannot be read or written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], layout: Layout) -> None:
        self.path, self.layout, self.settings = path, layout, dict(settings)
        self.places: list[Place] = []
        self._saved: list[tuple[int, dict[str, Any]]] = []  # settings in the file, with the byte after their record
        self._is_up_to_date = True  # False while episodes that were dropped may be in the file
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)  # closing it, or the process's end, frees the lock
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_size:
                self._scan()
                self.settings = dict(self._saved[-1][1])
                self._is_up_to_date = False
            else:
                self._write_settings()
        except BlockingIOError:
            self.close()
            raise UserError(
                f"{path} is being written by another process; wait for its end, or give another file"
            ) from None
        except BaseException:
            self.close()
            raise

    def _scan(self) -> None:
        """Find all whole records."""
        with self.path.open("rb") as file:  # buffered, unlike `self._file`
            start = 0
            while (record := read_record(file)) is not None:
                stop = file.tell()
                if record.kind == SETTINGS:
                    self._saved.append((stop, self._parse_settings(record.content)))
                elif self._saved:
                    self.places.append(Place(start, stop, record.length, Ending(record.kind)))
                start = stop
            if not self._saved:
                raise self._no_log()
            if is_followed(file):
                command = shlex.join(["truncate", "-s", str(start), str(self.path)])
                raise UserError(
                    f"{self.path} is damaged at byte {start:,}, and has episodes after that byte: put it back from a "
                    f"copy, or run `{command}`, which keeps the {len(self.places):,} episodes before the damage, and "
                    f"record the others again"
                )

    def _parse_settings(self, content: bytes) -> dict[str, Any]:
        try:
            saved = json.loads(content)
            version, settings = saved["format"], dict(saved["settings"])
        except (KeyError, TypeError, ValueError):
            raise self._no_log() from None
        if version != FORMAT:
            raise UserError(
                f"{self.path} has format {version}, but this offpcc writes {FORMAT}; continue with the offpcc that "
                f"began it, or give another file"
            )
        return settings

    def _no_log(self) -> UserError:
        return UserError(f"{self.path} is damaged, or is not a recording; remove it, or give another file")

    def _write_settings(self) -> None:
        content = json.dumps({"format": FORMAT, "settings": self.settings}).encode()
        self._saved.append((self._write(pack(0, SETTINGS, content))[1], dict(self.settings)))

    def _write(self, data: bytes) -> tuple[int, int]:
        """Append bytes, and return their first position and the one after them."""
        start, left = self._file.seek(0, os.SEEK_END), memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(start)
                if not start:  # not even the settings: this is no recording yet
                    self.path.unlink()
            raise
        return start, start + len(data)

    def _write_changes(self) -> None:
        """Remove dropped episodes from the file, and save changed settings."""
        if self._is_up_to_date:
            return
        stop = self.places[-1].stop if self.places else self._saved[0][0]
        self._file.truncate(stop)
        self._saved = [saved for saved in self._saved if saved[0] <= stop]
        if self._saved[-1][1] != self.settings:
            self._write_settings()
        self._is_up_to_date = True

    def append(self, episode: Episode) -> None:
        """Append an episode, which then only a failure of the machine can lose; OSError removes its partial record."""
        self._write_changes()
        self.places.append(Place(*self._write(self.layout.pack(episode)), len(episode.rewards), episode.ending))

    def sync(self) -> None:
        """Wait until all appended episodes are on the disk itself (fsync)."""
        self._write_changes()
        os.fsync(self._file.fileno())

    def keep(self, number: int) -> None:
        """Drop all episodes except the first `number`. The next write removes them from the file."""
        del self.places[number:]
        self._is_up_to_date = False

    def __iter__(self) -> Iterator[Episode]:
        """Yield all episodes, one at a time."""
        with self.path.open("rb") as file:
            for place in self.places:
                file.seek(place.start)
                record = read_record(file)
                if record is None:
                    raise UserError(f"{self.path} was changed during the recording; record again")
                yield self.layout.unpack(record)

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file, which frees the lock."""
        self._file.close()


def log_path(file: Path) -> Path:
    """Return the path of the log of an unfinished recording."""
    return file.with_name(f"{file.name}.episode_log")


def is_unfinished(file: Path) -> bool:
    """Check whether the log of an unfinished recording for `file` exists."""
    try:
        log_path(file).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
