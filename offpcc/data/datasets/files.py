"""Reading of data files: HDF5 in D4RL's format or in d3rlpy's, and NPZ with D4RL's keys.

A file may be damaged, or come from somebody else. So nothing in it is executed, no other file is read, declared sizes
are checked before memory is allocated, and every fault is one `UserError`.
"""

from __future__ import annotations

import contextlib
import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces

from offpcc.data.convert.tfrecord import GZIP, WEB_PAGE, is_tfrecord
from offpcc.data.datasets.columns import OTHER_NAMES, REQUIRED, STATES, Array, Column, Range
from offpcc.data.datasets.d3rlpy import EpisodeArrays, add_truncations, holds_episodes, version_notices
from offpcc.data.datasets.dataset import Dataset, DatasetInfo
from offpcc.data.datasets.dict_columns import DictColumn
from offpcc.data.datasets.frame_stacks import FRAMES
from offpcc.data.datasets.metadata import LazyMetadata
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.spaces import packed_space
from offpcc.utils.system import available_bytes

KEYS = (*REQUIRED, "truncations", "next_observations", *STATES, *OTHER_NAMES.values())
START = 4096  # bytes that tell the kind of a file
OBSERVED = ("observations", "next_observations")
OTHER_FILES = {  # starts of files that users often have in place of a data file
    b"version https://git-lfs": "a pointer of Git LFS in its place; fetch the file itself with `git lfs pull`",
    WEB_PAGE: "a web page; the address that it was saved from does not give the file itself",
    GZIP: "compressed by gzip; unpack it with `gunzip`, or give logs of the DQN replay dataset to "
    "`offpcc convert dqn-replay`",
    b"\x80": 'a pickle; open it in Python, and write its arrays: offpcc.Dataset.from_arrays(...).save("data.hdf5")',
}
SHARD = re.compile(r".+-\d{5}-of-\d{5}|.+\.tfrecords?")  # names of TFRecord files
REPLAY_LOG = re.compile(r"\$store\$_\w+_ckpt\.\d+(\.gz)?")  # names of Dopamine's logs
TFRECORD = "TensorFlow's TFRecord{}; `offpcc convert rl-unplugged` reads those of RL Unplugged's Atari"
LOG = "a log of the DQN replay dataset; `offpcc convert dqn-replay` reads it"
CONVERT = (
    "was the file written completely? Read another format, such as CSV, in Python: "
    'offpcc.Dataset.from_arrays(...).save("data.hdf5") writes what offpcc reads'
)


def read_dataset_file(
    path: Path,
    *,
    name: str | None = None,
    given: str | None = None,
    max_episode_steps: int | None = None,
    action_range: Range | None = None,
    observation_space: spaces.Dict | None = None,
    memory_limit: int | None = None,
) -> Dataset:
    """Read the dataset in an HDF5 or NPZ file, with any suffix.

    Reading a file and filling a buffer, or checking the data, needs at most 32 MB plus 24 times the uncompressed size
    of the file. It is 3 times for float32 in long episodes. The maximum is for bytes, which become float32, in episodes
    of one step. While an NPZ file is read, its arrays are in memory in addition. If there is not enough free memory,
    an error is raised before reading.

    Args:
        path: the file's path.
        name: the name of the data; None for the file's name without suffix.
        given: the name in messages; None for the path.
        max_episode_steps: see `Dataset.from_arrays`.
        action_range: see `Dataset.from_arrays`.
        observation_space: see `Dataset.from_arrays`.
        memory_limit: see `offpcc.data.load_dataset`.
    """
    try:
        with path.open("rb") as opened:
            start = opened.read(START)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if not start:
        raise UserError(f"{path} is empty; fetch or write it again")
    if not (start.startswith(b"PK") or h5py.is_hdf5(path)):
        other = _other_kind(path.name, start)
        raise UserError(f"{path} is neither HDF5 nor NPZ{f', but {other}' if other else f'; {CONVERT}'}")
    with open_arrays(path) as file:
        found = file.names()
        frames = file.column(FRAMES) if FRAMES in found and "observations" not in found else None
        groups = {key: names for key in OBSERVED if (names := file.names_below(key))}  # of Dict observations
        columns = {key: file.column(key) for key in KEYS if key in found and key not in groups}
        add_truncations(columns, file.column, found)
        space = packed_space(observation_space, str(given or path))
        if space is not None and "observations" not in groups:
            raise UserError(f"{given or path}: observations are not a group of entries; leave observation_space out")
        for key, names in groups.items():
            space = getattr(columns.get("observations"), "space", space)
            parts = {name: file.column(f"{key}/{name}") for name in names}
            columns[key] = DictColumn(parts, space, f"{given or path}: {key}")
        infos, metadata = (
            LazyMetadata(file.names_below(group), partial(read_value, path, group), f"{path}: {group}")
            for group in ("infos", "metadata")
        )
        info = DatasetInfo(
            name=name or path.stem,
            source=str(path),
            max_episode_steps=max_episode_steps,
            action_range=action_range,
            infos=infos,
            metadata=metadata,
            given=given or str(path),
            memory_limit=memory_limit,
        )
        if frames is not None:
            return Dataset.from_frames(columns, frames, info, printable(found))
        data = Dataset.from_columns(columns, info, printable(found))
        return replace(data, notices=(*data.notices, *version_notices(found)))


def _other_kind(name: str, start: bytes) -> str | None:
    """Return what a file is by its beginning and its name, with a remedy; None if that is unknown."""
    content = start
    if start.startswith(GZIP):
        with contextlib.suppress(zlib.error):
            content = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, 12)
    if is_tfrecord(content[:12]):
        return TFRECORD.format("")
    other = next((words for key, words in OTHER_FILES.items() if start.lstrip().startswith(key)), None)
    if other is not None and not start.startswith(GZIP):
        return other
    if REPLAY_LOG.fullmatch(name):
        return LOG
    return TFRECORD.format(" by its name") if SHARD.fullmatch(name) else other


def read_value(path: Path, group: str, name: str) -> Any:
    """Open a file, and read a value of a group, such as ``infos``; texts as str.

    In HDF5, a value of ``metadata`` may also be an attribute of the file.
    """
    with open_arrays(path) as file:
        return file.value(f"{group}/{name}")


def read_everything(path: Path) -> dict[str, Any]:
    """Read all arrays of a file, by names such as ``infos/qpos``; without attributes. Raises as `read_value` does."""
    with open_arrays(path) as file:
        sizes = file.sizes()
        check_fits(sum(sizes.values()), str(path))
        return {name: file.value(name) for name in sizes}


@contextmanager
def open_arrays(path: Path) -> Iterator[HDF5Arrays | NPZArrays | EpisodeArrays]:
    """Open a file for reading, and turn exceptions into one `UserError`."""
    try:
        if h5py.is_hdf5(path):
            # No chunk cache: every chunk is read once as a whole, so a cache would only use memory.
            with h5py.File(path, "r", rdcc_nbytes=0) as file:
                arrays = HDF5Arrays(file, path)
                yield EpisodeArrays(arrays) if holds_episodes(arrays) else arrays
        else:
            with np.load(path, allow_pickle=False) as npz:
                if any(name.endswith("/data.pkl") for name in npz.files):
                    raise UserError(f"{path} is a file of PyTorch, such as an actor or a model; give recorded data")
                yield NPZArrays(npz, path)
    except (FileNotFoundError, PermissionError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); does the file still exist?") from error
    except MemoryError as error:
        raise UserError(
            f"{path} needs more memory than is free ({first_line(error)}); it is damaged, or must be split"
        ) from error
    except DAMAGE as error:
        raise UserError(f"{path} is damaged or incomplete ({first_line(error)}); fetch or write it again") from error


# Limits -------------------------------------------------------------------------------------------------------------

# A declared size is suspicious if it exceeds both this many bytes and this many times the file's size. Deflate
# compresses by a factor of about 1,000 at most, so the file is damaged or was never filled.
SUSPICIOUS_BYTES, SUSPICIOUS_FACTOR = 2**26, 1100
FLAG_BYTES = 64  # arrays of at most this size are read at once: asking for the free memory takes longer
SHOWN_NAMES, SHOWN_LETTERS = 40, 60  # the most names, and characters per name, in messages
DAMAGE = (  # exceptions of HDF5, NumPy and Python's archives for changed or lost bytes
    OSError, RuntimeError, LookupError, ValueError, TypeError, EOFError, MemoryError, OverflowError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def printable(names: Iterable[str | bytes]) -> list[str]:
    """Return names in a printable form. HDF5 gives bytes for names that are not valid text.

    Long names and long lists of names are shortened.
    """
    shown = [
        (name if isinstance(name, str) and name.isprintable() else ascii(name)) + "..." * is_cut
        for name, is_cut in ((name[:SHOWN_LETTERS], len(name) > SHOWN_LETTERS) for name in islice(names, SHOWN_NAMES))
    ]
    return [*shown, "..."] if len(shown) == SHOWN_NAMES else shown


def check_declared(item: Any, what: str, path: Path) -> int:
    """Return the bytes of an HDF5 dataset; raise if the file is too small for them. Call this before allocating memory.

    Other errors are those of `declared_bytes`.
    """
    declared = declared_bytes(item)
    if declared > SUSPICIOUS_BYTES and declared > SUSPICIOUS_FACTOR * (size := path.stat().st_size):
        raise UserError(
            f"{path}: {what} of shape {item.shape} would be {declared:,} bytes, but the file has {size:,}; it is "
            f"damaged or was never filled; fetch or write it again"
        )
    return declared


def check_fits(declared: int, what: str, remedy: str = "leave it out") -> None:
    """Raise if a size exceeds the free memory."""
    available = available_bytes() if declared > FLAG_BYTES else None
    if available is not None and declared > available:
        raise UserError(f"{what} takes {declared:,} bytes, but {available:,} bytes of memory are free; {remedy}")


# HDF5 ---------------------------------------------------------------------------------------------------------------


class HDF5Arrays:
    """The arrays of an open HDF5 file."""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self.file, self.path = file, path

    def has(self, name: str) -> bool:
        """Check whether something has this name at the top of the file, without following a link."""
        return name in self.file

    def names(self) -> list[str]:
        """Return the names at the top of the file."""
        return list(self.file)

    def names_below(self, group: str) -> tuple[str, ...]:
        """Return the names of the arrays in a group, and for ``metadata`` also of the file's attributes."""
        item = own_item(self.file, group, self.path) if group in self.names() else None
        names = names_in(item) if isinstance(item, h5py.Group) else ()
        return (*(self.file.attrs if group == "metadata" else ()), *names)

    def sizes(self) -> dict[str, int]:
        """Return the declared bytes of all arrays by their names."""
        names = list(names_in(self.file))
        return {name: declared_bytes(own_item(self.file, name, self.path)) for name in names}

    def column(self, key: str) -> Column:
        """Return a dataset as a column."""
        item = own_item(self.file, key, self.path)
        if not isinstance(item, h5py.Dataset) or not item.shape:
            kind = "a single value" if isinstance(item, h5py.Dataset) else "a group of several"
            raise UserError(f"{self.path}: {key} is {kind}, not an array of all steps; write it as one array")
        try:
            check_declared(item, key, self.path)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{self.path}: {key} is of a type that arrays cannot hold ({error}); write it as numbers"
            ) from None
        column: Column = item
        return column

    def value(self, key: str) -> Any:
        """Read a whole array, a single value or an attribute; texts as str."""
        name = key.removeprefix("metadata/")
        is_attribute = name != key and name in self.file.attrs
        what = f"the attribute {name}" if is_attribute else key
        item = self.file.attrs.get_id(name) if is_attribute else own_item(self.file, key, self.path)
        if not isinstance(item, h5py.Dataset | h5py.h5a.AttrID) or item.shape is None:
            raise UserError(f"{self.path}: {what} holds no value; write a value, or leave it out")
        # Many texts may be the same stored text, with no limit on their size.
        if item.dtype.hasobject and (h5py.check_string_dtype(item.dtype) is None or math.prod(item.shape) > 1):
            raise UserError(
                f"{self.path}: {what} holds texts or lists of any length, which are not read; write it as numbers"
            )
        check_fits(check_declared(item, what, self.path), f"{self.path}: {what}")
        value = self.file.attrs[name] if is_attribute else item[()]
        return value.decode(errors="replace") if isinstance(value, bytes) else value


def names_in(group: Any) -> Iterator[str]:
    """Yield the names of all arrays below an HDF5 group, and of soft and external links, which `own_item` rejects."""
    for name in group:
        item = group[name] if _is_own(group, name) else None
        if isinstance(item, h5py.Group):
            yield from (f"{name}/{below}" for below in names_in(item))
        elif not isinstance(item, h5py.Datatype):
            yield name


def _is_own(group: Any, name: str) -> bool:
    """Check whether a name in a group is a hard link. A soft or external link may lead anywhere."""
    return isinstance(group, h5py.Group) and isinstance(group.get(name, getlink=True), h5py.HardLink)


def own_item(file: Any, key: str, path: Path) -> Any:
    """Return the object under a key of an HDF5 file, if it is stored in this file.

    Links, virtual datasets and external storage may lead to other files or to nothing. They are not followed, so only
    the file that the user gave is read.
    """
    item = file
    for part in key.split("/"):
        if not _is_own(item, part):
            raise UserError(f"{path}: {key} is a link, or its target is missing; write the array itself into the file")
        item = item[part]
    if isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
        raise UserError(
            f"{path}: {key} is stored in other files, which are not read; write the array itself into the file"
        )
    return item


def declared_bytes(item: Any) -> int:
    """Return the bytes of an HDF5 dataset.

    Raises:
        TypeError: NumPy has no dtype for the dataset's type.
        ValueError: the dataset's type is damaged.
    """
    return int(math.prod(item.shape or ()) * item.dtype.itemsize)


# NPZ ----------------------------------------------------------------------------------------------------------------


class NPZArrays:
    """The arrays of an open NPZ file. NumPy refuses arrays of objects, and limits the sizes of headers."""

    def __init__(self, npz: Any, path: Path) -> None:
        self.npz, self.path = npz, path
        self.items = {item.filename.removesuffix(".npy"): item for item in npz.zip.infolist()}

    def names(self) -> list[str]:
        """Return the names of all arrays."""
        return list(self.items)

    def names_below(self, group: str) -> tuple[str, ...]:
        """Return the names of the arrays in a group."""
        return tuple(name.removeprefix(f"{group}/") for name in self.items if name.startswith(f"{group}/"))

    def sizes(self) -> dict[str, int]:
        """Return the declared bytes of all arrays by their names."""
        return {name: item.file_size for name, item in self.items.items()}

    def column(self, key: str) -> Column:
        """Read a whole array; unlike in HDF5, rows cannot be read alone."""
        return self._read(key, "write the data as HDF5, which is read in parts")

    def value(self, key: str) -> Array:
        """Read a whole array."""
        return self._read(key, "leave it out")

    def _read(self, key: str, remedy: str) -> Array:
        what = f"{self.path}: {key}"
        check_fits(self.items[key].file_size, what, remedy)
        try:
            array = self.npz[key]
        except ValueError as error:
            if not str(error).startswith("Object arrays"):
                raise
            raise UserError(f"{what} holds objects, which are not read; write it as numbers") from None
        if not isinstance(array, np.ndarray):
            raise UserError(f"{what} is not an array of NumPy; write the file by numpy.savez")
        return array
