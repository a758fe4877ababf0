"""Statistics and step sizes of recorded columns."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from offpcc.data.datasets.columns import Array, blocks
from offpcc.data.datasets.dataset import Dataset

SAMPLE = 100_000  # numbers in the sample for percentiles: fast, and enough for three digits
LARGEST_SAMPLE = 2**22  # numbers in the sample for standard deviations, and of the images of Dict observations
MOST_COLUMNS = 150  # with their own statistics; more are an image or a point cloud


class Spread(NamedTuple):
    """Statistics of a set of numbers."""

    what: str  # name of the numbers
    lowest: float
    quarter: float  # 25th percentile of a sample
    median: float  # of the sample
    three_quarters: float  # 75th percentile of the sample
    highest: float
    mean: float  # of all numbers
    std: float  # of the sample

    @staticmethod
    def of(what: str, numbers: Array) -> Spread:
        """Compute the statistics of one or more numbers."""
        flat = numbers.reshape(-1)
        # At random: every n-th number might be of one colour only, or never the last step of an episode.
        sample = flat if flat.size <= SAMPLE else flat[np.random.default_rng(0).integers(flat.size, size=SAMPLE)]
        quarter, median, three_quarters = np.percentile(sample, (25, 50, 75)).tolist()
        mean, std = float(flat.mean(dtype=np.float64)), float(sample.std(dtype=np.float64))
        return Spread(what, float(flat.min()), quarter, median, three_quarters, float(flat.max()), mean, std)

    @property
    def is_constant(self) -> bool:
        """True if all numbers are equal."""
        return self.lowest == self.highest

    @property
    def text(self) -> str:
        """The statistics as text, without the name."""
        return f"from {self.lowest:,.5g} to {self.highest:,.5g}, median {self.median:,.5g}, mean {self.mean:,.5g}"


def by_column(what: str, numbers: Array) -> list[Spread]:
    """Return the statistics of each column; of all columns together for images or too many columns."""
    if numbers.ndim > 2 or numbers.shape[1] > MOST_COLUMNS:
        # Packed Dict observations and stacked frames would be copied as a whole, so take a sample.
        if not isinstance(numbers, np.ndarray) or not numbers.flags.c_contiguous:
            numbers = numbers[:: math.ceil(math.prod(numbers.shape) / LARGEST_SAMPLE)]
        return [Spread.of(what, numbers)]
    return [Spread.of(f"{what} {place}", numbers[:, place]) for place in range(numbers.shape[1])]


def is_constant(numbers: Array) -> bool:
    """Check whether all rows are equal. It stops at the first block with another one."""
    return all((numbers[rows] == numbers[0]).all() for rows in blocks(numbers))


def is_binary(observations: Array) -> bool:
    """Check whether all rows are vectors of zeros and ones, as Discrete, MultiDiscrete and MultiBinary states are."""
    if observations.ndim != 2 or observations.shape[1] == 1:
        return False
    parts = (observations[rows] for rows in blocks(observations))
    return all(((part == 0) | (part == 1)).all() for part in parts)


def is_one_hot(observations: Array) -> bool:
    """Check whether each row is a vector of zeros and a single 1, as a state of Discrete is shown."""
    return is_binary(observations) and all((observations[rows].sum(1) == 1).all() for rows in blocks(observations))


MIN_STEPS = 100  # with fewer, the ordinary step size is unknown
FAR = 6.0  # times the 90th percentile; steps of locomotion, hands and pendulums stay below 5.1, most resets are above


class Motion:
    """Distances between observations: from step to step, and from one episode's end to the next episode.

    Each column is divided by the 90th percentile of its own absolute steps. Columns where this percentile is 0 are left
    out, because goals and cues change in leaps. A distance is the root mean square over the columns.

    Attributes:
        usual: 95th percentile of the step lengths inside episodes.
        far: Rows inside an episode after which the observation leaps.
        leap: Longest step inside episodes, relative to the 90th percentile of the step lengths.
        across: (E-1,), distance from the last row of each episode to the first row of the next.
        can_tell: True if an ordinary step is shorter than the distance between two random observations.
        order: median step length, relative to the median distance between two random observations; 1 for shuffled rows.
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
        usual_by_chance = float(np.median(by_chance))
        self.can_tell = self.usual < usual_by_chance
        self.order = float(np.median(lengths)) / usual_by_chance if usual_by_chance else 0.0

    @staticmethod
    def of(data: Dataset) -> Motion | None:
        """Measure the distances in `data`; None if there are too few steps, or if distances tell nothing.

        They tell nothing between images, between vectors of zeros and ones, and where no column moves.
        """
        is_inside = np.ones(data.num_steps, np.bool_)
        is_inside[data.stops - 1] = False
        inside = np.flatnonzero(is_inside)
        if data.observations.ndim > 2 or len(inside) < MIN_STEPS or is_binary(data.observations):
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
