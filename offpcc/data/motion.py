"""How far observations move from one recorded step to the next."""

from __future__ import annotations

import math

import numpy as np

from offpcc.data.columns import Array
from offpcc.data.datasets import Dataset
from offpcc.data.spreads import SAMPLE

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
