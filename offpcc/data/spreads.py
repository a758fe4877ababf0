"""How recorded numbers spread."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from offpcc.data.columns import Array

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
