"""HDF5 files of d3rlpy, read as arrays of all steps under D4RL's keys.

* d3rlpy 2 (``ReplayBuffer.dump`` of 2.0.4 to 2.8.1, version 2.1 of its files) writes arrays for each episode, such as
  ``observations_0``, ``actions_0`` and ``rewards_0``, and one flag, ``terminated_0``. If observations are a tuple, its
  parts are ``observations_0_0``, ``observations_0_1`` and so on. ``num_episodes`` is the number of episodes.
* d3rlpy 1 (``MDPDataset.dump``) writes arrays of all steps, and ``episode_terminals`` in place of ``timeouts``. These
  flags mark all ends of episodes, also terminations.

No file has the observation after an episode's last step. An episode that did not terminate was truncated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import count, takewhile
from typing import Any

import numpy as np

from offpcc.data.datasets.columns import Array, Column
from offpcc.data.datasets.notices import Notice
from offpcc.utils.errors import UserError
from offpcc.utils.paths import shown

NUM_EPISODES, COLUMNS = "num_episodes", "columns"
OLD_NUM_EPISODES = "total_size"  # of version 2.0 of the files
ALL_ENDS = "episode_terminals"  # of d3rlpy 1
AGAIN = "write it again by ReplayBuffer.dump of d3rlpy, or fetch it again"
BEFORE_VERSIONS = (
    "d3rlpy before 1.1 wrote the file, as it has no version. There, the last row of a terminated episode may be the "
    "observation after its last step, with an action and a reward of no meaning. It is read as a step"
)


# d3rlpy 2 -----------------------------------------------------------------------------------------------------------


def holds_episodes(file: Any) -> bool:
    """Check whether a file, `HDF5Arrays`, holds arrays for each episode, as d3rlpy 2 writes them."""
    if file.has(COLUMNS) and file.has(OLD_NUM_EPISODES):
        raise UserError(
            f"{file.path} is in version 2.0 of d3rlpy's format, which d3rlpy itself no longer reads; in Python, give "
            f"its arrays, reshaped to (steps, ...), to offpcc.Dataset.from_arrays, and True in truncations at the last "
            f"step of each episode that is not terminated"
        )
    return bool(file.has(COLUMNS) and file.has(NUM_EPISODES))


class EpisodeArrays:
    """The arrays of an open file of d3rlpy 2, with the steps of all episodes one after another.

    Only shapes and flags are read at once. Observations that are a tuple become the entries "0", "1" and so on of Dict
    observations.
    """

    def __init__(self, file: Any) -> None:
        self.file, self.path = file, file.path  # `HDF5Arrays`
        self.num_episodes = self._read_number()
        numbers = map(str, count())
        is_tuple = not file.has("observations_0")
        self.entries = tuple(takewhile(lambda n: file.has(f"observations_0_{n}"), numbers)) if is_tuple else ()
        observed = [f"observations/{entry}" for entry in self.entries] or ["observations"]
        self.first = {key: self._array(key, 0) for key in (*observed, "actions", "rewards")}  # of the first episode
        episodes = range(self.num_episodes)
        lengths, terminated = zip(*((self._length(one), self._is_terminated(one)) for one in episodes), strict=True)
        self.edges = np.concatenate([[0], np.cumsum(lengths)])
        self.ends = {name: np.zeros(self.edges[-1], np.bool_) for name in ("terminals", "timeouts")}
        self.ends["terminals"][self.edges[1:] - 1] = terminated
        self.ends["timeouts"][self.edges[1:] - 1] = np.logical_not(terminated)

    def names(self) -> list[str]:
        """Return D4RL's keys."""
        return ["observations", "actions", "rewards", *self.ends]

    def names_below(self, group: str) -> tuple[str, ...]:
        """Return the entries of observations that are a tuple."""
        return self.entries if group == "observations" else ()

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all arrays by their names."""
        columns = {key: self.column(key) for key in (*self.first, *self.ends)}
        return {key: math.prod(column.shape) * column.dtype.itemsize for key, column in columns.items()}

    def column(self, key: str) -> Column:
        """Return an array of all steps as a column."""
        if key in self.ends:
            return self.ends[key]
        return EpisodeColumn(lambda episode: self._array(key, episode), self.edges, self.first[key])

    def value(self, key: str) -> Array:
        """Read an array of all steps."""
        return self.column(key)[slice(None)]

    def _read_number(self) -> int:
        number = self.file.value(NUM_EPISODES)
        told = f"{self.path}: {NUM_EPISODES} is {shown(str(number))}"
        if not isinstance(number, int | np.integer) or number < 1:
            raise UserError(f"{told}; it has to be a whole number above 0; {AGAIN}")
        if self.file.has(f"rewards_{number}"):
            raise UserError(f"{told}, but rewards_{number} exists; {AGAIN}")
        return int(number)

    def _there(self, name: str) -> str:
        if not self.file.has(name):
            raise UserError(f"{self.path}: {name} is missing, but {NUM_EPISODES} is {self.num_episodes}; {AGAIN}")
        return name

    def _array(self, key: str, episode: int) -> Column:
        column: Column = self.file.column(self._there(name_in_file(key, episode)))
        return column

    def _length(self, episode: int) -> int:
        """Return the number of steps of an episode."""
        lengths = {}
        for key, first in self.first.items():
            name, array = name_in_file(key, episode), self._array(key, episode)
            if (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
                raise UserError(
                    f"{self.path}: {name} has the shape {array.shape} ({array.dtype}), but {name_in_file(key, 0)} has "
                    f"{first.shape} ({first.dtype}); all episodes must have one type and one shape per step; {AGAIN}"
                )
            lengths[name] = array.shape[0]
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            listed = ", ".join(f"{length:,} rows in {name}" for name, length in lengths.items())
            raise UserError(
                f"{self.path}: {listed}; each array must have one row per step, and at least one row; {AGAIN}"
            )
        return int(array.shape[0])

    def _is_terminated(self, episode: int) -> bool:
        name = self._there(f"terminated_{episode}")
        flag = np.asarray(self.file.value(name))
        if flag.size != 1 or flag.item() not in (0, 1):
            raise UserError(f"{self.path}: {name} is {shown(str(flag.tolist()))}; it has to be True or False; {AGAIN}")
        return bool(flag)


def name_in_file(key: str, episode: int) -> str:
    """Return the name of an episode's array: of "observations/1", such as "observations_7_1"."""
    name, *part = key.split("/")
    return "_".join([name, str(episode), *part])


class EpisodeColumn:
    """The arrays of all episodes under one key as one column, read on access.

    `open_array` returns the array of an episode by its number. `edges` (E+1,) are the first step of each episode, and
    the number of all steps. `first` is the array of the first episode.
    """

    def __init__(self, open_array: Callable[[int], Column], edges: Array, first: Column) -> None:
        self.open_array, self.edges, self.dtype = open_array, edges, first.dtype
        self.shape: tuple[int, ...] = (int(edges[-1]), *first.shape[1:])

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        read = np.empty((max(stop - start, 0), *self.shape[1:]), self.dtype)
        for episode in range(np.searchsorted(self.edges, start, "right") - 1, np.searchsorted(self.edges, stop)):
            begin, end = self.edges[episode : episode + 2]
            low, high = max(start, begin), min(stop, end)
            read[low - start : high - start] = self.open_array(episode)[slice(low - begin, high - begin)]
        return read


# d3rlpy 1 -----------------------------------------------------------------------------------------------------------


def add_truncations(columns: dict[str, Column], read: Callable[[str], Column], found: Collection[str]) -> None:
    """Add truncations to the columns of a file that has none, but marks all ends of episodes.

    `read` returns a column of the file by its name, and `found` are the names in the file.
    """
    terminations = [name for name in ("terminations", "terminals") if name in found]
    if ALL_ENDS in found and terminations and not {"truncations", "timeouts"} & set(found):
        columns["truncations"] = CutColumn(read(ALL_ENDS), read(terminations[0]))


class CutColumn:
    """All ends of episodes except the terminations, read on access."""

    def __init__(self, ends: Column, terminations: Column) -> None:
        self.ends, self.terminations, self.shape, self.dtype = ends, terminations, ends.shape[:1], ends.dtype

    def __getitem__(self, rows: slice) -> Array:
        ends, terminations = (np.asarray(column[rows]).reshape(-1) for column in (self.ends, self.terminations))
        return np.where(terminations != 0, 0, ends)


def version_notices(found: Collection[str]) -> list[Notice]:
    """Return a notice if d3rlpy before 1.1 wrote the file with these names."""
    return [Notice("remark", BEFORE_VERSIONS)] if "discrete_action" in found and "version" not in found else []
