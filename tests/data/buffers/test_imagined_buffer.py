"""Buffers of imagined transitions: what a checkpoint keeps of them, shares of batches, and what is drawn."""

import numpy as np
import pytest
from on_device import recorded_rows
from pushing import ACTIONS, OBSERVATIONS, push_all, pushes

from offpcc.algorithms import COMBO, MOPO
from offpcc.config import loading
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.imagined import ImaginedBuffer
from offpcc.training.models.imagination import imagination_options
from offpcc.utils.errors import UserError

BOTH = pytest.mark.parametrize("buffer_class", [ReplayBuffer, RecurrentReplayBuffer])


def imagined(buffer_class, share=0.5, batch_size=8, seed=0):
    """A buffer of real and imagined transitions, both in many chunks."""
    parts = [buffer_class(OBSERVATIONS, ACTIONS, batch_size=batch_size, seed=seed + n) for n in (0, 1)]
    for part in parts:
        part.chunk_rows = 4
    return ImaginedBuffer(*parts, share)


def filled(buffer_class, **given):
    buffer = imagined(buffer_class, **given)
    push_all(buffer, pushes((9, "truncated"), (6, "terminated"), (7, "truncated")))
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


@pytest.mark.parametrize(("buffer_class", "kept"), [(ReplayBuffer, 9), (RecurrentReplayBuffer, 8)])
def test_only_the_newest_imagined_transitions_are_kept(buffer_class, kept, monkeypatch):
    """Of episodes with 3, 1, 4, 1 and 2 steps, nine are the last four and a step; episodes are kept as wholes."""
    monkeypatch.setattr("offpcc.data.buffers.sequence_replay.CHUNK_BYTES", 60)
    buffer = filled(buffer_class)
    part, rows = buffer.imagined, recorded_rows()[1]

    def versions():
        return {chunk.key: (chunk.version, len(chunk.arrays)) for chunk in buffer.chunks()}

    before = versions()
    part.keep_newest(11)
    assert part.num_transitions == 11 and versions() == before
    part.keep_newest(9)
    assert part.num_transitions == kept and versions() != before  # a checkpoint writes what changed
    other = imagined(buffer_class).imagined
    other.batch_size = part.batch_size
    other.load_state_dict(part.state_dict())
    assert other.num_transitions == kept
    np.testing.assert_array_equal(other.sample().observations, part.sample().observations)
    buffer.extend(rows, np.zeros(len(rows.starts), int))
    part.keep_newest(11)
    newest = part.transition_table()
    np.testing.assert_array_equal(newest.observations[newest.is_start], rows.observations[rows.is_start])


@pytest.mark.parametrize(("share", "number"), [(0.0, 0), (0.05, 1), (0.5, 4), (0.97, 7), (1.0, 8)])
@BOTH
def test_a_batch_has_items_of_both_kinds_unless_its_share_is_none_or_all(buffer_class, share, number):
    """A twentieth of the ten episodes of a batch is half of one: without a limit, none would be real."""
    batch = filled(buffer_class, share=share).sample()
    assert batch.imagined.flatten().tolist() == [0.0] * number + [1.0] * (8 - number)


def test_combo_needs_recorded_items():
    loading.load_gin_config(None, ["Imagination.real_share = 0.0"])
    assert imagination_options(MOPO, "mopo", "").real_share == 0.0
    with pytest.raises(UserError, match="real_share is 0, but COMBO"):
        imagination_options(COMBO, "combo", "")


@pytest.mark.parametrize("segment_len", [None, 2])
def test_the_recorded_steps_before_a_rollout_do_not_make_it_more_likely(segment_len):
    """Four rollouts of three imagined steps, one of them after 60 recorded ones."""
    episodes = [
        (np.full((length + 1, 2), number, np.float32), np.zeros((length, 2)), np.zeros(length), False)
        for number, length in enumerate((3, 63, 3, 3))
    ]
    buffer = RecurrentReplayBuffer(OBSERVATIONS, ACTIONS, batch_size=2_000, segment_len=segment_len)
    buffer.extend(Dataset.from_episodes(episodes).rows(), np.array([0, 60, 0, 0]))
    batch = buffer.sample()
    numbers = batch.observations[range(2_000), batch.valid[..., 0].argmax(1), 0]
    assert abs((numbers == 1.0).double().mean() - 0.25) < 0.04
    assert buffer.shares(np.arange(4)).tolist() == [3.0, 3.0, 3.0, 3.0]
