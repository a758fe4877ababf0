"""`StepArrays`: the arrays of a `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offpcc.data.buffers.storage import bytes_per_row
from offpcc.data.datasets.columns import Array, Range
from offpcc.data.datasets.metadata import Notice


@dataclass(frozen=True, eq=False, repr=False)
class StepArrays:
    """S steps of E episodes, one after another, as they were recorded.

    An episode ends after a step that is terminated or truncated, and with the recording. A step's next observation
    is the following row's, an episode's last one is kept beside it. Where a recording has no ``next_observations``

    * the last step of an episode that was cut is no transition, for nothing tells what it led to: it counts in
      `lengths` and `returns`, and its observation is the last that is known;
    * the last step of an episode that terminated is one: no value is taken of what follows it, and the observation
      before it, which is known to be an observation, stands in that place.

    Some recorders look after the reset, so that an episode's last next observation is the first one of the next. No
    step leads there: where such a recorder cut an episode, its last step is no transition either.

    Attributes:
        observations: (S, *obs), float32; or uint8, if bytes of more than one axis were recorded, as images are.
        actions: (S, A), float32, as they were recorded: in units of the recorder's own.
        rewards: (S,), float32.
        terminations: (S,), bool: the task ended; a time limit is False.
        truncations: (S,), bool: the episode was cut, or the recording jumps.
        stops: (E,), one after each episode's last step.
        final_observations: (E, *obs), the last observation of each episode.
        last_is_transition: (E,), whether the next observation of an episode's last step is known, or not needed.
        is_whole: (E,), whether it ended before the recording did.
        action_range: lowest and highest action, which stand for -1 and 1, if the data or its user tells them.
        discrete_actions: actions are numbers of choices, not to be scaled or learned from here.
        notices: what a reader of the data should be told.
        name: of the data set, for messages.
        source: where it came from.
        infos: what was recorded beside the steps, read when it is asked for.
        metadata: what was recorded about the whole, read when it is asked for.
    """

    observations: Array
    actions: Array
    rewards: Array
    terminations: Array
    truncations: Array
    stops: Array
    final_observations: Array
    last_is_transition: Array
    is_whole: Array
    action_range: Range | None = None
    discrete_actions: bool = False
    notices: tuple[Notice, ...] = ()
    name: str = "data"
    source: str = "arrays"
    infos: Mapping[str, Array] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """S, all steps."""
        return len(self.rewards)

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.stops)

    @property
    def num_transitions(self) -> int:
        """Steps whose next observation is known, or not needed."""
        return self.num_steps - int((~self.last_is_transition).sum())

    @property
    def starts(self) -> Array:
        """(E,), each episode's first step."""
        return np.concatenate([[0], self.stops[:-1]])

    @property
    def lengths(self) -> Array:
        """(E,), steps of each episode."""
        return np.diff(self.stops, prepend=0)

    @property
    def episodes(self) -> list[tuple[int, int]]:
        """First step of each episode, and the one after its last."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    @property
    def returns(self) -> Array:
        """(E,), float64: the sum of every recorded reward, those of steps that are no transitions too."""
        return np.add.reduceat(self.rewards, self.starts, dtype=np.float64)

    @property
    def whole_returns(self) -> Array:
        """(W,), float64: the returns of whole episodes; where there is none, of all."""
        returns = self.returns
        return returns[self.is_whole] if self.is_whole.any() else returns

    @property
    def is_transition(self) -> Array:
        """(S,), bool."""
        mask = np.ones(self.num_steps, np.bool_)
        mask[self.stops - 1] = self.last_is_transition
        return mask

    @property
    def next_observations(self) -> Array:
        """(S, *obs), made anew; where a step is no transition, its own observation."""
        after = np.empty_like(self.observations)
        after[:-1] = self.observations[1:]
        after[self.stops - 1] = self.final_observations
        return after

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    @property
    def bytes_of_rows(self) -> int:
        """Bytes of the arrays that `Dataset.rows` makes."""
        num_episodes = int((self.lengths > ~self.last_is_transition).sum())
        one = bytes_per_row(self.observations[:1].nbytes, self.actions.shape[1])
        return one * (self.num_transitions + num_episodes)
