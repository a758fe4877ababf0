"""Free memory, with container limits; the allocator's settings."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # bytes; version 1 writes a number of this size where there is no limit

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


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Bytes of memory that this process can still take; None where the system does not tell.

    Containers, Slurm and systemd limit memory by control groups, of version 2 (``memory.max``) or 1
    (``memory.limit_in_bytes``). The limits of all groups above the process's own hold as well.

    Args:
        proc: where the system tells of processes.
        groups: where it tells of control groups.
    """
    try:
        text = (proc / "meminfo").read_text(encoding="ascii")
        free = [int(text.split("MemAvailable:")[1].split()[0]) * 1024]
    except (OSError, IndexError, ValueError):
        free = []
    return min([*free, *_free_in_groups(proc, groups)], default=None)


def _free_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            places = [(groups, "memory.max", "memory.current", "")]
            places.append((groups / "unified", *places[0][1:]))  # where both versions are in use
        elif "memory" in controllers.split(","):
            places = [(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")]
        else:
            continue
        group = PurePosixPath(path)
        # Inside a container the path may be the one outside, which is not there: what is mounted is its own group.
        inside = [] if ".." in group.parts else [group, *group.parents]
        for root, *names in places:
            for folder in dict.fromkeys([root, *(root / str(one).lstrip("/") for one in inside)]):
                yield from _free_in(folder, *names)


def _free_in(folder: Path, limit: str, usage: str, prefix: str) -> Iterator[int]:
    """What a group leaves; its files in the page cache make room when memory is wanted."""
    try:
        most = int((folder / limit).read_text(encoding="ascii"))
        if most >= UNLIMITED:
            return
        used = int((folder / usage).read_text(encoding="ascii"))
        pairs = (line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        cached = sum(int(count) for name, count in pairs if name in (f"{prefix}inactive_file", f"{prefix}active_file"))
    except (OSError, ValueError):  # "max", where there is no limit
        return
    yield max(0, most - max(0, used - cached))


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_FROM_HEAP = 32 * 1024 * 1024  # bytes; glibc takes no more
KEPT = 1024 * 1024 * 1024  # bytes at the heap's end


@functools.cache
def keep_freed_memory() -> bool:
    """Have glibc use freed memory again instead of handing it to the system; whether it does from now on.

    Activations of a megabyte and more are allocated and freed in each update. By default each is new memory from the
    system, whose pages are faulted in one by one: a third of the time of an update of CQL. The process keeps what it
    once had; `OFFPCC_KEEP_MEMORY=0` leaves the allocator alone. Only for Linux with glibc; elsewhere nothing happens.
    """
    if sys.platform != "linux" or os.environ.get("OFFPCC_KEEP_MEMORY") == "0":
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_FROM_HEAP) and mallopt(M_TRIM_THRESHOLD, KEPT))
