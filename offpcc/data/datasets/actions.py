"""Bounds of recorded actions, and scaling of actions to [-1, 1]."""

import math
from contextlib import suppress
from operator import sub

import numpy as np

from offpcc.data.datasets.columns import TOLERANCE, Array, Range, blocks
from offpcc.data.datasets.notices import Notice
from offpcc.envs.d4rl import catalog
from offpcc.utils.errors import UserError
from offpcc.utils.spaces import MOST_CHOICES
from offpcc.utils.words import counted

WIDE = 4.0  # width of an action range, twice that of [-1, 1]
SHOWN = 3  # the most different bounds in a message
MUCH_OUTSIDE = 0.45  # of all numbers of actions; below, a Gaussian policy's actions, which its environment clipped
FEW_OUTSIDE = 0.01  # share of components; up to it, actions of unknown range are clipped
SOME_OUTSIDE = 0.1  # share of components; up to it, [-1, 1] is proposed first
FAR_OUTSIDE = 1.5  # largest component that is clipped if the range is unknown
NEARLY = 1.5  # ratio of the two bounds, below which a symmetric range is proposed
ALIKE = 3.0  # ratio of the largest to the smallest bound on a side, or width, up to which one range is proposed
MOST_RANGES = 6  # numbers of an action, above which the widths decide: extremes of one side are too random
TWO_BOUNDS = (
    "give the lowest and the highest action, such as (-1, 1); if each number of an action has its own bounds, first "
    "all lowest numbers, then all highest ones, such as ((-0.3, -2), (1.2, 2)); for a space, (space.low, space.high)"
)


def checked_range(action_range: Range, num_actions: int, name: str) -> tuple[Array, Array]:
    """Return lowest and highest action, (A,) each, of a pair of bounds with one number or A = `num_actions` numbers."""
    try:
        low, high = (np.asarray(bound, np.float32) for bound in action_range)
    except (TypeError, ValueError):
        raise UserError(f"{name}: action_range is {action_range!r}; {TWO_BOUNDS}") from None
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(f"{name}: action_range is {action_range}; both bounds have to be finite")
    if not {low.shape, high.shape} <= {(), (1,), (num_actions,)}:
        raise UserError(
            f"{name}: actions have {counted(num_actions, 'number')}, but their bounds (action_range, or those of the "
            f"environment) have {max(low.size, high.size)}; give one number, or as many as actions have"
        )
    if not ((low <= high).all() and (low < high).any()):  # a component whose bounds are equal never changes
        raise UserError(f"{name}: action_range is {action_range}; {TWO_BOUNDS}")
    return np.broadcast_to(low, num_actions), np.broadcast_to(high, num_actions)


def in_units(actions: Array, bounds: tuple[Array, Array] | None) -> Array:
    """Return a new array of actions, with `bounds` scaled to -1 and 1. Actions outside are not clipped.

    A component whose bounds are equal becomes 0.
    """
    if bounds is None:
        return actions.copy()
    low, high = bounds
    scaled: Array = 2.0 * (actions - low) / np.where(low < high, high - low, np.float32(1.0)) - 1.0
    scaled[..., low == high] = 0.0
    return scaled


def unused_range(given: Range | None, own: Range | None, name: str) -> str:
    """Return what to tell where a given range of actions has no effect, because the data have another one; or ""."""
    if given is None or own is None:
        return ""
    with suppress(TypeError, ValueError):  # of bounds of another form
        pairs = [[np.asarray(bound, np.float32) for bound in pair] for pair in zip(given, own, strict=True)]
        if all((ours == theirs).all() for ours, theirs in pairs):
            return ""
    low, high = (np.atleast_1d(np.asarray(bound, np.float32)) for bound in own)
    return (
        f"dataset.action_range has no effect, because {name} has its own bounds of actions, {_text((low, high))}; if "
        f"they are wrong, correct them in the data (action_low and action_high of a file, action_range of from_arrays)"
    )


def action_warnings(
    actions: Array, recorded: Range | None, env_bounds: Range | None, name: str, is_own: bool = False
) -> list[Notice]:
    """Return notices about assumed action bounds, and about recorded actions (S, A) outside their bounds.

    The data or the user gives the bounds `recorded`, and the environment to train for `env_bounds`. `is_own` says that
    the data itself gives the bounds, so that the user cannot give others.
    """
    assumed, told = (
        None if one is None else checked_range(one, actions.shape[1], name) for one in (env_bounds, recorded)
    )
    bounds = assumed if told is None else told
    notices = []
    if recorded is None and bounds is not None and _text(bounds) != _text(None):
        notices.append(Notice("units", f"actions are taken to be in the environment's units, {_text(bounds)}"))
        if (bounds[1] - bounds[0] >= WIDE).any() and max(actions.max(), -actions.min()) <= 1.0 + TOLERANCE:
            text = (
                f"actions never leave [-1, 1], though the environment takes {_text(bounds)}: if they are scaled "
                f"already, bind dataset.action_range = (-1, 1) (in Python: from_arrays(action_range=(-1, 1)))"
            )
            notices.append(Notice("scaled", text))
    if is_own and told is not None and assumed is not None and not np.allclose(told, assumed):
        text = (
            f"actions are recorded in {_text(told)}, but the environment takes {_text(assumed)}: recorded ones keep "
            f"their share of the range, so they mean other actions in this environment"
        )
        notices.append(Notice("units", text))
    num_actions, num_outside, most, furthest = 0, 0, 1.0 + TOLERANCE, 0.0
    for rows in blocks(actions):
        sizes = np.abs(in_units(actions[rows], bounds))
        is_outside = sizes > 1.0 + TOLERANCE
        num_actions, num_outside = num_actions + int(is_outside.any(axis=1).sum()), num_outside + int(is_outside.sum())
        if sizes.max() > most:
            most, furthest = float(sizes.max()), float(actions[rows].flat[sizes.argmax()])
    if not num_actions:
        return notices
    share, whose = num_outside / actions.size, "the environment's " if bounds is not None and told is None else ""
    count, reach = f"{num_actions:,} of {len(actions):,} actions lie outside", f"up to {furthest:.7g}"
    fault = "and their range is unknown"
    if bounds is None:  # D4RL's tasks all take [-1, 1]
        is_unknown = name not in catalog.FILES and (share > FEW_OUTSIDE or abs(furthest) > FAR_OUTSIDE)
    elif told is None:
        is_unknown = share > MUCH_OUTSIDE
    else:  # the bounds of the environment, or [-1, 1] without one, say that it clipped the actions
        usual = checked_range((-1.0, 1.0) if assumed is None else assumed, actions.shape[1], name)
        is_unknown = share > MUCH_OUTSIDE and not is_own and not np.array_equal(told, usual)
        fault = "so the given action_range seems to be wrong"
    if is_unknown:
        text = f"{count} {whose}{_text(bounds)}, {reach}, {fault}"
        return [Notice("unknown range", f"{text}; {_remedy(actions, assumed, share)}")]
    kind = "off scale" if share > MUCH_OUTSIDE else "clipped"
    return [*notices, Notice(kind, f"{count} {_text(bounds)}, {reach}, and are clipped to it")]


def _remedy(actions: Array, bounds: tuple[Array, Array] | None, share_outside: float) -> str:
    taken = ([-1.0], [1.0]) if bounds is None else (bounds[0].tolist(), bounds[1].tolist())
    by_actions, clipped = (f'--gin "dataset.action_range={bound}"' for bound in (_proposed(actions), _literal(*taken)))
    if by_actions == clipped:
        ways = f"by these actions {by_actions}"
    elif share_outside <= SOME_OUTSIDE:
        ways = f"{clipped}, which clips these actions; or, if the range was wider, {by_actions}"
    else:
        ways = f"by these actions {by_actions}; or, if it clipped these actions, {clipped}"
    few = np.unique(actions) if actions.shape[1] == 1 else np.zeros(0)
    are_choices = 0 < len(few) <= MOST_CHOICES and (few == np.round(few)).all()
    choices = "if they are choices, give actions.astype(int); else " * bool(are_choices)
    return f"{choices}give the bounds of the recorded environment, {ways}; or give the recorded one with --env"


def _proposed(actions: Array) -> str:
    """Return the range of the recorded actions, rounded outwards, in gin's syntax."""
    low, high = [], []
    for least, most in zip(actions.min(axis=0).tolist(), actions.max(axis=0).tolist(), strict=True):
        below, above = _rounded_up(-least), _rounded_up(most)
        if max(below, above) < NEARLY * min(below, above):
            below = above = max(below, above)
        elif below == above == 0.0:  # a component that is always 0
            below = above = 1.0
        low.append(0.0 - below)
        high.append(above)
    sides = (high, [-bound for bound in low]) if len(low) <= MOST_RANGES else (list(map(sub, high, low)),)
    if all(max(sizes) <= ALIKE * min(sizes) for sizes in sides):
        low, high = [min(low)], [max(high)]
    return _literal(low, high)


def _rounded_up(number: float) -> float:
    """Round up to two significant digits. Return 0 for negative numbers, as a range includes 0."""
    if number <= 0.0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return math.ceil(number / unit - TOLERANCE) * unit


def _literal(low: list[float], high: list[float]) -> str:
    if len(set(low)) == len(set(high)) == 1:
        return f"({low[0]:.9g}, {high[0]:.9g})"
    return "({}, {})".format(*("(" + ", ".join(f"{number:.9g}" for number in bound) + ")" for bound in (low, high)))


def _text(bounds: tuple[Array, Array] | None) -> str:
    if bounds is None:
        return "[-1, 1]"
    pairs = [f"[{low:.4g}, {high:.4g}]" for low, high in zip(*bounds, strict=True)]
    if len(set(pairs)) == 1:
        return pairs[0]
    return f"{', '.join(pairs[:SHOWN])}{', ...' if len(pairs) > SHOWN else ''}"
