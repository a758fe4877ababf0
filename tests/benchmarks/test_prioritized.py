"""The benchmark of prioritised replay runs; how long it takes is not asked here."""

import numpy as np

from benchmarks import prioritized


def test_both_buffers_hold_the_same_rows_and_all_parts_are_measured():
    found = prioritized.measure(num_transitions=500, num_rounds=3)
    assert found.keys() == {"uniform", "prioritised", "update"} and min(found.values()) > 0.0
    buffer = prioritized.PrioritizedReplayBuffer(prioritized.OBSERVATIONS, prioritized.ACTIONS, capacity=501)
    prioritized.filled(buffer, 500)
    batch = buffer.sample()
    assert len(buffer) == 500 and batch.weights is not None
    assert np.array_equal(batch.rewards[:, 0, 0], buffer.storage.rewards[buffer.drawn, 0])
