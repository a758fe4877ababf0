"""Two buffers that are told the same: one gathers its batches from a copy of its rows, the other as ever."""

import contextlib
import copy
import pickle
from unittest import mock

import numpy as np
import torch
from gymnasium.spaces import Box
from hypothesis import strategies as st
from pushing import ACTIONS, ENDS, KINDS, Recorded, interleaved, space_of, through_a_file

from offpcc.data import Dataset
from offpcc.data.buffers.device import DeviceCopy

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ACTS = ("sample", "drop", "load", "deepcopy", "pickle")
LOOKS = {
    "num_envs": st.integers(1, 3),
    "frame_stack": st.integers(1, 4),
    "kind": st.sampled_from(KINDS),
    "repeats_first": st.booleans(),
}
STORY = {  # what is pushed before each of the acts
    "episodes": st.lists(st.tuples(st.integers(1, 6), st.sampled_from(list(ENDS))), min_size=1, max_size=6),
    "acts": st.lists(st.tuples(st.integers(0, 25), st.sampled_from([*ACTS, *["sample"] * 5])), min_size=1, max_size=14),
    "seed": st.integers(0, 1000),
}


def identical(batch, other):
    """Bit for bit, in all fields."""
    pairs = zip(batch[:8], other[:8], strict=True)
    return batch[8:] == other[8:] and all(
        x.dtype == y.dtype and x.shape == y.shape and x.cpu().numpy().tobytes() == y.cpu().numpy().tobytes()
        for x, y in pairs
    )


def check_samples(buffers):
    first, second = buffers
    if len(first):
        with without_waiting(first.device):
            batch = first.sample()
        assert first.device_copy.rows is not None and second.device_copy.rows is None
        assert identical(batch, second.sample())


@contextlib.contextmanager
def without_waiting(device):
    """On a GPU, an operation that waits for it is an error."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def play(make, episodes, acts, seed, num_envs=1, frame_stack=1, kind="numbers", repeats_first=False):
    """Push, and act in between; `make` builds a buffer of these looks, told whether it is `on_device`."""
    space = space_of(kind, frame_stack)
    built = [
        lambda on_device=on_device: make(
            space, ACTIONS, num_envs=num_envs, frame_stack=frame_stack, on_device=on_device
        )
        for on_device in (True, False)
    ]
    buffers = [build() for build in built]
    looks = {"frame_stack": frame_stack, "kind": kind, "repeats_first": repeats_first}
    stream = interleaved(episodes, sum(number for number, _ in acts), num_envs, seed, **looks)
    for number, act in acts:
        for _ in range(number):
            env, _, pushed = next(stream)
            for buffer in buffers:
                buffer.push(*pushed._replace(env=env))
        if act == "drop":
            for buffer in buffers:
                buffer.drop(seed % num_envs)
        elif act == "load":
            states = [through_a_file(buffer.state_dict()) for buffer in buffers]
            buffers = [build() for build in built] if seed % 2 else buffers
            for buffer, state in zip(buffers, states, strict=True):
                buffer.load_state_dict(state)
        elif act != "sample":
            copied = copy.deepcopy if act == "deepcopy" else lambda buffer: pickle.loads(pickle.dumps(buffer))
            buffers = [copied(buffer) for buffer in buffers]
        check_samples(buffers)
    return buffers


def recorded_rows(kind="numbers"):
    """Of five episodes; images as they come, with channels last."""
    generator, episodes = np.random.default_rng(0), []
    for number, length in enumerate((3, 1, 4, 1, 2)):
        frames = [Recorded(number, length, "both", 1, kind).observation(t) for t in range(length + 1)]
        observations = np.moveaxis(np.stack(frames), 1, -1) if kind == "pictures" else np.stack(frames)
        actions = generator.uniform(-1, 1, (length, 2)).astype(np.float32)
        episodes.append((observations, actions, np.arange(length) + 10.0 * number, number % 2 == 0))
    shape = observations.shape[1:]
    return (
        Box(0, 255, shape, np.uint8) if kind == "pictures" else space_of(kind, 1),
        Dataset.from_episodes(episodes).rows(),
    )


@contextlib.contextmanager
def counted():
    """A list that gets the number of rows of each copy to a device."""
    numbers, put = [], DeviceCopy.put

    def counting(copy, places, *rows):
        assert len(set(places.tolist())) == len(places)
        numbers.append(len(places))
        put(copy, places, *rows)

    with mock.patch.object(DeviceCopy, "put", counting):
        yield numbers
