"""What NPZ files hold that is not read: sizes that are not there, objects, other archives."""

import io
import zipfile

import numpy as np
import pytest
from peaks import with_peak

from offpcc.data.datasets import files
from offpcc.data.datasets.dataset import Dataset
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


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_stands_beside_the_steps_is_read(tmp_path, order, save):
    numbers = np.asarray(np.arange(240.0).reshape(40, 2, 3), order=order)
    text = np.array("Hopper-v4")
    save(tmp_path / "data.npz", **columns(), **{"infos/qpos": numbers, "metadata/env": text, "metadata/empty": [[]]})
    data = read_dataset_file(tmp_path / "data.npz")
    assert np.array_equal(data.infos["qpos"], numbers)
    assert data.metadata["empty"].shape == (1, 0)
    assert recorded_in(data.metadata) == "Hopper-v4"
    raw = raw_arrays(tmp_path / "data.npz")
    assert np.array_equal(raw["infos/qpos"], numbers)
    raw["infos/qpos"] -= 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_time_limit_that_the_user_gives_counts_from_jumps(tmp_path, monkeypatch, order, save):
    """Next observations are read for jumps, then for the ends of episodes."""
    monkeypatch.setattr("offpcc.data.datasets.columns.BLOCK_BYTES", 2**10)  # several blocks
    observations = np.arange(200, dtype=np.float32).reshape(100, 2)
    following = observations + 2.0
    following[14] += 0.5  # an episode ended after 15 steps
    arrays = {"next_observations": following, "observations": observations, "actions": np.zeros((100, 1))}
    arrays |= {"rewards": np.zeros(100), "terminals": np.zeros(100, bool)}
    save(tmp_path / "data.npz", **{name: np.asarray(array, order=order) for name, array in arrays.items()})
    data = read_dataset_file(tmp_path / "data.npz", max_episode_steps=20)
    wanted = Dataset.from_arrays(**arrays, max_episode_steps=20)
    assert data.stops.tolist() == wanted.stops.tolist() == [15, 35, 55, 75, 95, 100]
    assert np.array_equal(data.final_observations, wanted.final_observations)


def test_objects_among_metadata_are_refused(tmp_path):
    np.savez(tmp_path / "data.npz", **columns(), **{"metadata/seen_through": np.array([{}])})
    metadata = read_dataset_file(tmp_path / "data.npz").metadata
    with pytest.raises(UserError, match="metadata/seen_through holds objects, which are not read"):
        recorded_wrappers(metadata, "mine")


def test_facts_of_the_size_of_data_are_not_read(tmp_path):
    np.savez_compressed(tmp_path / "data.npz", **columns(), **{"metadata/env": np.zeros(20_000)})
    metadata = read_dataset_file(tmp_path / "data.npz").metadata
    with pytest.raises(UserError, match=r"data\.npz: metadata/env would be 160,000 bytes, more than 65,536"):
        recorded_in(metadata)


def test_what_is_larger_than_memory_is_not_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "data.npz", **columns(), **{"infos/qpos": np.arange(1000.0)})
    monkeypatch.setattr(files, "available_bytes", lambda: 8_200)
    infos = read_dataset_file(tmp_path / "data.npz").infos
    assert len(infos["qpos"]) == 1000
    with pytest.raises(UserError, match=r"data\.npz takes .* 8,200 bytes of memory are free"):
        raw_arrays(tmp_path / "data.npz")
    monkeypatch.setattr(files, "available_bytes", lambda: 7_999)
    with pytest.raises(UserError, match="infos/qpos takes 8,000 bytes"):
        infos["qpos"]


def member(header):
    """An array file with this header and no numbers."""
    file = io.BytesIO()
    file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return file.getvalue()


@pytest.mark.parametrize(
    "header, message",
    [
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3), }", "would be 24 bytes, but 0 are there"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 0), }", "would be 0 bytes, but 0 are there"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000, 10000000), }", "would be 400,000,000,000,000"),
        (b"{'descr': " + b"[" * 5000, "cannot be read"),
        (b"{'descr': '''", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
@pytest.mark.parametrize("key", ["observations", "infos/qpos"])
def test_headers_that_lie_are_refused(tmp_path, key, header, message):
    path = tmp_path / "data.npz"
    np.savez(path, **{name: value for name, value in columns().items() if name != key})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{key}.npy", member(header))
    with pytest.raises(UserError, match=f"{key} .*{message}"):
        read_dataset_file(path).infos["qpos"]
    with pytest.raises(UserError, match=message):
        raw_arrays(path)


def test_what_the_file_cannot_hold_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SUSPICIOUS_BYTES", 2**16)
    monkeypatch.setattr(files, "SUSPICIOUS_FACTOR", 10)
    np.savez_compressed(tmp_path / "data.npz", **columns(), **{"infos/qpos": np.zeros(100_000)})
    with pytest.raises(UserError, match=r"infos/qpos of shape \(100000,\) would be 800,000 bytes, but the file has"):
        read_dataset_file(tmp_path / "data.npz").infos["qpos"]


def test_other_ways_of_compression_are_refused(tmp_path):
    np.savez(tmp_path / "data.npz", **columns())
    with (
        zipfile.ZipFile(tmp_path / "data.npz") as plain,
        zipfile.ZipFile(tmp_path / "other.npz", "w", zipfile.ZIP_BZIP2) as other,
    ):
        for name in plain.namelist():
            other.writestr(name, plain.read(name))
    with pytest.raises(
        UserError, match=r"is compressed by another method than NumPy's; write the file by numpy\.savez"
    ):
        read_dataset_file(tmp_path / "other.npz")


def peak_of(function):
    """What `function` takes at most beside what was there, in bytes, and the message by which it refuses."""

    def refuse():
        with pytest.raises(UserError) as refused:
            function()
        return refused.value.message

    message, peak = with_peak(refuse)
    return peak, message


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("key", ["observations", "infos/qpos"])
def test_headers_are_not_read_that_are_larger_than_headers(tmp_path, key, version):
    path, size = tmp_path / "data.npz", 2**16 - 1 if version == 1 else 2**26
    np.savez(path, **{name: value for name, value in columns().items() if name != key})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{key}.npy", "w") as file:
        file.write(b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(2 * version, "little"))
        file.write(b" " * size)
    for read in (lambda: read_dataset_file(path).infos["qpos"], lambda: raw_arrays(path)):
        peak, message = peak_of(read)
        assert peak < 2**21
        assert f"{key} cannot be read (its header declares {size:,} bytes, more than 10,000)" in message
        assert "pickle" not in message


def test_lists_of_contents_are_not_read_that_are_longer_than_lists(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, **columns())
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(20):
            archive.writestr(f"{number:02}{'x' * 60_000}", b"")
    for read in (lambda: read_dataset_file(path), lambda: raw_arrays(path)):
        peak, message = peak_of(read)
        assert peak < 2**21
        assert "data.npz: its list of contents takes" in message and "write only the arrays of the data" in message


def test_arrays_that_lie_column_by_column_are_read_one_at_a_time(tmp_path):
    given = columns()
    large = np.asfortranarray(np.random.default_rng(0).standard_normal((40, 2**16)))
    np.savez(tmp_path / "data.npz", **given | {"observations": large, "next_observations": np.roll(large, -1, 0)})
    data, peak = with_peak(lambda: read_dataset_file(tmp_path / "data.npz"))
    assert np.array_equal(data.observations, large.astype(np.float32))
    assert peak < 2.5 * large.nbytes
