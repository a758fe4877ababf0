"""Checks the values of recorded data: rewards, observations, actions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from offpcc.core import is_image
from offpcc.data.checks.summary_stats import Spread, unlike_scales
from offpcc.data.datasets.actions import MUCH_OUTSIDE, checked_range, in_units
from offpcc.data.datasets.columns import TOLERANCE, Array, Range
from offpcc.data.datasets.dataset import Dataset
from offpcc.utils.findings import NOTE, OK, WARNING, Finding

SPARSE = 0.99  # fraction of zero rewards; a batch of 256 then has only two or three others
LARGEST_SAMPLE = 2**22  # numbers in the sample for the standard deviations of columns
NARROW = 0.1  # of the range; actions that stay below it are probably in other units
# If more than half of all numbers are at a bound, the likelihoods of a squashed policy say little.
AT_BOUND, SATURATED = 0.999, 0.5


def rewards(data: Dataset, spread: Spread) -> Finding:
    """Check whether rewards are constant or sparse."""
    if spread.is_constant:
        if data.terminations.any():
            remedy = "fine if only how long an episode lasts matters"
            return Finding("rewards", NOTE, f"always {spread.lowest:.4g}", remedy)
        remedy = "nothing tells good from bad: only imitation (bc) learns from it"
        return Finding("rewards", WARNING, f"always {spread.lowest:.4g}, and no episode terminated", remedy)
    zeros = float((data.rewards == 0).mean())
    text = f"from {spread.lowest:.4g} to {spread.highest:.4g}, mean {spread.mean:.4g}, {zeros:.1%} of them 0"
    if zeros >= SPARSE:
        others = int(np.logical_or.reduceat(data.rewards != 0, data.starts).sum())
        text = f"{text}; {others:,} of {data.num_episodes:,} episodes hold others"
        return Finding("rewards", NOTE, text, "sparse: see that enough episodes reach what is rewarded")
    return Finding("rewards", OK, text)


def _range_text(data: Dataset, spreads: Sequence[Spread]) -> str:
    shape, bounds = data.observations.shape[1:], (min(s.lowest for s in spreads), max(s.highest for s in spreads))
    return f"observations are {data.observations.dtype} of shape {shape}, from {bounds[0]:.4g} to {bounds[1]:.4g}"


def observed(data: Dataset, spreads: Sequence[Spread]) -> list[Finding]:
    """Check for constant observation columns and for columns of very different scales."""
    found = []
    if constant := [place for place, spread in enumerate(spreads) if spread.is_constant]:
        text = f"{_some(len(constant), len(spreads), 'column')} ({_runs(constant)})"
        remedy = "hide them by DropIndices, unless the environment of the tests shows the same numbers there"
        found.append(Finding("observed", WARNING, text, remedy))
    if text := _unlike_text(data.observations):
        remedy = (
            "bc, td3_bc, iql, cql and bcq normalise by default; for others, and where a config has it False, bind "
            "normalize_observations, such as SAC.normalize_observations = True"
        )
        found.append(Finding("observed", NOTE, text, remedy))
    return found or [Finding("observed", OK, _range_text(data, spreads))]


def _unlike_text(observations: Array) -> str:
    """Describe columns of very different scales, from a sample of rows; "" if there are none, or for images."""
    shape = observations.shape[1:]
    if is_image(shape):
        return ""
    most_rows = max(LARGEST_SAMPLE // math.prod(shape), 1)
    sample = observations[:: math.ceil(len(observations) / most_rows)].astype(np.float64)
    return unlike_scales(sample.mean(0), sample.std(0))


def _some(number: int, total: int, noun: str) -> str:
    """Return a text such as "2 of 3 columns never change" or "1 of 1 column never changes"."""
    return f"{number:,} of {total:,} {noun}{'' if total == 1 else 's'} never change{'s' if number == 1 else ''}"


def _runs(places: Sequence[int]) -> str:
    """Return places as text: 0, 1, 2, 5 -> "0 to 2, 5"."""
    starts = [place for place in places if place - 1 not in places]
    stops = [place for place in places if place + 1 not in places]
    runs = zip(starts, stops, strict=True)
    return ", ".join(f"{start}" if start == stop else f"{start} to {stop}" for start, stop in runs)


def _action_text(data: Dataset, units: Array) -> str:
    at_bound = float((np.abs(units) >= AT_BOUND).mean())
    lowest, highest = data.actions.min(), data.actions.max()
    number = data.actions.shape[1]
    count = f"{number} number{'' if number == 1 else 's'}"
    return f"{count}, from {lowest:.4g} to {highest:.4g}, {at_bound:.1%} of them at a bound"


def are_off_scale(data: Dataset, action_bounds: Range | None) -> bool:
    """Check whether actions are in other units than their bounds.

    They are if about half of their numbers or more are outside the bounds. An example is data in [-2, 2] with bounds
    [-1, 1]. Fewer numbers outside may be noise that the recorder's environment clipped.

    Args:
        data: Data with continuous actions.
        action_bounds: See `Dataset.unit_actions`.
    """
    given = action_bounds if data.action_range is None else data.action_range
    units = in_units(data.actions, None if given is None else checked_range(given, data.actions.shape[1], data.name))
    is_outside = np.abs(units) > 1.0 + TOLERANCE
    return bool(is_outside.mean() > MUCH_OUTSIDE)


def actions(
    data: Dataset, spreads: Sequence[Spread], told: Sequence[Finding], action_bounds: Range | None
) -> list[Finding]:
    """Check whether actions have the kind and the units that agents expect. The result includes the findings `told`."""
    found = [*told]
    if data.discrete_actions:
        return found
    if stuck := [place for place, spread in enumerate(spreads) if spread.is_constant]:
        text = f"{_some(len(stuck), len(spreads), 'number')} ({_runs(stuck)})"
        remedy = "nothing can be learned of what they do; leave them out of the action"
        found.append(Finding("actions", WARNING, text, remedy))
    units = data.unit_actions(action_bounds)
    text = _action_text(data, units)
    if (far := float(np.abs(units).max())) < NARROW:
        remedy = "if the recorder had other bounds, bind dataset.action_range to them"
        found.append(Finding("actions", NOTE, f"none is beyond {far:.1%} of the way to a bound; {text}", remedy))
    if float((np.abs(units) >= AT_BOUND).mean()) > SATURATED:
        remedy = "likelihoods of actions say little there: td3_bc, which takes none, is the safer choice"
        found.append(Finding("actions", NOTE, text, remedy))
    return found if any(finding.level != OK for finding in found) else [*found, Finding("actions", OK, text)]
