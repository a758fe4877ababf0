"""Columns, or episodes, of recorded data put together: what a `Dataset` is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from offpcc.data.columns import (
    REQUIRED,
    Array,
    Column,
    Range,
    check_room,
    check_shapes,
    read_actions,
    read_flags,
    read_numbers,
    with_our_names,
)
from offpcc.data.ends import LastSteps, last_steps, time_limits, without_resets
from offpcc.errors import UserError


class Parts(TypedDict):
    """What `Dataset` takes; see there."""

    observations: Array
    actions: Array
    rewards: Array
    terminations: Array
    truncations: Array
    stops: Array
    final_observations: Array
    last_is_transition: Array
    name: str
    source: str
    notices: tuple[str, ...]
    discrete_actions: bool
    infos: Mapping[str, Array]
    metadata: Mapping[str, Any]


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
) -> Parts:
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
    last = last_steps(observations, terminations, truncations, columns.pop("next_observations", None), name)
    _check_transitions(last, num_steps, name)
    return Parts(
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
        stops=last.stops,
        final_observations=last.final_observations,
        last_is_transition=last.is_transition,
        name=name,
        source=source,
        notices=(*notices, *last.notices, *action_notices),
        discrete_actions=discrete,
        infos=infos or {},
        metadata=metadata or {},
    )


def join(
    episodes: Iterable[Mapping[str, Any] | Sequence[Any]],
    *,
    name: str,
    source: str,
    action_range: Range | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Parts:
    """Check episodes and join them; see `Dataset.from_episodes`.

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
    actions, discrete, notices = read_actions(np.concatenate([episode.actions for episode in read]), name, action_range)
    observations = np.concatenate([episode.observations[:-1] for episode in read])
    final_observations = np.stack([episode.observations[-1] for episode in read])
    told = LastSteps(stops, final_observations, np.ones(len(read), np.bool_), [])
    last = without_resets(told, observations, ~terminated)
    _check_transitions(last, len(observations), name)
    return Parts(
        observations=observations,
        actions=actions,
        rewards=np.concatenate([episode.rewards for episode in read]),
        terminations=terminations,
        truncations=truncations,
        stops=last.stops,
        final_observations=last.final_observations,
        last_is_transition=last.is_transition,
        name=name,
        source=source,
        notices=(*last.notices, *notices),
        discrete_actions=discrete,
        infos={},
        metadata=metadata or {},
    )


def _check_transitions(last: LastSteps, num_steps: int, name: str) -> None:
    if not num_steps > (~last.is_transition).sum():
        raise UserError(
            f"{name}: every episode is cut after one step, and nothing tells what any of these led to; give "
            f"next_observations from before a reset, or longer episodes"
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
