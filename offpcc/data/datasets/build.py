"""Construction of the arrays of a `Dataset` from columns or from episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from offpcc.data.datasets.actions import checked_range
from offpcc.data.datasets.boundaries import LastSteps, last_steps, shows_ends, time_limits
from offpcc.data.datasets.columns import (
    REQUIRED,
    Array,
    Column,
    Range,
    SpoiledData,
    as_column,
    bytes_needed,
    bytes_of_ends,
    check_room,
    check_shapes,
    read_flags,
    read_numbers,
    with_our_names,
)
from offpcc.data.datasets.metadata import LazyMetadata, Notice, action_range, is_own_recording
from offpcc.data.datasets.steps import StepArrays
from offpcc.utils.errors import UserError

SAY_HOW_IT_ENDED = "Add terminated: True if the task ended the episode, False if a time limit or anything else cut it"
WHOLE, LARGEST = "whole_episodes", 64  # a key of the metadata, and the largest size of its value in bytes


class DatasetInfo(NamedTuple):
    """Information about a dataset other than its steps; see `Dataset`."""

    name: str
    source: str = "arrays"
    max_episode_steps: int | None = None
    action_range: Range | None = None
    infos: Mapping[str, Array] | None = None
    metadata: Mapping[str, Any] | None = None
    given: str | None = None  # the path or the name that the user gave

    @property
    def label(self) -> str:
        """The name of the data in messages."""
        return self.given or self.name


class _Read(NamedTuple):
    """The arrays of all steps."""

    observations: Array
    actions: Array  # (S, A), as recorded
    rewards: Array
    terminations: Array
    truncations: Array
    has_choices: bool  # actions are integers


def assemble(columns: dict[str, Column], about: DatasetInfo, found: Iterable[str] = ()) -> StepArrays:
    """Check and read columns; see `Dataset.from_arrays`. The reference to a column is dropped once it is read.

    Args:
        columns: the columns by their names, ours or D4RL's.
        about: information other than the columns.
        found: names of other arrays, for messages.

    Raises:
        UserError: a column is missing, has the wrong shape, is not numeric, or is too large for this machine.
    """
    name = about.label
    _check_limit(about.max_episode_steps, name)
    columns = with_our_names(columns, name, found)
    num_steps = check_shapes(columns, name)
    needed = bytes_needed(columns)
    check_room(needed, f"{name}: {num_steps:,} steps")
    terminations = read_flags(columns.pop("terminations"), f"{name}: terminations")
    flags = columns.pop("truncations", None)
    truncations = (
        time_limits(terminations, about.max_episode_steps)
        if flags is None
        else read_flags(flags, f"{name}: truncations")
    )
    is_end = terminations | truncations
    of_ends = bytes_of_ends(columns["observations"], int(is_end.sum()) + 1)
    check_room(needed + of_ends, f"{name}: {num_steps:,} steps, and the last observations of episodes,")
    rewards = read_numbers(columns.pop("rewards"), f"{name}: rewards").reshape(num_steps)
    has_choices = columns["actions"].dtype.kind in "iub"
    actions = read_numbers(columns.pop("actions"), f"{name}: actions").reshape(num_steps, -1)
    observations = read_numbers(columns.pop("observations"), f"{name}: observations", is_observed=True)
    num_whole = _num_whole(about.metadata or {}, name)
    following = columns.pop("next_observations", None)
    last = last_steps(observations, terminations, truncations, following, name, is_sure=num_whole is not None)
    is_whole = is_end[last.stops - 1]
    is_whole[num_whole:] &= num_whole is None
    notices = []
    if flags is None and (about.max_episode_steps or following is None or not shows_ends(last, observations)):
        notices.append(_told_of_time_limits(about.max_episode_steps))
    steps = _Read(observations, actions, rewards, terminations, truncations, has_choices)
    return _checked(steps, last, is_whole, [*notices, *last.notices], about)


def _check_limit(limit: Any, name: str) -> None:
    is_whole_number = isinstance(limit, int | np.integer) and not isinstance(limit, bool)
    if limit is not None and not (is_whole_number and limit > 0):
        raise UserError(f"{name}: max_episode_steps is {limit!r}; it has to be a whole number above 0, or None")


def _num_whole(metadata: Mapping[str, Any], name: str) -> int | None:
    """Return the number of whole episodes in a recording by offpcc; None for other data.

    Raises:
        UserError: the metadata entry is not an integer.
    """
    if not is_own_recording(metadata):
        return None
    told = metadata.within(WHOLE, LARGEST) if isinstance(metadata, LazyMetadata) else metadata[WHOLE]
    if not isinstance(told, int | np.integer):
        raise UserError(f"{name}: metadata/{WHOLE} is no whole number; mend it, or leave it out")
    return max(0, int(told))


def _told_of_time_limits(limit: int | None) -> Notice:
    if limit:
        text = f"episodes are cut after {limit} steps, which is taken to be the time limit"
        return Notice("time limit", f"there are no truncations (timeouts): {text}")
    text = "an episode that a time limit ended goes on in the next one, unless max_episode_steps is given"
    return Notice("no time limits", f"there are no truncations (timeouts): {text}")


def join(episodes: Iterable[Mapping[str, Any] | Sequence[Any]], about: DatasetInfo) -> StepArrays:
    """Check and concatenate episodes; see `Dataset.from_episodes`.

    Raises:
        UserError: an array is missing, has the wrong shape or is not numeric.
    """
    name = about.label
    read = [_read_episode(episode, f"{name}, episode {number}") for number, episode in enumerate(episodes)]
    if not read:
        raise UserError(f"{name}: there are no episodes; give one or more")
    _check_alike(read, name)
    stops = np.cumsum([len(episode.actions) for episode in read])
    terminated = np.array([episode.terminated for episode in read])
    terminations, truncations = np.zeros((2, stops[-1]), np.bool_)
    terminations[stops - 1], truncations[stops - 1] = terminated, ~terminated
    actions = np.concatenate([episode.actions for episode in read])
    steps = _Read(
        np.concatenate([episode.observations[:-1] for episode in read]),
        read_numbers(actions, f"{name}: actions").reshape(len(actions), -1),
        np.concatenate([episode.rewards for episode in read]),
        terminations,
        truncations,
        has_choices=actions.dtype.kind in "iub",
    )
    every = np.ones(len(read), np.bool_)
    last = LastSteps(stops, np.stack([episode.observations[-1] for episode in read]), every, [])
    return _checked(steps, last, every, [], about)


def _check_alike(read: Sequence[_Episode], name: str) -> None:
    for number, episode in enumerate(read):
        for part in ("observations", "actions"):
            here, first = getattr(episode, part), getattr(read[0], part)
            if here.shape[1:] != first.shape[1:] or here.dtype != first.dtype:
                raise UserError(
                    f"{name}, episode {number}: {part} of shape {here.shape[1:]} ({here.dtype}), but episode 0 has "
                    f"{first.shape[1:]} ({first.dtype}); all are to be alike"
                )


def _checked(
    steps: _Read, last: LastSteps, is_whole: Array, notices: Iterable[Notice], about: DatasetInfo
) -> StepArrays:
    name, metadata = about.label, about.metadata or {}
    _check_transitions(last, len(steps.rewards), name)
    told = action_range(metadata, name)
    told = about.action_range if told is None else told
    return StepArrays(
        observations=steps.observations,
        actions=steps.actions,
        rewards=steps.rewards,
        terminations=steps.terminations,
        truncations=steps.truncations,
        stops=last.stops,
        final_observations=last.final_observations,
        last_is_transition=last.is_transition,
        is_whole=is_whole,
        action_range=None if told is None else checked_range(told, steps.actions.shape[1], name),
        discrete_actions=steps.has_choices and told is None,
        notices=tuple(notices),
        name=about.name,
        source=about.source,
        infos=about.infos or {},
        metadata=metadata,
    )


def _check_transitions(last: LastSteps, num_steps: int, name: str) -> None:
    if not num_steps > (~last.is_transition).sum():
        raise SpoiledData(
            f"{name}: every episode is cut after one step, and nothing tells what any of these led to; give "
            f"next_observations from before a reset, or longer episodes"
        )


class _Episode(NamedTuple):
    observations: Array  # (L+1, *obs)
    actions: Array  # (L, A), with the recorder's dtype and bounds
    rewards: Array  # (L,)
    terminated: bool


def _read_episode(episode: Mapping[str, Any] | Sequence[Any], where: str) -> _Episode:
    if isinstance(episode, Mapping):
        ends = [key for key in ("terminated", "terminations", "terminals") if key in episode]
        keys = ("observations", "actions", "rewards", ends[0] if ends else "terminated")
        missing = [key for key in keys if key not in episode]
        if missing:
            found = f"{where}: {', '.join(missing)} missing; found: {', '.join(map(str, episode))}"
            raise UserError(found if ends else f"{found}. {SAY_HOW_IT_ENDED}")
        given = [episode[key] for key in keys]
    else:
        given = list(episode) if isinstance(episode, Iterable) else []
        if len(given) != 4:
            raise UserError(
                f"{where}: {len(given)} parts; an episode is (observations, actions, rewards, terminated), or a "
                f"mapping of these names. {SAY_HOW_IT_ENDED}"
            )
    columns = {key: as_column(value, f"{where}: {key}") for key, value in zip(REQUIRED, given, strict=True)}
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
        read_numbers(columns["observations"], f"{where}: observations", is_observed=True),
        columns["actions"],
        read_numbers(columns["rewards"], f"{where}: rewards").reshape(length),
        bool(flags[-1]),
    )
