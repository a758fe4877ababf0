"""Arrays of transitions and episodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from offpcc.data.datasets.columns import Array


def bytes_per_row(observation_bytes: int, action_dim: int) -> int:
    """Bytes that a row takes: an observation, action, reward and termination, and whether it is a start."""
    return observation_bytes + 4 * (action_dim + 2) + 1


def wrap_edges(with_edges: Any, num_rings: int) -> None:
    """Copy the last row of each ring before its first, and the first behind its last; an array, or a tensor."""
    with_edges[:num_rings], with_edges[-num_rings:] = (
        with_edges[-2 * num_rings : -num_rings],
        with_edges[num_rings : 2 * num_rings],
    )


@dataclass(frozen=True, eq=False)
class Columns:
    """R rows ``o_t, a_t, r_t, d_t``, one after another, so that a transition's next observation is the following row's.

    A row that begins no transition, such as that of an episode's last observation, is no start, and its action, reward
    and termination are 0.
    """

    observations: Array  # (R, *obs)
    actions: Array  # (R, A)
    rewards: Array  # (R, 1)
    terminations: Array  # (R, 1)
    is_start: Array  # (R,), bool

    @property
    def columns(self) -> list[Array]:
        """All there is, each number once."""
        return [getattr(self, column.name) for column in fields(Columns)]


@dataclass(frozen=True, eq=False)
class Storage(Columns):
    """Rows as `ReplayBuffer` stores them.

    Observations that are vectors lie beside the rest, so that one look-up finds all of a row. Before the first row and
    behind the last there is room for copies of those that a ring has there.
    """

    packed: Array  # (R, [O +] A + 2), float32: the columns side by side; images are apart
    with_edges: Array  # (N + R + N, ...), float32: `packed` in the midst of what it is a view of

    @classmethod
    def of(
        cls, num_rows: int, observation_shape: tuple[int, ...], dtype: np.dtype, action_dim: int, num_rings: int = 1
    ) -> Storage:
        """Empty rows of N rings."""
        width = math.prod(observation_shape) if dtype == np.float32 else 0
        with_edges = np.zeros((num_rows + 2 * num_rings, width + action_dim + 2), np.float32)
        packed = with_edges[num_rings:-num_rings]
        shape = (num_rows, *observation_shape)
        return Storage(
            observations=packed[:, :width].reshape(shape) if dtype == np.float32 else np.zeros(shape, dtype),
            actions=packed[:, width:-2],
            rewards=packed[:, -2:-1],
            terminations=packed[:, -1:],
            is_start=np.zeros(num_rows, np.bool_),
            packed=packed,
            with_edges=with_edges,
        )

    @property
    def packs_observations(self) -> bool:
        """Whether one look-up finds all of a row."""
        return self.observations.dtype == np.float32

    @property
    def contiguous(self) -> list[Array]:
        """All there is, each number once, in arrays whose rows lie side by side."""
        return [self.packed, *([] if self.packs_observations else [self.observations]), self.is_start]

    def put(self, arrays: Iterable[Array]) -> None:
        """Copy what is `contiguous` of other rows, not more of them, into the first of these."""
        for own, given in zip(self.contiguous, arrays, strict=True):
            own[: len(given)] = given


@dataclass
class Ring:
    """Where an environment's ring stands."""

    cursor: int = -1  # the row of the last frame seen
    size: int = 0  # rows in use
    unfinished: bool = False  # an episode stands at the cursor


@dataclass(frozen=True, eq=False)
class TransitionTable(Storage):
    """Recorded transitions, of all N episodes one after another.

    An episode of L transitions takes L + 1 rows; the last, which is no start, holds the episode's last observation
    alone. A buffer may keep these arrays as they are. Episode i of an agent with memory is a view of them: with
    ``a, b = starts[i], stops[i]`` its observations are ``observations[a:b]``, its actions ``actions[a : b - 1]``.
    """

    starts: Array  # (N,), each episode's first row
    stops: Array  # (N,), the row after each episode's last

    @property
    def arrays(self) -> list[Array]:
        """All there is, each number once."""
        return [*self.columns, self.starts, self.stops]

    def showing(self, observations: Array) -> TransitionTable:
        """The same transitions with other `observations` (R, *obs)."""
        if observations is self.observations:
            return self
        storage = Storage.of(len(observations), observations.shape[1:], observations.dtype, self.actions.shape[1])
        for column, array in zip(storage.columns, (observations, *self.columns[1:]), strict=True):
            column[...] = array
        return replace(self, **vars(storage))


class Episode(NamedTuple):
    """An episode of L steps."""

    frames: np.ndarray  # (L + frame_stack, *frame)
    actions: np.ndarray  # (L, A)
    rewards: np.ndarray  # (L, 1)
    terminated: bool
    observations: np.ndarray  # (L+1, *obs), or of stacks (L+1, frame_stack, *frame): a view of the frames
    group: int  # of the episodes that are saved together

    @property
    def stored(self) -> tuple[np.ndarray, ...]:
        """All there is, each number once."""
        return self.frames, self.actions, self.rewards


class RecordedEpisodes(Sequence[Episode]):
    """Episodes of recorded data; each is a view of the rows, made when it is asked for.

    Args:
        rows: of all episodes.
    """

    def __init__(self, rows: TransitionTable) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows.starts)

    @property
    def lengths(self) -> np.ndarray:
        """(N,), steps of each."""
        return self.rows.stops - self.rows.starts - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all that they store."""
        per_step = self.rows.actions[:1].nbytes + self.rows.rewards[:1].nbytes
        return self.rows.observations.nbytes + int(self.lengths.sum()) * per_step

    def __getitem__(self, number: Any) -> Any:
        start, stop = int(self.rows.starts[number]), int(self.rows.stops[number])
        frames, steps = self.rows.observations[start:stop], slice(start, stop - 1)
        is_terminated = bool(self.rows.terminations[stop - 2, 0])
        return Episode(frames, self.rows.actions[steps], self.rows.rewards[steps], is_terminated, frames, 0)


@dataclass
class PartialEpisode:
    """An episode under way."""

    frames: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as tensors; None for what has no steps yet."""
        frames, actions = (torch.from_numpy(np.stack(a)) if a else None for a in (self.frames, self.actions))
        return {"frames": frames, "actions": actions, "rewards": list(self.rewards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what `state` held."""
        self.frames, self.actions = ([] if state[n] is None else list(state[n].numpy()) for n in ("frames", "actions"))
        self.rewards = list(state["rewards"])
