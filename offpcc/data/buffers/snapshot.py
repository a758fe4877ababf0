"""Incremental snapshots of buffers: checkpoints write only the chunks that changed.

The name of a chunk's file is the digest of its content, and the file never changes. So checkpoints share the files of
the chunks that they have in common.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from offpcc.core import Chunk
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import open_regular, replacing
from offpcc.utils.rng import NumpyGenerator
from offpcc.utils.tensor_files import DIGEST_BYTES, FileError, not_as_written

CHUNK_BYTES = 2**20  # larger chunks write more when little changed; smaller chunks make more files


class Snapshotable:
    """A buffer that is saved in chunks. Subclasses define the methods that raise NotImplementedError."""

    recorded: str
    num_envs: int
    frame_stack: int
    randomness: NumpyGenerator
    num_loaded = 0  # number of loads, each of which replaces all content; part of a chunk's version

    def chunks(self) -> list[Chunk]:
        """Return the content as chunks; none for recorded data.

        Equal metadata gives arrays of the same shapes in the same order.
        """
        raise NotImplementedError

    def metadata(self) -> dict[str, Any]:
        """Return everything that a checkpoint needs besides the chunks, as plain data and small tensors."""
        return {
            "num_envs": self.num_envs,
            "frame_stack": self.frame_stack,
            "recorded": self.recorded,
            "randomness": self.randomness.state_dict(),
        }

    def _outlined_bytes(self, metadata: Mapping[str, Any]) -> int:
        """Return the size in bytes of the chunks that `metadata` describes.

        Raises:
            UserError: The chunks do not fit this buffer.
        """
        raise NotImplementedError

    def _allocate(self, metadata: Mapping[str, Any]) -> None:
        """Allocate the chunks that `metadata` describes, with arbitrary content."""
        raise NotImplementedError

    def _finalize(self) -> None:
        """Compute what depends on the content; `load` calls it after all chunks are filled."""
        raise NotImplementedError

    def load(self, metadata: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Chunk], None]) -> None:
        """Replace the content with the saved content, chunk by chunk and without a second copy.

        Args:
            metadata: Return value of `metadata` when the buffer was saved.
            num_bytes: Total size of the saved chunks.
            fill: Function that gets a chunk's index and the chunk, and writes the saved data into the chunk's arrays.

        Raises:
            UserError: The saved buffer has other sizes, environments or frame stacks, or other recorded data.
        """
        self._check_saved(metadata)
        if not self.recorded:
            self._load_content(metadata, num_bytes, fill)
        self.restore(metadata)

    def restore(self, metadata: Mapping[str, Any]) -> None:
        """Restore all of `metadata` that does not describe chunks; a subclass that adds to `metadata` extends this."""
        self.randomness.load_state_dict(metadata["randomness"])

    def items_replaced(self) -> None:
        """See `BufferBase.items_replaced`."""
        raise NotImplementedError

    def _load_content(self, metadata: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Chunk], None]) -> None:
        if (
            outlined := self._outlined_bytes(metadata)
        ) != num_bytes:  # check first, so damaged metadata cannot allocate too much memory
            raise UserError(
                f"the saved buffer would be {outlined:,} bytes, but {num_bytes:,} were saved: it is damaged, or of "
                f"another environment; start another run"
            )
        self.num_loaded += 1
        self._allocate(metadata)
        for number, chunk in enumerate(self.chunks()):
            fill(number, chunk)
        self._finalize()
        self.items_replaced()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the content and the generator's state; for recorded data, its identifier only."""
        chunks = [[torch.from_numpy(array.copy()) for array in chunk.arrays] for chunk in self.chunks()]
        return {**self.metadata(), "chunks": chunks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the buffer from `state`.

        Raises:
            UserError: The saved buffer has other sizes, environments or frame stacks, or other recorded data.
        """

        def fill(number: int, chunk: Chunk) -> None:
            for array, saved in zip(chunk.arrays, state["chunks"][number], strict=True):
                array[...] = saved.numpy().reshape(array.shape)

        self.load(state, sum(saved.nbytes for saved_chunk in state["chunks"] for saved in saved_chunk), fill)

    def _check_saved(self, state: Mapping[str, Any]) -> None:
        """Check that the saved buffer has the same recorded data, environments and frame stack.

        Raises:
            UserError: Something differs; the message names it.
        """
        if (saved := state["recorded"]) != self.recorded:
            raise UserError(
                f"the saved buffer held {saved or 'no recorded data'}, but this one holds "
                f"{self.recorded or 'none'}: go on with the data that the run was made with, or start another run"
            )
        for name in ("num_envs", "frame_stack"):
            if state[name] != getattr(self, name):
                raise UserError(
                    f"the saved buffer's {name} is {state[name]}, but this one's is {getattr(self, name)}: go on "
                    f"with {name} = {state[name]}, or start another run"
                )


NAME = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}\.part")
OURS = re.compile(
    rf"{NAME.pattern}|\.[0-9a-f]+\.tmp-\d+\.part"
)  # all our files in the folder, with temporary files of killed processes
REMEDY = "put it back from a copy"


class ChunkFile(NamedTuple):
    """File of a chunk."""

    name: str
    num_bytes: int

    @classmethod
    def of(cls, described: Any, where: Path) -> ChunkFile:
        """Create it from a checkpoint's description, a list of name and size.

        Args:
            described: The description.
            where: Path of the checkpoint, for messages.

        Raises:
            FileError: The description is not of such a file, or of a file in another folder.
        """
        match described:
            case [str(name), int(num_bytes)] if NAME.fullmatch(name) and num_bytes >= 0:
                return cls(name, num_bytes)
        raise FileError(f"{where} names no parts of a replay buffer", REMEDY)


@dataclass
class Manifest:
    """The verified files of a run."""

    parts: dict[int, tuple[Hashable, ChunkFile]] = field(default_factory=dict)  # chunk key -> (version, file)
    checkpoints: dict[Path, frozenset[str]] = field(default_factory=dict)  # checkpoint -> names of its chunk files


def write_chunks(folder: Path, chunks: Iterable[Chunk], saved: Manifest) -> dict[int, tuple[Hashable, ChunkFile]]:
    """Write the chunks that have changed to files.

    Args:
        folder: Folder of the files; created if missing.
        chunks: All chunks of the buffer.
        saved: The files of the last checkpoint; unchanged chunks keep their file.

    Returns:
        Chunk key -> (version, file), for all chunks.

    Raises:
        OSError: A file cannot be written, or differs from what was written.
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
    with replacing(folder / part.name) as temporary:
        with temporary.open("wb") as file:
            for data in map(_bytes, chunk.arrays):
                file.write(data)
        if _digest(temporary) != digest.hexdigest():
            raise not_as_written(folder / part.name)
    return part


def check_chunk(folder: Path, part: ChunkFile) -> None:
    """Check a chunk file: its type, its size and its digest.

    Raises:
        FileError: The file is missing, unreadable, a link or not a regular file, or damaged.
    """
    path = folder / part.name
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):  # a link, or a pipe, from which a read would block
            raise FileError(f"{path} is not a file of its own", REMEDY)
        is_right = found.st_size == part.num_bytes and f"{_digest(path)}.part" == part.name
    except FileNotFoundError:
        raise FileError(f"{path} is missing", REMEDY) from None
    except OSError as error:
        raise FileError(f"{path} cannot be read ({first_line(error)})", "mend that") from error
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
        with open_regular(path) as file:
            for data in map(_bytes, chunk.arrays):
                num_read += file.readinto(data)
                digest.update(data)
    except OSError as error:
        raise FileError(f"{path} cannot be read ({first_line(error)})", "mend that") from error
    if num_read != part.num_bytes or f"{digest.hexdigest()}.part" != part.name:
        raise FileError(f"{path} does not hold what it should", REMEDY)


def remove_others(folder: Path, names: Collection[str]) -> None:
    """Remove the chunk files that are not in `names`. Files that offpcc did not write stay."""
    for entry in os.scandir(folder):
        if entry.name not in names and OURS.fullmatch(entry.name):
            with suppress(FileNotFoundError):
                Path(entry).unlink()


def _bytes(array: np.ndarray) -> memoryview:
    """Return a view of the array's memory as bytes."""
    return array.reshape(-1).view(np.uint8).data


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()
