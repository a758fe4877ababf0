"""A copy on the device: where it is made, what it costs, and that nothing of it is saved."""

import io
import pickle
from unittest import mock

import numpy as np
import pytest
import torch
from on_device import DEVICES, check_samples, recorded_rows
from pushing import ACTIONS, KINDS, OBSERVATIONS, Recorded, push_all, pushes, space_of

from offpcc.core import Batch
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers import device as device_rows
from offpcc.data.buffers import replay
from offpcc.data.buffers.device import sent
from offpcc.data.buffers.sequence_replay import rounded_up
from offpcc.utils.errors import UserError

both = pytest.mark.parametrize("buffer_class", [ReplayBuffer, RecurrentReplayBuffer])


def made(buffer_class, **arguments):
    return buffer_class(OBSERVATIONS, ACTIONS, **{"capacity": 50, "batch_size": 8, **arguments})


def filled(buffer, *episodes):
    push_all(buffer, pushes(*episodes or [(5, "both")]))
    return buffer


@pytest.fixture
def free(monkeypatch):
    """What is free on the device, to be set, and how often it was asked for."""
    asked = mock.Mock(return_value=None)
    monkeypatch.setattr(device_rows, "free_bytes", asked)
    monkeypatch.setattr(replay, "FIRST_BLOCK", 8)
    return asked


def needed(buffer):
    return buffer.device_copy.num_rows * buffer.layout.bytes_per_row


@both
def test_there_is_a_copy_where_it_takes_at_most_half_of_what_is_free(buffer_class, free):
    probe = filled(made(buffer_class))
    probe.sample()
    for spare, there in ((0, True), (-1, False)):
        free.return_value = 2 * needed(probe) + spare
        buffer = filled(made(buffer_class))
        assert buffer.device_copy.rows is None, "nothing has been sampled"
        buffer.sample()
        assert (buffer.device_copy.rows is not None) == there


@both
def test_it_is_asked_again_when_storage_grows(buffer_class, free):
    buffer = filled(made(buffer_class))
    for bytes_free, there in ((10**6, True), (10, False), (10**6, True)):
        free.return_value = bytes_free
        asked = free.call_count
        while free.call_count == asked:
            filled(buffer, (3, "both"))
            buffer.sample()
        assert (buffer.device_copy.rows is not None) == there
    free.reset_mock()
    for _ in range(3):
        buffer.sample()
    assert not free.called


@both
def test_a_copy_that_has_to_be_there_may_take_all_that_is_free(buffer_class, free):
    buffer = filled(made(buffer_class, on_device=True))
    buffer.sample()
    for spare in (0, -1):
        free.return_value = needed(buffer) + spare
        other = filled(made(buffer_class, on_device=True))
        if not spare:
            other.sample()
            assert other.device_copy.rows is not None
            continue
        for _ in range(2):
            with pytest.raises(
                UserError,
                match=rf"{buffer_class.__name__}\.on_device is True, but .* rows take {needed(buffer):,} bytes, "
                rf".* {needed(buffer) - 1:,} free: remove this setting",
            ):
                other.sample()


@both
def test_there_is_none_where_it_is_not_wanted_or_on_the_cpu(buffer_class, free):
    buffer = filled(made(buffer_class))
    buffer.sample()
    assert buffer.device_copy.rows is None
    free.return_value = 10**9
    free.reset_mock()
    buffer = filled(made(buffer_class, on_device=False))
    buffer.sample()
    assert buffer.device_copy.rows is None and not free.called


def test_a_gpu_is_asked_what_is_free_and_the_cpu_is_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 3000))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert device_rows.free_bytes(torch.device("cuda:1")) == 1000
    assert device_rows.free_bytes(torch.device("cpu")) is None


def test_what_is_sent_to_a_gpu_is_not_waited_for():
    tensor, device = mock.Mock(), torch.device("cuda:1")
    assert sent(tensor, device) is tensor.pin_memory().to.return_value
    tensor.pin_memory().to.assert_called_once_with(device, non_blocking=True)


@both
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window, frame_stack", [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_no_number_of_the_device_is_looked_at(buffer_class, kind, window, frame_stack):
    """A device without numbers refuses whatever would have to wait for them."""
    names = {ReplayBuffer: {"num_steps": window}, RecurrentReplayBuffer: {"segment_len": window, "burn_in": 1}}
    arguments = {"batch_size": 8, "num_envs": 2, "frame_stack": frame_stack, **names[buffer_class]}
    space = space_of(kind, frame_stack)
    buffers = [
        buffer_class(space, ACTIONS, device=device, capacity=30, on_device=True, **arguments)
        for device in ("cpu", "meta")
    ]
    for number in range(6):
        for pushed in Recorded(number, 5, "both", frame_stack, kind).pushes():
            for buffer in buffers:
                buffer.push(*pushed._replace(env=number % 2))
        batch, other = (buffer.sample() for buffer in buffers)
        for name in Batch._fields[:8]:
            one, same = getattr(batch, name), getattr(other, name)
            assert same.is_meta and (same.shape, same.dtype) == (one.shape, one.dtype), name


@both
def test_nothing_of_it_is_saved(buffer_class):
    buffer, without = (filled(made(buffer_class, on_device=on_device), (40, "both")) for on_device in (True, False))
    sizes = []
    for one in (buffer, without):
        one.sample()
        file = io.BytesIO()
        torch.save(one.state_dict(), file)
        sizes.append((len(pickle.dumps(one)), len(file.getvalue())))
    assert abs(sizes[0][0] - sizes[1][0]) < 100 and sizes[0][1] == sizes[1][1]
    assert buffer.device_copy.rows is not None


@both
def test_a_copy_of_a_buffer_has_rows_of_its_own(buffer_class):
    buffer = filled(made(buffer_class, on_device=True, batch_size=200))
    buffer.sample()
    other = pickle.loads(pickle.dumps(buffer))
    for pushed in pushes((3, "terminated")):
        other.push(*pushed._replace(reward=7.0))
    assert 7.0 in other.sample().rewards and 7.0 not in buffer.sample().rewards


@both
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["numbers", "pictures"])
@pytest.mark.parametrize("window", [1, 3])
def test_recorded_data_is_sampled_alike(buffer_class, device, kind, window):
    names = {ReplayBuffer: {"num_steps": window}, RecurrentReplayBuffer: {"segment_len": window, "burn_in": 2}}
    space, rows = recorded_rows(kind)
    buffers = [
        buffer_class(space, ACTIONS, batch_size=20, device=device, on_device=on_device, **names[buffer_class])
        for on_device in (True, False)
    ]
    for buffer in buffers:
        buffer.fill(rows, "five episodes")
    for _ in range(5):
        check_samples(buffers)
    states = [buffer.state_dict() for buffer in buffers]
    for buffer, state in zip(buffers, states, strict=True):
        buffer.load_state_dict(state)
    check_samples(buffers)
    spare = buffers[0].device_copy.num_rows - len(rows.is_start)
    assert spare == (0 if buffer_class is ReplayBuffer else 1), "data that does not grow takes no more than its rows"


@both
def test_it_has_no_effect_where_the_buffer_is(buffer_class):
    assert made(buffer_class).unused_parameters()["on_device"] == "batches go to the CPU, where the buffer is"
    assert "on_device" not in made(buffer_class, device="cuda:0").unused_parameters()


def test_batches_of_episodes_have_few_lengths_on_a_gpu():
    assert [rounded_up(length) for length in (1, 8, 9, 128, 129, 200, 1000)] == [8, 8, 16, 128, 144, 208, 1024]
    assert len({rounded_up(length) for length in range(1, 1001)}) == 40
    assert all(length <= rounded_up(length) <= 1.125 * length for length in range(64, 5000))


@pytest.mark.parametrize("options, longest, expected", [
    ({}, 5, 8),
    ({}, 200, 208),
    ({"segment_len": 50}, 20, 50),
    ({"segment_len": 50}, 50, 50),
    ({"segment_len": 80, "burn_in": 40}, 81, 88),
    ({"segment_len": 80, "burn_in": 40}, 119, 120),
])  # fmt: skip
def test_a_batch_for_a_gpu_has_one_of_few_lengths(options, longest, expected):
    buffer = RecurrentReplayBuffer(OBSERVATIONS, ACTIONS, **options)
    assert buffer._num_steps(np.array([1, longest])) == longest
    buffer.device = torch.device("cuda")
    assert buffer._num_steps(np.array([1, longest])) == expected


@pytest.mark.parametrize("options", [{}, {"segment_len": 4}, {"segment_len": 4, "burn_in": 3}], ids=str)
def test_a_longer_batch_has_the_same_rows(options, monkeypatch):
    buffers = []
    for num_more in (0, 5):
        buffer = made(RecurrentReplayBuffer, seed=3, **options)
        own = buffer._num_steps
        monkeypatch.setattr(buffer, "_num_steps", lambda lengths, own=own, more=num_more: own(lengths) + more)
        filled(buffer, (3, "terminated"), (6, "terminated"), (2, "truncated"))
        buffers.append(buffer)
    for _ in range(5):
        batch, longer = (buffer.sample() for buffer in buffers)
        steps = batch.actions.shape[1]
        assert longer.actions.shape[1] == steps + 5
        for name in ("observations", "actions", "rewards", "terminations", "valid", "loss_mask"):
            one, two = getattr(batch, name), getattr(longer, name)
            torch.testing.assert_close(two[:, : one.shape[1]], one, rtol=0, atol=0)
            assert not two[:, one.shape[1] :].any()
