"""How much memory there is."""

from __future__ import annotations

from pathlib import Path

SHORTAGES = (  # what NumPy and PyTorch say of an array that is too large
    "can't allocate memory",
    "out of memory",
    "storage size calculation overflowed",
    "overflow when unpacking",
    "maximum allowed size exceeded",
    "too big",
)


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that an array takes more memory than there is."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in SHORTAGES)


def available_bytes() -> int | None:
    """Memory that could be had, where the system tells."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
