"""Time of a batch from prioritised replay beside one from uniform replay, at a million transitions.

    python -m benchmarks.prioritized

Both buffers hold the same rows, in one process. Their batches alternate, so that a busy machine slows both alike; the
medians and their ratio are printed, for batches alone and for batches with the update of the priorities.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import torch
from gymnasium.spaces import Box

from offpcc.data import PrioritizedReplayBuffer, ReplayBuffer
from offpcc.utils.system import keep_freed_memory

NUM_TRANSITIONS, NUM_ROUNDS = 1_000_000, 2_000
OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (17,)), Box(-1.0, 1.0, (6,))  # those of HalfCheetah


def filled(buffer: ReplayBuffer, num_transitions: int) -> None:
    """Fill a buffer with one long episode of random numbers, without a million pushes."""
    storage = buffer._empty(num_transitions + 1)
    storage.packed[:] = np.random.default_rng(0).random(storage.packed.shape, np.float32)
    storage.is_start[:-1] = True
    buffer._set_storage(storage)
    ring = buffer.rings[0]
    ring.cursor, ring.size, buffer.num_transitions = num_transitions, num_transitions + 1, num_transitions
    buffer.items_replaced()


def measure(num_transitions: int = NUM_TRANSITIONS, num_rounds: int = NUM_ROUNDS) -> dict[str, float]:
    """Return the medians in microseconds."""
    buffers = [
        cls(OBSERVATIONS, ACTIONS, capacity=num_transitions + 1) for cls in (ReplayBuffer, PrioritizedReplayBuffer)
    ]
    for buffer in buffers:
        filled(buffer, num_transitions)
    uniform, prioritized = buffers
    draw = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {"uniform": [], "prioritised": [], "update": []}
    for _ in range(num_rounds):
        started = time.perf_counter()
        uniform.sample()
        between = time.perf_counter()
        batch = prioritized.sample()
        sampled = time.perf_counter()
        td_error = torch.rand(batch.loss_mask.shape, generator=draw)
        ready = time.perf_counter()
        prioritized.update_priorities(batch, td_error)
        seconds["uniform"].append(between - started)
        seconds["prioritised"].append(sampled - between)
        seconds["update"].append(time.perf_counter() - ready)
    return {name: 1e6 * median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_freed_memory()
    found = measure()
    for name, value in found.items():
        print(f"{name:12} {value:8.1f} us")
    print(f"{'ratio':12} {found['prioritised'] / found['uniform']:8.2f}")
    print(f"{'with update':12} {(found['prioritised'] + found['update']) / found['uniform']:8.2f}")
