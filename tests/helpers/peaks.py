"""Measures the memory that a call takes."""

import tracemalloc


def with_peak(call):
    """Return the result of a call, and the most bytes that Python and NumPy held during it.

    The smallest peak of three calls counts: what another thread or the garbage collector allocates meanwhile is in one
    of them, and can only add to it.
    """
    peaks = []
    for _ in range(3):
        result = None  # the last one is not held beside the next
        tracemalloc.start()
        try:
            result = call()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return result, min(peaks)
