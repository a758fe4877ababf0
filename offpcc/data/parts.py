"""The pieces of a replay buffer in files, each named by its content, so that only what changed is written anew.

What a file holds is in its name, so none is ever changed: a file that is there and has its name's digest is right, of
whichever run it is, and two checkpoints share what they have in common.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offpcc.data.pieces import Piece
from offpcc.errors import first_line
from offpcc.files import open_regular, replacing
from offpcc.tensor_files import DIGEST_BYTES, FileError, not_as_written

NAME = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}\.part")
OURS = re.compile(rf"{NAME.pattern}|\.[0-9a-f]+\.tmp-\d+\.part")  # in the folder, what a killed process left too
REMEDY = "put it back from a copy"


class Part(NamedTuple):
    """A piece's file."""

    name: str
    num_bytes: int

    @classmethod
    def of(cls, described: Any, where: Path) -> Part:
        """From what a checkpoint tells.

        Raises:
            FileError: it describes no such file, or one that lies elsewhere.
        """
        match described:
            case [str(name), int(num_bytes)] if NAME.fullmatch(name) and num_bytes >= 0:
                return cls(name, num_bytes)
        raise FileError(f"{where} names no parts of a replay buffer", REMEDY)


@dataclass
class Saved:
    """What of a run lies in files that have been proven."""

    parts: dict[int, tuple[Hashable, Part]] = field(default_factory=dict)  # of a piece: which version is in which file
    checkpoints: dict[Path, frozenset[str]] = field(default_factory=dict)  # and the names of the parts they refer to


def write_parts(folder: Path, pieces: Iterable[Piece], saved: Saved) -> dict[int, tuple[Hashable, Part]]:
    """Have each piece in a file; its version and the file.

    Raises:
        OSError: a file cannot be written, or is not what was written.
    """
    folder.mkdir(exist_ok=True)
    sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder)}
    parts = {}
    for piece in pieces:
        version, part = saved.parts.get(piece.key, (None, None))
        if part is None or version != piece.version or sizes.get(part.name) != part.num_bytes:
            part = _write(folder, piece)
        parts[piece.key] = piece.version, part
    return parts


def _write(folder: Path, piece: Piece) -> Part:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for data in map(_bytes, piece.arrays):
        digest.update(data)
    part = Part(f"{digest.hexdigest()}.part", sum(array.nbytes for array in piece.arrays))
    with replacing(folder / part.name) as temporary:
        with temporary.open("wb") as file:
            for data in map(_bytes, piece.arrays):
                file.write(data)
        if _digest(temporary) != digest.hexdigest():
            raise not_as_written(folder / part.name)
    return part


def check_part(folder: Path, part: Part) -> None:
    """Refuse a file that is not what its name says.

    Raises:
        FileError: it is missing, no file of its own, or damaged.
    """
    path = folder / part.name
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):  # a link, or a pipe that would be waited for
            raise FileError(f"{path} is not a file of its own", REMEDY)
        is_right = found.st_size == part.num_bytes and f"{_digest(path)}.part" == part.name
    except FileNotFoundError:
        raise FileError(f"{path} is missing", REMEDY) from None
    except OSError as error:
        raise FileError(f"{path} cannot be read ({first_line(error)})", "mend that") from error
    if not is_right:
        raise FileError(f"{path} is damaged (checksum)", REMEDY)


def read_part(folder: Path, part: Part, piece: Piece) -> None:
    """Fill a piece's arrays.

    Raises:
        FileError: the file is not what it was when it was checked, or is not of this piece.
    """
    path, digest = folder / part.name, hashlib.blake2b(digest_size=DIGEST_BYTES)
    num_read = 0
    try:
        with open_regular(path) as file:
            for data in map(_bytes, piece.arrays):
                num_read += file.readinto(data)
                digest.update(data)
    except OSError as error:
        raise FileError(f"{path} cannot be read ({first_line(error)})", "mend that") from error
    if num_read != part.num_bytes or f"{digest.hexdigest()}.part" != part.name:
        raise FileError(f"{path} does not hold what it should", REMEDY)


def remove_others(folder: Path, names: Collection[str]) -> None:
    """Remove the parts that no checkpoint refers to, and nothing else."""
    for entry in os.scandir(folder):
        if entry.name not in names and OURS.fullmatch(entry.name):
            with suppress(FileNotFoundError):
                Path(entry).unlink()


def _bytes(array: np.ndarray) -> memoryview:
    """An array's own memory."""
    return array.reshape(-1).view(np.uint8).data


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()
