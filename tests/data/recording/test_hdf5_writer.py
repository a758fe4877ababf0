"""The file of a recording: how it is written, and which are refused."""

import tracemalloc

import h5py
import numpy as np
import pytest
from played import IMAGE, VECTOR, recorder, transitions, whole
from pushing import push_all

from offpcc.data.datasets.load import load_dataset
from offpcc.data.recording import hdf5_writer
from offpcc.utils.errors import UserError


def test_images_are_compressed_and_vectors_are_not(tmp_path):
    whole(tmp_path / "vectors.hdf5", transitions([3]))
    whole(tmp_path / "images.hdf5", transitions([3], **IMAGE), **IMAGE)
    with h5py.File(tmp_path / "vectors.hdf5") as vectors, h5py.File(tmp_path / "images.hdf5") as images:
        assert {vectors[key].compression for key in ("observations", "actions", "rewards")} == {None}
        assert {images[key].compression for key in ("observations", "next_observations")} == {"gzip"}


def test_merging_takes_little_memory(tmp_path):
    one = recorder(tmp_path / "data.hdf5", shape=(1_000,))
    steps = transitions([100], shape=(1_000,))
    for _ in range(80):
        push_all(one, steps)
    tracemalloc.start()
    try:
        one.merge()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "data.hdf5").stat().st_size > 60e6
    assert peak < 20e6


@pytest.mark.parametrize("shown", [VECTOR, IMAGE], ids=["vectors", "images"])
def test_the_file_does_not_depend_on_the_size_of_what_comes_at_a_time(tmp_path, monkeypatch, shown):
    """Batches of one episode and of all, and chunks that are smaller than an episode, hold the same rows."""
    steps = transitions([5, 2, 9], **shown)
    expected = load_dataset(tmp_path / "a.hdf5") if whole(tmp_path / "a.hdf5", steps, **shown) else None
    monkeypatch.setattr(hdf5_writer, "BLOCK_BYTES", 40)
    monkeypatch.setattr(hdf5_writer, "CHUNK_BYTES", 1_000)
    whole(tmp_path / "b.hdf5", steps, **shown)
    data = load_dataset(tmp_path / "b.hdf5")
    for name in ("observations", "actions", "rewards", "terminations", "truncations", "final_observations"):
        assert np.array_equal(getattr(data, name), getattr(expected, name))


def test_a_file_of_others_is_not_gone_on_with(tmp_path):
    for content in (b"", b"text"):
        (tmp_path / "data.hdf5").write_bytes(content)
        with pytest.raises(UserError, match="is not a recording of offpcc, or is damaged"):
            recorder(tmp_path / "data.hdf5", resume=True)
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file["rewards"] = [1.0]
    with pytest.raises(UserError, match="is not a recording of offpcc"):
        recorder(tmp_path / "data.hdf5", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["data.hdf5"]


@pytest.mark.parametrize("damage", ["bytes", "group", "rewards"])
def test_what_a_damaged_file_tells_of_itself_is_no_traceback(tmp_path, damage):
    whole(tmp_path / "data.hdf5", transitions([3]))
    with h5py.File(tmp_path / "data.hdf5", "r+") as file:
        name = "rewards" if damage == "rewards" else "metadata/env"
        del file[name]
        if damage == "group":
            file.create_group(name)
        else:
            file[name] = b"\xffrecorded-v0" if damage == "bytes" else 3.0
    before = (tmp_path / "data.hdf5").read_bytes()
    with pytest.raises(UserError, match=r"is not a recording of offpcc, or is damaged \(.*give another file"):
        recorder(tmp_path / "data.hdf5", resume=True)
    assert (tmp_path / "data.hdf5").read_bytes() == before


def test_files_that_cannot_be_made_are_refused_and_nothing_is_made(tmp_path):
    (tmp_path / "a_file").touch()
    (tmp_path / "folder.hdf5").mkdir()
    for name, message in (
        ("folder.hdf5", "is a folder; name a file in it"),
        ("data.npz", r"data.npz does not end in .hdf5 or .h5"),
        ("data", r"data does not end in"),
        ("a_file/data.hdf5", r"a_file is a file, not a folder"),
        (f"{'x' * 300}.hdf5", "cannot be made"),
        (f"{'x' * 248}.hdf5", r"cannot be made \(.*File name too long"),
    ):
        with pytest.raises(UserError, match=message):
            recorder(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_file", "folder.hdf5"]


def test_a_recording_is_not_overwritten(tmp_path):
    file = tmp_path / "data.hdf5"
    one = recorder(file)
    one.close()
    with pytest.raises(UserError, match=r"data.hdf5.episode_log holds an unfinished recording.*--resume"):
        recorder(file)
    one = recorder(file, resume=True)
    one.push(*transitions([1])[0])
    one.merge()
    with pytest.raises(UserError, match=r"data.hdf5 exists and is not overwritten.*--resume"):
        recorder(file)
