"""Findings of `offpcc check`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

OK, NOTE, WARNING, FAULT = "ok", "note", "warning", "FAULT"
DARK = "no pixel is above 1"
LIGHTEN = "multiply fractions by 255 before they become bytes, because networks divide bytes by 255"
UNLIKE = 10.0  # ratio of largest to smallest standard deviation; above it, networks hardly see the smaller column
ROUNDING = 1e-6  # of a column's mean; a smaller standard deviation is float32 rounding, so the column is constant


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Name of the check, one word.
        level: OK; NOTE, useful to know; WARNING, training works but may not do what you expect; FAULT, training fails
            or learns something else.
        found: The value found, and where.
        remedy: What the user can do, or "".
    """

    check: str
    level: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.level:9}{self.check:11}{self.found}"
        return f"{text}\n{'':20}-> {self.remedy}" if self.remedy else text


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The findings of `offpcc check` about an environment or a dataset."""

    name: str
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.verdict])

    def __repr__(self) -> str:
        return str(self)  # a notebook shows it

    def of(self, level: str) -> tuple[Finding, ...]:
        """Return the findings of one level."""
        return tuple(finding for finding in self.findings if finding.level == level)

    @property
    def verdict(self) -> str:
        """A summary of all findings in one line."""
        faults, warned = len(self.of(FAULT)), len(self.of(WARNING))
        parts = [f"{faults} fault{'s' * (faults > 1)}" if faults else "no fault"]
        if warned:
            parts.append(f"{warned} warning{'s' * (warned > 1)}")
        return f"{self.name}: {', '.join(parts)}" + ("; fix it before training in it" if faults else "")


def unlike_scales(mean: NDArray[Any], std: NDArray[Any], names: Sequence[str] = ()) -> str:
    """Describe two observation columns of unlike scales; "" if there are none. Constant columns do not count.

    Without `names`, a column's name is "observation" with its index, such as "observation (0, 3)".
    """
    moving = np.flatnonzero(std > ROUNDING * np.abs(mean))
    if not moving.size:
        return ""
    scales = std.ravel()[moving]
    small, large = scales.argmin(), scales.argmax()
    if scales[large] <= UNLIKE * scales[small]:
        return ""

    def name(place: int) -> str:
        if names:
            return names[place]
        column = tuple(map(int, np.unravel_index(place, std.shape)))  # 3, or (0, 3) for several axes
        return f"observation {column[0] if len(column) == 1 else column}"

    return (
        f"{name(moving[large])} spreads by {scales[large]:.3g}, but {name(moving[small])} by {scales[small]:.3g} only"
    )
