"""Data sets of every type and shape: each algorithm learns from them, or they are refused in one message."""

import functools
import warnings

import h5py
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offpcc.algorithms import ALGORITHMS
from offpcc.core import is_image
from offpcc.data import Dataset, ReplayBuffer
from offpcc.data.datasets.columns import rounded_columns
from offpcc.data.datasets.files import read_dataset_file
from offpcc.networks import Convolutional, Recurrent
from offpcc.training.build import build
from offpcc.utils.errors import UserError

STEPS = 12
FAMILIES = ("bc", "td3_bc", "iql", "cql", "bcq", "sac", "td3", "ddpg")
NUMBERS = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "g", ">u2", ">i4", ">f4", ">f8")
OTHERS = ("c8", "c16", "O", "S3", "U3", "V5", "M8[s]", "m8[s]", "f4,i2")
OBSERVED = ((3,), (1,), (2, 3), (2, 1, 3), (2, 2, 2, 2), (1, 16, 16), (16, 16, 3), (16, 16))
SHAPES = {
    "observations": [(STEPS, *shape) for shape in OBSERVED] + [(STEPS,), (STEPS, 0), (STEPS - 1, 3), ()],
    "actions": [(STEPS, 2), (STEPS, 1), (STEPS,), (STEPS, 2, 1), (STEPS, 0)],
    "rewards": [(STEPS,), (STEPS, 1), (STEPS, 2), (1,)],
    "terminations": [(STEPS,), (STEPS, 1), (STEPS, 2)],
}
FIT = {
    "observations": {(STEPS, *shape) for shape in OBSERVED},
    "actions": {(STEPS, 2), (STEPS, 1), (STEPS,)},
    "rewards": {(STEPS,), (STEPS, 1)},
    "terminations": {(STEPS,), (STEPS, 1)},
}
SMALL = {
    Recurrent: {"hidden_dim": 4, "num_layers": 1},
    Convolutional: {"channels": (2, 2), "kernels": (3, 3), "strides": (4, 2), "feature_dim": 4},
}


def columns():
    draw = np.random.default_rng(0)
    return {
        "observations": draw.random((STEPS, 3), np.float32),
        "actions": draw.uniform(-1, 1, (STEPS, 2)),
        "rewards": draw.random(STEPS),
        "terminations": np.arange(STEPS) % 4 == 3,
    }


def of_type(dtype, shape):
    """Zeros and ones, which every type of numbers holds."""
    numbers = np.random.default_rng(1).integers(0, 2, shape)
    return np.zeros(shape, dtype) if dtype == "f4,i2" else np.asarray(numbers.astype(dtype))


def read(given, way, path):
    """The data, by one of the ways in which it may be given."""
    if way == "arrays":
        return Dataset.from_arrays(**given, action_range=(-1, 1))
    if way == "episodes":
        parts = {key: given[key] for key in ("actions", "rewards")}
        ends = np.asarray(given["terminations"])
        observations = given["observations"]
        observations = np.concatenate([observations, observations[:1]]) if observations.ndim else observations
        episode = parts | {"observations": observations, "terminated": np.zeros_like(ends)}
        return Dataset.from_episodes([episode], action_range=(-1, 1))
    if way == "npz":
        np.savez(path, **given)
    else:
        with h5py.File(path, "w") as file:
            for key, value in given.items():
                file[key] = value.astype(str).astype(h5py.string_dtype()) if value.dtype.kind in "OUMm" else value
    return read_dataset_file(path, action_range=(-1, 1))


def builder(encoder):
    """A small encoder of the same kind."""
    given = dict(encoder.keywords) if isinstance(encoder, functools.partial) else {}
    kind = encoder.func if isinstance(encoder, functools.partial) else encoder
    given |= {name: builder(value) for name, value in given.items() if name == "front"}
    return functools.partial(kind, **SMALL.get(kind, {}), **given)


def learned(name, data):
    """The weights after two updates."""
    cls = ALGORITHMS[name]
    given = {"hidden_dims": (4,), "encoder": builder(cls.default_encoder)}
    given["shared_encoder"] = builder(cls.default_shared_encoder)
    learner = build(None, name, dataset=data, algorithm=given, buffer={"batch_size": 4})
    for _ in range(2):
        learner.algorithm.update_networks(learner.buffer.sample())
    learner.algorithm.nonfinite_guard.synchronize(learner.algorithm)
    weights = [weight for part in learner.algorithm.networks() for weight in part.parameters()]
    assert all(weight.isfinite().all() for weight in weights)
    return weights


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("dtypes") / "data.npz"


@st.composite
def cases(draw):
    key = draw(st.sampled_from(list(SHAPES)))
    shape = draw(st.sampled_from(SHAPES[key]))
    dtype = draw(st.sampled_from(NUMBERS if draw(st.booleans()) else NUMBERS[:2] + OTHERS))
    kind = "c" * (key == "observations" and is_image(shape[1:])) + draw(st.sampled_from(["", "r"]))
    return key, shape, dtype, kind, draw(st.sampled_from(["arrays", "episodes", "npz", "hdf5"]))


@pytest.mark.parametrize("family", FAMILIES)
@example(case=("observations", (STEPS, 3), "u1", "", "arrays"))
@example(case=("observations", (STEPS, 2, 3), "u1", "", "npz"))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=cases())
def test_every_type_and_shape_is_learned_from_or_refused(path, family, case):
    key, shape, dtype, kind, way = case
    given = columns() | {key: of_type(dtype, shape)}
    name = f"{kind}{family}".replace("rddpg", "rdpg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of terminations that are not there, and clipped actions
        try:
            data = read(given, way, path)
            weights = learned(name, data)
        except UserError as refused:
            assert refused.message and "\n" not in refused.message
            assert dtype not in NUMBERS or shape not in FIT[key]
            return
        assert dtype in NUMBERS and shape in FIT[key]
        if dtype == "u1" and is_image(shape[1:]):  # whose bytes are scaled
            return
        as_floats = {name: np.asarray(column).astype(np.float32) for name, column in given.items()}
        same = learned(name, read(as_floats, way, path))
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


def without(key, given):
    return {name: value for name, value in given.items() if name != key}


def given_as(value):
    return columns() | {"observations": value}


@pytest.mark.parametrize(
    "value, message",
    [
        ([[1.0], [1.0, 2.0]], "observations cannot be made an array"),
        (torch.zeros(STEPS, 3, dtype=torch.bfloat16), "observations cannot be made an array"),
        (torch.zeros(STEPS, 3, requires_grad=True), "observations cannot be made an array"),
        (
            np.ma.masked_array(np.zeros((STEPS, 3)), np.eye(STEPS, 3)),
            "observations is a masked array",
        ),
    ],
    ids=["lists of unlike lengths", "bfloat16", "requires a gradient", "masked"],
)
def test_what_is_no_array_of_numbers_is_refused(value, message):
    with pytest.raises(UserError, match=f"^data: {message}"):
        Dataset.from_arrays(**given_as(value))
    with pytest.raises(UserError, match=f"^data, episode 0: {message}"):
        Dataset.from_episodes([{**without("terminations", given_as(value)), "terminated": False}])


@pytest.mark.parametrize("episode", [5, None, "text", {1, 2}])
def test_what_is_no_episode_is_refused(episode):
    with pytest.raises(UserError, match="data, episode 0: "):
        Dataset.from_episodes([episode])


@pytest.mark.parametrize("limit", ["x", 0, -3, 2.5, True, np.nan])
def test_a_time_limit_that_is_no_number_of_steps_is_refused(limit):
    with pytest.raises(UserError, match=r"max_episode_steps is .*; it has to be a whole number above 0"):
        Dataset.from_arrays(**columns(), max_episode_steps=limit)


@pytest.mark.parametrize("name", ["sac", "ddpg", "td3_bc", "iql", "bc"])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 3)])
def test_bytes_that_are_no_images_are_learned_from_in_a_buffer_of_transitions(name, shape):
    spaces = Box(0, 255, shape, np.uint8), Box(-1, 1, (2,), np.float32)
    agent, buffer = ALGORITHMS[name](*spaces, hidden_dims=(4,)), ReplayBuffer(*spaces, batch_size=4)
    for step in range(5):
        observation, following = (np.full(shape, number, np.uint8) for number in (step, step + 1))
        buffer.push(observation, np.zeros(2), 1.0, following, False, False)
    agent.update_networks(buffer.sample())
    agent.nonfinite_guard.synchronize(agent)


def test_numbers_that_lose_their_values_as_float32_are_told():
    steps = np.arange(2000)
    time, noise = 1.7e9 + 0.05 * steps, np.random.default_rng(0).normal(size=2000)
    data = Dataset.from_arrays(
        observations=np.stack([noise, time, 5.0 + 0.0 * noise], 1),
        actions=noise[:, None],
        rewards=noise,
        terminations=np.zeros(2000, bool),
        truncations=steps % 100 == 99,
    )
    (notice,) = (one for one in data.notices if one.kind == "rounded")
    assert "number 1 (2,000 and 2); subtract a constant" in notice.text
    relative = Dataset.from_arrays(
        observations=np.stack([noise, time - time[0]], 1),
        actions=noise[:, None],
        rewards=noise,
        terminations=np.zeros(2000, bool),
        truncations=steps % 100 == 99,
    )
    assert not [one for one in relative.notices if one.kind == "rounded"]


def test_rounding_of_the_recorder_is_no_loss():
    draw = np.random.default_rng(0)
    jitter = 1e-12 * draw.normal(size=2000)
    column = np.stack([1.0 + jitter, 0.1 * draw.integers(0, 3, 2000) + jitter], 1)
    assert rounded_columns(column) == []
    seconds = (1_700_000_000 + np.arange(2000))[:, None]
    assert [found[0] for found in rounded_columns(seconds.astype(np.int32))] == [0]
    assert rounded_columns(seconds.astype(np.float32)) == rounded_columns(seconds[:, 0]) == []
