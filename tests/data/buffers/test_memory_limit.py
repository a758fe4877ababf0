"""Images beyond a limit of memory are in files, and nobody notices: batches and checkpoints have the same bytes."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pushing import ACTIONS, interleaved, same, space_of, through_a_file

from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.storage import folder_of_frames, frames_in_file
from offpcc.utils.errors import UserError

EPISODES = [(3, "terminated"), (12, "truncated"), (1, "both"), (7, "terminated")]
BOTH = pytest.mark.parametrize("buffer_class", [ReplayBuffer, RecurrentReplayBuffer])
FRAME = 2 * 8 * 9  # bytes of a picture


def made(buffer_class, memory_limit, stack=4, num_envs=2, **arguments):
    given = {"capacity": 120 if buffer_class is ReplayBuffer else 9, "batch_size": 16, "frame_stack": stack}
    if buffer_class is ReplayBuffer:
        given["num_steps"] = 3
    else:
        given |= {"segment_len": 4, "burn_in": 2}
    given |= {"num_envs": num_envs, "memory_limit": memory_limit, "seed": 5, **arguments}
    return buffer_class(space_of("pictures", stack), ACTIONS, **given)


def arrays(buffer):
    """The frames, of each block that was allocated."""
    return [buffer.storage.observations] if isinstance(buffer, ReplayBuffer) else [e.frames for e in buffer.episodes]


def is_in_a_file(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is not None  # a map of a file


@BOTH
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("limit", [1, 40 * FRAME])
def test_batches_are_the_same_as_from_memory(buffer_class, stack, limit, monkeypatch):
    monkeypatch.setattr("offpcc.data.buffers.replay.FIRST_BLOCK", 20)  # so that it grows from memory into the file
    ours, expected = made(buffer_class, limit, stack), made(buffer_class, None, stack)
    was_in_file = set()
    played = interleaved(EPISODES, 400, 2, seed=1, frame_stack=stack, kind="pictures")  # each place is replaced twice
    for number, (env, _, pushed) in enumerate(played):
        for buffer in (ours, expected):
            buffer.push(*pushed._replace(env=env))
        if len(expected):
            assert same(ours.sample().without_padding(), expected.sample().without_padding())
            was_in_file |= {is_in_a_file(frames) for frames in arrays(ours)}
            assert not any(map(is_in_a_file, arrays(expected)))
        if number == 200:  # a checkpoint: each is continued from that of the other
            states = [through_a_file(buffer.state_dict()) for buffer in (ours, expected)]
            ours, expected = made(buffer_class, limit, stack), made(buffer_class, None, stack)
            for buffer, state in zip((ours, expected), reversed(states), strict=True):
                buffer.load_state_dict(state)
    assert was_in_file == ({True} if limit == 1 else {True, False})
    held = sum(frames.nbytes for frames in arrays(ours) if not is_in_a_file(frames))
    assert held <= limit


@BOTH
def test_checkpoints_have_the_same_chunks(buffer_class):
    buffers = [made(buffer_class, limit) for limit in (1, None)]
    for (env, _, pushed), buffer in itertools.product(
        interleaved(EPISODES, 90, 2, seed=2, frame_stack=4, kind="pictures"), buffers
    ):
        buffer.push(*pushed._replace(env=env))
    ours, expected = (buffer.chunks() for buffer in buffers)
    for one, other in zip(ours, expected, strict=True):
        assert (one.key, one.version) == (other.key, other.version)
        for a, b in zip(one.arrays, other.arrays, strict=True):
            np.testing.assert_array_equal(a, b)


@BOTH
def test_a_copy_has_its_own_frames(buffer_class):
    buffer = made(buffer_class, 1)
    for env, _, pushed in interleaved(EPISODES, 60, 2, seed=3, frame_stack=4, kind="pictures"):
        buffer.push(*pushed._replace(env=env))
    copy = pickle.loads(pickle.dumps(buffer))
    expected = copy.peek()
    for frames in arrays(buffer):
        frames[:] = 255
    assert same(copy.peek(), expected) and not same(buffer.peek(), expected)


@BOTH
@pytest.mark.parametrize("num_envs", [1, 8])
def test_a_frame_of_atari_is_stored_once(buffer_class, num_envs):
    """With its action and all else: the bytes of what is really allocated, over the frames in it."""
    games = {"capacity": 400 if buffer_class is ReplayBuffer else 40, "num_envs": num_envs, "frame_stack": 4}
    buffer = buffer_class(Box(0, 255, (4, 84, 84), np.uint8), Discrete(6), **games)
    frame, action = np.zeros((84, 84), np.uint8), np.eye(6, dtype=np.float32)[0]
    for step in range(400 // num_envs):
        stack = np.stack([frame] * 4)
        for env in range(num_envs):
            buffer.push(stack, action, 0.0, stack, False, step == 400 // num_envs - 1, env=env, is_first=step == 0)
    if buffer_class is ReplayBuffer:
        size = sum(array.nbytes for array in buffer.storage.contiguous) / buffer.max_items
        assert buffer.num_transitions >= 400 - 5 * num_envs
    else:
        size = sum(array.nbytes for episode in buffer.episodes for array in episode.stored)
        size /= sum(len(episode.frames) for episode in buffer.episodes)
    assert 84 * 84 < size <= 7_100


@BOTH
def test_the_plan_counts_what_stays_in_memory(buffer_class):
    pictures, numbers = made(buffer_class, 10 * FRAME), made(buffer_class, None)
    for longest in (None, 12):
        saved = numbers.planned_bytes(60, longest) - pictures.planned_bytes(60, longest)
        assert saved >= 50 * FRAME
    assert "memory_limit" not in pictures.unused_parameters()
    vectors = buffer_class(Box(-1, 1, (3,), np.float32), ACTIONS, memory_limit=1)
    assert vectors.unused_parameters()["memory_limit"] == "observations are not images"


@pytest.mark.parametrize("steps", [1, 3, 4, 7, 8, 13])
@pytest.mark.parametrize("limit", [2, 4, 9, 16])
def test_the_plan_knows_the_disk_that_a_growing_buffer_takes(steps, limit, monkeypatch):
    """It doubles its room, so its images may exceed the limit before the transitions of the run do."""
    monkeypatch.setattr("offpcc.data.buffers.replay.FIRST_BLOCK", 4)
    buffer = made(ReplayBuffer, limit * FRAME, stack=1, num_envs=1, capacity=20)
    planned, picture = buffer.planned_file_bytes(steps, steps), np.zeros(buffer.space_shape, np.uint8)
    for _ in range(steps):
        buffer.push(picture, np.zeros(2), 0.0, picture, False, False)
    frames = buffer.storage.observations
    assert planned == (frames.nbytes if folder_of_frames(frames) else 0)
    assert buffer.planned_file_bytes(0, None) == 0


@BOTH
def test_a_disk_without_room_is_told(buffer_class, monkeypatch):
    def is_full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("offpcc.data.buffers.storage.os.posix_fallocate", is_full)
    with pytest.raises(UserError, match=r"No space left.*TMPDIR"):
        buffer = made(buffer_class, 1)
        for env, _, pushed in interleaved(EPISODES, 60, 2, seed=3, frame_stack=4, kind="pictures"):
            buffer.push(*pushed._replace(env=env))


def test_files_of_many_episodes_keep_no_file_descriptor():
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = [frames_in_file((2, 8, 8)) for _ in range(50)]
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 5
    kept[7][1] = 3
    assert kept[7][1].min() == 3 and not kept[7][0].any() and not kept[8].any()
