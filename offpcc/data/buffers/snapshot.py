"""Incremental snapshots of buffers: checkpoints write only the chunks that changed.

A chunk's file is named by the digest of its content and never changed, so two checkpoints share the chunks that they
have in common.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import open_regular, replacing
from offpcc.utils.rng import NumpyGenerator
from offpcc.utils.tensor_files import DIGEST_BYTES, FileError, not_as_written

PIECE_BYTES = 2**20  # more costs more where little changed, less is more files


class Chunk(NamedTuple):
    """A part of what is stored."""

    key: int
    version: Hashable  # another one whenever the content is; of this process alone
    arrays: Sequence[Array]  # the buffer's own, contiguous


class Snapshotable:
    """A buffer that is saved in pieces; what raises NotImplementedError is for the subclass to fill in."""

    recorded: str
    num_envs: int
    frame_stack: int
    randomness: NumpyGenerator
    num_loaded = 0  # how often all that was stored was replaced; part of a piece's version

    def pieces(self) -> list[Chunk]:
        """All that is stored, none of recorded data; always the same arrays in the same order for the same outline."""
        raise NotImplementedError

    def metadata(self) -> dict[str, Any]:
        """All that is to be saved but the pieces, as plain data and small tensors."""
        return {
            "num_envs": self.num_envs,
            "frame_stack": self.frame_stack,
            "recorded": self.recorded,
            "randomness": self.randomness.state_dict(),
        }

    def _outlined_bytes(self, metadata: Mapping[str, Any]) -> int:
        """What the pieces of an outline come to.

        Raises:
            UserError: they do not fit this buffer.
        """
        raise NotImplementedError

    def _allocate(self, metadata: Mapping[str, Any]) -> None:
        """Hold pieces of the outline's sizes, with anything in them."""
        raise NotImplementedError

    def _finalize(self) -> None:
        """The pieces are filled."""
        raise NotImplementedError

    def load(self, metadata: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Chunk], None]) -> None:
        """Hold what was saved, read piece by piece into the place where it stays.

        Args:
            metadata: as it was saved.
            num_bytes: of all pieces that are there.
            fill: puts what was saved into the arrays of a piece, of which it gets the number.

        Raises:
            UserError: it comes from a buffer of other sizes, environments or frames, or filled with other data.
        """
        self._check_saved(metadata)
        self.randomness.load_state_dict(metadata["randomness"])
        if self.recorded:
            return
        if (outlined := self._outlined_bytes(metadata)) != num_bytes:  # nothing is allocated that is not there
            raise UserError(
                f"the saved buffer would be {outlined:,} bytes, but {num_bytes:,} were saved: it is damaged, or of "
                f"another environment; start another run"
            )
        self.num_loaded += 1
        self._allocate(metadata)
        for number, piece in enumerate(self.pieces()):
            fill(number, piece)
        self._finalize()

    def state_dict(self) -> dict[str, Any]:
        """A copy of what is stored, of recorded data the name alone, and the generator."""
        pieces = [[torch.from_numpy(array.copy()) for array in piece.arrays] for piece in self.pieces()]
        return {**self.metadata(), "pieces": pieces}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what `state` held.

        Raises:
            UserError: it comes from a buffer of other sizes, environments or frames, or filled with other data.
        """

        def fill(number: int, piece: Chunk) -> None:
            for array, saved in zip(piece.arrays, state["pieces"][number], strict=True):
                array[...] = saved.numpy().reshape(array.shape)

        self.load(state, sum(saved.nbytes for saved_piece in state["pieces"] for saved in saved_piece), fill)

    def _check_saved(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of a buffer with other parts, or of one that was filled with other data.

        Raises:
            UserError: naming what differs.
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
OURS = re.compile(rf"{NAME.pattern}|\.[0-9a-f]+\.tmp-\d+\.part")  # in the folder, what a killed process left too
REMEDY = "put it back from a copy"


class ChunkFile(NamedTuple):
    """A piece's file."""

    name: str
    num_bytes: int

    @classmethod
    def of(cls, described: Any, where: Path) -> ChunkFile:
        """From what a checkpoint tells.

        Raises:
            FileError: it describes no such file, or one that lies elsewhere.
        """
        match described:
            case [str(name), int(num_bytes)] if NAME.fullmatch(name) and num_bytes >= 0:
                return cls(name, num_bytes)
        raise FileError(f"{where} names no parts of a replay buffer", REMEDY)


@dataclass
class Manifest:
    """What of a run lies in files that have been proven."""

    parts: dict[int, tuple[Hashable, ChunkFile]] = field(
        default_factory=dict
    )  # of a piece: which version is in which file
    checkpoints: dict[Path, frozenset[str]] = field(default_factory=dict)  # and the names of the parts they refer to


def write_parts(folder: Path, pieces: Iterable[Chunk], saved: Manifest) -> dict[int, tuple[Hashable, ChunkFile]]:
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


def _write(folder: Path, piece: Chunk) -> ChunkFile:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for data in map(_bytes, piece.arrays):
        digest.update(data)
    part = ChunkFile(f"{digest.hexdigest()}.part", sum(array.nbytes for array in piece.arrays))
    with replacing(folder / part.name) as temporary:
        with temporary.open("wb") as file:
            for data in map(_bytes, piece.arrays):
                file.write(data)
        if _digest(temporary) != digest.hexdigest():
            raise not_as_written(folder / part.name)
    return part


def check_part(folder: Path, part: ChunkFile) -> None:
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


def read_part(folder: Path, part: ChunkFile, piece: Chunk) -> None:
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
