"""Recorded Dict observations, packed as buffers store them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from offpcc.core import PackedDict, is_image
from offpcc.data.datasets.columns import Array, Column, SpoiledData, blocks, check_finite, converted
from offpcc.data.datasets.notices import Notice
from offpcc.utils.spaces import MOST_CHOICES, OBSERVATION, STATE, may_be_meant_as_image


class DictColumn:
    """The entries of Dict observations as one column of packed rows, read on access.

    Args:
        columns: the entries by key, each (S, *shape).
        space: the Dict space; None to derive it from the columns, with choices already one-hot.
        what: the name of the column, for messages.
        names: the names of entries in messages, if these differ from their keys in the column.

    Attributes:
        integers: the keys of derived vectors that were given as integers, and may be choices.

    Raises:
        SpoiledData: the entries do not fit together or to the space; or they are ambiguous, and there is no space.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self, columns: Mapping[str, Column], space: PackedDict | None, what: str, names: Mapping[str, str] | None = None
    ) -> None:
        self.names = {**{key: f"{what}: {key!r}" for key in columns}, **(names or {})}
        lengths = {key: column.shape[0] if column.shape else 0 for key, column in columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length:,} of {key!r}" for key, length in lengths.items())
            raise SpoiledData(f"{what}: {listed}; all entries are to be of one length")
        for key, column in columns.items():
            if column.dtype.kind not in "fiub":
                raise SpoiledData(f"{self.names[key]} holds {column.dtype}, no numbers; write it as numbers")
        self.integers = [key for key, column in columns.items() if space is None and column.dtype.kind in "iu"]
        self.space = derived_space(columns, what) if space is None else space
        if missing := [key for key in self.space.entries if key not in columns]:
            raise SpoiledData(f"{what}: {missing[0]!r} is missing; found: {', '.join(map(repr, columns))}")
        self.columns = {key: columns[key] for key in self.space.entries}
        self.what = what
        self.shape: tuple[int, ...] = (next(iter(lengths.values())), *self.space.shape)
        chunks = [chunk[0] for column in columns.values() if (chunk := getattr(column, "chunks", None))]
        self.chunks = (math.lcm(*chunks),) if chunks and math.lcm(*chunks) <= max(chunks) * 8 else None

    def __getitem__(self, rows: slice) -> Array:
        read = {key: np.asarray(column[rows]) for key, column in self.columns.items()}
        start, stop, _ = rows.indices(self.shape[0])
        try:
            return self.space.pack(read, (stop - start,))
        except ValueError as error:
            for key, numbers in read.items():  # a number that is not finite is named with its row
                if numbers.dtype.kind == "f":
                    check_finite(converted(numbers, np.dtype(np.float32)), self.names[key], start)
            remedy = "correct the recording, or observation_space if you gave it"
            raise SpoiledData(f"{self.what}[{start}:{stop}]: {error}; {remedy}") from None


def with_states(observations: Column, states: Column, what: str, space: PackedDict | None = None) -> DictColumn:
    """Return observations and the states that only critics see as one column of packed rows."""
    given = observations if isinstance(observations, DictColumn) else None
    entries = {OBSERVATION: observations} if given is None else given.columns
    if STATE in entries:
        raise SpoiledData(f"{what}: there are an entry 'state' and a column of states; rename one of them")
    if len(states.shape) != 2:
        raise SpoiledData(f"{what}: states of shape {states.shape}; the shape has to be (steps, numbers of one state)")
    if space is None:
        seen = derived_space(entries, what) if given is None else given.space
        of_states = spaces.Box(-np.inf, np.inf, states.shape[1:], np.float32)
        space = PackedDict(spaces.Dict({**seen.dict_space.spaces, STATE: of_states}), STATE)
    names = {STATE: f"{what.removesuffix('observations')}states"} | ({OBSERVATION: what} if given is None else {})
    joined = DictColumn({**entries, STATE: states}, space, what, names)
    joined.integers = [] if given is None else given.integers
    return joined


def join_states(columns: dict[str, Column], name: str) -> None:
    """Replace observations and states by one column of packed rows, if there are states."""
    states, following = columns.pop("states", None), columns.pop("next_states", None)
    if states is None:
        return
    if (following is None) != ("next_observations" not in columns):
        missing, there = "next_states", "next_observations"
        if following is not None:
            missing, there = there, missing
        raise SpoiledData(f"{name}: there are {there}, but no {missing}; give both, or neither")
    columns["observations"] = joined = with_states(columns["observations"], states, f"{name}: observations")
    if following is not None:
        seen = columns["next_observations"]
        columns["next_observations"] = with_states(seen, following, f"{name}: next_observations", joined.space)


class PackedRows:
    """Rows that are packed already, as a column."""

    def __init__(self, rows: Array, space: PackedDict, integers: list[str]) -> None:
        self.rows, self.space, self.shape, self.dtype = rows, space, rows.shape, rows.dtype
        self.integers = integers

    def __getitem__(self, rows: slice) -> Array:
        return self.rows[rows]


def derived_space(columns: Mapping[str, Column], what: str = "observations") -> PackedDict:
    """Return the space of recorded entries (S, *shape): images of uint8, and vectors of numbers."""
    derived: dict[str, spaces.Space[Any]] = {}
    for key, column in columns.items():
        shape = column.shape[1:]
        is_one = column.dtype == np.uint8 and is_image(shape)
        derived[key] = spaces.Box(0, 255, shape, np.uint8) if is_one else spaces.Box(-np.inf, np.inf, shape, np.float32)
    for key, column in columns.items():
        shape = column.shape[1:]
        if not may_be_meant_as_image(shape, column.dtype):
            continue
        given = dict(derived)
        if column.dtype.kind in "iu" and len(shape) == 3:
            given[key] = spaces.Box(0, 255, shape, np.uint8)
        raise SpoiledData(
            f"{what}: {key!r} is {column.dtype} of shape {shape} a step, but an image is uint8 of three axes. If it is "
            f"an image, write it so, with numbers from 0 to 255; if it is a vector, flatten it; or say what it is by "
            f"{_call(given)}"
        )
    return PackedDict(spaces.Dict(derived))


def choice_notices(space: PackedDict, integers: list[str], observations: Array) -> list[Notice]:
    """Return a notice if vectors of a derived space may be choices."""
    lowest: dict[str, Array] = {}
    highest: dict[str, Array] = {}
    for rows in blocks(observations) if integers else ():
        for key, part in space.split(observations[rows]).items():
            if key in integers:
                lowest[key] = np.minimum(part.min(0), lowest.get(key, np.inf))
                highest[key] = np.maximum(part.max(0), highest.get(key, -np.inf))
    chosen: dict[str, spaces.Space[Any]] = {}
    for key in lowest.keys() & {part.key for part in space.unpacked_shape.vectors}:
        start, sizes = lowest[key].astype(np.int64), (highest[key] - lowest[key]).astype(np.int64) + 1
        is_flag = (lowest[key] >= 0).all() and (highest[key] <= 1).all()
        if is_flag or (sizes > MOST_CHOICES).any() or len(space.entries[key].shape or ()) > 1:
            continue
        is_one = space.entries[key].shape == ()
        chosen[key] = spaces.Discrete(sizes[0], start=start[0]) if is_one else spaces.MultiDiscrete(sizes, start=start)
    if not chosen:
        return []
    key = min(chosen)
    text = (
        f"{key!r} holds whole numbers from {lowest[key].min():.0f} to {highest[key].max():.0f}, which are read as "
        f"numbers; if they are choices, write them one-hot, or give the space: {_call({**space.entries, **chosen})}"
    )
    return [Notice("whole numbers", text)]


def _call(entries: Mapping[str, spaces.Space[Any]]) -> str:
    """Return the call that gives a Dict space of these entries, as Python code."""
    items = ", ".join(f"{key!r}: {_code(entry)}" for key, entry in sorted(entries.items()))
    return (
        f"offpcc.Dataset.from_arrays(..., observation_space=spaces.Dict({{{items}}})), where spaces is "
        f"gymnasium.spaces; of a file, by offpcc.data.load_dataset(FILE, observation_space=...).save(OTHER_FILE)"
    )


def _code(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Box):
        bounds = "0, 255" if space.dtype == np.uint8 else "-np.inf, np.inf"
        return f"spaces.Box({bounds}, {space.shape}, np.{space.dtype})"
    if isinstance(space, spaces.MultiDiscrete):
        return f"spaces.MultiDiscrete({space.nvec.tolist()}, start={space.start.tolist()})"
    assert isinstance(space, spaces.Discrete)
    return f"spaces.Discrete({space.n}, start={space.start})"
