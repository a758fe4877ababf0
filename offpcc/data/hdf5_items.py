"""Things in HDF5 files: where each lies, its kind and its size are checked before it is read."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offpcc.data.untrusted import SUSPICIOUS_BYTES, SUSPICIOUS_FACTOR, check_declared, check_fits
from offpcc.errors import UserError

MOST_NAMES = 10_000  # that data sets have: D4RL's have twenty, a policy's weights beside them a hundred
MOST_LETTERS = 1_000  # of a name with the groups that it lies in, each of which would be repeated in all names below
PIECE_BYTES = 2**20  # of an opened chunk at a time
SHOWN = 60  # letters of a name, in messages


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as an HDF5 file does."""
    return bool(h5py.is_hdf5(path))


def names_in(group: Any, path: Path, most: int | None = MOST_NAMES) -> Iterator[str]:
    """Names of all arrays below an HDF5 group, and of links that lead elsewhere, which are refused when they are read.

    Args:
        group: of the file.
        path: of the file, for messages.
        most: names that a group may hold; None for any number.

    Raises:
        UserError: there are more of them, or one is too long: its name and those of the groups around it together.
    """
    seen, left, num_found = {_address(group)}, [""], 0  # a group may hold itself
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
    """Refuse more things in a file than a data set has.

    Raises:
        UserError: there are.
    """
    if most is not None and number > most:
        raise UserError(f"{path}: it holds {number:,} or more arrays and groups, more than {most:,}; leave some out")


def _address(group: Any) -> tuple[int, int]:
    """Where a group lies, the same by whatever name it was found."""
    about = h5py.h5o.get_info(group.id)
    return about.fileno, about.addr


def _is_own(group: Any, name: str) -> bool:
    """Whether a name in a group stands for what is there itself; not so a link by name, which may lead anywhere."""
    return isinstance(group, h5py.Group) and isinstance(group.get(name, getlink=True), h5py.HardLink)


def own_item(file: Any, key: str, path: Path) -> Any:
    """What lies in an HDF5 file itself under a key.

    A link may lead to another file, or to nothing, and so may what an array declares to be stored elsewhere: reading
    data never reads what was not given as data.

    Raises:
        UserError: it is elsewhere, or nowhere.
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
    """What an HDF5 dataset takes when it is read, in whole chunks.

    Raises:
        TypeError: its type has no counterpart in NumPy.
        ValueError: its type is damaged.
    """
    numbers = max(math.prod(item.shape or ()), math.prod(item.chunks or ()))
    return int(numbers * item.dtype.itemsize)


def check_chunks(item: Any, what: str) -> None:
    """Refuse compressed chunks that become larger than chunks: HDF5 would open them, whatever memory that takes.

    Those are tried that could become large, without keeping what comes out.

    Raises:
        UserError: one does.
    """
    if item.chunks is None or not hasattr(item.id, "chunk_iter"):
        return
    properties = item.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    if filters.count(h5py.h5z.FILTER_DEFLATE) > 1:
        raise UserError(f"{what} is compressed twice; compress it once, or not at all")
    if [code for code in filters if code != h5py.h5z.FILTER_FLETCHER32][-1:] != [h5py.h5z.FILTER_DEFLATE]:
        return
    size, large = math.prod(item.chunks) * item.dtype.itemsize, []

    def look_at(chunk: Any) -> None:
        if chunk.filter_mask == 0 and chunk.size * SUSPICIOUS_FACTOR > SUSPICIOUS_BYTES:
            large.append(chunk.chunk_offset)

    item.id.chunk_iter(look_at)
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
    """An array or a single value in an HDF5 file, whole; texts as str.

    Raises:
        UserError: it is elsewhere, of no plain kind, or too large.
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
    """What is written on an HDF5 file itself under a name; texts as str.

    Raises:
        UserError: it is of no plain kind, or too large.
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
    """Refuse objects but single texts, which the file bounds: of many, all may be the same one, read many times."""
    if dtype.hasobject and (h5py.check_string_dtype(dtype) is None or math.prod(shape or ()) > 1):
        raise UserError(f"{what} holds texts or lists of any length, which are not read; write it as numbers")


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
