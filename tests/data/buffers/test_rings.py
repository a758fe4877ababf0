"""Rings: what is stored, where episodes end in them, and how they are saved and copied."""

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from pushing import ENDS, OBSERVATIONS, Recorded, push_all, pushes, same, space_of, through_a_file
from test_replay import made

from offpcc.data.buffers import replay
from offpcc.utils.errors import UserError

# What is stored -------------------------------------------------------------------------------------------------


def test_each_observation_is_stored_once():
    space = Box(0, 255, (3, 16, 16), np.uint8)
    buffer = made(space, capacity=1_000)
    for _ in range(4):
        frames = np.random.default_rng(0).integers(0, 256, (51, 3, 16, 16), np.uint8)
        for t in range(50):
            buffer.push(frames[t], np.zeros(2), 0.0, frames[t + 1], t == 49, False)
    assert buffer.size == 4 * 51 and len(buffer) == 4 * 50
    assert buffer.storage.observations.dtype == np.uint8 and buffer.sample().observations.dtype == torch.uint8
    assert buffer.storage.observations[: buffer.size].nbytes == 4 * 51 * 3 * 16 * 16
    assert (
        sum(array.nbytes for piece in buffer.state_dict()["chunks"] for array in piece)
        == 4 * 51 * buffer.bytes_per_step
    )


def test_each_frame_of_a_stack_is_stored_once():
    buffer = made(space_of("pictures", 3), capacity=100, frame_stack=3)
    for number in (1, 2):
        push_all(buffer, Recorded(number, 20, "both", 3, "pictures").pushes())
    assert buffer.size == 2 * (20 + 3) and len(buffer) == 40
    assert buffer.storage.observations[:46].nbytes == 46 * 2 * 8 * 9
    assert sum(array.nbytes for piece in buffer.state_dict()["chunks"] for array in piece) == 46 * buffer.bytes_per_step


@pytest.mark.parametrize("frame_stack", [1, 2, 4])
def test_which_starts_are_lost_with_a_row(frame_stack):
    """An episode without end: of the C rows kept, the first k - 1 are only looked back at, the last only ahead."""
    buffer = made(space_of("numbers", frame_stack), capacity=9, batch_size=500, frame_stack=frame_stack)
    for number, pushed in enumerate(Recorded(1, 40, "left", frame_stack).pushes(), 1):
        buffer.push(*pushed)
        kept = range(max(number + frame_stack - 9, 0), number)
        assert len(buffer) == len(kept)
        assert sorted(set(buffer.sample().rewards.flatten().tolist())) == [1000.0 + t for t in kept]


def test_storage_grows_with_what_is_stored_up_to_its_capacity(monkeypatch):
    monkeypatch.setattr(replay, "FIRST_BLOCK", 4)
    buffer = made(capacity=50)
    sizes = []
    for pushed in pushes((60, "left")):
        buffer.push(*pushed)
        sizes.append(len(buffer.storage.observations))
        assert buffer.size <= sizes[-1] <= max(4, 2 * buffer.size)
    assert sorted(set(sizes)) == [4, 8, 16, 32, 50]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_stored_as_float32(dtype):
    buffer = made(Box(-np.inf, np.inf, (2,), dtype))
    values = [np.array([t + 0.1, -t], dtype) for t in range(4)]
    for t in range(3):
        buffer.push(values[t], np.zeros(2, dtype), np.float64(0.1), values[t + 1], False, False)
    assert buffer.size == 4  # rounding does not tear an episode
    batch = buffer.sample()
    assert batch.observations.dtype == torch.float32
    assert {row[0] for row in batch.observations[:, 0].tolist()} == {float(np.float32(t + 0.1)) for t in range(3)}


@pytest.mark.parametrize("space_shape", [(9, 10, 3), (3, 9, 10)])
@pytest.mark.parametrize("num_first", [0, 2, 4])
def test_images_may_come_with_channels_first_or_last(space_shape, num_first):
    frames = np.random.default_rng(0).integers(0, 256, (5, 3, 9, 10), np.uint8)
    buffer = made(Box(0, 255, space_shape, np.uint8))
    for t in range(4):
        pair = frames[t], frames[t + 1]
        if space_shape[-1] == 3 and t >= num_first:
            pair = tuple(frame.transpose(1, 2, 0) for frame in pair)
        buffer.push(pair[0], np.zeros(2), float(t), pair[1], False, t == 3)
    assert buffer.size == 5 and np.array_equal(buffer.storage.observations[:5], frames)
    batch = buffer.sample()
    assert batch.observations.shape == (32, 2, 3, 9, 10)
    for pair, t in zip(batch.observations, batch.rewards[:, 0, 0].int().tolist(), strict=True):
        assert np.array_equal(pair, frames[t : t + 2])


def test_a_batch_is_a_copy():
    buffer = made()
    buffer.push(*pushes((1, "left"))[0])
    for tensor in buffer.sample()[:8]:
        tensor.fill_(99.0)
    assert not any((tensor == 99.0).any() for tensor in buffer.sample()[:8])


# Ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end, termination", [("terminated", 1.0), ("truncated", 0.0), ("both", 1.0), ("left", 0.0)])
def test_only_a_task_that_ended_stops_the_bootstrap(end, termination):
    buffer = made()
    push_all(buffer, pushes((3, end), (2, "truncated")))
    batch = buffer.sample()
    last = batch.rewards[:, 0, 0] == 1002.0
    assert last.any()
    assert batch.terminations[last].unique().tolist() == [termination]
    assert batch.observations[last, 1].unique(dim=0).tolist() == [[1.0, 3.0]]  # the true final observation
    assert batch.terminations[~last].sum() == 0


@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_an_episode_that_begins_where_the_last_ended_is_another(end):
    buffer, start = made(num_steps=2), np.zeros(2, np.float32)
    for reward in (1.0, 2.0):
        buffer.push(start, np.full(2, reward), reward, start, *ENDS[end])
    batch = buffer.sample()
    assert buffer.size == 4 and batch.first_action.abs().sum() == 0
    assert batch.valid[:, 2].sum() == 0


def test_a_dropped_episode_keeps_its_transitions_and_what_follows_begins_another():
    """Also where the next one begins with the very observation that it broke off at."""
    buffer, start = made(num_steps=2, num_envs=2), np.zeros(2, np.float32)
    for reward in (1.0, 2.0):
        buffer.push(start, np.full(2, reward), reward, start, *ENDS["left"])
        buffer.drop(0)
        buffer.push(start, np.full(2, 3.0), 3.0, start, *ENDS["left"], env=1)
    batch = buffer.sample()
    assert len(buffer) == 4 and batch.terminations.sum() == 0
    of_first = batch.rewards[:, 0, 0] < 3
    assert batch.first_action[of_first].abs().sum() == 0 and batch.valid[of_first, 2].sum() == 0
    assert batch.valid[~of_first, 2].sum() > 0, "the other environment's episode goes on"


# Saving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_before", [0, 1, 4, 5, 6, 12, 13, 30])
@pytest.mark.parametrize("capacity", [8, 20, 100])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_restored_buffer_goes_on_alike(monkeypatch, num_before, capacity, num_steps):
    monkeypatch.setattr(replay, "FIRST_BLOCK", 4)
    transitions = pushes((5, "terminated"), (7, "left"), (1, "truncated"), (9, "both"), (4, "left"), (10, "truncated"))
    buffer = made(capacity=capacity, num_steps=num_steps, seed=1)
    for pushed in transitions[:num_before]:
        buffer.push(*pushed)
        buffer.sample()
    state = buffer.state_dict()
    saved = through_a_file(state)
    other = made(capacity=capacity, num_steps=num_steps, seed=2)
    push_all(other, pushes((11, "left")))  # what it held before is gone
    other.load_state_dict(saved)
    assert (len(other), other.size, other.rings) == (len(buffer), buffer.size, buffer.rings)
    if num_before:
        assert same(buffer.sample(), other.sample())
    for pushed in transitions[num_before:]:
        buffer.push(*pushed)
        other.push(*pushed)
        assert (len(other), other.size) == (len(buffer), buffer.size)
        assert same(buffer.sample(), other.sample())
    third = made(capacity=capacity, num_steps=num_steps)
    third.load_state_dict(state)  # what went on afterwards is not in it
    for piece, again in zip(saved["chunks"], through_a_file(third.state_dict())["chunks"], strict=True):
        assert all(map(torch.equal, piece, again))


@pytest.mark.parametrize(
    "length, saved, loaded, fits",
    [(5, 8, 8, True), (5, 8, 6, True), (5, 8, 20, True), (5, 8, 5, False), (30, 8, 20, False), (30, 8, 4, False)],
)
def test_a_ring_that_does_not_fit_is_refused(length, saved, loaded, fits):
    buffer, other = made(capacity=saved), made(capacity=loaded)
    push_all(buffer, pushes((length, "left")))
    if fits:
        other.load_state_dict(buffer.state_dict())
        assert same(buffer.sample(), other.sample()) or loaded != saved
        assert len(other) == len(buffer)
    else:
        with pytest.raises(UserError, match=rf"ReplayBuffer\.capacity = {loaded}"):
            other.load_state_dict(buffer.state_dict())


# Sizes and faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space", [OBSERVATIONS, Box(0, 255, (16, 16, 3), np.uint8), Box(0, 255, (6, 16, 16), np.uint8)]
)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_planned_bytes_are_those_that_a_full_buffer_takes(space, num_envs):
    frame_stack = 2 if space.shape[0] == 6 else 1
    capacity = 40 * num_envs + num_envs - 1
    buffer = made(space, capacity=capacity, num_envs=num_envs, frame_stack=frame_stack)
    assert not any(array.nbytes for array in buffer.storage.contiguous)  # it takes no room before it is used
    observation = np.zeros(space.shape, space.dtype)
    for t in range(12):
        for env in range(num_envs):
            buffer.push(observation, np.zeros(2), 0.0, observation, False, t % 5 == 4, env=env)
    real = sum(array.nbytes for array in buffer.storage.contiguous)  # its rings are smaller than a first block
    assert real == 40 * num_envs * buffer.bytes_per_step
    assert buffer.planned_bytes(10_000, None) == buffer.planned_bytes(10_000, 5) == real
    assert buffer.planned_bytes(40 * num_envs, None) == real
    assert buffer.planned_bytes(10 * num_envs, None) * 4 == real
    assert buffer.planned_bytes(12 * num_envs, 5) == buffer.size * buffer.bytes_per_step
    assert buffer.size == num_envs * (12 + 3 * frame_stack)


# Copied, and saved in pieces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_is_of_one_piece(copied):
    buffer = made()
    push_all(buffer, pushes((5, "truncated")))
    other = copied(buffer)
    for pushed in pushes((3, "terminated")):
        other.push(pushed[0], pushed[1], 7.0, *pushed[3:])
    assert (len(buffer), len(other)) == (5, 8)
    assert 7.0 in other.sample().rewards and 7.0 not in buffer.sample().rewards
    assert np.array_equal(other.storage.packed[: other.size, :2], other.storage.observations[: other.size])


def test_a_copy_holds_all_columns_of_images_too():
    buffer = made(space_of("pictures", 3), capacity=20, frame_stack=3, num_envs=2)
    for env in range(2):
        for pushed in Recorded(env + 1, 30, "left", 3, "pictures").pushes():
            buffer.push(*pushed._replace(env=env))
    other = copy.deepcopy(buffer)
    for own, copied in zip(buffer.storage.columns, other.storage.columns, strict=True):
        assert np.array_equal(own, copied) and not np.shares_memory(own, copied)
    assert same(buffer.sample(), other.sample())


def test_a_ring_that_runs_ahead_makes_pieces_longer(monkeypatch):
    """What is known by the same version is of the same length."""
    monkeypatch.setattr(replay, "CHUNK_BYTES", 100)
    buffer = made(capacity=300, num_envs=3)
    lengths = {}
    for pushed, env in zip(pushes((120, "left")), [0, 0, 0, 1, 0, 2] * 20, strict=True):
        buffer.push(*pushed._replace(env=env))
        for piece in buffer.chunks():
            length = len(piece.arrays[0])
            assert lengths.setdefault((piece.key, piece.version), length) == length
