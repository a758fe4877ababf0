"""Measures the memory that a call takes."""

import tracemalloc


def with_peak(call):
    """Return the result of a call, and the most bytes that Python and NumPy held during it."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
