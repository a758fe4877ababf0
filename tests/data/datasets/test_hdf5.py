"""Recorded data in HDF5 and NPZ files, whole and broken, and the real files where they are at hand."""

import gzip
import pickle
import re
import warnings
import zipfile
from functools import partial
from pathlib import Path

import atari_shards as shards
import h5py
import numpy as np
import pytest
from peaks import with_peak
from recordings import real_recording

from offpcc.data.datasets import columns
from offpcc.data.datasets import metadata as infos
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.files import read_dataset_file, read_everything
from offpcc.data.datasets.load import load_dataset, raw_arrays
from offpcc.envs.d4rl.catalog import normalized_score
from offpcc.utils.errors import UserError


def arrays(num_steps=250, length=100, dtype=np.float32):
    """Episodes of `length` steps that a time limit ended, under D4RL's names."""
    draws = np.random.default_rng(0)
    timeouts = np.arange(num_steps) % length == length - 1
    observations = draws.standard_normal((num_steps + 1, 3)).astype(dtype)
    after = observations[1:] + timeouts[:, None].astype(dtype)
    return {
        "observations": observations[:-1],
        "actions": draws.uniform(-1, 1, (num_steps, 2)).astype(dtype),
        "rewards": draws.standard_normal(num_steps).astype(dtype),
        "terminals": np.zeros(num_steps, bool),
        "timeouts": timeouts,
        "next_observations": after,
    }


def write(path, content, **options):
    if path.suffix == ".npz":
        (np.savez_compressed if options else np.savez)(path, **content)
    else:
        with h5py.File(path, "w") as file:
            for key, value in content.items():
                file.create_dataset(key, data=value, **options)
    return path


def without(content, *keys):
    return {key: value for key, value in content.items() if key not in keys}


FORMATS = [
    ("data.hdf5", {}),
    ("data.hdf5", {"compression": "gzip", "chunks": True}),
    ("data.npz", {}),
    ("d.npz", {"z": 1}),
]


@pytest.mark.parametrize("file, options", FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4"])
def test_a_file_holds_what_was_written(tmp_path, file, options, dtype):
    given = arrays(dtype=dtype)
    data = read_dataset_file(write(tmp_path / file, given, **options))
    for name in ("observations", "actions", "rewards"):
        assert getattr(data, name).dtype == np.float32
        assert np.array_equal(getattr(data, name), given[name].astype(np.float32))
    assert data.lengths.tolist() == [100, 100, 50]
    assert data.num_transitions == 250
    assert np.array_equal(data.next_observations, given["next_observations"].astype(np.float32))
    assert (data.name, data.source, data.notices) == (file.split(".")[0], str(tmp_path / file), ())


@pytest.mark.parametrize("file", ["data.hdf5", "data.npz"])
def test_our_own_names_and_columns_of_one_number_are_read(tmp_path, file):
    given = arrays()
    renamed = without(given, "terminals", "timeouts") | {
        "terminations": given["terminals"].astype(np.uint8)[:, None],
        "truncations": given["timeouts"].astype(np.float64),
        "rewards": given["rewards"][:, None],
    }
    data = read_dataset_file(write(tmp_path / file, renamed))
    assert data.lengths.tolist() == [100, 100, 50]
    assert np.array_equal(data.rewards, given["rewards"])


def test_the_suffix_does_not_matter(tmp_path):
    for file in ("data.npz", "data.hdf5"):
        write(tmp_path / file, arrays()).rename(tmp_path / "data.bin")
        assert read_dataset_file(tmp_path / "data.bin").num_steps == 250


def test_arrays_stored_column_by_column_are_read(tmp_path):
    given = arrays()
    data = read_dataset_file(
        write(tmp_path / "data.npz", {key: np.asfortranarray(value) for key, value in given.items()})
    )
    assert np.array_equal(data.observations, given["observations"])


@pytest.mark.parametrize("file, options", FORMATS)
def test_blocks_smaller_than_the_file_change_nothing(tmp_path, file, options, monkeypatch):
    path = write(tmp_path / file, arrays(), **options)
    whole = read_dataset_file(path)
    monkeypatch.setattr(columns, "BLOCK_BYTES", 100)
    pieces = read_dataset_file(path)
    assert np.array_equal(whole.observations, pieces.observations)
    assert np.array_equal(whole.final_observations, pieces.final_observations)


@pytest.mark.parametrize("file, options", FORMATS)
def test_reading_takes_little_more_memory_than_what_is_kept(tmp_path, file, options, monkeypatch):
    path = write(tmp_path / file, arrays(100_000), **options)
    monkeypatch.setattr(columns, "BLOCK_BYTES", 2**16)
    read_dataset_file(path)  # what is imported on first use is no data
    data, peak = with_peak(lambda: read_dataset_file(path))
    most = 2 if file.endswith("npz") else 1.3  # NPZ is read whole, with next observations, which are not kept
    assert data.num_bytes < peak < most * data.num_bytes


@pytest.mark.parametrize("file", ["data.hdf5", "data.npz"])
def test_infos_and_metadata_are_read_when_they_are_asked_for(tmp_path, file, monkeypatch):
    beside = {"infos/qpos": np.arange(250.0), "infos/size": np.ones(3), "metadata/policy/weight": np.eye(2)}
    path = write(tmp_path / file, arrays() | beside)
    if file.endswith("hdf5"):
        with h5py.File(path, "a") as opened:
            opened.attrs["env"] = "Hopper-v2"
            opened["metadata/algorithm"] = "SAC"
    data = read_dataset_file(path)
    assert sorted(data.infos) == ["qpos", "size"]
    assert data.infos["qpos"].tolist() == list(range(250))
    part = data.select([2, 0])
    assert part.infos["qpos"].tolist() == [*range(200, 250), *range(100)]
    assert part.infos["size"].tolist() == [1, 1, 1]
    assert data.select([1]).infos["qpos"].tolist() == list(range(100, 200))
    assert data.metadata["policy/weight"].tolist() == [[1, 0], [0, 1]]
    if file.endswith("hdf5"):
        assert (data.metadata["env"], data.metadata["algorithm"]) == ("Hopper-v2", "SAC")
        assert set(data.metadata) == {"env", "algorithm", "policy/weight"}
    assert np.array_equal(pickle.loads(pickle.dumps(data)).infos["qpos"], data.infos["qpos"])
    with pytest.raises(KeyError):
        data.infos["none"]
    path.unlink()
    with pytest.raises(UserError, match=r"data\.(npz|hdf5) cannot be read .*No such file"):
        data.infos["qpos"]


# Bad files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["data.hdf5", "data.npz"])
def test_missing_keys_are_named_with_those_found(tmp_path, file):
    path = write(tmp_path / file, without(arrays(), "rewards", "terminals") | {"reward": np.zeros(250)})
    with pytest.raises(
        UserError, match=re.escape("rewards, terminations (terminals) missing; found: actions, ")
    ) as told:
        read_dataset_file(path)
    assert "reward, timeouts" in told.value.message


def test_dones_in_a_file_are_no_terminations(tmp_path):
    path = write(tmp_path / "data.hdf5", without(arrays(), "terminals") | {"dones": np.zeros(250, bool)})
    with pytest.raises(UserError, match="dones without time limits are terminations, and time limits are truncations"):
        read_dataset_file(path)


@pytest.mark.parametrize("file", ["data.hdf5", "data.npz"])
@pytest.mark.parametrize(
    "changed, message",
    [
        ({"rewards": np.zeros(249)}, "249 rewards, but 250 observations"),
        ({"actions": np.where(np.arange(250) == 9, np.inf, 0)[:, None]}, "actions[9, 0] is inf"),
        ({"observations": np.zeros(250)}, "observations of shape (250,)"),
        ({"rewards": np.array([b"1.0"] * 250)}, "rewards holds |S3, not numbers"),
    ],
)
def test_bad_columns_get_one_message(tmp_path, file, changed, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read_dataset_file(write(tmp_path / file, arrays() | changed))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("swing.hdf5", "there is no file swing.hdf5; did you mean swings.hdf5?"),
        ("swings.npz", "there is no file swings.npz; did you mean swings.hdf5?"),
        ("folder/swing.h5", "there is no file folder/swing.h5; did you mean folder/swings.npz?"),
        ("swings", "swings: there is no such dataset; did you mean the file swings.hdf5?"),
        ("x.hdf5", "there is no file x.hdf5; give a file that exists, a D4RL name, minari:ID or ogbench:NAME"),
        ("folder/none/x.hdf5", "there is no file folder/none/x.hdf5; give a file that exists"),
    ],
)
def test_a_file_with_a_name_like_one_that_is_not_there_is_named(tmp_path, monkeypatch, given, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFPCC_DATASETS", str(tmp_path / "elsewhere"))
    Path("folder").mkdir()
    write(Path("swings.hdf5"), arrays())
    write(Path("folder/swings.npz"), arrays())
    with pytest.raises(UserError, match=re.escape(told)):
        load_dataset(given)


def test_messages_name_the_data_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFPCC_DATASETS", str(tmp_path))
    spoiled = arrays() | {"rewards": np.full(250, np.nan)}
    for file in ("mine.hdf5", "mine.npz"):
        path = write(tmp_path / file, spoiled)
        for read in (read_dataset_file, load_dataset):
            with pytest.raises(UserError, match=f"^{re.escape(str(path))}: rewards"):
                read(path)
        with pytest.raises(UserError, match=r"^mine: rewards"):
            load_dataset("mine")
        write(path, without(spoiled, "rewards"))
        with pytest.raises(UserError, match=f"^{re.escape(str(path))}: rewards missing"):
            load_dataset(path)
    whole = load_dataset(write(tmp_path / "whole.hdf5", arrays()))
    assert (whole.name, whole.source) == ("whole", str(tmp_path / "whole.hdf5"))


def test_objects_are_refused_and_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    write(tmp_path / "data.npz", arrays() | {"infos/trap": np.array([Trap()] * 250)})
    with pytest.raises(UserError, match="infos/trap holds objects, which are not read"):
        read_dataset_file(tmp_path / "data.npz").infos["trap"]
    with pytest.raises(UserError, match="infos/trap holds objects, which are not read"):
        read_everything(tmp_path / "data.npz")
    write(tmp_path / "data.npz", arrays() | {"rewards": np.array([Trap()] * 250)})
    with pytest.raises(UserError, match="rewards holds object"):
        read_dataset_file(tmp_path / "data.npz")
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for key, value in without(arrays(), "rewards").items():
            file[key] = value
        file.create_dataset("rewards", (250,), h5py.vlen_dtype(np.float32))
    with pytest.raises(UserError, match="rewards holds object"):
        read_dataset_file(tmp_path / "data.hdf5")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("item, message", [("group", "a group of several"), ("scalar", "a single value")])
def test_what_is_no_array_is_refused(tmp_path, item, message):
    path = write(tmp_path / "data.hdf5", without(arrays(), "actions"))
    with h5py.File(path, "a") as file:
        if item == "group":
            file["actions/arm"] = np.zeros((250, 3))
        else:
            file["actions"] = 1.0
    with pytest.raises(UserError, match=f"actions is {message}"):
        read_dataset_file(path)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b"12345", "neither HDF5 nor NPZ; was the file written"),
        (b"\n<!DOCTYPE html><html>not here</html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
        (b"PK\x03\x04 and then nothing", "damaged or incomplete"),
        (b"\x89HDF\r\n\x1a\n", "damaged or incomplete"),
        (gzip.compress(b"frames", mtime=0), "compressed by gzip.*gunzip.*convert dqn-replay"),
        (pickle.dumps({"actions": []}), "a pickle; .*from_arrays"),
    ],
)
def test_files_of_another_kind_are_named(tmp_path, content, message):
    path = tmp_path / "data.hdf5"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as told:
        read_dataset_file(path)
    assert str(path) in told.value.message


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("name", ["run_1-00001-of-00100", "shard"])
def test_a_shard_is_named_by_its_content(tmp_path, name, is_compressed):
    shards.write_shard(tmp_path / name, [{"a_t": np.arange(9)}])
    if not is_compressed:
        (tmp_path / name).write_bytes(gzip.decompress((tmp_path / name).read_bytes()))
    with pytest.raises(UserError, match="but TensorFlow's TFRecord; `offpcc convert rl-unplugged` reads those of RL"):
        read_dataset_file(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("run_1-00001-of-00100", "TFRecord by its name; `offpcc convert rl-unplugged`"),
        ("$store$_action_ckpt.3.gz", "a log of the DQN replay dataset; `offpcc convert dqn-replay` reads it"),
    ],
)
def test_gzip_of_a_known_name(tmp_path, name, told):
    (tmp_path / name).write_bytes(gzip.compress(b"frames", mtime=0))
    with pytest.raises(UserError, match=told) as raised:
        read_dataset_file(tmp_path / name)
    assert "gunzip" not in raised.value.message


@pytest.mark.parametrize("name", ["run_1-00001-of-00100", "data.tfrecord"])
def test_a_shard_of_tensorflow_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x10\x00\x00\x00")
    with pytest.raises(UserError, match="TFRecord by its name; `offpcc convert rl-unplugged`"):
        read_dataset_file(tmp_path / name)


@pytest.mark.parametrize("file, options", FORMATS)
def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path, file, options):
    path = write(tmp_path / file, arrays(), **options)
    content = path.read_bytes()
    for part in np.linspace(0.0, 0.97, 30):
        path.write_bytes(content[: int(part * len(content))])
        with pytest.raises(UserError, match=re.escape(str(path))):
            read_dataset_file(path)


def everything_told(path):
    """All that can be asked of a file; refusals are counted, and anything else is raised."""
    refused = 0
    try:
        data = read_dataset_file(path)
    except UserError:
        return 1
    assert data.num_steps >= 1
    metadata = data.metadata
    asked = [
        *(partial(data.infos.__getitem__, name) for name in data.infos),
        *(partial(metadata.__getitem__, name) for name in metadata),
        *(partial(read, metadata, "mine") for read in (infos.recorded_wrappers, infos.action_range, infos.recorded_in)),
        partial(raw_arrays, path),
    ]
    for ask in asked:
        try:
            ask()
        except UserError as error:
            refused += 1
            error.message.encode()
    return refused


FACTS = {
    "infos/qpos": np.arange(250.0),
    "metadata/action_low": np.float32([-1, -1]),
    "metadata/action_high": np.float32([1, 1]),
    "metadata/seen_through": "[]",
    "metadata/env_spec": '{"id": "Hopper-v4"}',
}


@pytest.mark.parametrize("file, options", FORMATS)
@pytest.mark.parametrize("facts", [{}, FACTS])
def test_changed_bytes_end_in_a_message_or_in_data(tmp_path, file, options, facts):
    path = write(tmp_path / file, arrays(), **options)
    if file.endswith("npz"):
        path = write(path, facts | arrays(), **options)
    else:
        with h5py.File(path, "a") as opened:
            opened.attrs.update({"env": "Hopper-v4"} if facts else {})
            for key, value in facts.items():
                opened[key] = value
    assert everything_told(path) == 0
    content, draws = path.read_bytes(), np.random.default_rng(0)
    reach = len(content) if facts else 4000
    refused = 0
    for _ in range(75):
        changed = bytearray(content)
        for place in draws.integers(0, min(len(content), reach), 20 if facts else 5):
            changed[place] = draws.integers(256)
        path.write_bytes(changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refused += everything_told(path) > 0
    assert refused > 10


def test_a_size_that_the_file_cannot_hold_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for key, shape in {"observations": (10**9, 11), "actions": (10**9, 3), "rewards": (10**9,)}.items():
            file.create_dataset(key, shape, "f4", chunks=True)
        file.create_dataset("terminals", (10**9,), bool, chunks=True)
    monkeypatch.setattr(columns, "available_bytes", lambda: None)
    monkeypatch.setattr(Dataset, "from_columns", lambda *args, **kwargs: pytest.fail("it was read"))
    with pytest.raises(UserError, match=r"observations of shape \(1000000000, 11\) would be 44,000,000,000 bytes"):
        read_dataset_file(path)


def test_an_archive_that_declares_more_than_it_holds_is_refused(tmp_path):
    write(tmp_path / "data.npz", arrays())
    with zipfile.ZipFile(tmp_path / "data.npz") as whole, zipfile.ZipFile(tmp_path / "bad.npz", "w") as bad:
        for member in whole.namelist():
            bad.writestr(member, whole.read(member).replace(b"'shape': (250, 3)", b"'shape': (999, 3)"))
    with pytest.raises(UserError, match=r"damaged or incomplete \(.*expected 11988 bytes got 3000"):
        read_dataset_file(tmp_path / "bad.npz")


def test_a_file_that_may_not_be_read_or_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_dataset_file(tmp_path / "none.hdf5")
    with pytest.raises(UserError, match="Is a directory"):
        read_dataset_file(tmp_path)


# Real recordings --------------------------------------------------------------------------------------------------

# name: steps, episodes that ended and that timed out, mean return, score, environment of the score
REAL = {
    "hopper-opolo-expert": (10_000, 0, 10, 3590, 110.9, "Hopper-v2"),
    "halfcheetah-opolo-medium": (10_000, 0, 10, 7582, 63.3, "HalfCheetah-v2"),
    "walker2d-opolo-medium": (9_907, 3, 7, 3816, 83.1, "Walker2d-v2"),
    "ant-opolo-mixed": (23_996, 0, 24, 2496, 67.1, "Ant-v2"),
    "hopper-cs285-expert-v4": (2_000, 0, 2, 3718, 115, "Hopper-v4"),
    "halfcheetah-cs285-expert-v4": (2_000, 0, 2, 4035, 35, "HalfCheetah-v4"),
    "walker2d-cs285-expert-v4": (2_000, 0, 2, 5383, 117, "Walker2d-v4"),
    "door-human-dapg": (6_729, 0, 25, 794, 29.0, "door-human-v0"),
    "pendulum-sb-expert": (19_900, 0, 100, -150, None, "Pendulum-v0"),
    "cartpole-sb-expert": (49_428, 1, 99, 494, None, "CartPole-v1"),
}
AFTER_RESET = {  # cut episodes of recorders that looked after the reset, so that the last steps led nowhere known
    "hopper-opolo-expert": 10,
    "halfcheetah-opolo-medium": 10,
    "walker2d-opolo-medium": 7,
    "ant-opolo-mixed": 24,
}
CLIPPED = {name for name in REAL if "cs285" in name} | {"door-human-dapg", "pendulum-sb-expert"}


@pytest.mark.parametrize("name", REAL)
def test_real_recordings_have_the_counts_returns_and_remarks_that_are_known(name):
    data = load_dataset(real_recording(name))
    steps, ended, timed_out, mean, score, env = REAL[name]
    lost = AFTER_RESET.get(name, 0)
    assert (data.num_steps, data.num_transitions, data.num_episodes) == (steps, steps - lost, ended + timed_out)
    told = [notice.text for notice in (*data.notices, *data.action_warnings())]
    assert any("as after a reset" in text for text in told) == bool(lost)
    assert (data.terminations.sum(), data.truncations.sum()) == (ended, timed_out)
    assert round(data.returns.mean()) == mean
    computed = normalized_score(env, data.returns.mean())
    assert computed is None if score is None else round(computed, 0 if isinstance(score, int) else 1) == score
    assert any("clip" in text for text in told) == (name in CLIPPED)
    assert data.discrete_actions == any("discrete" in text for text in told) == (name == "cartpole-sb-expert")
    assert np.abs(data.unit_actions()).max() <= 1.0
    assert len(told) <= 1
