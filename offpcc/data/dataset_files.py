"""Recorded data in files: D4RL's HDF5, and NPZ with the same keys."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offpcc.data.assembling import assemble
from offpcc.data.columns import OTHER_NAMES, REQUIRED, Array, Column, Range
from offpcc.data.datasets import Dataset
from offpcc.data.infos import Recorded
from offpcc.errors import UserError

KEYS = (*REQUIRED, "truncations", "next_observations", *OTHER_NAMES.values())
# A file of this many bytes or more is damaged, or meant to do damage, if what it declares is larger by more than this
# factor: deflate makes nothing smaller than a thousandth.
SUSPICIOUS_BYTES, SUSPICIOUS_FACTOR = 2**26, 1100
BEGINNINGS = {  # of files that are often found in a data file's place
    b"version https://git-lfs": "a pointer of Git LFS in its place; fetch the file itself with `git lfs pull`",
    b"<": "a web page; the address that it was saved from does not give the file itself",
}


def read_file(
    path: Path,
    *,
    name: str | None = None,
    max_episode_steps: int | None = None,
    action_range: Range | None = None,
    default_action_range: Range | None = None,
) -> Dataset:
    """The data in an HDF5 or NPZ file, whatever its suffix.

    Args:
        path: of the file.
        name: of the data, for messages; the file's name without suffix if None.
        max_episode_steps: see `Dataset.from_arrays`.
        action_range: see `Dataset.from_arrays`.
        default_action_range: see `assemble`.

    Raises:
        UserError: the file cannot be read, or its data is not whole.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(32)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    options: dict[str, Any] = {
        "name": name or path.stem, "source": str(path), "max_episode_steps": max_episode_steps,
        "action_range": action_range, "default_action_range": default_action_range,
    }  # fmt: skip
    if not beginning:
        raise UserError(f"{path} is empty; fetch or write it again")
    if beginning.startswith(b"PK"):
        return _read_npz(path, options)
    if is_hdf5(path):
        return _read_hdf5(path, options)
    found = next((words for start, words in BEGINNINGS.items() if beginning.lstrip().startswith(start)), None)
    raise UserError(f"{path} is neither HDF5 nor NPZ{f', but {found}' if found else '; was it written to its end?'}")


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as an HDF5 file does."""
    return bool(h5py.is_hdf5(path))


def _read_hdf5(path: Path, options: Mapping[str, Any]) -> Dataset:
    try:
        # Every chunk is read once, as a whole: kept for a second time, it would only take room.
        with h5py.File(path, "r", rdcc_nbytes=0) as file:
            columns = {key: _column(file[key], f"{path}: {key}") for key in KEYS if file.get(key) is not None}
            _check_declared(columns, path)
            known = {key: _plain(value) for key, value in file.attrs.items()}
            infos, metadata = _recorded(file, "infos", path), _recorded(file, "metadata", path, known)
            return Dataset(**assemble(columns, found=map(str, file), infos=infos, metadata=metadata, **options))
    except (OSError, RuntimeError, KeyError) as error:  # what HDF5 makes of bytes that were changed or lost
        raise UserError(f"{path} is damaged or not whole ({error}); fetch or write it again") from None


def _column(item: Any, what: str) -> Column:
    """An array in an HDF5 file.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(item, h5py.Dataset) or not item.shape:
        kind = "a single value" if isinstance(item, h5py.Dataset) else "a group of several"
        raise UserError(f"{what} is {kind}, not an array of all steps; write it as one array")
    try:
        item.dtype  # noqa: B018 (an HDF5 type is translated when it is asked for, which may fail)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is of a type that arrays cannot hold ({error}); write it as numbers") from None
    column: Column = item
    return column


def _check_declared(columns: Mapping[str, Column], path: Path) -> None:
    """Refuse sizes that the file cannot hold, before anything is made of them."""
    size = path.stat().st_size
    for key, column in columns.items():
        declared = math.prod(column.shape) * column.dtype.itemsize
        if declared > SUSPICIOUS_BYTES and declared > SUSPICIOUS_FACTOR * size:
            raise UserError(
                f"{path}: {key} of shape {column.shape} would be {declared:,} bytes, but the file has {size:,}; it is "
                f"damaged or was never filled; fetch or write it again"
            )


def _recorded(file: Any, group: str, path: Path, known: Mapping[str, Any] | None = None) -> Recorded:
    names: list[str] = []
    if isinstance(file.get(group), h5py.Group):
        file[group].visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return Recorded(tuple(names), partial(_hdf5_value, path, group), known)


def _hdf5_value(path: Path, group: str, name: str) -> Any:
    with h5py.File(path, "r") as file:
        return _plain(file[group][name][()])


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class _Member:
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
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        try:
            self.file = archive.open(item)
            self.shape, self.by_columns, self.dtype = read[np.lib.format.read_magic(self.file)](self.file)
        except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
            raise UserError(f"{path}: {key} cannot be read ({error}); write the file by numpy.savez") from None
        declared, there = math.prod(self.shape) * self.dtype.itemsize, item.file_size - self.file.tell()
        if not self.dtype.hasobject and declared != there:
            raise UserError(
                f"{path}: {key} of shape {self.shape} would be {declared:,} bytes, but {there:,} are there; the file "
                f"is damaged; fetch or write it again"
            )

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        shape = (stop - start, *self.shape[1:])
        numbers = np.frombuffer(self.file.read(math.prod(shape) * self.dtype.itemsize), self.dtype)
        return numbers.reshape(shape)


def _read_npz(path: Path, options: Mapping[str, Any]) -> Dataset:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {item.filename.removesuffix(".npy"): item for item in archive.infolist()}
            columns: dict[str, Column] = {
                key: _member(archive, members[key], key, path) for key in KEYS if key in members
            }

            def recorded(group: str) -> Recorded:
                names = (key.removeprefix(f"{group}/") for key in members if key.startswith(f"{group}/"))
                return Recorded(tuple(names), partial(_npz_value, path, prefix=f"{group}/"))

            infos, metadata = recorded("infos"), recorded("metadata")
            return Dataset(**assemble(columns, found=members, infos=infos, metadata=metadata, **options))
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged or not whole ({error}); fetch or write it again") from None


def _member(archive: zipfile.ZipFile, item: zipfile.ZipInfo, key: str, path: Path) -> Column:
    member = _Member(archive, item, key, path)
    if not member.by_columns or len(member.shape) < 2 or member.dtype.hasobject:
        return member
    return _npz_value(path, key)  # its rows do not lie one after another


def _npz_value(path: Path, key: str, prefix: str = "") -> Array:
    with np.load(path, allow_pickle=False) as arrays:
        return np.asarray(arrays[prefix + key])
