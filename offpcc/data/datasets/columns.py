"""Reading and checking of dataset columns, in blocks."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offpcc.utils.errors import UserError, first_line
from offpcc.utils.system import available_bytes

Array = NDArray[Any]
Range = tuple[ArrayLike, ArrayLike]
Allocate = Callable[[tuple[int, ...], Any], Array]  # returns an array of a shape and a dtype

TOLERANCE = 1e-5  # relative tolerance within which a next observation equals the following row
BLOCK_BYTES = 2**22  # read at a time, so a column that is kept only in part is never in memory as a whole

COPIES = 5  # the most copies of a block, while it is converted and compared
ROUNDING, FLOAT32_STEPS = 1e-10, 1e-3  # of a number: float64's rounding, and much more than float32's (6e-8)
MOST_COMPARED = 10_000  # rows whose numbers are compared with themselves as float32

LEAST_ROW_BYTES = 64  # counted per row: intermediate results take some bytes per row, row numbers alone take 8
BYTES_PER_EPISODE = 64  # of intermediate step and row numbers

REQUIRED = ("observations", "actions", "rewards", "terminations")
STATES = ("states", "next_states")  # what only critics see
OTHER_NAMES = {"terminations": "terminals", "truncations": "timeouts"}  # D4RL's
UNREAD = {  # names of other libraries whose arrays are not read, and our column
    **dict.fromkeys(("terminated", "terminateds"), "terminations"),
    **dict.fromkeys(("truncated", "truncateds", "timeout", "time_outs"), "truncations"),
    **dict.fromkeys(("next_obs", "next_observation", "obs_next"), "next_observations"),
}
RENAME = 'rename them, or in Python: offpcc.Dataset.from_arrays(...).save("data.hdf5")'
OF_OGBENCH = "ogbench:antmaze-large-navigate-singletask-v0"
EPISODES_APART = (
    "rename them; if each episode has a group or a file of its own, read them in Python: "
    'offpcc.Dataset.from_episodes([...]).save("data.hdf5"), see `offpcc docs your_data`'
)
SAY_WHERE_IT_ENDED = (
    "add an array that is True after each step at which the task ended, and False elsewhere: zeros if the task never "
    "ends. Steps at which a time limit ended an episode are truncations (timeouts)"
)

BY_ENVIRONMENT = (
    ". If the second axis counts environments, put the steps of each one after another: "
    "array.swapaxes(0, 1).reshape(-1, *array.shape[2:]), with truncations True at the last step of each environment"
)


class SpoiledData(UserError):  # noqa: N818 (a property of the data, as users read it)
    """Raised for data that can be read, but is unusable for learning, such as data with NaN."""


class Column(Protocol):
    """The common interface of NumPy arrays and HDF5 datasets, whose rows are read on access."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""

    def __getitem__(self, rows: slice) -> Array:
        """Return some of the rows."""


def as_column(value: Any, what: str) -> Array:
    """Convert a user's value for a column to an array."""
    try:
        array = np.asarray(value)
    except Exception as error:  # lists of different lengths, or a tensor that its library does not convert
        raise UserError(
            f"{what} cannot be made an array ({first_line(error)}); give a NumPy array of numbers"
        ) from error
    if what.endswith("observations") and array.ndim and array.size and isinstance(array.flat[0], Mapping):
        keys = ", ".join(map(str, array.flat[0]))
        raise UserError(f"{what} holds a mapping for each step; give one mapping of arrays, with the keys {keys}")
    if np.ma.is_masked(value):
        raise UserError(f"{what} is a masked array; fill in the masked values, or leave their episodes out")
    return array


def name_unread(columns: Mapping[str, Column], found: Sequence[str]) -> str:
    """Return a text about arrays that seem to be columns under other names, or ""."""
    texts = []
    for name in (name for name in found if name in UNREAD):
        ours, remedy = UNREAD[name], f"if it is a column, rename it to {UNREAD[name]}"
        if ours in columns:
            read = ours if ours in found else OTHER_NAMES.get(ours, ours)
            remedy = f"{read} is read in its place; if {name} is right, remove {read} and rename {name} to {ours}"
        texts.append(f"the array {name} is not read: {remedy}")
    return "; ".join(texts)


def with_our_names(columns: Mapping[str, Column], name: str, found: Iterable[str]) -> dict[str, Column]:
    """Return the known columns, with D4RL's names replaced by ours; a message also lists the names `found`."""
    named = dict(columns)
    for ours, theirs in OTHER_NAMES.items():
        if ours in named and theirs in named:
            raise UserError(f"{name}: {ours} and {theirs} are two names for the same column; give one of them")
        if theirs in named:
            named[ours] = named.pop(theirs)
    missing = [key for key in REQUIRED if key not in named]
    if missing:
        wanted = [f"{key} ({OTHER_NAMES[key]})" if key in OTHER_NAMES else key for key in missing]
        nothing_known = EPISODES_APART if missing == [*REQUIRED] else RENAME
        remedy = SAY_WHERE_IT_ENDED if missing == ["terminations"] else nothing_known
        names = sorted({*columns, *found})
        if missing == ["rewards"] and "qpos" in names:
            remedy += f"; if the file is OGBench's, name it with its task, as in {OF_OGBENCH}"
        if "terminations" in missing and (dones := [key for key in names if key in ("done", "dones")]):
            remedy = f"{dones[0]} without time limits are terminations, and time limits are truncations; {RENAME}"
        held = ", ".join(names) or "nothing"
        raise UserError(f"{name}: {', '.join(wanted)} missing; found: {held}; {remedy}")
    known = (*REQUIRED, "truncations", "next_observations", *STATES)
    return {key: named[key] for key in known if key in named}


def check_shapes(columns: Mapping[str, Column], name: str) -> int:
    """Check the shapes and dtypes of the columns, and return the number of steps."""
    for key, column in columns.items():
        if column.dtype.kind not in "fiub":
            remedy = "; if the objects are numbers, convert them by .astype(float)" if column.dtype == object else ""
            raise UserError(
                f"{name}: {key} holds {column.dtype}, not numbers; every column must be an array of numbers{remedy}"
            )
    shape = columns["observations"].shape
    if len(shape) < 2 or 0 in shape:
        remedy = ""
        if len(shape) == 1:
            remedy = "; if an observation is one number, give observations[:, None]"
            if columns["observations"].dtype.kind in "iu":
                remedy += "; if it is one of n states (Discrete), give one-hot rows: numpy.eye(n)[observations]"
        raise UserError(
            f"{name}: observations of shape {shape}; the shape has to be (steps, numbers of one observation), "
            f"without 0{remedy}"
        )
    num_steps = shape[0]
    for key, column in columns.items():
        length = column.shape[0] if column.shape else 0
        if length != num_steps:
            raise UserError(
                f"{name}: {length:,} {key}, but {num_steps:,} observations; all columns must have the same length"
            )
        if key == "next_observations" and column.shape != shape:
            raise UserError(f"{name}: {key} of shape {column.shape}, but observations of shape {shape}; one is wrong")
        kinds = {part.dtype == np.uint8 for part in (column, columns["observations"])}
        if key == "next_observations" and len(shape) > 2 and len(kinds) > 1:
            raise UserError(
                f"{name}: observations are {columns['observations'].dtype}, but {key} are {column.dtype}; images need "
                f"one type and one scale in both"
            )
        if key == "actions" and (len(column.shape) > 2 or column.shape[1:] == (0,)):
            remedy = BY_ENVIRONMENT if len(column.shape) == 3 else ""
            raise UserError(
                f"{name}: actions of shape {column.shape}; it has to be (steps, numbers of one action){remedy}"
            )
        if key in ("rewards", "terminations", "truncations") and column.shape[1:] not in ((), (1,)):
            remedy = BY_ENVIRONMENT if len(column.shape) > 1 else ""
            raise UserError(
                f"{name}: {key} of shape {column.shape}; it has to be ({num_steps},), one number per step{remedy}"
            )
    return num_steps


def check_room(num_bytes: int, what: str, has_images: bool = False) -> None:
    """Raise if there is not enough free memory."""
    available = available_bytes()
    if available is not None and num_bytes > available:
        raise UserError(
            f"{what} take {num_bytes:,} bytes, but {available:,} bytes of memory are free; is the data damaged? If "
            f"not, split it, or take a part of it (--dataset_fraction)"
            f"{', or bind memory_limit of the replay buffer, beyond which images are on disk' if has_images else ''}"
        )


def exceeds(memory_limit: int | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether images of this shape are to be in a file; other observations never are."""
    return memory_limit is not None and dtype == np.uint8 and math.prod(shape) > memory_limit


def bytes_of_ends(observations: Column, num_episodes: int) -> int:
    """Return the bytes of the last observations of episodes, and of intermediate step numbers."""
    one = math.prod(observations.shape[1:]) * dtype_in_memory(observations, is_observed=True).itemsize
    return num_episodes * (one + BYTES_PER_EPISODE)


def bytes_needed(columns: Mapping[str, Column], memory_limit: int | None) -> int:
    """Return the bytes that reading the columns needs in addition: the resulting arrays and temporary blocks.

    Images that exceed `memory_limit` are not included, because they are in a file. The last observations of episodes
    are not included, because their number is known only from the flags.
    """
    passing = kept = 0
    for key, column in columns.items():
        numbers = math.prod(column.shape)
        is_flag = key in ("terminations", "truncations")
        dtype = np.dtype(np.bool_) if is_flag else dtype_in_memory(column, "observations" in key)
        is_there = isinstance(column, np.ndarray) and column.dtype == dtype and not is_flag
        is_there |= key == "observations" and exceeds(memory_limit, column.shape, dtype)
        if key != "next_observations" and not is_there:
            kept += numbers * dtype.itemsize
        block = next(blocks(column), slice(0))
        row = max(column.dtype.itemsize, dtype.itemsize) * math.prod(column.shape[1:])
        passing = max(passing, COPIES * (block.stop - block.start) * row)
    return kept + passing


def blocks(column: Column) -> Iterator[slice]:
    """Yield slices of a column. Each consists of whole compressed chunks, if any, so no chunk is read twice."""
    row = math.prod(column.shape[1:]) * max(column.dtype.itemsize, 4)  # bytes may become float32
    rows = max(1, BLOCK_BYTES // max(row, LEAST_ROW_BYTES))
    chunk = (getattr(column, "chunks", None) or (1,))[0]
    rows = math.ceil(rows / chunk) * chunk
    for start in range(0, column.shape[0], rows):
        yield slice(start, min(start + rows, column.shape[0]))


def dtype_in_memory(column: Column, is_observed: bool) -> np.dtype[Any]:
    """Return the dtype of a column in memory: uint8 for images and packed Dict observations, else float32."""
    is_packed = hasattr(column, "space")  # Dict observations
    keeps_bytes = is_observed and column.dtype == np.uint8 and (len(column.shape) > 2 or is_packed)
    return np.dtype(np.uint8 if keeps_bytes else np.float32)


def read_numbers(column: Column, what: str, is_observed: bool = False, allocate: Allocate = np.empty) -> Array:
    """Read all rows, with the dtype of `dtype_in_memory`; NaN or infinity raises `SpoiledData`."""
    dtype = dtype_in_memory(column, is_observed)
    if isinstance(column, np.ndarray) and column.dtype == dtype:
        for rows in blocks(column):
            check_finite(column[rows], what, rows.start)
        return column
    numbers = allocate(column.shape, dtype)
    for rows in blocks(column):
        numbers[rows] = converted(column[rows], dtype)
        check_finite(numbers[rows], what, rows.start)
    return numbers


def converted(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Convert numbers to another dtype."""
    with np.errstate(over="ignore"):  # overflow gives infinity, and `check_finite` raises for it
        return np.asarray(numbers).astype(dtype, copy=False)


def rounded_columns(column: Column) -> list[tuple[int, int, int]]:
    """Return which numbers of an observation (N, O) lose most of their values as float32, in the first rows.

    Each is given by its index, the number of different values, and that as float32.
    """
    least = {"f": 8, "i": 4, "u": 4}.get(column.dtype.kind)  # narrower ones lose nothing
    if len(column.shape) != 2 or least is None or column.dtype.itemsize < least:
        return []
    rows = np.asarray(column[: min(next(blocks(column), slice(0)).stop, MOST_COMPARED)])
    kept = converted(rows, np.dtype(np.float32))
    spread, size = np.ptp(rows, 0), np.abs(rows).max(0, initial=0)
    found = []
    for index in np.flatnonzero(spread > ROUNDING * size):  # a smaller spread is the recorder's own rounding
        number, left = len(np.unique(rows[:, index])), len(np.unique(kept[:, index]))
        if left < number / 2 and spread[index] < FLOAT32_STEPS * size[index]:
            found.append((int(index), number, left))
    return found


def check_finite(numbers: Array, what: str, first: int) -> None:
    """Raise if a number is NaN or infinite, in rows of a column from row `first` on."""
    if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
        return
    place = np.argwhere(~np.isfinite(numbers))[0]
    index = ", ".join(str(int(i)) for i in (first + place[0], *place[1:]))
    raise SpoiledData(
        f"{what}[{index}] is {numbers[tuple(place)]} (as float32); leave its episode out, or correct the recording"
    )


def read_flags(column: Column, what: str) -> Array:
    """Read all rows into a new array of bool; a value other than 0 and 1 raises `SpoiledData`."""
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
