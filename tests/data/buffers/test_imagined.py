"""Buffers of imagined transitions: what a checkpoint keeps of them, shares of batches, and what is drawn."""

import numpy as np
import pytest
import torch
from on_device import recorded_rows
from pushing import ACTIONS, OBSERVATIONS, pushes

from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.imagined import ImaginedBuffer
from offpcc.data.datasets.dataset import Dataset

BOTH = pytest.mark.parametrize("buffer_class", [ReplayBuffer, RecurrentReplayBuffer])


def imagined(buffer_class, share=0.5, batch_size=8, seed=0):
    """A buffer of real and imagined transitions, both in many chunks."""
    parts = [buffer_class(OBSERVATIONS, ACTIONS, batch_size=batch_size, seed=seed + n) for n in (0, 1)]
    for part in parts:
        part.chunk_rows = 4
    return ImaginedBuffer(*parts, share)


def filled(buffer_class, **given):
    buffer = imagined(buffer_class, **given)
    for pushed in pushes((9, "truncated"), (6, "terminated"), (7, "truncated")):
        buffer.push(*pushed)
    rows = recorded_rows()[1]
    buffer.extend(rows, np.zeros(len(rows.starts), int))
    return buffer


@BOTH
def test_a_loaded_buffer_knows_its_chunks(buffer_class, monkeypatch):
    """A checkpoint after a resume keeps the files of chunks that did not change, which it finds by their keys."""
    monkeypatch.setattr("offpcc.data.buffers.sequence_replay.CHUNK_BYTES", 60)
    buffer, other = (build(buffer_class) for build in (filled, imagined))
    saved = buffer.chunks()
    assert len(saved) > 4
    known = {}

    def fill(number, chunk):
        for array, given in zip(chunk.arrays, saved[number].arrays, strict=True):
            array[...] = given
        known[chunk.key] = chunk.version

    other.load(buffer.metadata(), sum(array.nbytes for chunk in saved for array in chunk.arrays), fill)
    assert known == {chunk.key: chunk.version for chunk in other.chunks()}
    for one, two in zip(saved, other.chunks(), strict=True):
        assert one.key == two.key
        assert all(np.array_equal(a, b) for a, b in zip(one.arrays, two.arrays, strict=True))
