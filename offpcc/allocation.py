"""The C library's allocator, told to keep what it is given back."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

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
