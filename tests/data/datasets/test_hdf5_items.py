"""What HDF5 files hold that is not read: links, storage elsewhere, sizes that are not there."""

import re

import h5py
import numpy as np
import pytest

from offpcc.data.datasets import files
from offpcc.data.datasets.files import read_dataset_file, read_value
from offpcc.data.datasets.load import raw_arrays
from offpcc.data.datasets.metadata import recorded_in, recorded_wrappers
from offpcc.utils.errors import UserError

STEPS = 40
LINK, ELSEWHERE = "is a link, or its target is missing", "is stored in other files"


def columns():
    return {
        "observations": np.random.default_rng(0).standard_normal((STEPS, 3)).astype(np.float32),
        "actions": np.zeros((STEPS, 2), np.float32),
        "rewards": np.arange(STEPS, dtype=np.float32),
        "terminals": np.arange(STEPS) % 10 == 9,
    }


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for key, value in columns().items():
            file[key] = value
    return tmp_path / "data.hdf5"


@pytest.fixture
def other(tmp_path):
    """Another file, of numbers that nobody gave as data."""
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["numbers"] = np.ones((STEPS, 3), np.float32)
        file["infos/secret"] = np.ones(STEPS)
    return tmp_path / "other.hdf5"


def refuses(path, message):
    for read in (read_dataset_file, raw_arrays):
        with pytest.raises(UserError, match=re.escape(f"{path}: {message}")):
            read(path)


# Elsewhere --------------------------------------------------------------------------------------------------------


def test_bytes_of_another_file_are_not_read(path, tmp_path):
    (tmp_path / "secret").write_bytes(b"s" * STEPS * 12)
    with h5py.File(path, "a") as file:
        del file["observations"]
        file.create_dataset("observations", (STEPS, 3), "f4", external=[(str(tmp_path / "secret"), 0, STEPS * 12)])
        assert (file["observations"][:] != 0).all()
    refuses(path, f"observations {ELSEWHERE}")


@pytest.mark.parametrize("source", ["other.hdf5", "missing.hdf5", "."])
def test_an_array_made_of_others_is_not_read(path, other, source):
    layout = h5py.VirtualLayout((STEPS, 3), "f4")
    layout[:] = h5py.VirtualSource(source if source == "." else path.with_name(source), "numbers", (STEPS, 3))
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset("next_observations", layout, fillvalue=0)
    refuses(path, f"next_observations {ELSEWHERE}")


@pytest.mark.parametrize("key", ["observations", "next_observations", "timeouts"])
@pytest.mark.parametrize(
    "link",
    [
        h5py.ExternalLink("other.hdf5", "numbers"),
        h5py.ExternalLink("missing.hdf5", "numbers"),
        h5py.SoftLink("/terminals"),
        h5py.SoftLink("/missing"),
    ],
    ids=["other file", "missing file", "this file", "nowhere"],
)
def test_links_are_no_columns(path, other, key, link):
    with h5py.File(path, "a") as file:
        if key in file:
            del file[key]
        file[key] = link
    refuses(path, f"{key} {LINK}")


@pytest.mark.parametrize("group", ["infos", "metadata"])
@pytest.mark.parametrize("link", [h5py.ExternalLink("other.hdf5", "infos"), h5py.SoftLink("/missing")])
def test_links_are_no_groups(path, other, group, link):
    with h5py.File(path, "a") as file:
        file[group] = link
    refuses(path, f"{group} {LINK}")


@pytest.mark.parametrize("link", [h5py.ExternalLink("other.hdf5", "infos/secret"), h5py.SoftLink("/missing")])
def test_links_in_groups_are_refused_when_they_are_asked_for(path, other, link):
    with h5py.File(path, "a") as file:
        file["infos/deep/secret"] = link
        file["infos/qpos"] = np.arange(STEPS)
    infos = read_dataset_file(path).infos
    assert sorted(infos) == ["deep/secret", "qpos"]
    assert infos["qpos"].tolist() == list(range(STEPS))
    for read in (lambda: infos["deep/secret"], lambda: raw_arrays(path)):
        with pytest.raises(UserError, match=f"infos/deep/secret {LINK}"):
            read()


def test_a_message_names_some_of_many(path):
    with h5py.File(path, "a") as file:
        del file["rewards"]
        for number in range(500):
            file[f"{number}{'x' * 500}"] = 0.0
    for read in (read_dataset_file, raw_arrays):
        with pytest.raises(UserError, match=r"missing; found: .*xxx\.\.\.") as refused:
            read(path)
        assert len(refused.value.message) < 5_000


# Filters ----------------------------------------------------------------------------------------------------------


def test_any_filters_of_hdf5_are_read(path):
    """Also those after which nothing but HDF5 itself can measure the content: here, gzip comes twice and not last."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((STEPS, 3))
    properties.set_deflate(9)
    properties.set_deflate(9)
    properties.set_shuffle()
    with h5py.File(path, "a") as file:
        del file["observations"]
        space = h5py.h5s.create_simple((STEPS, 3))
        h5py.h5d.create(file.id, b"observations", h5py.h5t.IEEE_F32LE, space, dcpl=properties)
        file["observations"][...] = columns()["observations"]
    assert np.array_equal(read_dataset_file(path).observations, columns()["observations"])


# Too large --------------------------------------------------------------------------------------------------------

HUGE = (10**7, 10**7)


@pytest.mark.parametrize("key", ["metadata/seen_through", "infos/qpos"])
def test_what_the_file_cannot_hold_is_not_read(path, key):
    with h5py.File(path, "a") as file:
        file.create_dataset(key, HUGE, "f8", chunks=(100, 100))
    data = read_dataset_file(path)
    group, name = key.split("/")
    for read in (lambda: getattr(data, "infos" if group == "infos" else "metadata")[name], lambda: raw_arrays(path)):
        with pytest.raises(UserError, match=r"800,000,000,000,000 bytes|takes 800,000,"):
            read()


def test_what_is_larger_than_memory_is_not_read(path, monkeypatch):
    with h5py.File(path, "a") as file:
        file["infos/qpos"] = np.arange(1000.0)
    monkeypatch.setattr(files, "available_bytes", lambda: 8_100)
    infos = read_dataset_file(path).infos
    assert len(infos["qpos"]) == 1000
    with pytest.raises(UserError, match=r"data.hdf5 takes 9,000 bytes, but 8,100 bytes of memory are free"):
        raw_arrays(path)
    monkeypatch.setattr(files, "available_bytes", lambda: 7_999)
    with pytest.raises(UserError, match="infos/qpos takes 8,000 bytes"):
        infos["qpos"]


# Kinds ------------------------------------------------------------------------------------------------------------


def test_single_texts_are_read_and_many_of_any_length_are_not(path):
    with h5py.File(path, "a") as file:
        file["metadata/env"] = "Hopper-v4"
        file["metadata/fixed"] = np.bytes_("fixed")
        file["metadata/many"] = ["a", "b"]
        file.create_dataset("metadata/lists", (), h5py.vlen_dtype(np.int32))
        file.create_dataset("metadata/nothing", data=h5py.Empty("f4"))
    metadata = read_dataset_file(path).metadata
    assert (metadata["env"], metadata["fixed"]) == ("Hopper-v4", "fixed")
    for name in ("many", "lists"):
        with pytest.raises(UserError, match=f"metadata/{name} holds texts or lists of any length"):
            metadata[name]
    with pytest.raises(UserError, match="metadata/nothing holds no value"):
        metadata["nothing"]


def test_attributes_of_the_file_are_metadata_and_checked_alike(path):
    with h5py.File(path, "w", libver="latest") as file:  # which may have large attributes
        for key, value in columns().items():
            file[key] = value
        file["metadata/env"] = "inside"
        file["metadata/deep/seed"] = 3
        file.attrs.update({"env": "Hopper-v4", "size": 3, "seen_through": h5py.Empty("f4"), "many": ["a", "b"]})
        file.attrs["large"] = np.zeros(20_000)
    metadata = read_dataset_file(path).metadata
    assert sorted(metadata) == ["deep/seed", "env", "large", "many", "seen_through", "size"]
    assert (metadata["env"], metadata["size"], metadata["deep/seed"]) == ("Hopper-v4", 3, 3)
    assert recorded_in(metadata) == "Hopper-v4"
    with pytest.raises(UserError, match="the attribute seen_through holds no value"):
        recorded_wrappers(metadata, "mine")
    with pytest.raises(UserError, match="the attribute many holds texts"):
        metadata["many"]
    with h5py.File(path, "a") as file:
        file.attrs["env"] = file.attrs["large"]
    with pytest.raises(UserError, match=r"metadata/env is \[0\.0, .*, not a text"):
        recorded_in(read_dataset_file(path).metadata)


def test_names_that_cannot_be_printed_are_told(path):
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["\x1b[2Jrewards"] = 1
    with pytest.raises(UserError, match=r"rewards missing; found: '\\x1b\[2Jrewards', actions"):
        read_dataset_file(path)
    with pytest.raises(UserError, match=r"rewards missing; found: .*'\\x1b"):
        raw_arrays(path)


def test_what_is_not_there_is_told(path):
    for key in ("infos/qpos", "observations/qpos"):
        with pytest.raises(UserError, match=f"{key} {LINK}"):
            read_value(path, *key.split("/"))
