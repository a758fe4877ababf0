"""Reading of arrays from NPZ files, with size limits."""

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

PIECE_BYTES = 2**16  # decompressed at a time
MOST_HEADER_BYTES = 10_000  # of an array; NumPy has the same limit, but checks it after reading
MOST_DIRECTORY_BYTES = 2**20  # of an archive; enough for 10,000 names
LENGTHS = {(1, 0): "<H", (2, 0): "<I"}  # struct format of a header's length, by the version of the NPY format


class _Archive(io.FileIO):
    """A file that limits the size of one read, because a large ZIP directory needs many times its size in memory."""

    def read(self, size: int | None = -1, /) -> Any:
        """Read some bytes.

        Raises:
            UserError: `size` is larger than a ZIP directory should be.
        """
        if size is not None and size > MOST_DIRECTORY_BYTES:
            raise UserError(
                f"{self.name}: its list of contents takes {size:,} bytes, more than {MOST_DIRECTORY_BYTES:,}; write "
                f"only the arrays of the data, by numpy.savez"
            )
        return super().read(size)


@contextmanager
def opened_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an NPZ file for reading.

    Raises:
        UserError: its ZIP directory is too large.
    """
    with _Archive(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


class Member:
    """An array in an NPZ file. Rows must be read once and in order, so the whole array is never in memory.

    An array in Fortran order is read as a whole when its first rows are accessed.

    Args:
        archive: the file.
        item: the array's entry in the archive.
        key: the array's name.
        path: the file's path.

    Raises:
        UserError: the entry is not an array, or does not have its declared size.
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
            self._whole = None if rows.stop >= self.shape[0] else numbers  # free it with the last rows
            return numbers[rows]
        start, stop, _ = rows.indices(self.shape[0])
        return self._next((stop - start, *self.shape[1:]))

    def whole(self) -> Array:
        """Read the whole array. Only valid before any rows were read."""
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
    """Read an array's header: the shape, whether it is in Fortran order, and the dtype.

    Raises:
        ValueError: the header is missing, invalid or too long.
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
    """Return the entries of an NPZ file by the names of their arrays."""
    return {item.filename.removesuffix(".npy"): item for item in archive.infolist()}


def npz_value(archive: zipfile.ZipFile, key: str, path: Path, most_bytes: int | None = None) -> Array:
    """Read a whole array of an NPZ file.

    Raises:
        UserError: the array is too large, or holds objects, which could execute code when they are read.
    """
    member = Member(archive, members_of(archive)[key], key, path)
    if member.dtype.hasobject:
        raise UserError(f"{path}: {key} holds objects, which are not read; write it as numbers")
    check_fits(member.num_bytes, f"{path}: {key}", most_bytes)
    return member.whole()
