"""Files of d3rlpy, whole and broken. The layout is that of d3rlpy 2.8.1 (2.1 in its files), and of d3rlpy 1.1.1."""

import re
import warnings

import h5py
import numpy as np
import pytest
from peaks import with_peak

import offpcc
from offpcc.data.datasets import columns, files
from offpcc.data.datasets.files import read_dataset_file
from offpcc.data.datasets.load import load_dataset, raw_arrays
from offpcc.data.offline import read
from offpcc.utils.errors import UserError

LENGTHS = [5, 9, 2, 7, 1, 4, 3, 8, 6, 2, 5, 10]  # from ten on, names in alphabetical order are not in that of episodes


def vectors(draw, length):
    return draw.standard_normal((length, 3)).astype(np.float32)


def images(draw, length):
    return draw.integers(0, 256, (length, 3, 12, 10), np.uint8)


def pairs(draw, length):
    return [vectors(draw, length), images(draw, length)]


def numbers(draw, length):
    return draw.uniform(-1, 1, (length, 2)).astype(np.float32)


def choices(draw, length):
    return draw.integers(0, 4, (length, 1))


def episodes(observed=vectors, acted=numbers, lengths=LENGTHS):
    """Episodes of d3rlpy, every second of them terminated."""
    draw = np.random.default_rng(0)
    return [
        {
            "observations": observed(draw, length),
            "actions": acted(draw, length),
            "rewards": draw.standard_normal((length, 1)).astype(np.float32),
            "terminated": number % 2 == 0,
        }
        for number, length in enumerate(lengths)
    ]


def dump(path, content):
    """Write episodes as d3rlpy does, object by object in its order."""
    with path.open("w+b") as opened, h5py.File(opened, "w") as file:
        file.create_dataset("columns", data=list(content[0]))
        file.create_dataset("num_episodes", data=len(content))
        for number, episode in enumerate(content):
            for key, value in episode.items():
                parts = {f"_{place}": part for place, part in enumerate(value)} if isinstance(value, list) else {}
                for place, part in (parts or {"": value}).items():
                    file.create_dataset(f"{key}_{number}{place}", data=part)
        file.create_dataset("version", data="2.1")
    return path


def joined(content, key):
    return np.concatenate([episode[key] for episode in content])


@pytest.mark.parametrize("observed", [vectors, images])
@pytest.mark.parametrize("acted", [numbers, choices])
@pytest.mark.parametrize("block", [columns.BLOCK_BYTES, 500])
def test_episodes_hold_what_was_written_and_end_where_they_did(tmp_path, monkeypatch, observed, acted, block):
    monkeypatch.setattr(columns, "BLOCK_BYTES", block)
    content = episodes(observed, acted)
    data = read_dataset_file(dump(tmp_path / "data.h5", content))
    assert np.array_equal(data.observations, joined(content, "observations"))
    assert data.observations.dtype == content[0]["observations"].dtype
    assert np.array_equal(data.actions, joined(content, "actions"))
    assert data.discrete_actions is (acted is choices)
    assert np.array_equal(data.rewards, joined(content, "rewards")[:, 0])
    assert data.lengths.tolist() == LENGTHS
    is_last = np.isin(np.arange(data.num_steps) + 1, np.cumsum(LENGTHS))
    is_terminated = np.repeat([episode["terminated"] for episode in content], LENGTHS)
    assert np.array_equal(data.terminations, is_last & is_terminated)
    assert np.array_equal(data.truncations, is_last & ~is_terminated)
    assert data.is_whole.all()


def test_the_last_step_is_a_transition_if_the_task_ended_there(tmp_path):
    """There is no observation after it, as in files of D4RL without next_observations."""
    content = episodes()
    path = dump(tmp_path / "data.h5", content)
    data = read_dataset_file(path)
    assert data.last_is_transition.tolist() == [episode["terminated"] for episode in content]
    assert [notice.kind for notice in data.notices] == ["no next observations"]
    transitions = offpcc.qlearning_dataset(path)
    kept = [length - (not episode["terminated"]) for length, episode in zip(LENGTHS, content, strict=True)]
    assert len(transitions["rewards"]) == sum(kept)
    parts = [episode["rewards"][:number, 0] for number, episode in zip(kept, content, strict=True)]
    assert np.array_equal(transitions["rewards"], np.concatenate(parts))
    rows = read(path).rows  # what an agent with memory draws from
    assert (rows.stops - rows.starts - 1).tolist() == kept


def test_a_tuple_of_observations_becomes_entries(tmp_path):
    content = episodes(pairs)
    data = load_dataset(dump(tmp_path / "data.h5", content))
    seen = data.observation_space.split(data.observations)
    assert list(seen) == ["0", "1"] and seen["1"].dtype == np.uint8
    for place, part in seen.items():
        assert np.array_equal(part, np.concatenate([episode["observations"][int(place)] for episode in content]))
    assert data.lengths.tolist() == LENGTHS


def test_a_run_learns_from_such_a_file_and_the_check_reads_it(tmp_path, launch):
    dump(tmp_path / "data.h5", episodes(lengths=[20] * 16))
    settings = ("--gin", "train.num_epochs=1", "train.num_steps_per_epoch=5")
    code, out, err = launch("--algo", "riql", "--dataset", "data.h5", "--config", "test/offline_short.gin", *settings)
    assert (code, err) == (0, "")
    assert "312 transitions in 16 episodes" in out
    code, out, _ = launch("check", "--dataset", "data.h5")
    assert code == 0 and "8 terminated, 8 cut, 0 ended with the recording only" in out


def test_d4rls_keys_name_the_whole_arrays(tmp_path):
    content = episodes()
    arrays = raw_arrays(dump(tmp_path / "data.h5", content))
    assert list(arrays) == ["observations", "actions", "rewards", "terminals", "timeouts"]
    assert np.array_equal(arrays["actions"], joined(content, "actions"))
    assert arrays["rewards"].shape == (sum(LENGTHS),)
    assert np.flatnonzero(arrays["terminals"] | arrays["timeouts"]).tolist() == (np.cumsum(LENGTHS) - 1).tolist()


def test_reading_takes_little_more_memory_than_what_is_kept(tmp_path, monkeypatch):
    content = episodes(lambda draw, length: draw.standard_normal((length, 3)), lengths=[5_000] * 20)  # float64
    path = dump(tmp_path / "data.h5", content)
    monkeypatch.setattr(columns, "BLOCK_BYTES", 2**16)
    read_dataset_file(path)  # what is imported on first use is no data
    data, peak = with_peak(lambda: read_dataset_file(path))
    assert data.num_bytes < peak < 1.3 * data.num_bytes


def test_flags_are_read_without_asking_for_the_free_memory(tmp_path, monkeypatch):
    """Each episode has one, and the answer takes longer than the flag."""
    monkeypatch.setattr(files, "available_bytes", lambda: pytest.fail("it was asked for"))
    assert read_dataset_file(dump(tmp_path / "data.h5", episodes())).num_episodes == len(LENGTHS)


def test_d3rlpy_writes_the_same_bytes(tmp_path):
    dataset = pytest.importorskip("d3rlpy").dataset
    for observed in (vectors, images, pairs):
        content = episodes(observed)
        with (tmp_path / "theirs.h5").open("w+b") as file:
            dataset.io.dump([dataset.Episode(**episode) for episode in content], file)
        ours = dump(tmp_path / "ours.h5", content)
        assert ours.read_bytes() == (tmp_path / "theirs.h5").read_bytes()


# Broken files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("observations_0", None, "data.h5: observations_0 is missing, but num_episodes is 12"),
        ("rewards_3", None, "data.h5: rewards_3 is missing, but num_episodes is 12; write it again by ReplayBuffer"),
        ("terminated_11", None, "terminated_11 is missing"),
        ("rewards_3", np.zeros((6, 1), "f4"), "7 rows in observations_3, 7 rows in actions_3, 6 rows in rewards_3"),
        ("actions_1", np.zeros((9, 3), "f4"), "actions_1 has the shape (9, 3) (float32), but actions_0 has (5, 2)"),
        ("actions_1", np.zeros((9, 2), "f8"), "actions_1 has the shape (9, 2) (float64), but actions_0 has (5, 2) (fl"),
        ("observations_2", 1.0, "observations_2 is a single value"),
        ("num_episodes", 13, "observations_12 is missing, but num_episodes is 13"),
        ("num_episodes", 11, "num_episodes is 11, but rewards_11 exists"),
        ("num_episodes", 0, "num_episodes is 0; it has to be a whole number above 0"),
        ("num_episodes", 2.5, "num_episodes is 2.5; it has to be a whole number"),
        ("num_episodes", "x" * 5_000, "... (5,000 letters); it has to be a whole number"),
        ("num_episodes", np.zeros(100, int), "... (203 letters)'; it has to be a whole number"),
        ("terminated_4", 2, "terminated_4 is 2; it has to be True or False"),
        ("terminated_4", [True, False], "terminated_4 is [True, False]; it has to be True or False"),
        ("terminated_4", "yes", "terminated_4 is yes; it has to be True or False"),
        ("rewards_2", h5py.SoftLink("/rewards_1"), "rewards_2 is a link"),
        ("rewards_2", h5py.ExternalLink("other.h5", "x"), "rewards_2 is a link"),
    ],
)
def test_a_damaged_file_gets_one_message(tmp_path, name, value, message):
    path = dump(tmp_path / "data.h5", episodes())
    with h5py.File(path, "a") as file:
        del file[name]
        if value is not None:
            file[name] = value
    with pytest.raises(UserError, match=re.escape(message)):
        read_dataset_file(path)


def test_an_episode_without_steps_is_refused(tmp_path):
    path = dump(tmp_path / "data.h5", episodes(lengths=[3, 0, 2]))
    with pytest.raises(
        UserError, match="0 rows in rewards_1; each array must have one row per step, and at least one row"
    ):
        read_dataset_file(path)


def test_bad_numbers_are_named_by_their_step_in_the_whole_file(tmp_path):
    content = episodes()
    content[2]["rewards"][1] = np.nan
    with pytest.raises(UserError, match=re.escape("rewards[15, 0] is nan")):
        read_dataset_file(dump(tmp_path / "data.h5", content))


def test_the_layout_of_its_first_release_is_refused(tmp_path):
    """Version 2.0 of the files, by d3rlpy 2.0.2 and 2.0.3: a row of each array is an episode."""
    path = tmp_path / "data.h5"
    content = episodes(lengths=[4, 4])
    with h5py.File(path, "w") as file:
        file["columns"], file["total_size"] = list(content[0]), 2
        for key in content[0]:
            file[key] = np.stack([episode[key] for episode in content])
        file["version"] = "2.0"
    with pytest.raises(UserError, match=re.escape("data.h5 is in version 2.0 of d3rlpy's format")):
        read_dataset_file(path)


def test_changed_bytes_end_in_a_message_or_in_data(tmp_path):
    path = dump(tmp_path / "data.h5", episodes())
    content, draw, refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(75):
        changed = bytearray(content)
        for place in draw.integers(0, len(content), 20):
            changed[place] = draw.integers(256)
        path.write_bytes(changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                data = read_dataset_file(path)
                assert len(data.observations) == len(data.rewards) == data.lengths.sum()
            except UserError as error:
                assert str(path) in error.message
                refused += 1
    assert refused > 10


# d3rlpy 1 -----------------------------------------------------------------------------------------------------------


def write_steps(path, **changed):
    """Write all steps as d3rlpy 1.1.1 does; three of four episodes are terminated."""
    draw, ends = np.random.default_rng(0), np.float32(np.arange(40) % 10 == 9)
    content = {
        "observations": vectors(draw, 40),
        "actions": numbers(draw, 40),
        "rewards": draw.standard_normal(40).astype(np.float32),
        "terminals": ends * (np.arange(40) != 19),
        "episode_terminals": ends,
        "discrete_action": False,
        "version": "1.0",
        **changed,
    }
    content = {key: value for key, value in content.items() if value is not None}
    if path.suffix == ".npz":
        np.savez(path, **content)
    else:
        with h5py.File(path, "w") as file:
            for key, value in content.items():
                file[key] = value
    return path


@pytest.mark.parametrize("name", ["data.h5", "data.npz"])
def test_ends_that_are_no_terminations_are_truncations(tmp_path, name):
    data = read_dataset_file(write_steps(tmp_path / name))
    assert data.stops.tolist() == [10, 20, 30, 40]
    assert np.flatnonzero(data.terminations).tolist() == [9, 29, 39]
    assert np.flatnonzero(data.truncations).tolist() == [19]
    assert [notice.kind for notice in data.notices] == ["no next observations"]


def test_truncations_of_a_file_come_first(tmp_path):
    data = read_dataset_file(write_steps(tmp_path / "data.h5", timeouts=np.arange(40) == 4))
    assert data.stops.tolist() == [5, 10, 30, 40]


def test_a_mark_of_an_end_is_0_or_1(tmp_path):
    marks = np.zeros(40)
    marks[7] = 2
    with pytest.raises(UserError, match=re.escape("truncations[7] is 2.0; it has to be 0 or 1")):
        read_dataset_file(write_steps(tmp_path / "data.h5", episode_terminals=marks))


def test_rows_of_other_meaning_before_versions_get_a_notice(tmp_path):
    told = read_dataset_file(write_steps(tmp_path / "data.h5", version=None)).notices[-1].text
    assert told.startswith(
        "d3rlpy before 1.1 wrote the file, as it has no version. There, the last row of a terminated"
    )
