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
    """S recorded steps of E episodes, concatenated.

    An episode ends after a terminated or truncated step, and at the end of the recording. The next observation of a
    step is the observation of the following row; that of an episode's last step is in `final_observations`. For a
    recording without ``next_observations``:

    * The last step of a truncated episode is not a transition, because its next observation is unknown. The step
      counts in `lengths` and `returns`, and its observation is the episode's final observation.
    * The last step of a terminated episode is a transition, because the value of its next observation is not used.
      The observation of the step, which is a valid one, takes the place of the next observation.

    Some recorders read the last next observation after the reset, so it is the first one of the next episode. No step
    leads there. So the last step of an episode that such a recorder truncated is not a transition, either.

    Attributes:
        observations: (S, *obs), float32; or uint8 for recorded bytes with more than one axis, such as images.
        actions: (S, A), float32, as recorded, in the recorder's units.
        rewards: (S,), float32.
        terminations: (S,), bool: True if the task ended; False for a time limit.
        truncations: (S,), bool: True if the episode was truncated, or the recording jumps.
        stops: (E,), the index after each episode's last step.
        final_observations: (E, *obs), the last observation of each episode.
        last_is_transition: (E,), whether the next observation of an episode's last step is known, or not needed.
        is_whole: (E,), whether the episode ended before the recording did.
        action_range: lowest and highest action, which are scaled to -1 and 1; None if neither data nor user gives them.
        discrete_actions: True if actions are discrete choices. They are not scaled, and no agent here learns from them.
        notices: notices for users of the dataset.
        name: the name of the dataset, for messages.
        source: the origin of the dataset.
        infos: other recorded arrays, usually one row per step; read on access.
        metadata: recorded facts about the whole dataset; read on access.
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
        """S, the number of steps."""
        return len(self.rewards)

    @property
    def num_episodes(self) -> int:
        """E, the number of episodes."""
        return len(self.stops)

    @property
    def num_transitions(self) -> int:
        """The number of steps whose next observation is known, or not needed."""
        return self.num_steps - int((~self.last_is_transition).sum())

    @property
    def starts(self) -> Array:
        """(E,), the index of each episode's first step."""
        return np.concatenate([[0], self.stops[:-1]])

    @property
    def lengths(self) -> Array:
        """(E,), the number of steps of each episode."""
        return np.diff(self.stops, prepend=0)

    @property
    def episodes(self) -> list[tuple[int, int]]:
        """The index of each episode's first step, and the index after its last step."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    @property
    def returns(self) -> Array:
        """(E,), float64: the sum of all recorded rewards, including those of steps that are not transitions."""
        return np.add.reduceat(self.rewards, self.starts, dtype=np.float64)

    @property
    def whole_returns(self) -> Array:
        """(W,), float64: the returns of whole episodes, or of all episodes if none is whole."""
        returns = self.returns
        return returns[self.is_whole] if self.is_whole.any() else returns

    @property
    def is_transition(self) -> Array:
        """(S,), bool: whether a step is a transition."""
        mask = np.ones(self.num_steps, np.bool_)
        mask[self.stops - 1] = self.last_is_transition
        return mask

    @property
    def next_observations(self) -> Array:
        """(S, *obs), a new array. For a step that is not a transition, it holds the observation of the step."""
        after = np.empty_like(self.observations)
        after[:-1] = self.observations[1:]
        after[self.stops - 1] = self.final_observations
        return after

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    @property
    def bytes_of_rows(self) -> int:
        """The size in bytes of the arrays that `Dataset.rows` returns."""
        num_episodes = int((self.lengths > ~self.last_is_transition).sum())
        one = bytes_per_row(self.observations[:1].nbytes, self.actions.shape[1])
        return one * (self.num_transitions + num_episodes)
