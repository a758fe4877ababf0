"""Recorded data: the steps of all episodes one after another, checked once, and laid out as buffers store them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offpcc.data.actions import checked_range, in_units, told_of_actions
from offpcc.data.assembling import About, assemble, join
from offpcc.data.columns import REQUIRED, Array, Column, Range
from offpcc.data.infos import StepInfos
from offpcc.data.notices import Notice
from offpcc.data.rows import Rows, Storage
from offpcc.errors import UserError


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
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
        observations: (S, *obs), float32, or uint8 for images.
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

    def __repr__(self) -> str:
        observations, actions = self.observations, self.actions
        return (
            f"<Dataset {self.name!r} from {self.source}: num_transitions={self.num_transitions:,}, "
            f"num_episodes={self.num_episodes:,}, observations={observations.shape} {observations.dtype}, "
            f"actions={actions.shape} {actions.dtype}>"
        )

    @staticmethod
    def from_arrays(
        *,
        observations: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        terminations: ArrayLike | None = None,
        truncations: ArrayLike | None = None,
        next_observations: ArrayLike | None = None,
        terminals: ArrayLike | None = None,
        timeouts: ArrayLike | None = None,
        max_episode_steps: int | None = None,
        action_range: Range | None = None,
        name: str = "data",
    ) -> Dataset:
        """Data of all steps one after another; arrays that need no conversion are not copied.

        Args:
            observations: (S, *obs).
            actions: (S, A).
            rewards: (S,).
            terminations: (S,), the task ended after the step.
            truncations: (S,), the episode was cut after the step, by a time limit or otherwise.
            next_observations: (S, *obs); where they are not the following row inside an episode, it is cut there.
            terminals: another name of `terminations`, D4RL's.
            timeouts: another name of `truncations`, D4RL's.
            max_episode_steps: where there are no truncations, the time limit that the recorder had.
            action_range: lowest and highest action of the recording, which are to stand for -1 and 1; if it is not
                given, the bounds of the environment are that the agent is for.
            name: for messages.

        Raises:
            UserError: something is missing, does not fit or is no number.
        """
        given = {
            "observations": observations, "actions": actions, "rewards": rewards, "terminations": terminations,
            "truncations": truncations, "next_observations": next_observations, "terminals": terminals,
            "timeouts": timeouts,
        }  # fmt: skip
        columns: dict[str, Column] = {key: np.asarray(value) for key, value in given.items() if value is not None}
        about = About(name, max_episode_steps=max_episode_steps, action_range=action_range)
        return Dataset(**assemble(columns, about))

    @staticmethod
    def from_episodes(
        episodes: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        action_range: Range | None = None,
        name: str = "data",
        source: str = "episodes",
        metadata: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Episodes, each with one observation more than it has actions.

        Args:
            episodes: of L steps each: ``(observations (L+1, *obs), actions (L, A), rewards (L,), terminated)`` or a
                mapping with the keys ``observations``, ``actions``, ``rewards`` and ``terminated``, for which
                ``terminations`` or ``terminals`` (L,) may stand.
            action_range: see `from_arrays`.
            name: for messages.
            source: where they came from.
            metadata: about the whole.

        Raises:
            UserError: something is missing, does not fit or is no number.
        """
        return Dataset(**join(episodes, About(name, source, action_range=action_range, metadata=metadata)))

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
        """Bytes of the arrays that `rows` makes."""
        numbers = self.observations[0].nbytes + 4 * self.actions.shape[1] + 4 + 4 + 1  # as in `Storage`
        num_episodes = int((self.lengths > ~self.last_is_transition).sum())
        return int(numbers) * (self.num_transitions + num_episodes)

    def select(self, episodes: Sequence[int] | Array) -> Dataset:
        """The data of these episodes, by number, in this order; neighbours are not copied.

        Raises:
            UserError: there is none, or one that does not exist.
        """
        chosen = np.asarray(episodes, np.int64)
        if not chosen.size or chosen.min() < 0 or chosen.max() >= self.num_episodes:
            raise UserError(
                f"{self.name}: episodes {chosen.tolist()[:10]} are wanted, but there are {self.num_episodes}, numbered "
                f"from 0; choose one or more of them"
            )
        starts, stops = self.starts[chosen], self.stops[chosen]
        if (np.diff(chosen) == 1).all():
            steps: slice | Array = slice(int(starts[0]), int(stops[-1]))
        else:
            steps = np.concatenate([np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)])
        part = slice(int(chosen[0]), int(chosen[-1]) + 1) if isinstance(steps, slice) else chosen
        return replace(
            self,
            **{name: getattr(self, name)[steps] for name in (*REQUIRED, "truncations")},
            stops=np.cumsum(stops - starts),
            final_observations=self.final_observations[part],
            last_is_transition=self.last_is_transition[part],
            is_whole=self.is_whole[part],
            infos=StepInfos(self.infos, steps, self.num_steps) if self.infos else self.infos,
        )

    def fraction(self, part: float) -> Dataset:
        """As few whole episodes from the start as hold this part of the steps; all of them for 1.

        Raises:
            UserError: `part` is no number above 0 and at most 1.
        """
        if not 0.0 < part <= 1.0:
            raise UserError(f"{self.name}: a fraction of {part} is wanted; it has to be above 0 and at most 1")
        wanted = math.ceil(part * self.num_steps - 1e-6)  # 0.1 * 30 is above 3
        return self.select(np.arange(int(np.searchsorted(self.stops, wanted)) + 1))

    def with_range(self, action_range: Range | None) -> Dataset:
        """The same data with these bounds of actions, where it has none of its own; see `from_arrays`.

        Raises:
            UserError: they do not fit.
        """
        if action_range is None or self.action_range is not None:
            return self
        bounds = checked_range(action_range, self.actions.shape[1], self.name)
        return replace(self, action_range=bounds, discrete_actions=False)

    def unit_actions(self, action_bounds: Range | None = None) -> Array:
        """Actions as agents have them, (S, A) in [-1, 1], anew; choices are left as they are.

        They are scaled by `action_range`, else by `action_bounds`, else taken as they are; and clipped.

        Args:
            action_bounds: lowest and highest action of the environment that the data is for.

        Raises:
            UserError: bounds do not fit the actions.
        """
        if self.discrete_actions:
            return self.actions.copy()
        given = action_bounds if self.action_range is None else self.action_range
        bounds = None if given is None else checked_range(given, self.actions.shape[1], self.name)
        scaled = in_units(self.actions, bounds)
        return np.clip(scaled, -1.0, 1.0, out=scaled)

    def told_of_actions(self, action_bounds: Range | None = None) -> list[Notice]:
        """What a reader should be told of actions that `rows` scales.

        Args:
            action_bounds: see `unit_actions`.

        Raises:
            UserError: bounds do not fit the actions.
        """
        if self.discrete_actions:
            text = "actions are whole numbers, so they are taken to be discrete: agents for continuous control cannot"
            return [Notice("choices", f"{text} learn from them; give action_range if they are not")]
        return told_of_actions(self.actions, self.action_range, action_bounds, self.name)

    def rows(self, action_bounds: Range | None = None) -> Rows:
        """All transitions as buffers store them; episodes without one are left out.

        Args:
            action_bounds: see `unit_actions`.

        Raises:
            UserError: bounds do not fit the actions.
        """
        mask = self.is_transition
        is_every = mask.all()
        lengths = self.lengths - ~self.last_is_transition
        kept = lengths > 0
        stops = np.cumsum(lengths[kept] + 1)
        is_start = np.ones(stops[-1] if len(stops) else 0, np.bool_)
        is_start[stops - 1] = False

        shape = self.observations.shape[1:]
        storage = Storage.of(len(is_start), shape, self.observations.dtype, self.actions.shape[1])
        storage.is_start[:] = is_start
        for column, array in (
            (storage.observations, self.observations),
            (storage.actions, self.unit_actions(action_bounds)),
            (storage.rewards, self.rewards[:, None]),
            (storage.terminations, self.terminations[:, None]),
        ):
            column[is_start] = array if is_every else array[mask]
        storage.observations[stops - 1] = self.final_observations[kept]
        return Rows(storage, np.concatenate([[0], stops[:-1]]) if len(stops) else stops, stops)
