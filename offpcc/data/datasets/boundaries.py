"""Episode boundaries of datasets, and the last transitions of episodes."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from offpcc.data.datasets.columns import (
    BLOCK_BYTES,
    TOLERANCE,
    Array,
    Column,
    SpoiledData,
    blocks,
    bytes_of_ends,
    check_finite,
    check_room,
    converted,
)
from offpcc.data.datasets.notices import Notice
from offpcc.utils.words import counted

# Some recorders read the last next observation after the reset, so it is the first observation of the next episode.
# The recorder is assumed to do so from this share of episodes on. It need not be all of them, because the recording
# may lack some of the next episodes. A smaller share is chance, for example among single steps in random order.
HABIT = 0.1
ENOUGH = 10  # with as many cut episodes, only these count: many recorders read before the reset only at time limits
NEARLY = 0.9  # share of the steps that change the observation; a recorder that reads too early does so at all of them


class LastSteps(NamedTuple):
    """The last step of each of E episodes."""

    stops: Array  # (E,), the index after the last step
    final_observations: Array  # (E, *obs), its next observation; if that is unknown, its observation
    is_transition: Array  # (E,), bool: its next observation is known, or not needed
    notices: list[Notice]


def time_limits(terminations: Array, most: int | None, jumps: Sequence[int] | Array = ()) -> Array:
    """Return truncations, (S,) of bool, for a time limit of `most` steps. Without a limit, all are False.

    Steps count from the last termination, or from the last of `jumps`, the steps after which other episodes follow.
    """
    limits = np.zeros(len(terminations), np.bool_)
    is_end = terminations.copy()
    is_end[np.asarray(jumps, np.int64)] = True
    edges = np.unique([0, *(np.flatnonzero(is_end) + 1), len(terminations)])
    for start, stop in itertools.pairwise(edges if most else []):
        limits[start + most - 1 : stop : most] = True
    return limits & ~terminations


def last_steps(
    observations: Array,
    terminations: Array,
    truncations: Array,
    next_observations: Column | None,
    name: str,
    is_sure: bool,
    num_bytes: int,
) -> LastSteps:
    """Return the last steps of all episodes. Sets `truncations` in place where `next_observations` jump.

    `is_sure` says that the recorder is known to read next observations before each reset. The first `num_bytes` of a
    packed Dict observation are its numbers, see `PackedDict.num_vector_bytes`.
    """
    ends = terminations | truncations
    ends[-1] = True
    if next_observations is None:
        stops = np.flatnonzero(ends) + 1
        terminated = terminations[stops - 1]
        text = (
            f"there are no next_observations, so the last step of {(~terminated).sum():,} of "
            f"{counted(len(stops), 'episode')} has an unknown next observation: it is not a transition"
        )
        notices = [] if terminated.all() else [Notice("no next observations", text)]
        return LastSteps(stops, observations[stops - 1], terminated, notices)
    final_observations, jumps = read_last(next_observations, observations, ends, name, num_bytes)
    ends[jumps] = True
    stops = np.flatnonzero(ends) + 1
    last = LastSteps(stops, final_observations, np.ones(len(stops), np.bool_), [])
    if not is_sure:
        # Pass the flags from before the jumps are marked: no reset follows a jump or the end of the recording.
        last = without_resets(last, observations, terminations[stops - 1], truncations[stops - 1], num_bytes)
    if len(jumps):
        truncations[jumps] = True
        text = (
            f"next_observations are not the following observations at {len(jumps):,} places inside episodes, the "
            f"first at step {jumps[0]:,}: the data is cut there, as by a time limit"
        )
        last.notices.append(Notice("jumps", text))
    return last


def shows_ends(last: LastSteps, observations: Array, num_bytes: int) -> bool:
    """Check whether `next_observations` were read before resets, so that they jump wherever an episode was cut."""
    episodes = np.arange(len(last.stops) - 1)
    return bool(_lead_elsewhere(last, observations, episodes, episodes, num_bytes).any())


def without_resets(
    last: LastSteps, observations: Array, terminated: Array, truncated: Array, num_bytes: int
) -> LastSteps:
    """Return last steps without transitions across a reset, for recorders that may read after the reset.

    The next observation of such a step is the first observation of the next episode. If this is common enough (see
    `HABIT`), the recorder is assumed to do so at every truncated episode, even if the next episode is missing or is a
    different one. Terminated episodes stay as they are, because the next observation of a termination is not used.

    `terminated` and `truncated` are (E,), bool. Invalid final observations of `last` are overwritten in place.
    """
    is_cut = truncated & ~terminated
    followed = np.flatnonzero((terminated | truncated)[:-1])
    leads_there = ~_lead_elsewhere(last, observations, followed, followed, num_bytes)
    for part in _parts(np.flatnonzero(leads_there), observations):
        stops = last.stops[followed[part]]  # a step that stays where the next episode begins tells nothing
        leads_there[part] = rows_differ(observations[stops - 1], observations[stops], num_bytes)
    if not leads_there.any() or not is_cut.any():
        return last
    of_cut = is_cut[followed]
    if of_cut.sum() >= ENOUGH and leads_there[of_cut].mean() < NEARLY:
        cut = followed[of_cut]  # few distinct observations, as in a corridor, are often the first ones of any episode
        chance = ~_lead_elsewhere(last, observations, cut, np.roll(cut, 1), num_bytes)
        if leads_there[of_cut].mean() <= 2.0 * chance.mean():
            return last
    judged = leads_there[of_cut] if of_cut.sum() >= ENOUGH else leads_there
    is_habit = bool(judged.any()) and judged.mean() >= HABIT
    lost = np.flatnonzero(is_cut) if is_habit else followed[leads_there & of_cut]
    if not len(lost):
        return last
    final_observations, is_transition = last.final_observations, last.is_transition.copy()
    for part in _parts(lost, observations):
        final_observations[part] = observations[last.stops[part] - 1]
    is_transition[lost] = False
    text = (
        f"{leads_there.sum() if is_habit else len(lost):,} of {len(followed):,} episodes that another follows lead to "
        f"its first observation, as after a reset, so it is unknown what the last step of "
        f"{'a cut episode' if is_habit else 'those that were cut'} led to: {len(lost):,} are no transitions"
    )
    return LastSteps(last.stops, final_observations, is_transition, [*last.notices, Notice("resets", text)])


def read_last(column: Column, observations: Array, ends: Array, name: str, num_bytes: int) -> tuple[Array, Array]:
    """Return the next observations at episode ends and jumps, and the steps of the jumps."""
    kept, jumps = [], []
    num_kept = 0
    num_moving = num_standing = 0
    for rows in blocks(column):
        after = converted(column[rows], observations.dtype)
        check_finite(after, f"{name}: next_observations", rows.start)
        following = observations[rows.start + 1 : rows.stop + 1]
        jump = np.zeros(len(after), np.bool_)
        jump[: len(following)] = rows_differ(after[: len(following)], following, num_bytes)
        jump &= ~ends[rows]
        own = observations[rows]
        num_moving += int((_are_unlike(own[: len(following)], following) & ~ends[rows][: len(following)]).sum())
        num_standing += int((~_are_unlike(after[jump], own[jump])).sum())
        kept.append(after[jump | ends[rows]])
        num_kept += len(kept[-1])
        if jump.any():  # `ends` did not include these, so check the memory again
            check_room(bytes_of_ends(observations, num_kept), f"{name}: the last observations of {num_kept:,} episodes")
        jumps.append(rows.start + np.flatnonzero(jump))
    if num_standing and num_standing >= NEARLY * num_moving:
        raise SpoiledData(
            f"{name}: next_observations are the observations themselves at {num_standing:,} of the {num_moving:,} "
            f"steps after which the following observation is another one, so an agent could not learn what actions do; "
            f"record the observation after each step there, or leave next_observations out"
        )
    final_observations = np.empty((num_kept, *observations.shape[1:]), observations.dtype)
    stop = num_kept
    while kept:  # from the end, so that each part is freed after its copy
        part = kept.pop()
        final_observations[stop - len(part) : stop] = part
        stop -= len(part)
    return final_observations, np.concatenate(jumps)


def _parts(episodes: Array, observations: Array) -> Iterator[Array]:
    """Yield the episode numbers in parts whose observations fill one block."""
    rows = max(1, BLOCK_BYTES // max(1, observations[0].nbytes))
    for start in range(0, len(episodes), rows):
        yield episodes[start : start + rows]


def _lead_elsewhere(last: LastSteps, observations: Array, episodes: Array, before: Array, num_bytes: int) -> Array:
    """Return a mask of the episodes whose last observation is not the first one of the episode after `before`."""
    final, masks = last.final_observations, [np.zeros(0, np.bool_)]
    for part in _parts(np.arange(len(episodes)), observations):
        masks.append(rows_differ(final[episodes[part]], observations[last.stops[before[part]]], num_bytes))
    return np.concatenate(masks)


def _are_unlike(some: Array, others: Array) -> Array:
    """Return a mask of the rows that differ at all."""
    unlike: Array = (some != others).reshape(len(some), math.prod(some.shape[1:])).any(axis=1)
    return unlike


def rows_differ(after: Array, following: Array, num_bytes: int = 0) -> Array:
    """Return a mask of the rows that differ by more than the tolerance."""
    if num_bytes:
        some, others = (np.ascontiguousarray(rows[:, :num_bytes]).view(np.float32) for rows in (after, following))
        return rows_differ(some, others) | _are_unlike(after[:, num_bytes:], following[:, num_bytes:])
    differ = _are_unlike(after, following)
    places = np.flatnonzero(differ)
    if following.dtype.kind == "f" and len(places):
        size = np.maximum(np.abs(following[places]), np.abs(following).mean(axis=0))
        beyond = np.abs(after[places] - following[places]) > TOLERANCE * size
        differ[places] = beyond.reshape(len(places), -1).any(axis=1)
    return differ
