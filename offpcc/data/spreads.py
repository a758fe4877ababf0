"""How recorded numbers spread."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from offpcc.data.columns import Array

SAMPLE = 100_000  # numbers that percentiles are taken from: enough for three digits, in a moment
MOST_COLUMNS = 150  # told one by one; more are an image or a cloud of points


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
