"""Findings of `offpcc check`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAULT", "NOTE", "OK", "WARNING", "Diagnosis", "Finding"]

OK, NOTE, WARNING, FAULT = "ok", "note", "warning", "FAULT"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was looked at, in a word.
        level: OK; NOTE, good to know; WARNING, learning goes on but may not be what you think; FAULT, learning fails
            or learns something else.
        found: The value found, and where.
        remedy: What to do, where there is something to do.
    """

    check: str
    level: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What `examine` found, one finding per check."""

    name: str
    findings: tuple[Finding, ...]

    def of(self, level: str) -> tuple[Finding, ...]:
        """The findings of a level."""
        return tuple(finding for finding in self.findings if finding.level == level)

    @property
    def verdict(self) -> str:
        """All findings in one line."""
        faults, warned = len(self.of(FAULT)), len(self.of(WARNING))
        parts = [f"{faults} fault{'s' * (faults > 1)}" if faults else "no fault"]
        if warned:
            parts.append(f"{warned} warning{'s' * (warned > 1)}")
        return f"{self.name}: {', '.join(parts)}" + ("; mend it before training in it" if faults else "")
