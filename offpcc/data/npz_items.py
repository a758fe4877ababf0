"""Arrays in NPZ files: the size and the kind of each are checked before it is read."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from offpcc.data.columns import Array
from offpcc.data.untrusted import DAMAGE, check_declared, check_fits
from offpcc.errors import UserError

PIECE_BYTES = 2**16  # opened at a time


class Member:
    """An array in an NPZ file, whose rows are read once and in order, so that it never lies in memory whole.

    Args:
        archive: the file.
        item: the array's place in it.
        key: its name.
        path: of the file.

    Raises:
        UserError: it is no array, or not of the size that it declares.
    """

    def __init__(self, archive: zipfile.ZipFile, item: zipfile.ZipInfo, key: str, path: Path) -> None:
        if item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(
                f"{path}: {key} is compressed by another method than NumPy's; write the file by numpy.savez"
            )
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        try:
            self.file = archive.open(item)
            self.shape, self.by_columns, self.dtype = read[np.lib.format.read_magic(self.file)](self.file)
        except DAMAGE as error:
            raise UserError(f"{path}: {key} cannot be read ({error}); write the file by numpy.savez") from None
        self.num_bytes = math.prod(self.shape) * self.dtype.itemsize
        there = item.file_size - self.file.tell()
        if min(self.shape, default=0) < 0 or (not self.dtype.hasobject and self.num_bytes != there):
            raise UserError(
                f"{path}: {key} of shape {self.shape} would be {self.num_bytes:,} bytes, but {there:,} are there; the "
                f"file is damaged; fetch or write it again"
            )
        check_declared(self.num_bytes, self.shape, key, path)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        return self._next((stop - start, *self.shape[1:]))

    def whole(self) -> Array:
        """All of it, where none of its rows was read yet."""
        numbers = self._next(self.shape[::-1] if self.by_columns else self.shape)
        return numbers.T if self.by_columns else numbers

    def _next(self, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape) * self.dtype.itemsize
        content, filled = bytearray(size), 0
        while filled < size and (piece := self.file.read(min(PIECE_BYTES, size - filled))):
            content[filled : filled + len(piece)] = piece
            filled += len(piece)
        if filled != size:
            raise EOFError(f"{filled:,} of {size:,} bytes are there")
        return np.ndarray(shape, self.dtype, content)


def members_of(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The arrays in an NPZ file by their names."""
    return {item.filename.removesuffix(".npy"): item for item in archive.infolist()}


def npz_value(archive: zipfile.ZipFile, key: str, path: Path, most_bytes: int | None = None) -> Array:
    """An array in an NPZ file, whole.

    Raises:
        UserError: it holds objects, which could run anything when they are read, or is too large.
    """
    member = Member(archive, members_of(archive)[key], key, path)
    if member.dtype.hasobject:
        raise UserError(f"{path}: {key} holds objects, which are not read; write it as numbers")
    check_fits(member.num_bytes, f"{path}: {key}", most_bytes)
    return member.whole()
