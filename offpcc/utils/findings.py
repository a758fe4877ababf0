"""Findings of `offpcc check`."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, WARNING, FAULT = "ok", "note", "warning", "FAULT"


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


@dataclass(frozen=True)
class Diagnosis:
    """The findings of `examine`, one per check."""

    name: str
    findings: tuple[Finding, ...]

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
