"""Where recorded episodes end, and what their last steps led to."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from offpcc.data.columns import TOLERANCE, Array, Column, blocks, check_finite, converted

# Of the cut episodes, as many as lead to the start of the next one if the recorder looked after each reset: not all,
# for some of their followers may have been left out. Fewer are chance, as among single steps in any order.
HABIT = 0.1


class LastSteps(NamedTuple):
    """The last step of each of E episodes."""

    stops: Array  # (E,), one after it
    final_observations: Array  # (E, *obs), what it led to; where that is not known, what it was taken at
    is_transition: Array  # (E,), bool: what it led to is known, or not needed
    notices: list[str]


def time_limits(terminations: Array, most: int | None) -> Array:
    """Truncations of episodes that terminate or last `most` steps."""
    if not most:
        return np.zeros(len(terminations), np.bool_)
    steps = np.arange(len(terminations))
    starts = np.zeros(len(terminations), np.int64)
    starts[1:] = np.where(terminations[:-1], steps[1:], 0)
    age = steps - np.maximum.accumulate(starts)
    limits: Array = ((age + 1) % most == 0) & ~terminations
    return limits


def last_steps(
    observations: Array, terminations: Array, truncations: Array, next_observations: Column | None, name: str
) -> LastSteps:
    """The last steps of all episodes; where `next_observations` jump, `truncations` are set.

    Raises:
        UserError: a next observation is NaN or infinite.
    """
    ends = terminations | truncations
    ends[-1] = True
    if next_observations is None:
        return _without_next_observations(observations, terminations, np.flatnonzero(ends) + 1)
    final_observations, jumps = _read_last(next_observations, observations, ends, name)
    ends[jumps] = True
    stops = np.flatnonzero(ends) + 1
    # No reset follows a jump, nor an end that nothing but the recording's marks.
    is_cut = (truncations & ~terminations)[stops - 1]
    truncations[jumps] = True
    last = without_resets(LastSteps(stops, final_observations, np.ones(len(stops), np.bool_), []), observations, is_cut)
    if len(jumps):
        last.notices.append(
            f"next_observations are not the following observations at {len(jumps):,} places inside episodes, the "
            f"first at step {jumps[0]:,}: the data is cut there, as by a time limit"
        )
    return last


def _without_next_observations(observations: Array, terminations: Array, stops: Array) -> LastSteps:
    terminated = terminations[stops - 1]
    lost = int((~terminated).sum())
    notice = (
        f"there are no next_observations, so nothing tells what the last step of {lost:,} of {len(stops):,} "
        f"episodes led to: it is no transition"
    )
    return LastSteps(stops, observations[stops - 1], terminated, [notice] if lost else [])


def without_resets(last: LastSteps, observations: Array, is_cut: Array) -> LastSteps:
    """Last steps of which none leads across a reset, though the recorder may have looked after it.

    Such a step of an episode that was cut leads to the first observation of the following one. If that is the
    recorder's habit, it is taken to have been so at every cut: also where the following episode is not there, or is
    another.

    Args:
        last: what was recorded.
        observations: (S, *obs).
        is_cut: (E,), bool: the recorder cut the episode, which was not terminated.
    """
    followed = np.flatnonzero(is_cut[:-1])
    following = observations[last.stops[followed]]
    resets = followed[~_differ(last.final_observations[followed], following)]
    if not len(resets):
        return last
    is_habit = len(resets) >= HABIT * len(followed)
    lost = np.flatnonzero(is_cut) if is_habit else resets
    final_observations, is_transition = last.final_observations.copy(), last.is_transition.copy()
    final_observations[lost] = observations[last.stops[lost] - 1]
    is_transition[lost] = False
    notice = (
        f"{len(resets):,} of {is_cut.sum():,} cut episodes lead to the first observation of the next one, as after a "
        f"reset, so nothing tells what the last step of {'a cut episode' if is_habit else 'these'} led to: it is no "
        f"transition"
    )
    return LastSteps(last.stops, final_observations, is_transition, [*last.notices, notice])


def _read_last(column: Column, observations: Array, ends: Array, name: str) -> tuple[Array, Array]:
    """Next observations at the ends of episodes and where the data jumps; the steps of the jumps.

    Raises:
        UserError: one is NaN or infinite.
    """
    kept, jumps = [], []
    for rows in blocks(column):
        after = converted(column[rows], observations.dtype)
        check_finite(after, f"{name}: next_observations", rows.start)
        following = observations[rows.start + 1 : rows.stop + 1]
        jump = np.zeros(len(after), np.bool_)
        jump[: len(following)] = _differ(after[: len(following)], following)
        jump &= ~ends[rows]
        kept.append(after[jump | ends[rows]])
        jumps.append(rows.start + np.flatnonzero(jump))
    return np.concatenate(kept), np.concatenate(jumps)


def _differ(after: Array, following: Array) -> Array:
    """Which rows differ by more than the tolerance."""
    differ: Array = (after != following).reshape(len(after), math.prod(after.shape[1:])).any(axis=1)
    places = np.flatnonzero(differ)
    if following.dtype.kind == "f" and len(places):
        size = np.maximum(np.abs(following[places]), np.abs(following).mean(axis=0))
        beyond = np.abs(after[places] - following[places]) > TOLERANCE * size
        differ[places] = beyond.reshape(len(places), -1).any(axis=1)
    return differ
