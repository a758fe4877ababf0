"""Recommends an algorithm for recorded data from measured properties; the last findings of `offpcc check --dataset`."""

import math
from typing import NamedTuple

import numpy as np

from offpcc.data.datasets.columns import Array, Range
from offpcc.data.datasets.dataset import Dataset
from offpcc.utils.findings import OK, Finding

MOST_STEPS = 3_000  # of the sample: enough for two digits, and fast
FEWEST_STEPS = 200  # with fewer, a prediction and neighbours say little
MOST_SQUARED = 25  # numbers of observation and action, up to which a prediction also reads their products
MOST_COLUMNS = 200  # of observations, up to which rewards are predicted; more take long
# In recordings of four tasks, `remaining` was 0.5 or less if velocities were hidden. Otherwise it was above 0.6, or
# `error` was below 0.01.
HARD, HIDDEN = 0.01, 0.55
UNCLEAR = 0.5  # error, above which neither one observation nor two tell much about the next one
NEIGHBOURS = 16  # steps with similar observations, whose actions are compared
UNIFORM = 1.0 / np.sqrt(3.0)  # standard deviation of uniform actions in [-1, 1]
WIDE = 0.8  # coverage; noisy experts had 0.75 or less
MODES = 0.92  # of 16 actions: a normal and a uniform spread have less than 0.8
TWO_GROUPS = 0.9  # of many returns: 0.64 for a normal and 0.75 for a uniform spread
FEWEST_IN_GROUP = 0.05  # part of the episodes; fewer are outliers
FEWEST_EPISODES = 10  # with fewer, the spread of returns says little
EQUAL_RETURNS = 0.1  # spread, below which returns form no groups
SIMILAR_RETURNS = 0.2  # spread, below which imitation comes first; one good agent's had 0.13
MOST_OF_MEDIAN = 10.0  # a median near 0 tells nothing
SPARSE = 0.95


class Properties(NamedTuple):
    """Measured properties of recorded data; NaN if they cannot be measured."""

    # The first two are those of the columns with more than two values, if there are any.
    error: float  # of predicting the change of observations from one, relative to its variance; mean of columns
    remaining: float  # the part of this error that is left if the observation before is known, too; median
    coverage: float  # spread of actions at similar observations: 0 for equal ones, 1 for uniform ones
    modes: float  # part of the variance of these actions that is between two groups
    middle: float  # 90th - 10th percentile of the returns of whole episodes
    return_spread: float  # the same / |median|; infinity if the median is 0
    good_share: float  # part of the episodes in the better of two separate groups of returns
    common_reward: float  # part of the rewards that have the commonest value
    has_better_reward: bool  # whether any reward is above the commonest one


def is_hidden(error: float, remaining: float) -> bool:
    """Check whether one observation seems not to show the state, because two observations predict far better."""
    return error > HARD and remaining < HIDDEN


def measure_dataset(data: Dataset, action_bounds: Range | None = None) -> Properties:
    """Measure the properties of data whose Dict observations are numbers (`Dataset.as_numbers`)."""
    values, counts = np.unique(data.rewards, return_counts=True)
    middle = spread = share = error = remaining = coverage = modes = np.nan
    whole = np.sort(data.whole_returns.astype(np.float64))
    if len(whole) >= FEWEST_EPISODES and not data.is_shuffled:
        low, median, high = np.percentile(whole, (10, 50, 90))
        middle = float(high - low)
        spread = middle / float(abs(median)) if median else (np.inf if middle else 0.0)
        between, size = two_groups(whole)
        part = float(1.0 - size / len(whole))
        if spread > EQUAL_RETURNS and between >= TWO_GROUPS and FEWEST_IN_GROUP <= part <= 1.0 - FEWEST_IN_GROUP:
            share = part
    if (steps := _sample(data.observations, data.unit_actions(action_bounds), data.starts, data.stops)) is not None:
        error, remaining = steps.error, steps.remaining
        if not data.discrete_actions:  # the others are of numbers
            episodes = np.searchsorted(data.stops, steps.rows, side="right")
            coverage, modes = _behaviour(steps.seen, steps.action, episodes)
    return Properties(
        error=error,
        remaining=remaining,
        coverage=coverage,
        modes=modes,
        middle=middle,
        return_spread=spread,
        good_share=share,
        common_reward=float(counts.max() / data.num_steps),
        has_better_reward=bool(values[-1] > values[counts.argmax()]),
    )


def two_groups(values: Array) -> tuple[Array, Array]:
    """Split sorted `values` (..., N) into the two groups with the least variance within them.

    The results, both (...), are the part of the variance that is between the groups, and the size of the lower group.
    """
    number = values.shape[-1]
    centered, sizes = values - values.mean(-1, keepdims=True), np.arange(1, number)
    between = np.cumsum(centered, -1)[..., :-1] ** 2 * (1.0 / sizes + 1.0 / (number - sizes))
    total = np.maximum((centered**2).sum(-1), 1e-12)
    return between.max(-1) / total, sizes[between.argmax(-1)]


class _Steps(NamedTuple):
    """A sample of S steps inside episodes, with normalised observations."""

    rows: Array  # (S,), of the data
    seen: Array  # (S, O)
    action: Array  # (S, A)
    error: float  # see `Properties`
    remaining: float


def seems_hidden(observations: Array, actions: Array, starts: Array, stops: Array) -> bool:
    """Check whether one observation seems not to show the state, as it is without velocities.

    `observations` (N, O) and `actions` (N, A) in [-1, 1] are the rows of all episodes; episode i has those from
    `starts[i]` on and before `stops[i]`.
    """
    steps = _sample(observations, actions, starts, stops)
    return steps is not None and is_hidden(steps.error, steps.remaining)


def _sample(observations: Array, units: Array, starts: Array, stops: Array) -> _Steps | None:
    """Return steps of some episodes; None if they are too few. See `seems_hidden` for the arguments."""
    steps = _inside(observations, starts, stops)
    if not len(steps) or len(starts) < 2:
        return None
    seen, before, after = (observations[steps + k].astype(np.float64) for k in (0, -1, 1))
    mean, std = seen.mean(0), seen.std(0)
    action, action_before = units[steps].astype(np.float64), units[steps - 1].astype(np.float64)
    moving = np.flatnonzero(np.minimum(std, (after - seen).std(0)) > 1e-6 * np.abs(mean))
    if not len(moving):
        return None
    has_many = np.array([len(np.unique(column)) > 2 for column in seen[:, moving].T])
    seen, before, after = ((x[:, moving] - mean[moving]) / std[moving] for x in (seen, before, after))
    judged = has_many if has_many.any() else ~has_many  # flags and one-hot choices change too seldom to judge by them
    error, remaining = _prediction(seen, before, after, action, action_before, judged)
    if is_hidden(error, remaining):  # then similar states have two similar observations
        seen = np.concatenate([seen, before], 1)
    return _Steps(steps, seen, action, error, remaining)


def _inside(observations: Array, starts: Array, stops: Array) -> Array:
    """Return a sample of the steps that are neither first nor last of an episode; none if they say little."""
    inside = np.ones(len(observations), np.bool_)
    inside[starts] = inside[stops - 1] = False
    steps = np.random.default_rng(0).permutation(np.flatnonzero(inside))[:MOST_STEPS]
    return steps if observations.ndim == 2 and len(steps) >= FEWEST_STEPS else steps[:0]


def reward_errors(data: Dataset, action_bounds: Range | None = None) -> tuple[float, float] | None:
    """Return the errors of predicting a reward from its own step, and from the step before; None if unknown.

    They are relative to the variance of the rewards.
    """
    steps = _inside(data.observations, data.starts, data.stops)
    rewards = data.rewards[steps, None].astype(np.float64)
    is_wide = math.prod(data.observations.shape[1:]) > MOST_COLUMNS
    if is_wide or data.discrete_actions or not len(steps) or not (variance := float(rewards.var())):
        return None
    units = data.unit_actions(action_bounds)
    std = data.observations[steps].std(0, dtype=np.float64)
    before, seen, after = ((data.observations[steps + k] / np.where(std > 0, std, 1.0)) for k in (-1, 0, 1))
    center = seen.mean(0)
    own, earlier = (
        float(_errors(_with_products(first - center, second - center, units[rows]), rewards)[0]) / variance
        for first, second, rows in ((seen, after, steps), (before, seen, steps - 1))
    )
    return own, earlier


def _with_products(*columns: Array) -> Array:
    """Return a 1 and the columns (S, ...), with their products if they are few: an angle's change needs them."""
    one = np.concatenate([np.ones((len(columns[0]), 1)), *columns], 1, dtype=np.float64)
    if one.shape[1] > MOST_SQUARED + 1:
        return one
    i, j = np.triu_indices(one.shape[1])
    return np.asarray(one[:, i] * one[:, j])


def _prediction(
    seen: Array, before: Array, after: Array, action: Array, action_before: Array, judged: Array
) -> tuple[float, float]:
    """Return `error` and `remaining` of `Properties`, measured on the half of the steps that was not fitted.

    `seen`, `before` and `after` (S, O) are normalised observations, in order of time; the columns `judged` (O,) count.
    """
    one = _with_products(seen, action)
    two, change = np.concatenate([one, seen - before, action_before], 1), (after - seen)[:, judged]
    first, second = (_errors(inputs, change) / change.var(0) for inputs in (one, two))
    return float(first.mean()), float(np.median(second / np.maximum(first, 1e-12)))


def _errors(inputs: Array, targets: Array) -> Array:
    """Return the mean squared errors of a linear prediction, on the half of the rows that it was not fitted to."""
    half = len(inputs) // 2
    fitted = inputs[:half]
    penalty = 1e-4 * half * np.eye(fitted.shape[1])
    weights = np.linalg.solve(fitted.T @ fitted + penalty, fitted.T @ targets[:half])
    return np.asarray(((targets[half:] - inputs[half:] @ weights) ** 2).mean(0))


def _behaviour(seen: Array, actions: Array, episodes: Array) -> tuple[float, float]:
    """Return `coverage` and `modes` of `Properties`, from each action and those at the nearest observations."""
    squares, near = (seen**2).sum(1), []
    for row, here in enumerate(seen):
        distance = squares - 2.0 * seen @ here
        distance[episodes == episodes[row]] = np.inf  # successive steps of an episode are near, and alike
        distance[row] = -np.inf
        near.append(np.argpartition(distance, NEIGHBOURS - 1)[:NEIGHBOURS])
    beside = np.sort(actions[np.array(near)], 1).swapaxes(1, 2)  # (steps, A, neighbours)
    error = _errors(np.concatenate([np.ones((len(seen), 1)), seen], 1), actions).mean()
    variance = beside.var(-1, ddof=1)
    modes = (two_groups(beside)[0] * variance).sum() / max(variance.sum(), 1e-12)
    return float(np.sqrt(min(variance.mean(), error)) / UNIFORM), float(modes)


def choose(found: Properties, terminates: bool) -> tuple[str, str]:
    """Return the name of the algorithm without prefix, and the reason; `terminates` says if any episode terminated."""
    if found.common_reward == 1.0 and not terminates:
        return "bc", "all rewards are equal and no episode terminated, so only imitation learns from them"
    if found.modes >= MODES and found.coverage > 0.2:
        return "fql", (
            "actions at similar observations form separate groups, and a policy with one mode would take their mean"
        )
    if SPARSE <= found.common_reward < 1.0 and found.has_better_reward:
        return "iql", (
            "rewards are sparse, and it joins parts of episodes without a value of unseen actions; if the agent will "
            "continue online, take calql"
        )
    if found.coverage >= WIDE:
        return "cql", (
            "actions are spread nearly as uniform ones, so imitation gains little, and values of most actions can be "
            "learned"
        )
    if not np.isnan(found.good_share):
        return "td3_bc", (
            f"two groups of episodes differ in their returns; compare it with bc on the better group, by "
            f"dataset.best_fraction={found.good_share:.2g}"
        )
    if found.return_spread < SIMILAR_RETURNS:
        return "bc", "the episodes are equally good, so imitation is hard to beat; then try td3_bc"
    known = "too little is known to say more" if np.isnan(found.return_spread) else "quality is mixed"
    return "rebrac", f"{known}, and it stays near the recorded actions while it improves on them"


def _percent(part: float) -> str:
    """Return a part as a percentage with two digits at least."""
    return f"{part:.0%}" if part >= 0.1 else f"{100.0 * part:.2g}%"


def advise(data: Dataset, action_bounds: Range | None, num_hidden: int, sees_images: bool) -> list[Finding]:
    """Return findings about the properties, and the recommendation as the last one.

    The Dict observations of `data` are numbers. `num_hidden` is how many of the recorded numbers that change the
    environment hides from the agent. `sees_images` says if the agent sees images, alone or beside numbers.
    """
    found, findings = measure_dataset(data, action_bounds), []
    hides = is_hidden(found.error, found.remaining)
    if num_hidden > 0:
        text = f"the environment hides {num_hidden:,} of the recorded numbers from the agent"
        findings.append(Finding("state", OK, text, "if they matter, the agent needs a memory (r in its name)"))
    elif not np.isnan(found.error):
        text = (
            f"it leaves {_percent(min(found.error, 1.0))} of the variance of the next change unexplained; the "
            f"observation before it explains {max(1.0 - found.remaining, 0.0):.0%} of that"
        )
        seems = f"one observation seems {'not ' * hides}to show the state"
        if found.error > UNCLEAR and not hides:
            seems = "it is unclear whether one observation shows the state"
        remedy = "velocities seem hidden, so the agent needs a memory (r in its name)" if hides else ""
        findings.append(Finding("state", OK, f"{seems}: {text}", remedy))
    if not np.isnan(found.coverage):
        text = f"actions at similar observations spread by {found.coverage:.2f} (0: equal, 1: uniform)"
        if found.modes >= MODES:
            text += f", {found.modes:.0%} of that between two groups"
        findings.append(Finding("coverage", OK, text))
    if not np.isnan(found.return_spread):
        is_relative = found.return_spread < MOST_OF_MEDIAN
        part = f"{found.return_spread:.0%} of their median" if is_relative else f"{found.middle:.4g}"
        text = f"the middle 80% of the returns differ by {part}"
        if not np.isnan(found.good_share):
            text += f", in two groups, as of two policies; {found.good_share:.0%} are in the better one"
        findings.append(Finding("skill", OK, text))
    algorithm, reason = choose(found, bool(data.terminations.any()))
    if data.discrete_actions and algorithm == "bc":
        algorithm, reason = "dbc", reason.removesuffix("; then try td3_bc")
    elif data.discrete_actions:
        algorithm, reason = "dcql", "it improves on the recorded actions, and lowers the values of those the data lack"
    prefix = "c" * sees_images + "r" * (hides or num_hidden > 0)
    name, reason = prefix + algorithm, reason.replace("then try ", f"then try {prefix}")
    if (sees_images or data.observations.ndim > 2) and data.stacks is None:
        reason += f"; one image shows no velocity, so take cr{algorithm} unless frames are stacked"
    other = {"bc": "td3_bc", "dbc": "dcql", "dcql": "dbc"}.get(algorithm, "bc")
    baseline = name.removesuffix(algorithm) + other
    remedy = (
        f"this is a first try: also train {baseline}, and compare their tests; `offpcc params {name}` shows settings"
    )
    return [*findings, Finding("advice", OK, f"start with {name}: {reason}", remedy)]
