"""Recorded episodes, and the records of bytes that they are kept as, which tell whether they are whole."""

from __future__ import annotations

import enum
import os
import re
import struct
import zlib
from typing import IO, Any, NamedTuple

import numpy as np

from offpcc.data.columns import Array

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
