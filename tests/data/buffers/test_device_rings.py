"""Transitions that are gathered on the device beside those that are gathered as ever."""

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_device import DEVICES, LOOKS, STORY, counted, identical, play
from pushing import ACTIONS, Recorded, space_of

from offpcc.data import ReplayBuffer
from offpcc.data.buffers import device as device_rings
from offpcc.data.buffers import replay


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    **STORY,
    **LOOKS,
    spare_rows=st.integers(0, 10),
    num_steps=st.integers(1, 3),
    first_block=st.integers(1, 7),
    block_bytes=st.sampled_from([1, 100, 2**24]),
)
def test_batches_are_the_same(device, spare_rows, num_steps, first_block, block_bytes, num_envs, frame_stack, **story):
    def make(*spaces, **arguments):
        capacity = num_envs * (frame_stack + 1 + spare_rows)
        return ReplayBuffer(*spaces, capacity=capacity, batch_size=40, num_steps=num_steps, device=device, **arguments)

    with (
        mock.patch.object(replay, "FIRST_BLOCK", first_block),
        mock.patch.object(device_rings, "BLOCK_BYTES", block_bytes),
    ):
        play(make, num_envs=num_envs, frame_stack=frame_stack, **story)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_only_what_was_pushed_goes_over(num_envs, frame_stack):
    """Rows that were appended, the one before them, which got its action, and those that are no starts any more."""
    space = space_of("numbers", frame_stack)
    arguments = {"capacity": 30 * num_envs, "num_envs": num_envs, "frame_stack": frame_stack, "batch_size": 8}
    buffer, without = (ReplayBuffer(space, ACTIONS, on_device=on_device, **arguments) for on_device in (True, False))
    streams = [Recorded(env, 200, "left", frame_stack).pushes() for env in range(num_envs)]

    def push(*envs):
        for env in envs:
            pushed = next(streams[env])
            buffer.push(*pushed._replace(env=env))
            without.push(*pushed._replace(env=env))

    with counted() as copied:
        push(*range(num_envs))
        assert identical(buffer.sample(), without.sample())
        assert copied == [buffer.size]
        del copied[:]
        for number in [1, 2, 0, 1, 3, 1, 30, 1, 0, 2, 200 // num_envs - 60]:
            push(*[num_envs - 1] * number)
            assert identical(buffer.sample(), without.sample())
            ahead = frame_stack - 1 if buffer.rings[-1].size == 30 else 0
            expected = [min(number + 1 + ahead, 30)] if number else []
            assert copied == expected
            del copied[:]
        push(*range(num_envs))
        assert identical(buffer.sample(), without.sample())
        assert len(copied) == 1, "one copy for all rings"


def test_a_ring_that_was_empty_has_no_row_before_its_first(monkeypatch):
    """Nor is there a place for one, as long as the storage is smaller than its capacity."""
    monkeypatch.setattr(replay, "FIRST_BLOCK", 8)
    buffer = ReplayBuffer(space_of("numbers", 1), ACTIONS, capacity=60, num_envs=2, batch_size=8, on_device=True)
    with counted() as copied:
        for env in range(2):
            buffer.push(*next(Recorded(env, 2, "left").pushes())._replace(env=env))
            buffer.sample()
    assert copied == [4, 2]


def test_growth_copies_all_again(monkeypatch):
    monkeypatch.setattr(replay, "FIRST_BLOCK", 4)
    buffer = ReplayBuffer(space_of("numbers", 1), ACTIONS, capacity=50, batch_size=8, on_device=True)
    with counted() as copied:
        for pushed in Recorded(1, 10, "left").pushes():
            buffer.push(*pushed)
            buffer.sample()
    assert copied == [2, 2, 2, 5, 2, 2, 2, 9, 2, 2]
