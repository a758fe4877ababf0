"""Spreads and step sizes of recorded columns."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.dataset import Dataset

SAMPLE = 100_000  # numbers that percentiles are taken from: enough for three digits, in a moment
MOST_COLUMNS = 150  # told one by one; more are an image or a cloud of points
UNLIKE = 10.0  # largest over smallest standard deviation of a column, from which networks hardly see the smaller
ROUNDING = 1e-6  # of a column's mean: a smaller standard deviation is rounding of float32, so the column is constant


class Spread(NamedTuple):
    """How the numbers of one kind spread.

    Attributes:
        what: they are.
        lowest: of all.
        quarter: 25th percentile, of a sample like the two below.
        median: 50th percentile.
        three_quarters: 75th percentile.
        highest: of all.
        mean: of all.
        std: of the sample.
    """

    what: str
    lowest: float
    quarter: float
    median: float
    three_quarters: float
    highest: float
    mean: float
    std: float

    @staticmethod
    def of(what: str, numbers: Array) -> Spread:
        """Of one or more numbers."""
        flat = numbers.reshape(-1)
        sample = flat[:: math.ceil(flat.size / SAMPLE)]
        quarter, median, three_quarters = np.percentile(sample, (25, 50, 75)).tolist()
        mean, std = float(flat.mean(dtype=np.float64)), float(sample.std(dtype=np.float64))
        return Spread(what, float(flat.min()), quarter, median, three_quarters, float(flat.max()), mean, std)

    @property
    def is_constant(self) -> bool:
        """Whether all are the same number."""
        return self.lowest == self.highest

    @property
    def text(self) -> str:
        """In words, but for what they are."""
        return f"from {self.lowest:,.5g} to {self.highest:,.5g}, median {self.median:,.5g}, mean {self.mean:,.5g}"


def by_column(what: str, numbers: Array) -> list[Spread]:
    """Of each column; of all together if these are images, or too many."""
    if numbers.ndim > 2 or numbers.shape[1] > MOST_COLUMNS:
        return [Spread.of(what, numbers)]
    return [Spread.of(f"{what} {place}", numbers[:, place]) for place in range(numbers.shape[1])]


def unlike_scales(mean: Array, std: Array) -> str:
    """Which columns of observations are of unlike scales, in words; "" if none are. Constant columns do not count.

    Args:
        mean: of each column.
        std: standard deviation of each column, of the same shape.
    """
    moving = np.flatnonzero(std > ROUNDING * np.abs(mean))
    if not moving.size:
        return ""
    scales = std.ravel()[moving]
    small, large = scales.argmin(), scales.argmax()
    if scales[large] <= UNLIKE * scales[small]:
        return ""
    names = [_column(int(moving[place]), std.shape) for place in (large, small)]
    return f"{names[0]} spreads by {scales[large]:.3g}, but {names[1]} by {scales[small]:.3g} only"


def _column(place: int, shape: tuple[int, ...]) -> str:
    """observation 3, or of more than one axis observation (0, 3)."""
    indices = tuple(map(int, np.unravel_index(place, shape)))
    return f"observation {indices[0] if len(indices) == 1 else indices}"


MIN_STEPS = 100  # below, what an ordinary step is cannot be told
FAR = 6.0  # of the 90th percentile: recorded locomotion, hands and pendulums stay below 5.1, most of their resets above


class Motion:
    """How far observations move from step to step, and from an episode's end to what follows it.

    Each column is measured by the 90th percentile of its own steps; those that mostly stand still are left out, for
    goals and cues move by leaps. A length is the root of the mean square over columns.

    Attributes:
        usual: the 95th percentile of steps inside episodes.
        far: rows after which the observation leaps, inside an episode.
        leap: the longest of these, over the 90th percentile.
        across: (E-1,) from the last observation of an episode to the first of the next.
        can_tell: whether a step is shorter than the way between two observations of the data taken by chance.
    """

    def __init__(self, data: Dataset, inside: Array, columns: Array, scale: Array) -> None:
        self.observations, self.columns, self.scale = data.observations, columns, scale
        lengths = self._between(inside, inside + 1)
        ordinary, self.usual = np.percentile(lengths, (90, 95)).tolist()
        self.far = inside[lengths > FAR * ordinary]
        self.leap = float(lengths.max() / ordinary) if ordinary else 0.0
        self.across = self._between(data.stops[:-1] - 1, data.stops[:-1])
        chosen = inside[:: math.ceil(len(inside) / SAMPLE)]
        by_chance = self._between(chosen, np.random.default_rng(0).permutation(chosen))
        self.can_tell = bool(self.usual < np.median(by_chance))

    @staticmethod
    def of(data: Dataset) -> Motion | None:
        """None for images, and where too little moves."""
        is_inside = np.ones(data.num_steps, np.bool_)
        is_inside[data.stops - 1] = False
        inside = np.flatnonzero(is_inside)
        if data.observations.ndim > 2 or len(inside) < MIN_STEPS:
            return None
        chosen = inside[:: math.ceil(len(inside) / SAMPLE)]
        columns = data.observations.T
        scale = np.array([np.percentile(np.abs(column[chosen + 1] - column[chosen]), 90) for column in columns])
        moving = np.flatnonzero(scale > 0)
        return Motion(data, inside, moving, scale[moving]) if len(moving) else None

    def _between(self, before: Array, after: Array) -> Array:
        total = np.zeros(len(before))
        for place, scale in zip(self.columns, self.scale, strict=True):
            column = self.observations[:, place]
            total += ((column[after] - column[before]) / scale) ** 2
        return np.sqrt(total / len(self.columns))
