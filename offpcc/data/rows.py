"""How transitions are stored."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from offpcc.data.columns import Array


class Storage(NamedTuple):
    """Rows ``o_t, a_t, r_t, d_t``, one after another, so that a transition's next observation is the following row's.

    A row that begins no transition, such as that of an episode's last observation, is no start, and its action, reward
    and termination are 0. Observations that are vectors lie beside the rest, so that one look-up finds all of a row.
    Before the first row and behind the last there is room for copies of those that a ring has there.
    """

    packed: Array  # (R, [O +] A + 2), float32: what follows, as columns; images are apart
    observations: Array  # (R, *obs)
    actions: Array  # (R, A)
    rewards: Array  # (R, 1)
    terminations: Array  # (R, 1)
    is_start: Array  # (R,), bool
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
        return cls(
            packed,
            packed[:, :width].reshape(shape) if dtype == np.float32 else np.zeros(shape, dtype),
            packed[:, width:-2],
            packed[:, -2:-1],
            packed[:, -1:],
            np.zeros(num_rows, np.bool_),
            with_edges,
        )

    @property
    def columns(self) -> tuple[Array, ...]:
        """All there is, each number once."""
        return self.observations, self.actions, self.rewards, self.terminations, self.is_start


class Rows(NamedTuple):
    """Transitions as `ReplayBuffer` stores them, of all N episodes one after another.

    An episode of L transitions takes L + 1 rows; the last, which is no start, holds the episode's last observation
    alone. A buffer may keep these arrays as they are. Episode i of an agent with memory is a view of them: with
    ``a, b = starts[i], stops[i]`` its observations are ``observations[a:b]``, its actions ``actions[a : b - 1]``.
    """

    storage: Storage
    starts: Array  # (N,), each episode's first row
    stops: Array  # (N,), the row after each episode's last

    @property
    def observations(self) -> Array:
        """(R, *obs)."""
        return self.storage.observations

    @property
    def actions(self) -> Array:
        """(R, A)."""
        return self.storage.actions

    @property
    def rewards(self) -> Array:
        """(R, 1)."""
        return self.storage.rewards

    @property
    def terminations(self) -> Array:
        """(R, 1)."""
        return self.storage.terminations

    @property
    def is_start(self) -> Array:
        """(R,), bool."""
        return self.storage.is_start

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All there is, each number once."""
        return (*self.storage.columns, self.starts, self.stops)

    def showing(self, observations: Array) -> Rows:
        """The same transitions with other `observations` (R, *obs)."""
        if observations is self.observations:
            return self
        storage = Storage.of(len(observations), observations.shape[1:], observations.dtype, self.actions.shape[1])
        for column, array in zip(storage.columns, (observations, *self.storage.columns[1:]), strict=True):
            column[...] = array
        return self._replace(storage=storage)
