"""Statistics over tasks and runs: interquartile mean, bootstrap intervals, performance profiles, tuning budgets, ranks.

Agarwal et al. 2021 (arXiv:2108.13264) define all of them but the last two. The scores of a task are an array whose last
axis is that of the runs. Tasks may have different numbers of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Scores = Sequence[Array]  # one array (..., R) for each task

LEVEL = 0.95  # of the intervals
RESAMPLES = 50_000
EPISODE_RESAMPLES = 10_000  # for means over episodes
FEWER_RESAMPLES = 2_000  # for curves and profiles, which have an interval at each of many places
SEED = 0  # of the resampling
BLOCK = 2**19  # numbers that are resampled at a time


def interquartile_mean(tasks: Scores) -> Array:
    """Return the mean (...) of the middle half of the scores of all runs and tasks."""
    scores = np.sort(np.concatenate(list(tasks), axis=-1), axis=-1)
    cut = scores.shape[-1] // 4
    return np.asarray(scores[..., cut : scores.shape[-1] - cut].mean(axis=-1))


def mean(tasks: Scores) -> Array:
    """Return the mean (...) over tasks of the mean over runs."""
    return np.asarray(np.mean([scores.mean(axis=-1) for scores in tasks], axis=0))


def median(tasks: Scores) -> Array:
    """Return the median (...) over tasks of the mean over runs; for one task, the median over runs."""
    if len(tasks) == 1:
        return np.asarray(np.median(tasks[0], axis=-1))
    return np.asarray(np.median([scores.mean(axis=-1) for scores in tasks], axis=0))


def optimality_gap(tasks: Scores) -> Array:
    """Return the mean (...) over tasks and runs of how much a normalised score is below 1."""
    return mean([np.maximum(1.0 - scores, 0.0) for scores in tasks])


def probability_of_improvement(ours: Scores, others: Scores) -> Array:
    """Return the mean (...) over tasks of P(X > Y) + P(X = Y) / 2, of a run X of ours and a run Y of the others."""
    of_tasks = []
    for x, y in zip(ours, others, strict=True):
        difference = np.sign(x[..., :, None] - y[..., None, :])
        of_tasks.append(0.5 + 0.5 * difference.mean(axis=(-2, -1)))
    return np.asarray(np.mean(of_tasks, axis=0))


def profile(tasks: Scores, thresholds: Array) -> Array:
    """Return the share (K, ...) of runs with a score above each of K thresholds: the mean over tasks."""
    above = [(scores > thresholds.reshape(-1, *[1] * scores.ndim)).mean(axis=-1) for scores in tasks]
    return np.asarray(np.mean(above, axis=0))


def expected_best(scores: Array) -> Array:
    """Return the expected score (R,) of the best of k = 1, ..., R policies, each evaluated once; `scores` is (R,).

    The k policies are drawn from all R without replacement. Kurenkov & Kolesnikov 2022 (arXiv:2110.04156) call this
    Expected Online Performance, and draw with replacement, which gives less.
    """
    ordered, number = np.sort(scores)[::-1], len(scores)
    rank, k = np.arange(number - 1)[:, None], np.arange(1, number + 1)[None]
    ratios = np.maximum(number - rank - k, 0) / (number - rank - 1)
    chances = np.cumprod(np.concatenate([k / number, ratios]), axis=0)  # C(R-1-rank, k-1) / C(R, k): this is the best
    return np.asarray(ordered @ chances)


def interval(function: Callable[[Scores], Array], strata: Scores, resamples: int = RESAMPLES) -> tuple[Array, Array]:
    """Return the 95% percentile interval of a statistic, by the stratified bootstrap: runs are drawn within each task.

    Args:
        function: the statistic (...) of arrays (..., B, R), for B resamples at a time, so its result is (..., B).
        strata: the runs of each task, (..., R). If a task has a single run, its spread is unknown, and so both ends are
            NaN.
        resamples: number of resamples.
    """
    generator = np.random.default_rng(SEED)
    block = max(1, BLOCK // sum(stratum.size for stratum in strata))
    found = []
    for begin in range(0, resamples, block):
        number = min(block, resamples - begin)
        drawn = [one[..., generator.integers(one.shape[-1], size=(number, one.shape[-1]))] for one in strata]
        found.append(function(drawn))
    low, high = np.quantile(np.concatenate(found, axis=-1), ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0), axis=-1)
    if min(stratum.shape[-1] for stratum in strata) < 2:
        low, high = np.full_like(low, np.nan), np.full_like(high, np.nan)
    return low, high


def mean_interval(numbers: Array) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the mean of numbers (E,); NaN for fewer than two."""
    if len(numbers) < 2:
        return float("nan"), float("nan")
    low, high = interval(mean, [numbers], EPISODE_RESAMPLES)
    return float(low), float(high)


def ranks(numbers: Sequence[float] | Array) -> Array:
    """Return the rank of each number, from 1 for the smallest; equal numbers share the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(numbers, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Array = (last - (counts - 1) / 2.0)[inverse]
    return shared


def rank_correlation(values: Sequence[float] | Array, returns: Sequence[float] | Array) -> float:
    """Return Spearman's rank correlation; NaN if all values or all returns are equal."""
    a, b = (one - one.mean() for one in (ranks(values), ranks(returns)))
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else float("nan")


def regret_at(k: int, values: Sequence[float] | Array, returns: Sequence[float] | Array) -> float:
    """Return how much less the best of the `k` policies with the largest values returns than the best of all.

    It is a share of the range of returns, 0 if the choice is right (Fu et al. 2021, arXiv:2103.16596, normalised); NaN
    if all returns are equal.
    """
    true = np.asarray(returns, np.float64)
    chosen = np.argsort(-np.asarray(values, np.float64), kind="stable")[:k]
    spread = float(np.ptp(true))
    return float(true.max() - true[chosen].max()) / spread if spread else float("nan")
