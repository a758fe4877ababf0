"""Files of the chunks of a buffer: checkpoints write only the chunks that changed.

The name of a chunk's file is the digest of its content, and the file never changes. So checkpoints share the files of
the chunks that they have in common.
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

from offpcc.core import Chunk
from offpcc.utils.errors import first_line
from offpcc.utils.files import replacing
from offpcc.utils.tensor_files import DIGEST_BYTES, FileError

CHUNK_BYTES = 2**20  # larger chunks write more when little changed; smaller chunks make more files


NAME = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}\.part")
OURS = re.compile(rf"{NAME.pattern}|\.[0-9a-f]+\.tmp-\d+\.part")  # also temporary files of killed processes
REMEDY = "put it back from a copy"


class ChunkFile(NamedTuple):
    """File of a chunk."""

    name: str
    num_bytes: int

    @classmethod
    def of(cls, described: Any, where: Path) -> ChunkFile:
        """Create it from a description in the checkpoint `where`: a list of name and size.

        Raises:
            FileError: The description is not of such a file, or of a file in another folder.
        """
        match described:
            case [str(name), int(num_bytes)] if NAME.fullmatch(name) and num_bytes >= 0:
                return cls(name, num_bytes)
        raise FileError(f"{where} does not list the parts of a replay buffer", REMEDY)


@dataclass
class Manifest:
    """The verified files of a run."""

    parts: dict[int, tuple[Hashable, ChunkFile]] = field(default_factory=dict)  # chunk key -> (version, file)
    checkpoints: dict[Path, frozenset[str]] = field(default_factory=dict)  # checkpoint -> names of its chunk files


def write_chunks(folder: Path, chunks: Iterable[Chunk], saved: Manifest) -> dict[int, tuple[Hashable, ChunkFile]]:
    """Write the chunks that changed since the last checkpoint to files; return key -> (version, file) of all chunks.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(exist_ok=True)
    sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder)}
    parts = {}
    for chunk in chunks:
        version, part = saved.parts.get(chunk.key, (None, None))
        if part is None or version != chunk.version or sizes.get(part.name) != part.num_bytes:
            part = _write(folder, chunk)
        parts[chunk.key] = chunk.version, part
    return parts


def _write(folder: Path, chunk: Chunk) -> ChunkFile:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for data in map(_bytes, chunk.arrays):
        digest.update(data)
    part = ChunkFile(f"{digest.hexdigest()}.part", sum(array.nbytes for array in chunk.arrays))
    with replacing(folder / part.name) as temporary, temporary.open("wb") as file:
        for data in map(_bytes, chunk.arrays):
            file.write(data)
    return part


def check_chunk(folder: Path, part: ChunkFile) -> None:
    """Check a chunk file: its type, its size and its digest."""
    path = folder / part.name
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):  # such as a link
            raise FileError(f"{path} is not a regular file", REMEDY)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()
        is_right = found.st_size == part.num_bytes and f"{digest}.part" == part.name
    except FileNotFoundError:
        raise FileError(f"{path} is missing", REMEDY) from None
    except OSError as error:
        raise FileError(f"{path} cannot be read ({first_line(error)})", "make it readable") from error
    if not is_right:
        raise FileError(f"{path} is damaged (checksum)", REMEDY)


def read_chunk(folder: Path, part: ChunkFile, chunk: Chunk) -> None:
    """Read a chunk file into the chunk's arrays.

    Raises:
        FileError: The file cannot be read, has changed since it was checked, or does not fit this chunk.
    """
    path, digest = folder / part.name, hashlib.blake2b(digest_size=DIGEST_BYTES)
    num_read = 0
    try:
        with path.open("rb") as file:
            for data in map(_bytes, chunk.arrays):
                num_read += file.readinto(data)
                digest.update(data)
    except OSError as error:
        raise FileError(f"{path} cannot be read ({first_line(error)})", "make it readable") from error
    if num_read != part.num_bytes or f"{digest.hexdigest()}.part" != part.name:
        raise FileError(f"{path} has changed since it was checked, or does not fit the checkpoint", REMEDY)


def remove_others(folder: Path, names: Collection[str]) -> None:
    """Remove the chunk files that are not in `names`. Files that offpcc did not write stay."""
    for entry in os.scandir(folder):
        if entry.name not in names and OURS.fullmatch(entry.name):
            with suppress(FileNotFoundError):
                Path(entry).unlink()


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
