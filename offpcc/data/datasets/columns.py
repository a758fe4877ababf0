"""Reads and checks columns of recorded data, in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offpcc.utils.errors import UserError, first_line
from offpcc.utils.system import available_bytes

Array = NDArray[Any]
Range = tuple[ArrayLike, ArrayLike]

TOLERANCE = 1e-5  # next observations within it, relative to their column's size, are the following row
BLOCK_BYTES = 2**22  # read at a time, so that what is kept only in part never lies in memory whole

COPIES = 5  # of a block at most, while it is converted and compared

LEAST_ROW_BYTES = 64  # that a row counts as: of what is worked out for each, numbers of rows alone take eight
BYTES_PER_EPISODE = 64  # while numbers of steps and rows are worked out

REQUIRED = ("observations", "actions", "rewards", "terminations")
OTHER_NAMES = {"terminations": "terminals", "truncations": "timeouts"}  # D4RL's


class SpoiledData(UserError):  # noqa: N818 (a property of the data, as users read it)
    """Data that can be read, but holds what nothing is to be learned from."""


class Column(Protocol):
    """What an array and an HDF5 dataset have in common: rows that are read when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""

    def __getitem__(self, rows: slice) -> Array:
        """Some of its rows."""


def as_column(value: Any, what: str) -> Array:
    """What the user gave for a column, as an array.

    Raises:
        UserError: it is no array of one kind of number, or a part of it is masked.
    """
    try:
        array = np.asarray(value)
    except Exception as error:  # lists of unlike lengths, or a tensor that another library will not convert
        raise UserError(
            f"{what} cannot be made an array ({first_line(error)}); give a NumPy array of numbers"
        ) from error
    if np.ma.is_masked(value):
        raise UserError(f"{what} is an array of which a part is masked; fill that part in, or leave its episodes out")
    return array


def with_our_names(columns: Mapping[str, Column], name: str, found: Iterable[str] = ()) -> dict[str, Column]:
    """The columns that are known, D4RL's names replaced; what else was `found` is told if one is missing.

    Raises:
        UserError: one is missing, or there twice.
    """
    named = dict(columns)
    for ours, theirs in OTHER_NAMES.items():
        if ours in named and theirs in named:
            raise UserError(f"{name}: {ours} and {theirs} are two names of the same; give one of them")
        if theirs in named:
            named[ours] = named.pop(theirs)
    missing = [key for key in REQUIRED if key not in named]
    if missing:
        wanted = [f"{key} ({OTHER_NAMES[key]})" if key in OTHER_NAMES else key for key in missing]
        raise UserError(
            f"{name}: {', '.join(wanted)} missing; found: {', '.join(sorted({*columns, *found})) or 'nothing'}"
        )
    known = (*REQUIRED, "truncations", "next_observations")
    return {key: named[key] for key in known if key in named}


def check_shapes(columns: Mapping[str, Column], name: str) -> int:
    """The number of steps of columns that fit together.

    Raises:
        UserError: they do not, or hold no numbers.
    """
    for key, column in columns.items():
        if column.dtype.kind not in "fiub":
            raise UserError(f"{name}: {key} holds {column.dtype}, no numbers; every column is to be an array of them")
    shape = columns["observations"].shape
    if len(shape) < 2 or 0 in shape:
        raise UserError(
            f"{name}: observations of shape {shape}; they are to be (steps, numbers of one observation), none of them 0"
        )
    num_steps = shape[0]
    for key, column in columns.items():
        length = column.shape[0] if column.shape else 0
        if length != num_steps:
            raise UserError(
                f"{name}: {length:,} {key}, but {num_steps:,} observations; all columns are to be of one length"
            )
        if key == "next_observations" and column.shape != shape:
            raise UserError(f"{name}: {key} of shape {column.shape}, but observations of shape {shape}; one is wrong")
        if key == "actions" and (len(column.shape) > 2 or column.shape[1:] == (0,)):
            raise UserError(f"{name}: actions of shape {column.shape}; they are to be (steps, numbers of one action)")
        if key in ("rewards", "terminations", "truncations") and column.shape[1:] not in ((), (1,)):
            raise UserError(f"{name}: {key} of shape {column.shape}; they are to be ({num_steps},), one a step")
    return num_steps


def check_room(num_bytes: int, what: str) -> None:
    """Refuse what could not be held.

    Raises:
        UserError: `what` takes more memory than there is.
    """
    available = available_bytes()
    if available is not None and num_bytes > available:
        raise UserError(
            f"{what} take {num_bytes:,} bytes, but {available:,} bytes of memory are free; is the data damaged? If "
            f"not, split it, or take a part of it (--dataset_fraction)"
        )


def bytes_of_ends(observations: Column, num_episodes: int) -> int:
    """Bytes of the episodes' last observations, as they are kept, and of the numbers of steps that episodes end at."""
    one = math.prod(observations.shape[1:]) * dtype_in_memory(observations, is_observed=True).itemsize
    return num_episodes * (one + BYTES_PER_EPISODE)


def bytes_needed(columns: Mapping[str, Column]) -> int:
    """Bytes that reading columns takes beside what is there: the steps, as they are kept, and what passes through.

    The last observations of episodes come on top, as only the flags tell how many there are.
    """
    passing = kept = 0
    for key, column in columns.items():
        numbers = math.prod(column.shape)
        is_flag = key in ("terminations", "truncations")
        dtype = np.dtype(np.bool_) if is_flag else dtype_in_memory(column, "observations" in key)
        is_there = isinstance(column, np.ndarray) and column.dtype == dtype and not is_flag
        if key != "next_observations" and not is_there:
            kept += numbers * dtype.itemsize
        if getattr(column, "by_columns", False):  # opened whole, one after another
            passing = max(passing, numbers * column.dtype.itemsize)
        block = next(blocks(column), slice(0))
        row = max(column.dtype.itemsize, dtype.itemsize) * math.prod(column.shape[1:])
        passing = max(passing, COPIES * (block.stop - block.start) * row)
    return kept + passing


def blocks(column: Column) -> Iterator[slice]:
    """Parts of a column, of whole compressed chunks where it has any: none is opened twice."""
    row = math.prod(column.shape[1:]) * max(column.dtype.itemsize, 4)  # bytes may become float32
    rows = max(1, BLOCK_BYTES // max(row, LEAST_ROW_BYTES))
    chunk = (getattr(column, "chunks", None) or (1,))[0]
    rows = math.ceil(rows / chunk) * chunk
    for start in range(0, column.shape[0], rows):
        yield slice(start, min(start + rows, column.shape[0]))


def dtype_in_memory(column: Column, is_observed: bool = False) -> np.dtype[Any]:
    """The type in which a column is kept: float32; uint8 for observed bytes of more than one axis, such as images."""
    keeps_bytes = is_observed and column.dtype == np.uint8 and len(column.shape) > 2
    return np.dtype(np.uint8 if keeps_bytes else np.float32)


def read_numbers(column: Column, what: str, is_observed: bool = False) -> Array:
    """All rows, in the type of `dtype_in_memory`.

    Raises:
        SpoiledData: one is NaN or infinite.
    """
    dtype = dtype_in_memory(column, is_observed)
    if isinstance(column, np.ndarray) and column.dtype == dtype:
        for rows in blocks(column):
            check_finite(column[rows], what, rows.start)
        return column
    numbers = np.empty(column.shape, dtype)
    for rows in blocks(column):
        numbers[rows] = converted(column[rows], dtype)
        check_finite(numbers[rows], what, rows.start)
    return numbers


def converted(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers of another type."""
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        return np.asarray(numbers).astype(dtype, copy=False)


def check_finite(numbers: Array, what: str, first: int) -> None:
    """Refuse what no network could take in.

    Args:
        numbers: some rows of a column.
        what: they are.
        first: the number of the first of these rows.

    Raises:
        SpoiledData: one is NaN or infinite.
    """
    if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
        return
    place = np.argwhere(~np.isfinite(numbers))[0]
    index = ", ".join(str(int(i)) for i in (first + place[0], *place[1:]))
    raise SpoiledData(
        f"{what}[{index}] is {numbers[tuple(place)]} (as float32); leave its episode out, or mend the recording"
    )


def read_flags(column: Column, what: str) -> Array:
    """All rows as bool, anew.

    Raises:
        SpoiledData: one is neither 0 nor 1.
    """
    flags = np.empty(column.shape[0], np.bool_)
    for rows in blocks(column):
        values = np.asarray(column[rows]).reshape(-1)
        if values.dtype != np.bool_:
            wrong = np.flatnonzero((values != 0) & (values != 1))
            if len(wrong):
                place = rows.start + wrong[0]
                raise SpoiledData(f"{what}[{place}] is {values[wrong[0]]}; it has to be 0 or 1, False or True")
        flags[rows] = values
    return flags
