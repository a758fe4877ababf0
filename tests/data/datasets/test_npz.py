"""What NPZ files hold beside the steps, and what is not read: objects, and what is too large."""

import zipfile

import numpy as np
import pytest

from offpcc.data.datasets import files
from offpcc.data.datasets.files import read_dataset_file
from offpcc.data.datasets.load import raw_arrays
from offpcc.data.datasets.metadata import recorded_in, recorded_wrappers
from offpcc.utils.errors import UserError


def columns():
    return {
        "observations": np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32),
        "actions": np.zeros((40, 2), np.float32),
        "rewards": np.arange(40, dtype=np.float32),
        "terminals": np.arange(40) % 10 == 9,
    }


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_stands_beside_the_steps_is_read(tmp_path, save):
    numbers = np.arange(240.0).reshape(40, 2, 3)
    text = np.array("Hopper-v4")
    save(tmp_path / "data.npz", **columns(), **{"infos/qpos": numbers, "metadata/env": text, "metadata/empty": [[]]})
    data = read_dataset_file(tmp_path / "data.npz")
    assert np.array_equal(data.infos["qpos"], numbers)
    assert data.metadata["empty"].shape == (1, 0)
    assert recorded_in(data.metadata) == "Hopper-v4"
    raw = raw_arrays(tmp_path / "data.npz")
    assert np.array_equal(raw["infos/qpos"], numbers)
    raw["infos/qpos"] -= 1


@pytest.mark.parametrize("name, read", [("terminated", "terminals"), ("truncated", "timeouts")])
def test_a_second_name_of_a_column_that_is_not_read_is_told(tmp_path, name, read):
    steps = {**columns(), "timeouts": np.zeros(40, bool)}
    np.savez(tmp_path / "data.npz", **steps, **{name: np.arange(40) == 4})
    told = [notice.text for notice in read_dataset_file(tmp_path / "data.npz").notices]
    assert any(
        f"the array {name} is not read: {read} is read in its place; if {name} is right, rem" in one for one in told
    )


def test_objects_among_metadata_are_refused(tmp_path):
    np.savez(tmp_path / "data.npz", **columns(), **{"metadata/seen_through": np.array([{}])})
    metadata = read_dataset_file(tmp_path / "data.npz").metadata
    with pytest.raises(UserError, match="metadata/seen_through holds objects, which are not read"):
        recorded_wrappers(metadata, "mine")


def test_what_is_larger_than_memory_is_not_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "data.npz", **columns(), **{"infos/qpos": np.arange(1000.0)})
    monkeypatch.setattr(files, "available_bytes", lambda: 8_200)
    infos = read_dataset_file(tmp_path / "data.npz").infos
    assert len(infos["qpos"]) == 1000
    with pytest.raises(UserError, match=r"data\.npz takes .* 8,200 bytes of memory are free"):
        raw_arrays(tmp_path / "data.npz")
    monkeypatch.setattr(files, "available_bytes", lambda: 7_999)
    with pytest.raises(UserError, match=r"infos/qpos takes 8,128 bytes, .*; leave it out"):
        infos["qpos"]
    monkeypatch.setattr(files, "available_bytes", lambda: 400)
    with pytest.raises(UserError, match=r"observations takes 608 bytes, .*; write the data as HDF5"):
        read_dataset_file(tmp_path / "data.npz")


def test_a_member_that_is_no_array_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("observations", "no array")
    with pytest.raises(UserError, match=r"observations is not an array of NumPy; write the file by numpy\.savez"):
        read_dataset_file(tmp_path / "data.npz")
