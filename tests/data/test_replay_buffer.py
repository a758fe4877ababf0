"""The ring of transitions against a plain list of rows."""

import io
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from offpcc.core import UserError
from offpcc.data import ReplayBuffer, replay_buffer

ACTIONS = Box(-1, 1, (2,), np.float32)
OBSERVATIONS = Box(-np.inf, np.inf, (2,), np.float32)
ENDS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True), "left": (False, False)}


def made(observations=OBSERVATIONS, **arguments):
    return ReplayBuffer(observations, ACTIONS, **{"capacity": 50, "batch_size": 32, **arguments})


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a[:-1], b[:-1], strict=True)) and a.burn_in == b.burn_in


class Pushed(NamedTuple):
    observation: np.ndarray
    action: np.ndarray
    reward: float
    next_observation: np.ndarray
    terminated: bool
    truncated: bool


def episode(number, length, end, first_id=0):
    """Transitions that name their episode and step; ids from `first_id` on are actions and rewards."""
    return [
        Pushed(
            np.array([number, t], np.float32),
            np.array([first_id + t, -first_id - t], np.float32),
            float(first_id + t),
            np.array([number, t + 1], np.float32),
            *(ENDS[end] if t == length - 1 else (False, False)),
        )
        for t in range(length)
    ]


def pushes(*episodes):
    all_of_them = []
    for number, (length, end) in enumerate(episodes, 1):
        all_of_them += episode(number, length, end, len(all_of_them) + 1)
    return all_of_them


class Tape:
    """What the buffer stands for: rows on a tape without end, of which the last `capacity` are kept.

    A row holds an observation and, if a transition starts there, the rest of it.
    """

    def __init__(self, capacity):
        self.capacity, self.rows, self.open = capacity, [], False

    def push(self, pushed):
        if not (self.open and np.array_equal(self.rows[-1][0], pushed.observation)):
            self.rows.append((pushed.observation, None))
        self.rows[-1] = (pushed.observation, pushed)
        self.rows.append((pushed.next_observation, None))
        self.open = not (pushed.terminated or pushed.truncated)

    def windows(self, num_steps):
        """By id, what `sample` must return for each transition that is kept."""
        oldest = max(len(self.rows) - self.capacity, 0)
        found = {}
        for i in range(oldest, len(self.rows)):
            first = self.rows[i][1]
            if first is None:
                continue
            steps = []
            while len(steps) < num_steps and self.rows[i + len(steps)][1] is not None:
                steps.append(self.rows[i + len(steps)][1])
            before = self.rows[i - 1][1] if i > oldest else None
            found[int(first.reward)] = (before, steps)
        return found


def check_sample(batch, expected, num_steps):
    """Every row is one of the `expected` windows, and every window is drawn."""
    rows = len(batch.actions)
    assert batch.observations.shape == (rows, num_steps + 1, 2)
    assert batch.actions.shape == (rows, num_steps, 2)
    assert batch.rewards.shape == batch.terminations.shape == batch.mask.shape == (rows, num_steps, 1)
    assert batch.real.shape == (rows, num_steps + 1, 1)
    assert batch.first_action.shape == (rows, 2) and batch.first_reward.shape == (rows, 1)
    assert all(x.dtype == torch.float32 for x in batch[:-1]) and batch.burn_in == 0
    assert torch.equal(batch.mask[:, 0], torch.ones(rows, 1)) and batch.mask[:, 1:].sum() == 0
    seen = set()
    for b in range(rows):
        identity = int(batch.rewards[b, 0, 0])
        assert identity in expected
        if identity in seen:
            continue
        seen.add(identity)
        before, steps = expected[identity]
        real = [1.0] * (len(steps) + 1) + [0.0] * (num_steps - len(steps))
        assert batch.real[b, :, 0].tolist() == real
        for t, pushed in enumerate(steps):
            assert np.array_equal(batch.observations[b, t], pushed.observation)
            assert np.array_equal(batch.observations[b, t + 1], pushed.next_observation)
            assert np.array_equal(batch.actions[b, t], pushed.action)
            assert batch.rewards[b, t, 0] == pushed.reward
            assert batch.terminations[b, t, 0] == float(pushed.terminated)
        first_action = np.zeros(2) if before is None else before.action
        assert np.array_equal(batch.first_action[b], first_action)
        assert batch.first_reward[b, 0] == (0.0 if before is None else before.reward)
    assert seen == set(expected)


@settings(max_examples=150, deadline=None)
@given(
    episodes=st.lists(st.tuples(st.integers(1, 6), st.sampled_from(list(ENDS))), min_size=1, max_size=8),
    capacity=st.integers(2, 14),
    num_steps=st.integers(1, 4),
    first_block=st.integers(1, 5),
    every=st.integers(1, 9),
)
def test_samples_are_the_tapes_windows(episodes, capacity, num_steps, first_block, every):
    with mock.patch.object(replay_buffer, "FIRST_BLOCK", first_block):
        buffer = made(capacity=capacity, batch_size=600, num_steps=num_steps)
        tape = Tape(capacity)
        transitions = pushes(*episodes)
        for number, pushed in enumerate(transitions, 1):
            buffer.push(*pushed)
            tape.push(pushed)
            expected = tape.windows(num_steps)
            assert len(buffer) == buffer.num_transitions == len(expected)
            assert buffer.size == min(len(tape.rows), capacity)
            if number % every == 0 or number == len(transitions):
                check_sample(buffer.sample(), expected, num_steps)


# What is stored -------------------------------------------------------------------------------------------------


def test_each_observation_is_stored_once():
    space = Box(0, 255, (3, 16, 16), np.uint8)
    buffer = made(space, capacity=1_000)
    for _ in range(4):
        frames = np.random.default_rng(0).integers(0, 256, (51, 3, 16, 16), np.uint8)
        for t in range(50):
            buffer.push(frames[t], np.zeros(2), 0.0, frames[t + 1], t == 49, False)
    assert buffer.size == 4 * 51 and len(buffer) == 4 * 50
    assert buffer.observations.dtype == np.uint8 and buffer.sample().observations.dtype == torch.uint8
    assert buffer.observations[: buffer.size].nbytes == 4 * 51 * 3 * 16 * 16
    arrays = buffer.state_dict()["arrays"].values()
    assert sum(a.numel() * a.element_size() for a in arrays) == 4 * 51 * buffer.bytes_per_step


def test_storage_grows_with_what_is_stored_up_to_its_capacity(monkeypatch):
    monkeypatch.setattr(replay_buffer, "FIRST_BLOCK", 4)
    buffer = made(capacity=50)
    sizes = []
    for pushed in pushes((60, "left")):
        buffer.push(*pushed)
        sizes.append(len(buffer.observations))
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
    assert buffer.size == 5 and np.array_equal(buffer.observations[:5], frames)
    batch = buffer.sample()
    assert batch.observations.shape == (32, 2, 3, 9, 10)
    for pair, t in zip(batch.observations, batch.rewards[:, 0, 0].int().tolist(), strict=True):
        assert np.array_equal(pair, frames[t : t + 2])


def test_the_callers_arrays_may_change_afterwards():
    buffer = made()
    observation, action, next_observation = np.ones(2, np.float32), np.ones(2, np.float32), np.full(2, 2, np.float32)
    buffer.push(observation, action, 1.0, next_observation, False, False)
    next_was = next_observation.copy()
    for array in (observation, action, next_observation):
        array[:] = 77.0
    buffer.push(next_was, np.zeros(2), 2.0, np.full(2, 3.0), True, False)
    batch = buffer.sample()
    assert buffer.size == 3 and batch.observations.max() == 3.0 and batch.actions.max() == 1.0


def test_a_batch_is_a_copy():
    buffer = made()
    buffer.push(*pushes((1, "left"))[0])
    for tensor in buffer.sample()[:-1]:
        tensor.fill_(99.0)
    assert buffer.sample().observations.max() == 1.0 and buffer.sample().actions.abs().max() == 1.0


# Ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end, termination", [("terminated", 1.0), ("truncated", 0.0), ("both", 1.0), ("left", 0.0)])
def test_only_a_task_that_ended_stops_the_bootstrap(end, termination):
    buffer = made()
    for pushed in pushes((3, end), (2, "truncated")):
        buffer.push(*pushed)
    batch = buffer.sample()
    last = batch.rewards[:, 0, 0] == 3.0
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
    assert batch.real[:, 2].sum() == 0


# Drawing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "episodes", [[(4, "left")], [(3, "left"), (7, "terminated"), (1, "both"), (9, "truncated")] * 2]
)
def test_transitions_are_drawn_uniformly(episodes):
    buffer = made(capacity=24, batch_size=20_000)
    for pushed in pushes(*episodes):
        buffer.push(*pushed)
    _, counts = buffer.sample().rewards[:, 0, 0].unique(return_counts=True)
    assert len(counts) == len(buffer) >= 4
    expected = 20_000 / len(counts)
    freedom = len(counts) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < freedom + 4.0 * np.sqrt(2.0 * freedom)  # mean and standard deviation of chi-square


def test_the_generator_is_the_buffers_own():
    buffers = [made(seed=seed) for seed in (1, 1, 2)]
    for buffer in buffers:
        for pushed in pushes((40, "left")):
            buffer.push(*pushed)
    np.random.seed(0)
    torch.manual_seed(0)
    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = [buffers[0].sample() for _ in range(3)]
    assert np.array_equal(state, np.random.get_state()[1]) and torch.equal(torch_state, torch.get_rng_state())
    np.random.seed(5)
    torch.manual_seed(5)
    again, other = [buffers[1].sample() for _ in range(3)], [buffers[2].sample() for _ in range(3)]
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not any(same(a, b) for a, b in zip(first, other, strict=True))
    assert not same(first[0], first[1])


# Saving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_before", [0, 1, 4, 5, 6, 12, 13, 30])
@pytest.mark.parametrize("capacity", [8, 20, 100])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_restored_buffer_goes_on_alike(monkeypatch, num_before, capacity, num_steps):
    monkeypatch.setattr(replay_buffer, "FIRST_BLOCK", 4)
    transitions = pushes((5, "terminated"), (7, "left"), (1, "truncated"), (9, "both"), (4, "left"), (10, "truncated"))
    buffer = made(capacity=capacity, num_steps=num_steps, seed=1)
    for pushed in transitions[:num_before]:
        buffer.push(*pushed)
        buffer.sample()
    state = buffer.state_dict()
    saved = through_a_file(state)
    other = made(capacity=capacity, num_steps=num_steps, seed=2)
    for pushed in pushes((11, "left")):  # what it held before is gone
        other.push(*pushed)
    other.load_state_dict(saved)
    assert (len(other), other.size, other.cursor) == (len(buffer), buffer.size, buffer.cursor)
    if num_before:
        assert same(buffer.sample(), other.sample())
    for pushed in transitions[num_before:]:
        buffer.push(*pushed)
        other.push(*pushed)
        assert (len(other), other.size) == (len(buffer), buffer.size)
        assert same(buffer.sample(), other.sample())
    third = made(capacity=capacity, num_steps=num_steps)
    third.load_state_dict(state)  # what went on afterwards is not in it
    for name, array in saved["arrays"].items():
        assert torch.equal(array, through_a_file(third.state_dict())["arrays"][name])


@pytest.mark.parametrize(
    "length, saved, loaded, fits",
    [(5, 8, 8, True), (5, 8, 6, True), (5, 8, 20, True), (5, 8, 5, False), (30, 8, 20, False), (30, 8, 4, False)],
)
def test_a_ring_that_does_not_fit_is_refused(length, saved, loaded, fits):
    buffer, other = made(capacity=saved), made(capacity=loaded)
    for pushed in pushes((length, "left")):
        buffer.push(*pushed)
    if fits:
        other.load_state_dict(buffer.state_dict())
        assert same(buffer.sample(), other.sample()) or loaded != saved
        assert len(other) == len(buffer)
    else:
        with pytest.raises(UserError, match=rf"ReplayBuffer\.capacity = {loaded}"):
            other.load_state_dict(buffer.state_dict())


# Sizes and faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [OBSERVATIONS, Box(0, 255, (16, 16, 3), np.uint8)])
def test_planned_bytes_are_those_that_a_full_buffer_takes(space):
    buffer = made(space, capacity=40)
    real = sum(a.nbytes for a in buffer._arrays().values())
    assert buffer.planned_bytes(10_000, None) == buffer.planned_bytes(10_000, 5) == real
    assert buffer.planned_bytes(40, None) == real
    assert buffer.planned_bytes(10, None) * 4 == real


@pytest.mark.parametrize("shape", [(3,), (2, 1), (), (1, 2)])
@pytest.mark.parametrize("place", [0, 3])
def test_a_wrong_shape_is_refused(shape, place):
    buffer = made()
    arguments = [np.zeros(2), np.zeros(2), 0.0, np.zeros(2), False, False]
    arguments[place] = np.zeros(shape)
    with pytest.raises(ValueError, match=r"shape .* buffer of shape \(2,\)"):
        buffer.push(*arguments)
    assert len(buffer) == 0 and buffer.size == 0


def test_an_empty_buffer_has_nothing_to_sample():
    with pytest.raises(ValueError, match="nothing has been pushed"):
        made().sample()


@pytest.mark.parametrize("arguments", [{"capacity": 1}, {"batch_size": 0}, {"num_steps": 0}])
def test_numbers_that_make_no_sense_are_refused(arguments):
    with pytest.raises(UserError, match=str(next(iter(arguments.values())))):
        made(**arguments)


def test_an_action_of_another_size_is_refused():
    buffer = made()
    with pytest.raises(ValueError, match="reshape"):
        buffer.push(np.zeros(2), np.zeros(1), 0.0, np.zeros(2), False, False)
