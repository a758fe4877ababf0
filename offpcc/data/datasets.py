"""Recorded data: the steps of all episodes one after another, checked once, and laid out as buffers store them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from offpcc.data.columns import (
    REQUIRED,
    Array,
    Column,
    Range,
    check_room,
    check_shapes,
    read_actions,
    read_flags,
    read_last_observations,
    read_numbers,
    time_limits,
    with_our_names,
)
from offpcc.errors import UserError


class Rows(NamedTuple):
    """Transitions as `ReplayBuffer` stores them, of all N episodes one after another.

    An episode of L transitions takes L + 1 rows, ``o_t, a_t, r_t, d_t``, so that a transition's next observation is
    the following row's; the last row, which is no start, holds the episode's last observation alone. A buffer may
    keep these arrays as they are. Episode i of an agent with memory is a view of them: with
    ``a, b = starts[i], stops[i]`` its observations are ``observations[a:b]``, its actions ``actions[a : b - 1]``.
    """

    observations: Array  # (R, *obs)
    actions: Array  # (R, A)
    rewards: Array  # (R, 1)
    terminations: Array  # (R, 1), bool
    is_start: Array  # (R,), bool
    starts: Array  # (N,), each episode's first row
    stops: Array  # (N,), the row after each episode's last


class StepInfos(Mapping[str, Array]):
    """What was recorded beside some of the steps, read when it is asked for.

    Args:
        recorded: of all steps.
        steps: those that are wanted.
        num_steps: of all steps; arrays of another length tell of no steps, and stay whole.
    """

    def __init__(self, recorded: Mapping[str, Array], steps: slice | Array, num_steps: int) -> None:
        self.recorded, self.steps, self.num_steps = recorded, steps, num_steps

    def __getitem__(self, name: str) -> Array:
        array = np.asarray(self.recorded[name])
        return array[self.steps] if array.ndim and len(array) == self.num_steps else array

    def __iter__(self) -> Iterator[str]:
        return iter(self.recorded)

    def __len__(self) -> int:
        return len(self.recorded)


@dataclass(frozen=True, eq=False)
class Dataset:
    """S steps of E episodes, one after another, as they were recorded.

    An episode ends after a step that is terminated or truncated, and with the recording. A step's next observation
    is the following row's, an episode's last one is kept beside it. Where a recording has no ``next_observations``

    * the last step of an episode that was cut is no transition, for nothing tells what it led to: it counts in
      `lengths` and `returns`, and its observation is the last that is known;
    * the last step of an episode that terminated is one: no value is taken of what follows it, and the observation
      before it, which is known to be an observation, stands in that place.

    Attributes:
        observations: (S, *obs), float32, or uint8 for images.
        actions: (S, A), float32, in [-1, 1] unless they are discrete.
        rewards: (S,), float32.
        terminations: (S,), bool: the task ended; a time limit is False.
        truncations: (S,), bool: the episode was cut, or the recording jumps.
        stops: (E,), one after each episode's last step.
        final_observations: (E, *obs), the last observation of each episode.
        last_is_transition: (E,), whether the next observation of an episode's last step is known, or not needed.
        name: of the data set, for messages.
        source: where it came from.
        notices: what a reader of the data should be told, each one sentence.
        discrete_actions: actions are numbers of choices, not to be clipped or learned from here.
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
    name: str = "data"
    source: str = "arrays"
    notices: tuple[str, ...] = ()
    discrete_actions: bool = False
    infos: Mapping[str, Array] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

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
            action_range: lowest and highest action of the recording, which become -1 and 1.
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
        return assemble(columns, name=name, max_episode_steps=max_episode_steps, action_range=action_range)

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
        read = [_read_episode(episode, f"{name}, episode {number}") for number, episode in enumerate(episodes)]
        if not read:
            raise UserError(f"{name}: there are no episodes; give one or more")
        for number, episode in enumerate(read):
            for part in ("observations", "actions"):
                here, first = getattr(episode, part), getattr(read[0], part)
                if here.shape[1:] != first.shape[1:] or here.dtype != first.dtype:
                    raise UserError(
                        f"{name}, episode {number}: {part} of shape {here.shape[1:]} ({here.dtype}), but episode 0 has "
                        f"{first.shape[1:]} ({first.dtype}); all are to be alike"
                    )
        lengths = np.array([len(episode.actions) for episode in read])
        stops = np.cumsum(lengths)
        terminated = np.array([episode.terminated for episode in read])
        terminations, truncations = np.zeros((2, stops[-1]), np.bool_)
        terminations[stops - 1], truncations[stops - 1] = terminated, ~terminated
        actions, discrete, notices = read_actions(
            np.concatenate([episode.actions for episode in read]), name, action_range
        )
        return Dataset(
            observations=np.concatenate([episode.observations[:-1] for episode in read]),
            actions=actions,
            rewards=np.concatenate([episode.rewards for episode in read]),
            terminations=terminations,
            truncations=truncations,
            stops=stops,
            final_observations=np.stack([episode.observations[-1] for episode in read]),
            last_is_transition=np.ones(len(read), np.bool_),
            name=name,
            source=source,
            notices=tuple(notices),
            discrete_actions=discrete,
            metadata=metadata or {},
        )

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

    def rows(self) -> Rows:
        """All transitions as buffers store them; episodes without one are left out."""
        mask = self.is_transition
        whole = mask.all()
        lengths = self.lengths - ~self.last_is_transition
        kept = lengths > 0
        stops = np.cumsum(lengths[kept] + 1)
        is_start = np.ones(stops[-1] if len(stops) else 0, np.bool_)
        is_start[stops - 1] = False

        def placed(array: Array) -> Array:
            out = np.zeros((len(is_start), *array.shape[1:]), array.dtype)
            out[is_start] = array if whole else array[mask]
            return out

        observations = placed(self.observations)
        observations[stops - 1] = self.final_observations[kept]
        return Rows(
            observations,
            placed(self.actions),
            placed(self.rewards[:, None]),
            placed(self.terminations[:, None]),
            is_start,
            np.concatenate([[0], stops[:-1]]) if len(stops) else stops,
            stops,
        )


def assemble(
    columns: dict[str, Column],
    *,
    name: str,
    source: str = "arrays",
    max_episode_steps: int | None = None,
    action_range: Range | None = None,
    default_action_range: Range | None = None,
    infos: Mapping[str, Array] | None = None,
    metadata: Mapping[str, Any] | None = None,
    found: Iterable[str] = (),
) -> Dataset:
    """Check columns and read them; see `Dataset.from_arrays`. Each is forgotten once it is read.

    Lowest and highest action are those that the `metadata` tells, as recordings of offpcc do, else `action_range`,
    else for actions that are no whole numbers `default_action_range`.

    Raises:
        UserError: something is missing, does not fit, is no number, or is too large for this machine.
    """
    columns = with_our_names(columns, name, found)
    num_steps = check_shapes(columns, name)
    check_room(columns, name)
    terminations = read_flags(columns.pop("terminations"), f"{name}: terminations")
    notices = []
    if "truncations" in columns:
        truncations = read_flags(columns.pop("truncations"), f"{name}: truncations")
    else:
        truncations = time_limits(terminations, max_episode_steps)
        notices.append(
            f"there are no truncations (timeouts): episodes are cut after {max_episode_steps} steps, which is taken to "
            f"be the time limit"
            if max_episode_steps
            else "there are no truncations (timeouts): an episode that a time limit ended goes on in the next one, "
            "unless max_episode_steps is given"
        )
    rewards = read_numbers(columns.pop("rewards"), f"{name}: rewards").reshape(num_steps)
    if metadata and {"action_low", "action_high"} <= set(metadata):
        action_range = metadata["action_low"], metadata["action_high"]
    elif action_range is None and columns["actions"].dtype.kind == "f":
        action_range = default_action_range
    actions, discrete, action_notices = read_actions(columns.pop("actions"), name, action_range)
    observations = read_numbers(columns.pop("observations"), f"{name}: observations", images=True)
    ends = terminations | truncations
    ends[-1] = True
    if "next_observations" in columns:
        final_observations, jumps = read_last_observations(columns.pop("next_observations"), observations, ends, name)
        truncations[jumps] = ends[jumps] = True
        stops = np.flatnonzero(ends) + 1
        last_is_transition = np.ones(len(stops), np.bool_)
        if len(jumps):
            notices.append(
                f"next_observations are not the following observations at {len(jumps):,} places inside episodes, the "
                f"first at step {jumps[0]:,}: the data is cut there, as by a time limit"
            )
    else:
        stops = np.flatnonzero(ends) + 1
        final_observations, last_is_transition = observations[stops - 1], terminations[stops - 1]
        lost = int((~last_is_transition).sum())
        if lost == num_steps:
            raise UserError(
                f"{name}: there are no next_observations, and every episode is cut after one step, so nothing tells "
                f"what any step led to; give next_observations, or longer episodes"
            )
        if lost:
            notices.append(
                f"there are no next_observations, so nothing tells what the last step of {lost:,} of {len(stops):,} "
                f"episodes led to: it is no transition"
            )
    return Dataset(
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
        stops=stops,
        final_observations=final_observations,
        last_is_transition=last_is_transition,
        name=name,
        source=source,
        notices=(*notices, *action_notices),
        discrete_actions=discrete,
        infos=infos or {},
        metadata=metadata or {},
    )


class _Episode(NamedTuple):
    observations: Array  # (L+1, *obs)
    actions: Array  # (L, A), of the recorder's type and bounds
    rewards: Array  # (L,)
    terminated: bool


def _read_episode(episode: Mapping[str, Any] | Sequence[Any], where: str) -> _Episode:
    if isinstance(episode, Mapping):
        ends = [key for key in ("terminated", "terminations", "terminals") if key in episode]
        keys = ("observations", "actions", "rewards", ends[0] if ends else "terminated")
        missing = [key for key in keys if key not in episode]
        if missing:
            raise UserError(f"{where}: {', '.join(missing)} missing; found: {', '.join(map(str, episode))}")
        given = [episode[key] for key in keys]
    else:
        given = list(episode)
        if len(given) != 4:
            raise UserError(
                f"{where}: {len(given)} parts; an episode is (observations, actions, rewards, terminated), or a "
                f"mapping of these names"
            )
    columns = {key: np.asarray(value) for key, value in zip(REQUIRED, given, strict=True)}
    length = len(columns["actions"]) if columns["actions"].ndim else 0
    count = len(columns["observations"]) if columns["observations"].ndim else 0
    if length == 0 or count != length + 1:
        raise UserError(
            f"{where}: {count} observations and {length} actions; an episode has one observation more than actions, "
            f"and one action at least"
        )
    terminated = columns["terminations"]
    if terminated.ndim == 0:
        terminated = np.append(np.zeros(length - 1, terminated.dtype), terminated)
    check_shapes({**columns, "observations": columns["observations"][:-1], "terminations": terminated}, where)
    flags = read_flags(terminated, f"{where}: terminations")
    if flags[:-1].any():
        raise UserError(f"{where}: it is terminated at step {int(flags.argmax())} of {length}; only its last may be")
    return _Episode(
        read_numbers(columns["observations"], f"{where}: observations", images=True),
        columns["actions"],
        read_numbers(columns["rewards"], f"{where}: rewards").reshape(length),
        bool(flags[-1]),
    )
