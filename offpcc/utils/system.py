"""Free memory, including the limits of containers, and settings of the memory allocator."""

import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from offpcc.utils.errors import UserError
from offpcc.utils.paths import shown

# While a thread records a CUDA graph, no other thread may record one or free cached memory of a GPU.
GPU_LOCK = threading.Lock()
PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # bytes; without a limit, version 1 writes a number of this size or more

# Beginnings of the messages of PyTorch and NumPy for an array that is too large; there is no special class of error.
SHORTAGES = {
    RuntimeError: re.compile(
        r"(\[enforce fail at \S+\] .*)?DefaultCPUAllocator: (can't allocate|not enough) memory|CUDA out of memory|"
        r"(Storage|storage) size calculation overflowed|Overflow when unpacking|numel: integer multiplication overflow"
    ),
    TypeError: re.compile(r".*Overflow when unpacking long"),
    ValueError: re.compile("Maximum allowed (size|dimension) exceeded|array is too big;"),
}


def is_shortage(error: BaseException) -> bool:
    """Check whether an error means that an array needs more memory than there is."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the latter of torch
        return True
    known = next((words for kind, words in SHORTAGES.items() if isinstance(error, kind)), None)
    return known is not None and known.match(str(error)) is not None


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Return the bytes of memory that this process can still allocate, or None if the system does not report it.

    Containers, Slurm and systemd limit memory with control groups, version 2 (``memory.max``) or version 1
    (``memory.limit_in_bytes``). The limits of all parent groups apply, too.
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
            places.append((groups / "unified", *places[0][1:]))  # if both versions are in use
        elif "memory" in controllers.split(","):
            places = [(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")]
        else:
            continue
        group = PurePosixPath(path)
        # Inside a container, the path may be the host's and not exist; the mounted root is then the container's group.
        inside = [] if ".." in group.parts else [group, *group.parents]
        for root, *names in places:
            for folder in dict.fromkeys([root, *(root / str(one).lstrip("/") for one in inside)]):
                yield from _free_in(folder, *names)


def _free_in(folder: Path, limit: str, usage: str, prefix: str) -> Iterator[int]:
    """Yield the free bytes of one group; count its page cache as free, because the kernel can reclaim it."""
    try:
        most = int((folder / limit).read_text(encoding="ascii"))
        if most >= UNLIMITED:
            return
        used = int((folder / usage).read_text(encoding="ascii"))
        pairs = (line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        cached = sum(int(count) for name, count in pairs if name in (f"{prefix}inactive_file", f"{prefix}active_file"))
    except (OSError, ValueError):  # "max" if there is no limit
        return
    yield max(0, most - max(0, used - cached))


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_FROM_HEAP = 32 * 1024 * 1024  # bytes; the largest value that glibc accepts
KEPT = 1024 * 1024 * 1024  # bytes that glibc keeps at the end of the heap


@functools.cache
def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory instead of returning it to the system; return whether this worked.

    Each update allocates and frees activations of a megabyte or more. By default, glibc takes new memory from the
    system for each of them, with one page fault per page. In CQL, this takes a third of the time of an update. With
    this setting, the process keeps its peak memory; `OFFPCC_KEEP_MEMORY=0` turns the setting off. It works on Linux
    with glibc; elsewhere it does nothing.
    """
    given = os.environ.get("OFFPCC_KEEP_MEMORY") or "1"
    if given not in ("0", "1"):
        raise UserError(
            f"the environment variable OFFPCC_KEEP_MEMORY is {shown(given)}; it has to be 0 or 1; or unset it"
        )
    if sys.platform != "linux" or given == "0":
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_FROM_HEAP) and mallopt(M_TRIM_THRESHOLD, KEPT))
