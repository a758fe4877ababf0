"""What is told beside recorded steps; tests/data/datasets/test_hdf5.py reads it from files."""

import h5py
import numpy as np
import pytest

from offpcc.data.datasets.metadata import (
    LazyMetadata,
    action_range,
    infos_of_steps,
    num_whole_episodes,
    recorded_in,
    recorded_wrappers,
)
from offpcc.utils.errors import UserError


def test_infos_of_some_steps_are_read_when_they_are_asked_for():
    class Once(dict):
        def __getitem__(self, name):
            asked.append(name)
            return super().__getitem__(name)

    asked = []
    infos = infos_of_steps(Once(time=np.arange(5), size=np.ones(3), scale=2.0), slice(1, 4), 5)
    assert (list(infos), len(infos), asked) == (["time", "size", "scale"], 3, [])
    assert infos["time"].tolist() == [1, 2, 3]
    assert (infos["size"].tolist(), infos["scale"].tolist(), asked) == ([1, 1, 1], 2.0, ["time", "size", "scale"])


def test_the_wrappers_of_a_recording():
    assert recorded_wrappers({}, "mine") is None
    assert recorded_wrappers({"seen_through": "[]"}, "mine") == []
    assert recorded_wrappers({"seen_through": np.array('["KeepIndices(indices=[0])"]')}, "mine") == [
        "KeepIndices(indices=[0])"
    ]
    assert recorded_wrappers({"seen_through": np.array([b'["Flicker()"]'])}, "mine") == ["Flicker()"]


@pytest.mark.parametrize("told", ["", "Flicker", '{"a": 1}', "[1]", "[[]]", "null"])
def test_wrappers_that_cannot_be_read_are_refused(told):
    with pytest.raises(
        UserError, match=r"mine: metadata/seen_through is .* not a list of texts in JSON; correct it, or"
    ):
        recorded_wrappers({"seen_through": told}, "mine")


@pytest.mark.parametrize(
    "told", [np.nan, 3, ["[]"], np.array(["[]", "[]"]), np.zeros(3), np.zeros(20_000), h5py.Empty("f4")]
)
@pytest.mark.parametrize(
    "key, read", [("seen_through", recorded_wrappers), ("env", recorded_in), ("env_spec", recorded_in)]
)
def test_what_is_no_text_is_refused(key, read, told):
    with pytest.raises(UserError, match=rf"mine: metadata/{key} is .*not a text") as refusal:
        read({key: told}, "mine")
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize(
    "low, high, expected",
    [
        ([-2.0], [2.0], ([-2], [2])),
        (-1, np.int64(3), (-1, 3)),
        (np.float64([-1, 0]), np.float32([1, 2]), ([-1, 0], [1, 2])),
        (np.float32(-1), [1.0], (-1, [1])),
        ([-1, 0], [1, 0], ([-1, 0], [1, 0])),  # the second component never changes
    ],
)
def test_the_range_of_actions(low, high, expected):
    bounds = action_range({"action_low": low, "action_high": high}, "mine")
    assert tuple(bound.tolist() for bound in bounds) == expected
    assert {bound.dtype for bound in bounds} == {np.dtype(np.float32)}
    assert action_range({"env": "Hopper-v4"}, "mine") is None


@pytest.mark.parametrize(
    "wrong",
    [
        "abc", b"abc", h5py.Empty("f4"), 1j, np.array([True]), [[1.0], [2.0, 3.0]], ["1"], {}, [], np.zeros((2, 2)),
        np.nan, [-np.inf], 1e300,
    ],
)  # fmt: skip
@pytest.mark.parametrize("key, other, right", [("action_low", "action_high", [1.0]), ("action_high", "action_low", 0)])
def test_bounds_that_are_none_are_refused(key, other, right, wrong):
    with pytest.raises(
        UserError, match=rf"mine: metadata/{key} is .*, not .* numbers?.*; correct it, or leave it out"
    ) as told:
        action_range({key: wrong, other: right}, "mine")
    assert len(told.value.message) < 250


@pytest.mark.parametrize(
    "low, high", [(1, 1), ([1, 2], [1, 2]), (1, -1), ([-1, 2], [1, 1]), ([-1, -1], [1, 1, 1]), (1, 1 + 1e-12)]
)
def test_bounds_of_no_box_are_refused(low, high):
    with pytest.raises(UserError, match=r"mine: metadata/action_low is .*, which is not below action_high, "):
        action_range({"action_low": low, "action_high": high}, "mine")


@pytest.mark.parametrize("there, missing", [("action_low", "action_high"), ("action_high", "action_low")])
def test_half_a_range_is_refused(there, missing):
    with pytest.raises(UserError, match=f"metadata/{there} is given without {missing}; write both"):
        action_range({there: [0.0]}, "mine")


def test_the_recorded_environment():
    assert recorded_in({}) is None
    assert recorded_in({"env": b"Hopper-v4"}) == "Hopper-v4"
    assert recorded_in({"env": "other", "env_spec": '{"id": "Hopper-v5", "kwargs": {}}'}) == "Hopper-v5"


@pytest.mark.parametrize("told", ['{"a": 1}', '{"id": 3}', "[]", "Hopper-v5", '{"id": '])
def test_a_specification_that_cannot_be_read_is_refused(told):
    with pytest.raises(
        UserError, match=r"mine: metadata/env_spec is .*, not an environment's specification with an id"
    ):
        recorded_in({"env_spec": told}, "mine")


def test_a_recording_of_our_own():
    assert num_whole_episodes({"whole_episodes": 3, "offpcc": "1.0"}, "mine") == 3
    assert num_whole_episodes({"whole_episodes": 3}, "mine") is None
    assert num_whole_episodes({"offpcc": "1.0"}, "mine") is None


def test_facts_are_read_when_they_are_asked_for_and_the_file_is_named():
    asked = []

    def read(name):
        asked.append(name)
        return {"env": "Hopper-v4", "action_low": "none"}[name]

    metadata = LazyMetadata(("env", "action_low"), read, "data.hdf5: metadata")
    assert recorded_in(metadata) == metadata["env"] == "Hopper-v4"
    with pytest.raises(UserError, match=r"data\.hdf5: metadata/action_low is 'none', not a few numbers"):
        action_range(metadata, "mine")
    assert asked == ["env", "env", "action_low"]
    assert (list(metadata), len(metadata), "seed" in metadata) == (["env", "action_low"], 2, False)
    with pytest.raises(KeyError):
        metadata["seed"]
