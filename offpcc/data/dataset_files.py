"""Recorded data in files: D4RL's HDF5, and NPZ with the same keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py

from offpcc import d4rl_names
from offpcc.data.assembling import About, assemble
from offpcc.data.columns import OTHER_NAMES, REQUIRED, Column, Range
from offpcc.data.d4rl_files import KNOWN
from offpcc.data.datasets import Dataset
from offpcc.data.hdf5_items import (
    check_chunks,
    check_count,
    declared_bytes,
    hdf5_attribute,
    hdf5_value,
    is_hdf5,
    names_in,
    own_item,
)
from offpcc.data.infos import Recorded
from offpcc.data.notices import Notice
from offpcc.data.npz_items import Member, members_of, npz_value, opened_npz
from offpcc.data.untrusted import check_declared, check_fits, printable, reading
from offpcc.errors import UserError
from offpcc.files import open_regular

KEYS = (*REQUIRED, "truncations", "next_observations", *OTHER_NAMES.values())
NOT_HASHED = "no hash of this file is published, so only its form was checked"
BEGINNINGS = {  # of files that are often found in a data file's place
    b"version https://git-lfs": "a pointer of Git LFS in its place; fetch the file itself with `git lfs pull`",
    b"<": "a web page; the address that it was saved from does not give the file itself",
}


def read_file(
    path: Path,
    *,
    name: str | None = None,
    given: str | None = None,
    max_episode_steps: int | None = None,
    action_range: Range | None = None,
) -> Dataset:
    """The data in an HDF5 or NPZ file, whatever its suffix.

    Reading a file and filling a buffer with it takes at most 32 MB and 24 times the size of the file before
    compression: 3 times where it holds float32 in episodes of many steps, and most where it holds bytes, which become
    float32, in episodes of one step. What would take more than is free is refused before it is read.

    Args:
        path: of the file.
        name: of the data; the file's name without suffix if None.
        given: what messages call it; the path if None.
        max_episode_steps: see `Dataset.from_arrays`.
        action_range: see `Dataset.from_arrays`.

    Raises:
        UserError: the file cannot be read, or its data is not whole.
    """
    try:
        with open_regular(path) as file:
            beginning = file.read(32)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    about = About(name or path.stem, str(path), max_episode_steps, action_range, given=given or str(path))
    if not beginning:
        raise UserError(f"{path} is empty; fetch or write it again")
    if beginning.startswith(b"PK"):
        return _read_npz(path, about)
    if is_hdf5(path):
        dataset = _read_hdf5(path, about)
        is_hashed = path.name in KNOWN or path.name not in d4rl_names.NAMES
        return dataset if is_hashed else replace(dataset, notices=(*dataset.notices, Notice("remark", NOT_HASHED)))
    found = next((words for start, words in BEGINNINGS.items() if beginning.lstrip().startswith(start)), None)
    raise UserError(f"{path} is neither HDF5 nor NPZ{f', but {found}' if found else '; was it written to its end?'}")


def read_value(path: Path, key: str, most_bytes: int | None = None) -> Any:
    """One thing in a file, opened for it alone; texts as str.

    Args:
        path: of the file.
        key: a name like ``infos/qpos``; in HDF5, ``metadata/env`` may be an attribute of the file, too.
        most_bytes: that it may be of.

    Raises:
        UserError: it cannot be read, lies elsewhere, is of no plain kind, or too large.
    """
    with reading(path):
        if not is_hdf5(path):
            with opened_npz(path) as archive:
                return npz_value(archive, key, path, most_bytes)
        with h5py.File(path, "r") as file:
            attribute = key.removeprefix("metadata/")
            if attribute != key and attribute in file.attrs:
                return hdf5_attribute(file, attribute, path, most_bytes)
            return hdf5_value(file, key, path, most_bytes)


def read_everything(path: Path) -> dict[str, Any]:
    """All that is in a file, by names like ``infos/qpos``; its attributes are left out.

    Raises:
        UserError: the file cannot be read, or holds what `read_value` refuses.
    """
    with reading(path):
        if not is_hdf5(path):
            with opened_npz(path) as archive:
                check_fits(sum(item.file_size for item in archive.infolist()), str(path))
                return {key: npz_value(archive, key, path) for key in members_of(archive)}
        with h5py.File(path, "r") as file:
            names = list(names_in(file, path))
            items = [own_item(file, name, path) for name in names]
            check_fits(sum(declared_bytes(item) for item in items), str(path))
            return {name: hdf5_value(file, name, path) for name in names}


def _read_hdf5(path: Path, about: About) -> Dataset:
    # Every chunk is read once, as a whole: kept for a second time, it would only take room.
    with reading(path), h5py.File(path, "r", rdcc_nbytes=0) as file:
        check_count(len(file) + len(file.attrs), path)
        found = list(file)
        columns = {key: _column(own_item(file, key, path), key, path) for key in KEYS if key in found}
        infos, metadata = (_names_in_group(file, group, found, path) for group in ("infos", "metadata"))
        recorded = _recorded(path, infos, (*file.attrs, *metadata))
        return Dataset(**vars(assemble(columns, about._replace(**recorded), printable(found))))


def _names_in_group(file: Any, group: str, found: Collection[str], path: Path) -> tuple[str, ...]:
    item = own_item(file, group, path) if group in found else None
    return tuple(names_in(item, path)) if isinstance(item, h5py.Group) else ()


def _column(item: Any, key: str, path: Path) -> Column:
    """An array in an HDF5 file.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(item, h5py.Dataset) or not item.shape:
        kind = "a single value" if isinstance(item, h5py.Dataset) else "a group of several"
        raise UserError(f"{path}: {key} is {kind}, not an array of all steps; write it as one array")
    try:
        declared = declared_bytes(item)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {key} is of a type that arrays cannot hold ({error}); write it as numbers") from None
    check_declared(declared, item.shape, key, path)
    check_chunks(item, f"{path}: {key}")
    column: Column = item
    return column


def _read_npz(path: Path, about: About) -> Dataset:
    with reading(path), opened_npz(path) as archive:
        members = members_of(archive)
        columns: dict[str, Column] = {key: Member(archive, members[key], key, path) for key in KEYS if key in members}
        infos, metadata = (
            [key.removeprefix(group) for key in members if key.startswith(group)] for group in ("infos/", "metadata/")
        )
        recorded = _recorded(path, infos, metadata)
        return Dataset(**vars(assemble(columns, about._replace(**recorded), printable(members))))


def _recorded(path: Path, infos: Iterable[str], metadata: Iterable[str]) -> dict[str, Any]:
    names = {"infos": infos, "metadata": metadata}
    return {
        group: Recorded(tuple(names[group]), partial(_value_in_group, path, group), f"{path}: {group}")
        for group in names
    }


def _value_in_group(path: Path, group: str, name: str, most_bytes: int | None) -> Any:
    return read_value(path, f"{group}/{name}", most_bytes)
