"""Compares recorded terminals with the termination rule of a known task."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.dataset import Dataset
from offpcc.utils.findings import OK, WARNING, Finding

ROUNDING = 1e-4  # tolerance at a bound: recordings are float32, but the rules used float64
CLIPPED_SPEED = 10.0  # Hopper clips velocities to it, but may end at much larger true ones


class Rule(NamedTuple):
    """Bounds of the body; the task terminates outside them."""

    sizes: tuple[int, ...]  # observation sizes for which this holds; () for a task that never terminates
    height: tuple[float, float] = (-np.inf, np.inf)  # m, the first number of an observation
    angle: float = np.inf  # rad, largest absolute value of the torso's angle, the second number if there is a bound
    first_velocity: int | None = None  # index of the first clipped velocity

    @property
    def text(self) -> str:
        """The rule as text."""
        if not self.sizes:
            return "it never ends"
        height = f"{self.height[0]:g} < height" + (f" < {self.height[1]:g}" if np.isfinite(self.height[1]) else "")
        return f"{height}, |angle| < {self.angle:g}" if np.isfinite(self.angle) else height

    def margin(self, observations: Array) -> Array:
        """Return the distance of observations (N, D) to the nearest bound, (N,); negative outside the bounds."""
        margin = np.full(len(observations), np.inf)
        if self.sizes:
            height = observations[:, 0]
            margin = np.minimum(height - self.height[0], self.height[1] - height)
        if np.isfinite(self.angle):
            margin = np.minimum(margin, self.angle - np.abs(observations[:, 1]))
        return margin

    def is_within(self, observations: Array) -> Array:
        """Return whether the task certainly continues at observations (N, D), (N,)."""
        is_within: Array = self.margin(observations) > ROUNDING
        if self.first_velocity is not None:
            is_within &= (np.abs(observations[:, self.first_velocity :]) < CLIPPED_SPEED - ROUNDING).all(axis=1)
        return is_within


# Gymnasium's MuJoCo tasks, versions 2 to 5, with default arguments. The sizes are those of the whole observation and of
# positions alone. Ant has further sizes for the whole observation with contact forces.
RULES = {
    "hopper": Rule((11, 5), (0.7, np.inf), 0.2, first_velocity=5),
    "walker2d": Rule((17, 8), (0.8, 2.0), 1.0),
    "ant": Rule((27, 13, 105, 111), (0.2, 1.0)),
    "humanoid": Rule((376, 348), (1.0, 2.0)),
    "halfcheetah": Rule(()),
    "swimmer": Rule(()),
    "pendulum": Rule(()),
}
_BODIES = "|".join(RULES)
_QUALITIES = "(?:random|medium|expert|simple|full-replay|medium-replay|medium-expert|random-expert)"
NAMES = (  # patterns of tasks and datasets with these rules; PyBullet's tasks have other rules
    rf"({_BODIES})-v\d+",
    rf"({_BODIES})-mujoco(?:-[pv])?-v\d+",
    rf"({_BODIES})-{_QUALITIES}-v\d+",
    rf"(?:minari:)?mujoco/({_BODIES})/.+",
    r"(pendulum)-.+-v\d+",
)


def terminals(data: Dataset, names: Iterable[str]) -> list[Finding]:
    """Find terminals at states where the task continues, and steps into terminal states that are not terminals.

    The result is empty if none of the names, the most reliable first, belongs to a known task, or if the observations
    do not contain what its rule needs.
    """
    known = ((name, rule) for name in names if (rule := _rule(name, data.observations.shape[1:])) is not None)
    name, rule = next(known, ("", None))
    if rule is None:
        return []
    is_last, last = np.zeros(data.num_steps, np.bool_), data.stops - 1
    is_last[last] = True
    terminated = data.terminations[last]
    is_known = terminated & (_has_true_end(data, terminated) if rule.sizes else True)
    goes_on = is_known & rule.is_within(data.final_observations)
    # For a step inside an episode, the next observation is the following row.
    inside = np.flatnonzero(rule.margin(data.observations[1:])[~is_last[:-1]] < -ROUNDING)
    is_missed = ~terminated & data.last_is_transition & (rule.margin(data.final_observations) < -ROUNDING)
    missed = np.sort(np.concatenate([np.flatnonzero(~is_last)[inside], last[is_missed]]))
    found = []
    if goes_on.any():
        text = (
            f"terminals that lead to a state where {name} continues ({rule.text}): {goes_on.sum():,} of "
            f"{terminated.sum():,}, the first at step {last[goes_on][0]:,}"
        )
        remedy = (
            "values are not bootstrapped where the task continues: check whether the recorder dropped last steps, or "
            "recorded time limits as terminals; fine if the task had another rule"
        )
        found.append(Finding("terminals", WARNING, text, remedy))
    if len(missed):
        text = (
            f"steps that lead to a state where {name} ends (it continues while {rule.text}), but are not terminals: "
            f"{len(missed):,}, the first at step {missed[0]:,}"
        )
        remedy = "values are bootstrapped where the task ends: set terminals there; fine if the task had another rule"
        found.append(Finding("terminals", WARNING, text, remedy))
    if terminated.any() and not is_known.any():
        text = f"what they led to is unknown, so they are not compared with the rule of {name} ({rule.text})"
    else:
        text = f"they agree with the rule of {name} ({rule.text})"
    return found or [Finding("terminals", OK, text)]


def _rule(name: str, shape: tuple[int, ...]) -> Rule | None:
    for pattern in NAMES:
        if match := re.fullmatch(pattern, name.split(":")[-1] if "/" not in name else name, re.IGNORECASE):
            rule = RULES[match[1].lower()]
            return rule if not rule.sizes or shape in [(size,) for size in rule.sizes] else None
    return None


def _has_true_end(data: Dataset, terminated: Array) -> Array:
    """Return for each episode whether its final observation is the true result of its last step, (E,).

    Otherwise it is the observation before that step, or the first observation of another episode, if the recorder read
    observations after resets.
    """
    final, last = data.final_observations, data.stops - 1
    is_next_start = (final[:-1] == data.observations[data.stops[:-1]]).all(axis=1)
    num_followed = terminated[:-1].sum()
    looks_after_resets = any(notice.kind == "resets" for notice in data.notices)
    if looks_after_resets or 2 * is_next_start[terminated[:-1]].sum() > num_followed:
        return np.zeros(data.num_episodes, np.bool_)
    has_moved: Array = (final != data.observations[last]).any(axis=1)
    return has_moved
