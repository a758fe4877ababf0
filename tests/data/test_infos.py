"""What is told beside recorded steps; tests/data/test_dataset_files.py reads it from files."""

import numpy as np
import pytest

from offpcc.data.infos import StepInfos, seen_through
from offpcc.errors import UserError


def test_infos_of_some_steps_are_read_when_they_are_asked_for():
    class Once(dict):
        def __getitem__(self, name):
            asked.append(name)
            return super().__getitem__(name)

    asked = []
    infos = StepInfos(Once(time=np.arange(5), size=np.ones(3), scale=2.0), slice(1, 4), 5)
    assert (list(infos), len(infos), asked) == (["time", "size", "scale"], 3, [])
    assert infos["time"].tolist() == [1, 2, 3]
    assert (infos["size"].tolist(), infos["scale"].tolist(), asked) == ([1, 1, 1], 2.0, ["time", "size", "scale"])


def test_the_wrappers_of_a_recording():
    assert seen_through({}, "mine") is None
    assert seen_through({"seen_through": "[]"}, "mine") == []
    assert seen_through({"seen_through": np.array('["KeepIndices(indices=[0])"]')}, "mine") == [
        "KeepIndices(indices=[0])"
    ]


@pytest.mark.parametrize("told", ["", "Flicker", '{"a": 1}', np.nan])
def test_wrappers_that_cannot_be_read_are_refused(told):
    with pytest.raises(UserError, match=r"mine: metadata/seen_through is .* no list"):
        seen_through({"seen_through": told}, "mine")
