"""Recorded Dict observations, packed as buffers store them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from offpcc.core import PackedDict, is_image
from offpcc.data.datasets.columns import Array, Column, SpoiledData


class DictColumn:
    """The entries of Dict observations as one column of packed rows, read on access.

    Args:
        columns: the entries by key, each (S, *shape).
        space: the Dict space; None to derive it from the columns, with choices already one-hot.
        what: the name of the column, for messages.

    Raises:
        SpoiledData: the entries do not fit together or to the space.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, columns: Mapping[str, Column], space: PackedDict | None, what: str) -> None:
        lengths = {key: column.shape[0] if column.shape else 0 for key, column in columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length:,} of {key!r}" for key, length in lengths.items())
            raise SpoiledData(f"{what}: {listed}; all entries are to be of one length")
        for key, column in columns.items():
            if column.dtype.kind not in "fiub":
                raise SpoiledData(f"{what}: {key!r} holds {column.dtype}, no numbers; write it as numbers")
        self.space = derived_space(columns) if space is None else space
        if missing := [key for key in self.space.entries if key not in columns]:
            raise SpoiledData(f"{what}: {missing[0]!r} is missing; found: {', '.join(map(repr, columns))}")
        self.columns = {key: columns[key] for key in self.space.entries}
        self.what = what
        self.shape: tuple[int, ...] = (next(iter(lengths.values())), *self.space.shape)
        self.by_columns = any(getattr(column, "by_columns", False) for column in columns.values())
        chunks = [chunk[0] for column in columns.values() if (chunk := getattr(column, "chunks", None))]
        self.chunks = (math.lcm(*chunks),) if chunks and math.lcm(*chunks) <= max(chunks) * 8 else None

    def __getitem__(self, rows: slice) -> Array:
        read = {key: np.asarray(column[rows]) for key, column in self.columns.items()}
        start, stop, _ = rows.indices(self.shape[0])
        try:
            return self.space.pack(read, (stop - start,))
        except ValueError as error:
            raise SpoiledData(f"{self.what}[{start}:{stop}]: {error}; mend the recording") from None


class PackedRows:
    """Rows that are packed already, as a column.

    Args:
        rows: (S, D) of uint8.
        space: their space.
    """

    def __init__(self, rows: Array, space: PackedDict) -> None:
        self.rows, self.space, self.shape, self.dtype = rows, space, rows.shape, rows.dtype

    def __getitem__(self, rows: slice) -> Array:
        return self.rows[rows]


def derived_space(columns: Mapping[str, Column]) -> PackedDict:
    """Return the space of recorded entries (S, *shape): images of uint8, and vectors of numbers."""
    return PackedDict(
        spaces.Dict(
            {
                key: spaces.Box(0, 255, column.shape[1:], np.uint8)
                if column.dtype == np.uint8 and is_image(column.shape[1:])
                else spaces.Box(-np.inf, np.inf, column.shape[1:], np.float32)
                for key, column in columns.items()
            }
        )
    )
