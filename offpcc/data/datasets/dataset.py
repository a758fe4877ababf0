"""`Dataset`: recorded steps, all episodes one after another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offpcc.data.buffers.storage import Storage, TransitionTable
from offpcc.data.datasets.actions import action_warnings, checked_range, in_units
from offpcc.data.datasets.build import DatasetInfo, assemble, join
from offpcc.data.datasets.columns import REQUIRED, Array, Column, Range, as_column, blocks
from offpcc.data.datasets.metadata import Notice, StepInfos
from offpcc.data.datasets.steps import StepArrays
from offpcc.utils.errors import UserError


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(StepArrays):
    """Recorded data; its fields, and what counts as a transition, are told by `StepArrays`."""

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
        columns: dict[str, Column] = {
            key: as_column(value, f"{name}: {key}") for key, value in given.items() if value is not None
        }
        about = DatasetInfo(name, max_episode_steps=max_episode_steps, action_range=action_range)
        return Dataset(**vars(assemble(columns, about)))

    @staticmethod
    def from_episodes(
        episodes: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        action_range: Range | None = None,
        name: str = "data",
        source: str = "episodes",
        metadata: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Episodes, each with one observation more than it has actions: the first, and one after every action.

        One of 200 steps, with observations of 3 numbers and actions of 1, which a time limit ended::

            episode = {
                "observations": np.zeros((201, 3), np.float32),  # the last one is what the last step led to
                "actions": np.zeros((200, 1), np.float32),
                "rewards": np.zeros(200, np.float32),
                "terminated": False,  # True if the task ended; a time limit is no end of the task
            }
            data = offpcc.Dataset.from_episodes([episode])

        Args:
            episodes: of L steps each: a mapping with the keys ``observations`` (L+1, *obs), ``actions`` (L, A),
                ``rewards`` (L,) and ``terminated``, for which ``terminations`` or ``terminals`` (L,) may stand; or
                these four in this order, ``(observations, actions, rewards, terminated)``.
            action_range: see `from_arrays`.
            name: for messages.
            source: where they came from.
            metadata: about the whole.

        Raises:
            UserError: something is missing, does not fit or is no number.
        """
        return Dataset(**vars(join(episodes, DatasetInfo(name, source, action_range=action_range, metadata=metadata))))

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
        is_part = len(np.unique(chosen)) < self.num_episodes
        part = slice(int(chosen[0]), int(chosen[-1]) + 1) if isinstance(steps, slice) else chosen
        return replace(
            self,
            **{name: getattr(self, name)[steps] for name in (*REQUIRED, "truncations")},
            stops=np.cumsum(stops - starts),
            final_observations=self.final_observations[part],
            last_is_transition=self.last_is_transition[part],
            is_whole=self.is_whole[part],
            notices=tuple(notice.in_part() for notice in self.notices) if is_part else self.notices,
            infos=StepInfos(self.infos, steps, self.num_steps) if self.infos else self.infos,
        )

    def fraction(self, part: float) -> Dataset:
        """As few whole episodes from the start as hold this part of the steps, rounded up; all of them for 1.

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
        return self._in_units(self.actions, action_bounds)

    def _in_units(self, actions: Array, action_bounds: Range | None) -> Array:
        if self.discrete_actions:
            return actions.copy()
        given = action_bounds if self.action_range is None else self.action_range
        bounds = None if given is None else checked_range(given, actions.shape[1], self.name)
        scaled = in_units(actions, bounds)
        return np.clip(scaled, -1.0, 1.0, out=scaled)

    def action_warnings(self, action_bounds: Range | None = None) -> list[Notice]:
        """What a reader should be told of actions that `rows` scales.

        Args:
            action_bounds: see `unit_actions`.

        Raises:
            UserError: bounds do not fit the actions.
        """
        if self.discrete_actions:
            text = "actions are whole numbers, so they are taken to be discrete: agents for continuous control cannot"
            return [Notice("choices", f"{text} learn from them; give action_range if they are not")]
        return action_warnings(self.actions, self.action_range, action_bounds, self.name)

    def rows(self, action_bounds: Range | None = None) -> TransitionTable:
        """All transitions as buffers store them; episodes without one are left out.

        Args:
            action_bounds: see `unit_actions`.

        Raises:
            UserError: bounds do not fit the actions.
        """
        lengths = self.lengths - ~self.last_is_transition
        kept = lengths > 0
        stops = np.cumsum(lengths[kept] + 1)
        shape = self.observations.shape[1:]
        num_rows = int(stops[-1]) if len(stops) else 0
        storage = Storage.of(num_rows, shape, self.observations.dtype, self.actions.shape[1])
        storage.is_start[:] = True
        storage.is_start[stops - 1] = False

        taken = np.where(kept, lengths + 1, 0)
        offsets = np.cumsum(taken) - taken - self.starts  # from a step to its row
        mask = self.is_transition
        for steps in blocks(self.observations):  # a copy of all of them would take as much room again
            numbers = np.arange(steps.start, steps.stop)[mask[steps]]
            rows = numbers + offsets[np.searchsorted(self.stops, numbers, side="right")]
            storage.observations[rows] = self.observations[numbers]
            storage.actions[rows] = self._in_units(self.actions[numbers], action_bounds)
            storage.rewards[rows, 0] = self.rewards[numbers]
            storage.terminations[rows, 0] = self.terminations[numbers]
        last = np.cumsum(taken) - 1  # row of each episode's last observation, if it is kept
        for part in blocks(self.final_observations):
            storage.observations[last[part][kept[part]]] = self.final_observations[part][kept[part]]
        starts = np.concatenate([[0], stops[:-1]]) if len(stops) else stops
        return TransitionTable(**vars(storage), starts=starts, stops=stops)
