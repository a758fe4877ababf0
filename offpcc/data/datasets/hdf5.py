"""Reading of HDF5 files in D4RL's format, and of NPZ files with the same keys."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offpcc.data.datasets.build import DatasetInfo, assemble
from offpcc.data.datasets.columns import OTHER_NAMES, REQUIRED, Column, Range
from offpcc.data.datasets.d4rl_checksums import KNOWN
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.limits import (
    SUSPICIOUS_BYTES,
    SUSPICIOUS_FACTOR,
    check_declared,
    check_fits,
    printable,
    reading,
)
from offpcc.data.datasets.metadata import LazyMetadata, Notice
from offpcc.data.datasets.npz import Member, members_of, npz_value, opened_npz
from offpcc.envs.d4rl import catalog
from offpcc.utils.errors import UserError
from offpcc.utils.files import open_regular

MOST_NAMES = 10_000  # the most names in a file: D4RL's files have 20, with a policy's weights 100
MOST_LETTERS = 1_000  # of a name with its groups; names below a group repeat its name, so long ones multiply
PIECE_BYTES = 2**20  # of a decompressed chunk at a time
SHOWN = 60  # characters of a name in messages


def is_hdf5(path: Path) -> bool:
    """Check whether a file has the signature of HDF5."""
    return bool(h5py.is_hdf5(path))


def names_in(group: Any, path: Path, most: int | None = MOST_NAMES) -> Iterator[str]:
    """Yield the names of all arrays below an HDF5 group, and of soft and external links, which `own_item` rejects.

    Args:
        group: a group of the file.
        path: the file's path, for messages.
        most: the largest number of names; None for any number.

    Raises:
        UserError: there are too many names, or a name together with its groups is too long.
    """
    seen, left, num_found = {_address(group)}, [""], 0  # `seen`, because a group may contain itself
    while left:
        inside = left.pop()
        here = group[inside] if inside else group
        check_count(len(here), path, most)
        for name in here:
            if isinstance(name, bytes):
                raise ValueError(f"{name!r} is no name")
            if len(inside) + len(name) > MOST_LETTERS:
                raise UserError(
                    f"{path}: below {here.name[:SHOWN]} a name has {len(inside) + len(name):,} letters with those of "
                    f"its groups, more than {MOST_LETTERS:,}; give it a shorter one, or leave it out"
                )
            num_found += 1
            check_count(num_found, path, most)
            item = here[name] if _is_own(here, name) else None
            if isinstance(item, h5py.Group) and (address := _address(item)) not in seen:
                seen.add(address)
                left.append(f"{inside}{name}/")
            elif not isinstance(item, h5py.Group | h5py.Datatype):
                yield inside + name


def check_count(number: int, path: Path, most: int | None = MOST_NAMES) -> None:
    """Raise if a file has more arrays and groups than any dataset needs.

    Raises:
        UserError: `number` exceeds `most`.
    """
    if most is not None and number > most:
        raise UserError(f"{path}: it holds {number:,} or more arrays and groups, more than {most:,}; leave some out")


def _address(group: Any) -> tuple[int, int]:
    """Return the address of a group, which is the same under each of its names."""
    about = h5py.h5o.get_info(group.id)
    return about.fileno, about.addr


def _is_own(group: Any, name: str) -> bool:
    """Check whether a name in a group is a hard link. A soft or external link may lead anywhere."""
    return isinstance(group, h5py.Group) and isinstance(group.get(name, getlink=True), h5py.HardLink)


def own_item(file: Any, key: str, path: Path) -> Any:
    """Return the object under a key of an HDF5 file, if it is stored in this file.

    Links, virtual datasets and external storage may lead to other files or to nothing. They are not followed, so only
    the file that the user gave is read.

    Raises:
        UserError: the object is missing or stored in another file.
    """
    item = file
    for part in key.split("/"):
        if not _is_own(item, part):
            raise UserError(
                f"{path}: {key} is a link, or what it stands for is lost; write the array itself into the file"
            )
        item = item[part]
    if isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
        raise UserError(
            f"{path}: {key} is stored in other files, which are not read; write the array itself into the file"
        )
    return item


def declared_bytes(item: Any) -> int:
    """Return the bytes of memory for reading an HDF5 dataset: its size, or that of one chunk if it is larger.

    Raises:
        TypeError: NumPy has no dtype for the dataset's type.
        ValueError: the dataset's type is damaged.
    """
    numbers = max(math.prod(item.shape or ()), math.prod(item.chunks or ()))
    return int(numbers * item.dtype.itemsize)


def check_chunks(item: Any, what: str) -> None:
    """Raise if a compressed chunk decompresses to more than the chunk size. HDF5 itself would not limit the memory.

    Only chunks that could become large are tried. The decompressed content is discarded.

    Raises:
        UserError: a chunk is too large, or the dataset is compressed twice.
    """
    if item.chunks is None or not hasattr(item.id, "chunk_iter"):
        return
    properties = item.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    if filters.count(h5py.h5z.FILTER_DEFLATE) > 1:
        raise UserError(f"{what} is compressed twice; compress it once, or not at all")
    if h5py.h5z.FILTER_DEFLATE not in filters:
        return
    if [code for code in filters if code != h5py.h5z.FILTER_FLETCHER32][-1] != h5py.h5z.FILTER_DEFLATE:
        raise UserError(f"{what} has another filter after gzip, so its size cannot be checked; write it with gzip last")
    index = filters.index(h5py.h5z.FILTER_DEFLATE)
    size, large, unknown = math.prod(item.chunks) * item.dtype.itemsize, [], []

    def check_batch(chunk: Any) -> None:
        if chunk.filter_mask >> len(filters):
            unknown.append(chunk.filter_mask)
        # Each bit leaves out one filter: HDF5 inflates the chunk unless deflate's own bit is set.
        if not chunk.filter_mask >> index & 1 and chunk.size * SUSPICIOUS_FACTOR > SUSPICIOUS_BYTES:
            large.append(chunk.chunk_offset)

    item.id.chunk_iter(check_batch)
    if unknown:
        raise UserError(
            f"{what} has a chunk whose filter mask {unknown[0]:#x} leaves out more filters than the {len(filters)} of "
            f"the array; the file is damaged; fetch or write it again"
        )
    for offset in large:
        content, opener, opened = item.id.read_direct_chunk(offset)[1], zlib.decompressobj(), 0
        while content and not opener.eof and opened <= size:
            opened += len(opener.decompress(content, PIECE_BYTES))
            content = opener.unconsumed_tail
        if opened > size:
            raise UserError(
                f"{what} has a compressed chunk that becomes larger than the {size:,} bytes of a chunk; the file is "
                f"damaged; fetch or write it again"
            )


def hdf5_value(file: Any, key: str, path: Path, most_bytes: int | None = None) -> Any:
    """Read a whole array or a single value of an HDF5 file; texts as str.

    Raises:
        UserError: the value is stored elsewhere, has an unsupported type, or is too large.
    """
    item = own_item(file, key, path)
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        raise UserError(f"{path}: {key} holds nothing that could be read; write it as an array, or leave it out")
    _check_plain(item.dtype, item.shape, f"{path}: {key}")
    check_declared(declared_bytes(item), item.shape or (), key, path)
    check_fits(declared_bytes(item), f"{path}: {key}", most_bytes)
    check_chunks(item, f"{path}: {key}")
    return _plain(item[()])


def hdf5_attribute(file: Any, name: str, path: Path, most_bytes: int | None = None) -> Any:
    """Read an attribute of an HDF5 file; texts as str.

    Raises:
        UserError: the attribute is empty, has an unsupported type, or is too large.
    """
    attribute = file.attrs.get_id(name)
    if attribute.shape is None:
        raise UserError(f"{path}: the attribute {name} holds nothing; write it, or leave it out")
    declared = math.prod(attribute.shape) * attribute.dtype.itemsize
    _check_plain(attribute.dtype, attribute.shape, f"{path}: the attribute {name}")
    check_declared(declared, attribute.shape, f"the attribute {name}", path)
    check_fits(declared, f"{path}: the attribute {name}", most_bytes)
    return _plain(file.attrs[name])


def _check_plain(dtype: np.dtype[Any], shape: tuple[int, ...] | None, what: str) -> None:
    """Raise for objects other than a single text. Many texts may be the same stored text, with no limit on their size.

    Raises:
        UserError: the value holds several texts, or other objects.
    """
    if dtype.hasobject and (h5py.check_string_dtype(dtype) is None or math.prod(shape or ()) > 1):
        raise UserError(f"{what} holds texts or lists of any length, which are not read; write it as numbers")


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


KEYS = (*REQUIRED, "truncations", "next_observations", *OTHER_NAMES.values())
NOT_HASHED = "no hash of this file is published, so only its form was checked"
BEGINNINGS = {  # of files that users often have in place of a data file
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
    """Read the dataset in an HDF5 or NPZ file, with any suffix.

    Reading a file and filling a buffer needs at most 32 MB plus 24 times the uncompressed size of the file. It is 3
    times for float32 in long episodes. The maximum is for bytes, which become float32, in episodes of one step. If
    there is not enough free memory, an error is raised before reading.

    Args:
        path: the file's path.
        name: the name of the data; None for the file's name without suffix.
        given: the name in messages; None for the path.
        max_episode_steps: see `Dataset.from_arrays`.
        action_range: see `Dataset.from_arrays`.

    Raises:
        UserError: the file cannot be read, or its data is incomplete or too large.
    """
    try:
        with open_regular(path) as file:
            beginning = file.read(32)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    about = DatasetInfo(name or path.stem, str(path), max_episode_steps, action_range, given=given or str(path))
    if not beginning:
        raise UserError(f"{path} is empty; fetch or write it again")
    if beginning.startswith(b"PK"):
        return _read_npz(path, about)
    if is_hdf5(path):
        dataset = _read_hdf5(path, about)
        is_hashed = path.name in KNOWN or path.name not in catalog.NAMES
        return dataset if is_hashed else replace(dataset, notices=(*dataset.notices, Notice("remark", NOT_HASHED)))
    found = next((words for start, words in BEGINNINGS.items() if beginning.lstrip().startswith(start)), None)
    raise UserError(f"{path} is neither HDF5 nor NPZ{f', but {found}' if found else '; was it written to its end?'}")


def read_value(path: Path, key: str, most_bytes: int | None = None) -> Any:
    """Open a file, and read one value; texts as str.

    Args:
        path: the file's path.
        key: a name such as ``infos/qpos``. In HDF5, ``metadata/env`` may also be an attribute of the file.
        most_bytes: the largest size to read; None for any size.

    Raises:
        UserError: the value cannot be read, is stored elsewhere, has an unsupported type, or is too large.
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
    """Read all arrays of a file, by names such as ``infos/qpos``. Attributes are left out.

    Raises:
        UserError: the file cannot be read, or holds a value for which `read_value` raises.
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


def _read_hdf5(path: Path, about: DatasetInfo) -> Dataset:
    # No chunk cache: every chunk is read once as a whole, so a cache would only use memory.
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
    """Return an HDF5 dataset as a column.

    Raises:
        UserError: `item` is not an array, or is damaged.
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


def _read_npz(path: Path, about: DatasetInfo) -> Dataset:
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
        group: LazyMetadata(tuple(names[group]), partial(_value_in_group, path, group), f"{path}: {group}")
        for group in names
    }


def _value_in_group(path: Path, group: str, name: str, most_bytes: int | None) -> Any:
    return read_value(path, f"{group}/{name}", most_bytes)
