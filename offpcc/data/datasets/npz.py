"""Reads arrays of NPZ files, with limits."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.limits import DAMAGE, check_declared, check_fits
from offpcc.utils.errors import UserError, first_line

PIECE_BYTES = 2**16  # opened at a time
MOST_HEADER_BYTES = 10_000  # of an array; NumPy reads no longer one, but only after it has read it
MOST_DIRECTORY_BYTES = 2**20  # of an archive: ten thousand names
LENGTHS = {(1, 0): "<H", (2, 0): "<I"}  # of a header's length, by the version of NumPy's format


class _Archive(io.FileIO):
    """A file of which `zipfile` reads no list of contents that would take many times the room."""

    def read(self, size: int | None = -1, /) -> Any:
        """Some bytes.

        Raises:
            UserError: it is asked for more than a list of contents should be.
        """
        if size is not None and size > MOST_DIRECTORY_BYTES:
            raise UserError(
                f"{self.name}: its list of contents takes {size:,} bytes, more than {MOST_DIRECTORY_BYTES:,}; write "
                f"only the arrays of the data, by numpy.savez"
            )
        return super().read(size)


@contextmanager
def opened_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """An NPZ file, open for reading.

    Raises:
        UserError: it lists more than data could hold.
    """
    with _Archive(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


class Member:
    """An array in an NPZ file, whose rows are read once and in order, so that it never lies in memory whole.

    One that lies in the file column by column (Fortran's order) is read whole when its first rows are asked for.

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
        try:
            self.file = archive.open(item)
            self.shape, self.by_columns, self.dtype = _header(self.file)
        except DAMAGE as error:
            raise UserError(
                f"{path}: {key} cannot be read ({first_line(error)}); write the file by numpy.savez"
            ) from None
        self.num_bytes = math.prod(self.shape) * self.dtype.itemsize
        there = item.file_size - self.file.tell()
        if min(self.shape, default=0) < 0 or (not self.dtype.hasobject and self.num_bytes != there):
            raise UserError(
                f"{path}: {key} of shape {self.shape} would be {self.num_bytes:,} bytes, but {there:,} are there; the "
                f"file is damaged; fetch or write it again"
            )
        check_declared(self.num_bytes, self.shape, key, path)
        self.by_columns = self.by_columns and len(self.shape) > 1
        self._whole: Array | None = None

    def __getitem__(self, rows: slice) -> Array:
        if self.by_columns:
            numbers = self.whole() if self._whole is None else self._whole
            self._whole = None if rows.stop >= self.shape[0] else numbers  # let go of with its last rows
            return numbers[rows]
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


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it lies column by column, and type of the array that a file begins with.

    Raises:
        ValueError: what is there is no header, or one that no array has.
    """
    version = np.lib.format.read_magic(file)
    if version not in LENGTHS:
        raise ValueError(f"version {version} of NumPy's format, which only names in other letters than Latin need")
    start = file.read(struct.calcsize(LENGTHS[version]))
    (length,) = struct.unpack(LENGTHS[version], start)
    if length > MOST_HEADER_BYTES:
        raise ValueError(f"its header declares {length:,} bytes, more than {MOST_HEADER_BYTES:,}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(io.BytesIO(start + file.read(length)))
    return shape, by_columns, dtype


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
