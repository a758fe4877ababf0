"""`Dataset`: recorded steps of all episodes, concatenated."""

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
    """A dataset of recorded steps. `StepArrays` documents its fields and which steps are transitions."""

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
        """Make a dataset from arrays of all steps, concatenated. Arrays that need no conversion are not copied.

        Args:
            observations: (S, *obs).
            actions: (S, A).
            rewards: (S,).
            terminations: (S,), True if the task ended after the step.
            truncations: (S,), True if the episode was truncated after the step, by a time limit or otherwise.
            next_observations: (S, *obs). An episode is cut where they differ from the following row.
            terminals: D4RL's name for `terminations`.
            timeouts: D4RL's name for `truncations`.
            max_episode_steps: the time limit of the recorded environment, if there are no truncations.
            action_range: lowest and highest action of the recording, which are scaled to -1 and 1. By default the
                bounds of the environment that the agent is trained for.
            name: the name for messages.

        Raises:
            UserError: an array is missing, has the wrong shape or is not numeric.
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
        """Make a dataset from episodes. Each has one more observation than actions: the first, and one per action.

        For example, an episode of 200 steps that a time limit ended, with observations of shape (3,) and actions of
        shape (1,)::

            episode = {
                "observations": np.zeros((201, 3), np.float32),  # the last one follows the last step
                "actions": np.zeros((200, 1), np.float32),
                "rewards": np.zeros(200, np.float32),
                "terminated": False,  # True if the task ended; False for a time limit
            }
            data = offpcc.Dataset.from_episodes([episode])

        Args:
            episodes: episodes of L steps each. An episode is a mapping with the keys ``observations`` (L+1, *obs),
                ``actions`` (L, A), ``rewards`` (L,) and ``terminated``; ``terminations`` or ``terminals`` (L,) may
                replace ``terminated``. Or it is a sequence ``(observations, actions, rewards, terminated)``.
            action_range: see `from_arrays`.
            name: the name for messages.
            source: the origin of the data.
            metadata: metadata of the whole dataset.

        Raises:
            UserError: an array is missing, has the wrong shape or is not numeric.
        """
        return Dataset(**vars(join(episodes, DatasetInfo(name, source, action_range=action_range, metadata=metadata))))

    def select(self, episodes: Sequence[int] | Array) -> Dataset:
        """Return a dataset of the given episodes, in the given order. A contiguous range is not copied.

        Raises:
            UserError: no episode is given, or one does not exist.
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
        """Return as few whole episodes from the start as hold this part of the steps, rounded up; all of them for 1.

        Raises:
            UserError: `part` is not in (0, 1].
        """
        if not 0.0 < part <= 1.0:
            raise UserError(f"{self.name}: a fraction of {part} is wanted; it has to be above 0 and at most 1")
        wanted = math.ceil(part * self.num_steps - 1e-6)  # as floats, 0.1 * 30 is above 3
        return self.select(np.arange(int(np.searchsorted(self.stops, wanted)) + 1))

    def with_range(self, action_range: Range | None) -> Dataset:
        """Return the dataset with these action bounds, unless it already has bounds; see `from_arrays`.

        Raises:
            UserError: the bounds do not fit the actions.
        """
        if action_range is None or self.action_range is not None:
            return self
        bounds = checked_range(action_range, self.actions.shape[1], self.name)
        return replace(self, action_range=bounds, discrete_actions=False)

    def unit_actions(self, action_bounds: Range | None = None) -> Array:
        """Return a new array of actions for agents, (S, A) in [-1, 1]. Discrete actions stay unchanged.

        Actions are scaled by `action_range`, else by `action_bounds`, else not at all. Then they are clipped.

        Args:
            action_bounds: lowest and highest action of the environment that the agent is trained for.

        Raises:
            UserError: the bounds do not fit the actions.
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
        """Return notices about the scaling of actions in `rows`.

        Args:
            action_bounds: see `unit_actions`.

        Raises:
            UserError: the bounds do not fit the actions.
        """
        if self.discrete_actions:
            text = "actions are whole numbers, so they are taken to be discrete: agents for continuous control cannot"
            return [Notice("choices", f"{text} learn from them; give action_range if they are not")]
        return action_warnings(self.actions, self.action_range, action_bounds, self.name)

    def rows(self, action_bounds: Range | None = None) -> TransitionTable:
        """Return all transitions in the format of the buffers. Episodes without a transition are left out.

        Args:
            action_bounds: see `unit_actions`.

        Raises:
            UserError: the bounds do not fit the actions.
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
        offsets = np.cumsum(taken) - taken - self.starts  # row number minus step number, per episode
        mask = self.is_transition
        for steps in blocks(self.observations):  # in blocks, as a copy of everything would double the memory
            numbers = np.arange(steps.start, steps.stop)[mask[steps]]
            rows = numbers + offsets[np.searchsorted(self.stops, numbers, side="right")]
            storage.observations[rows] = self.observations[numbers]
            storage.actions[rows] = self._in_units(self.actions[numbers], action_bounds)
            storage.rewards[rows, 0] = self.rewards[numbers]
            storage.terminations[rows, 0] = self.terminations[numbers]
        last = np.cumsum(taken) - 1  # row of each kept episode's last observation
        for part in blocks(self.final_observations):
            storage.observations[last[part][kept[part]]] = self.final_observations[part][kept[part]]
        starts = np.concatenate([[0], stops[:-1]]) if len(stops) else stops
        return TransitionTable(**vars(storage), starts=starts, stops=stops)
