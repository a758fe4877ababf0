"""How much memory there is."""

from __future__ import annotations

from pathlib import Path


def available_bytes() -> int | None:
    """Memory that could be had, where the system tells."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
