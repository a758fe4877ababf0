"""Recorded actions: the bounds they have, and what they are between -1 and 1."""

from __future__ import annotations

import numpy as np

from offpcc.data.columns import TOLERANCE, Array, Range, blocks
from offpcc.data.notices import Notice
from offpcc.errors import UserError

WIDE = 4.0  # from the lowest to the highest action: twice as wide as [-1, 1]
SHOWN = 3  # of unlike bounds


def checked_range(action_range: Range, num_actions: int, name: str) -> tuple[Array, Array]:
    """Lowest and highest action, (A,) each.

    Args:
        action_range: as it was given, of one number or of A.
        num_actions: A.
        name: of the data, for messages.

    Raises:
        UserError: it is no pair of finite bounds, the lower first, of as many numbers as actions have.
    """
    try:
        low, high = (np.asarray(bound, np.float32) for bound in action_range)
    except (TypeError, ValueError):
        raise UserError(f"{name}: action_range is {action_range!r}; it has to be two bounds, the lower first") from None
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(f"{name}: action_range is {action_range}; both bounds have to be finite")
    if not {low.shape, high.shape} <= {(), (1,), (num_actions,)}:
        raise UserError(
            f"{name}: actions are of {num_actions} numbers, but their bounds (action_range, or those of the "
            f"environment) of {max(low.size, high.size)}; give one number, or as many as actions have"
        )
    if not (low < high).all():
        raise UserError(f"{name}: action_range is {action_range}; it has to be two finite bounds, the lower first")
    return np.broadcast_to(low, num_actions), np.broadcast_to(high, num_actions)


def in_units(actions: Array, bounds: tuple[Array, Array] | None) -> Array:
    """Actions between -1 and 1, which stand for their `bounds`, anew; those outside are not clipped."""
    if bounds is None:
        return actions.copy()
    low, high = bounds
    scaled: Array = 2.0 * (actions - low) / (high - low) - 1.0
    return scaled


def told_of_actions(actions: Array, told: Range | None, env_bounds: Range | None, name: str) -> list[Notice]:
    """By which bounds actions are scaled, if that is not known but taken, and how well they keep to them.

    Args:
        actions: (S, A), as recorded.
        told: their bounds, if the data or its user tells them.
        env_bounds: those of the environment that is learned for.
        name: of the data, for messages.

    Raises:
        UserError: bounds do not fit the actions.
    """
    given = env_bounds if told is None else told
    bounds = None if given is None else checked_range(given, actions.shape[1], name)
    notices = []
    if told is None and bounds is not None and _text(bounds) != _text(None):
        notices.append(Notice("units", f"actions are taken to be in the environment's units, {_text(bounds)}"))
        if (bounds[1] - bounds[0] >= WIDE).any() and max(actions.max(), -actions.min()) <= 1.0 + TOLERANCE:
            notices.append(
                Notice(
                    "scaled",
                    f"actions never leave [-1, 1], though the environment takes {_text(bounds)}: if they are scaled "
                    f"already, bind recorded.action_range = (-1, 1)",
                )
            )
    if outside := _outside(actions, bounds):
        count, furthest = outside
        remedy = "" if bounds else "; if the recorder had other bounds, give them as action_range"
        text = f"lie outside {_text(bounds)}, up to {furthest:.4g}, and are clipped to it{remedy}"
        notices.append(Notice("clipped", f"{count:,} of {len(actions):,} actions {text}"))
    return notices


def _outside(actions: Array, bounds: tuple[Array, Array] | None) -> tuple[int, float] | None:
    """How many actions are beyond their bounds by more than rounding, and the number that is so by most."""
    count, most, furthest = 0, 1.0 + TOLERANCE, 0.0
    for rows in blocks(actions):
        sizes = np.abs(in_units(actions[rows], bounds))
        count += int((sizes > 1.0 + TOLERANCE).any(axis=1).sum())
        if sizes.max() > most:
            most, furthest = float(sizes.max()), float(actions[rows].flat[sizes.argmax()])
    return (count, furthest) if count else None


def _text(bounds: tuple[Array, Array] | None) -> str:
    if bounds is None:
        return "[-1, 1]"
    pairs = [f"[{low:.4g}, {high:.4g}]" for low, high in zip(*bounds, strict=True)]
    if len(set(pairs)) == 1:
        return pairs[0]
    return f"{', '.join(pairs[:SHOWN])}{', ...' if len(pairs) > SHOWN else ''}"
