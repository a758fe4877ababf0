"""The termination rules of known tasks, as functions of an observation."""

import re
from typing import Any, NamedTuple

import numpy as np

from offpcc.envs.aliases import Array

ROUNDING = 1e-4  # tolerance at a bound: recordings are float32, but the rules used float64
CLIPPED_SPEED = 10.0  # Hopper clips velocities to it, but may end at much larger true ones


class TerminationRule(NamedTuple):
    """Bounds of the body; the task terminates outside them."""

    sizes: tuple[int, ...]  # observation sizes for which this holds; () for a task that never terminates
    height: tuple[float, float] = (-np.inf, np.inf)  # m, the first number of an observation
    angle: float = np.inf  # rad, largest absolute value of the torso's angle, the second number if there is a bound
    first_velocity: int | None = None  # index of the first clipped velocity
    largest: float = np.inf  # bound on the absolute values of all numbers but the first

    @property
    def text(self) -> str:
        """The rule as text."""
        if not self.sizes:
            return "it never ends"
        low, high = self.height
        height = [f"{low:g} < height" + (f" < {high:g}" if np.isfinite(high) else "")] if np.isfinite(low) else []
        return ", ".join([*height, *([f"|angle| < {self.angle:g}"] if np.isfinite(self.angle) else [])])

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

    def terminates(self, observations: Any) -> Any:
        """Return whether the task ends at observations (N, D), (N,): outside the bounds, or where a number is NaN.

        Both are NumPy arrays, or both are tensors.
        """
        height, sizes = observations[:, 0], abs(observations[:, 1:])
        is_alive = (height > self.height[0]) & (height < self.height[1]) & (sizes < self.largest).all(1)
        if not self.sizes:
            return is_alive & ~is_alive
        if np.isfinite(self.angle):
            is_alive = is_alive & (sizes[:, 0] < self.angle)
        return ~is_alive


# Gymnasium's MuJoCo tasks, versions 2 to 5, with default arguments. The sizes are those of the whole observation and of
# positions alone. Ant has further sizes for the whole observation with contact forces.
RULES = {
    "hopper": TerminationRule((11, 5), (0.7, np.inf), 0.2, first_velocity=5, largest=100.0),
    "walker2d": TerminationRule((17, 8), (0.8, 2.0), 1.0),
    "ant": TerminationRule((27, 13, 105, 111), (0.2, 1.0)),
    "humanoid": TerminationRule((376, 348), (1.0, 2.0)),
    "invertedpendulum": TerminationRule((4,), angle=0.2),
    "halfcheetah": TerminationRule(()),
    "swimmer": TerminationRule(()),
    "pendulum": TerminationRule(()),
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


def find_rule(name: str, shape: tuple[int, ...]) -> TerminationRule | None:
    """Return the rule of a task or a dataset with observations of this shape; None if it is unknown."""
    for pattern in NAMES:
        if match := re.fullmatch(pattern, name.split(":")[-1] if "/" not in name else name, re.IGNORECASE):
            rule = RULES[match[1].lower()]
            return rule if not rule.sizes or shape in [(size,) for size in rule.sizes] else None
    return None
