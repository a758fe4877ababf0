"""A D4RL-named environment gives its data as it was recorded."""

import pickle

import gymnasium
import h5py
import numpy as np
import pytest

from offpcc.envs.d4rl import catalog
from offpcc.envs.d4rl.make import RecordedTask
from offpcc.utils.errors import UserError


def recorded(path, num_steps=30, sizes=(11, 3), **columns):
    draws = np.random.default_rng(0)
    given = {
        "observations": draws.standard_normal((num_steps, sizes[0])).astype(np.float32),
        "actions": 3 * draws.standard_normal((num_steps, sizes[1])),
        "rewards": draws.standard_normal((num_steps, 1)),
        "terminals": np.arange(num_steps) % 10 == 9,
        "timeouts": np.zeros(num_steps, bool),
        "next_observations": np.zeros((num_steps, sizes[0]), np.float32),
        "infos/qpos": draws.standard_normal((num_steps, 6)),
        "metadata/algorithm": b"SAC",
        **columns,
    }
    given = {key: value for key, value in given.items() if value is not None}
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **given)
    else:
        with h5py.File(path, "w") as file:
            for key, value in given.items():
                file[key] = value
    return given


class Sized(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (11,))
    action_space = gymnasium.spaces.Box(-1, 1, (3,))


@pytest.fixture
def task(tmp_path, monkeypatch):
    for variable in ("OFFPCC_DATASETS", "D4RL_DATASET_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OFFPCC_D4RL_URL", "http://127.0.0.1:9/closed")
    return RecordedTask(Sized(), "hopper-medium-v2")


@pytest.mark.parametrize("file", ["hopper_medium-v2.hdf5", "hopper-medium-v2.npz"])
def test_data_is_given_as_it_was_recorded(task, tmp_path, file):
    given = recorded(tmp_path / "OFFPCC_DATASETS" / file)
    data = task.get_dataset()
    assert set(data) == set(given)
    assert data["rewards"].shape == (30,) and np.abs(data["actions"]).max() > 1
    assert data["actions"].dtype == np.float64 and data["terminals"].dtype == np.bool_
    for key, value in given.items():
        came, went = np.ravel(data[key]), np.ravel(value)
        if key.startswith("metadata/"):  # HDF5 keeps text as bytes
            came, went = came.astype(str), went.astype(str)
        assert np.array_equal(came, went)


def test_another_file_can_be_given(task, tmp_path):
    recorded(tmp_path / "mine.hdf5", num_steps=7)
    assert len(task.get_dataset(tmp_path / "mine.hdf5")["rewards"]) == 7
    assert len(task.get_dataset("~/mine.hdf5")["rewards"]) == 7


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"sizes": (17, 6)}, r"observations have the shape \(17,\), but hopper-medium-v2 has \(11,\)"),
        ({"actions": np.zeros((30, 6))}, r"actions have the shape \(6,\)"),
        ({"terminals": None}, r"terminations \(terminals\) missing; found: actions"),
        ({"rewards": np.zeros(29)}, "29 rewards, but 30 observations"),
        ({"rewards": np.zeros((30, 2))}, r"rewards of shape \(30, 2\)"),
        ({"actions": 0.0}, "0 actions, but 30 observations"),
    ],
)
def test_data_that_does_not_fit_is_refused(task, tmp_path, columns, message):
    recorded(tmp_path / "data.hdf5", **columns)
    with pytest.raises(UserError, match=message):
        task.get_dataset(tmp_path / "data.hdf5")


def test_what_cannot_be_read_is_told(task, tmp_path):
    (tmp_path / "data.hdf5").write_bytes(b"nothing")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for file in ("data.hdf5", "empty.npz", "one.npy", "nowhere.hdf5", "."):
        with pytest.raises(UserError, match=r"cannot be read|is damaged or incomplete"):
            task.get_dataset(tmp_path / file)
    with pytest.raises(UserError, match="could not be downloaded"):
        task.get_dataset()
    with pytest.raises(UserError, match="not a D4RL dataset"):
        RecordedTask(Sized(), "Hopper-v4")


@pytest.mark.parametrize("return_", [-20.272305, 0.0, 1600.0, 3234.3])
def test_scores_are_fractions_as_in_d4rl(task, return_):
    fraction = task.get_normalized_score(return_)
    assert fraction == pytest.approx((return_ + 20.272305) / 3254.572305)
    assert 100 * fraction == pytest.approx(catalog.normalized_score("hopper-medium-v2", return_))
    assert (task.ref_min_score, task.ref_max_score) == (-20.272305, 3234.3)
    assert task.dataset_url.endswith("offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5")


def test_pickled_tasks_keep_their_data(task, tmp_path):
    recorded(tmp_path / "OFFPCC_DATASETS" / "hopper_medium-v2.hdf5")
    assert len(pickle.loads(pickle.dumps(task)).get_dataset()["rewards"]) == 30
