"""Datasets of OGBench: small files with its keys, read by its package and by ours."""

import sys

import gymnasium
import numpy as np
import pytest

import offpcc
from offpcc.data.datasets.load import load_dataset, qlearning_dataset
from offpcc.utils.errors import UserError

ogbench = pytest.importorskip("ogbench")
FILE, NAME = "pointmaze-medium-navigate-v0", "pointmaze-medium-navigate-singletask-v0"
NUM_STEPS = 31  # rows of an episode; the last has an observation alone


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with four episodes of random positions, some at the goal, also in the last rows."""
    draw = np.random.default_rng(0)
    with gymnasium.make("pointmaze-medium-singletask-v0") as env:
        env.reset()
        goal = env.unwrapped.cur_goal_xy
    places = goal + draw.uniform(3, 20, (4 * NUM_STEPS, 2))
    places[[7, 8, NUM_STEPS - 1, 2 * NUM_STEPS - 2, 2 * NUM_STEPS - 1]] = goal
    columns = {
        "observations": places.astype(np.float32),
        "actions": draw.uniform(-1, 1, places.shape).astype(np.float32),
        "terminals": np.arange(len(places)) % NUM_STEPS == NUM_STEPS - 1,
        "qpos": places,
        "qvel": np.zeros_like(places),
    }
    for part in ("", "-val"):
        np.savez(tmp_path / f"{FILE}{part}.npz", **columns)
    monkeypatch.setenv("OFFPCC_DATASETS", str(tmp_path))
    return tmp_path


def test_transitions_are_those_of_the_package(folder):
    ours = qlearning_dataset(f"ogbench:{NAME}")
    _, theirs, _ = ogbench.make_env_and_datasets(NAME, dataset_dir=str(folder))
    assert len(ours["rewards"]) == 4 * (NUM_STEPS - 1) and (ours["rewards"] == 0).sum() == 3
    for key in ("observations", "actions", "rewards", "next_observations"):
        np.testing.assert_array_equal(ours[key], theirs[key])
    np.testing.assert_array_equal(ours["terminals"], theirs["masks"] == 0)


def test_a_solved_step_ends_an_episode(folder):
    data = load_dataset(f"ogbench:{NAME}")
    assert data.num_episodes == 4 + 2  # the third is the last step of its episode
    assert data.metadata["env"] == "ogbench:pointmaze-medium-singletask-v0"
    assert np.array_equal(data.action_range, [[-1, -1], [1, 1]])


def test_what_follows_a_solved_step_is_no_whole_episode(folder):
    data = load_dataset(f"ogbench:{NAME}")
    assert data.lengths.tolist() == [8, 1, NUM_STEPS - 1 - 9, NUM_STEPS - 1, NUM_STEPS - 1, NUM_STEPS - 1]
    assert data.is_whole.tolist() == [True, False, False, True, True, True]
    assert data.best(0.25).lengths.tolist() == [8]  # not the step at the goal, whose return is 0
    assert "set terminals only where" not in str(offpcc.check(data))


def test_a_saved_dataset_keeps_the_solved_steps(folder):
    data = load_dataset(f"ogbench:{NAME}")
    data.save(folder / "saved.hdf5")
    saved = load_dataset(folder / "saved.hdf5")
    order = np.argsort(~data.is_whole, kind="stable")  # whole episodes first
    assert saved.lengths.tolist() == data.lengths[order].tolist()
    assert saved.is_whole.tolist() == data.is_whole[order].tolist()
    terminates = data.terminations[data.stops - 1]
    assert saved.terminations[saved.stops - 1].tolist() == terminates[order].tolist()
    assert saved.terminations.sum() == data.terminations.sum() == 3


@pytest.mark.parametrize(
    ("env", "task", "is_told"),
    [
        ("pointmaze-medium-singletask-v0", "", False),
        ("pointmaze-medium-singletask-task1-v0", "", False),  # the default
        ("pointmaze-medium-singletask-v0", "task2-", True),
        ("pointmaze-medium-v0", "", True),
        ("pointmaze-large-singletask-v0", "", True),
    ],
)
def test_data_of_another_task_are_told(env, task, is_told, folder):
    data = load_dataset(f"ogbench:{NAME.removesuffix('v0')}{task}v0")
    assert ("the data were recorded in ogbench:" in str(offpcc.check(data, f"ogbench:{env}"))) == is_told


def test_a_run_continues_online(folder, tmp_path, launch):
    env = "ogbench:pointmaze-medium-singletask-v0"
    options = ("--results", tmp_path / "results", "--config", "offline_quickstart.gin", "--no_video", "--gin")
    options += ("train.num_epochs=1", "train.num_steps_per_epoch=2", "train.num_test_episodes_per_epoch=0")
    code, _, err = launch("--env", env, "--dataset", f"ogbench:{NAME}", "--algo", "td3_bc", *options)
    assert code == 0, err
    (run,) = (tmp_path / "results").glob("*/td3_bc/1")
    online = ("--results", tmp_path / "online", "--no_video", "--gin", "OfflineToOnline.warm_up_steps=0")
    code, out, err = launch("--from", run, "--env", env, "--then_env_steps", 2, *online)
    assert code == 0 and f"learning from ogbench:{NAME}" in out, err


def test_a_run_with_memory_learns_from_it(folder):
    offpcc.configure("offline_quickstart.gin")
    learner = offpcc.build("ogbench:pointmaze-medium-singletask-v0", "rtd3_bc", dataset=f"ogbench:{NAME}", seed=1)
    learner.train(num_epochs=1, num_steps_per_epoch=3, num_test_episodes_per_epoch=0)
    assert learner.loop.num_updates == 3


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (FILE, "ogbench:pointmaze-medium-navigate-v0 has no rewards: .* name one task, as in"),
        ("", "ogbench:'' has no rewards"),
        ("pointmaze-medium-singletask-v0", "name its data ogbench:pointmaze-medium-KIND-singletask-v0"),
        ("pointmaze-tiny-navigate-singletask-v0", "OGBench has no task pointmaze-tiny-singletask-v0"),
    ],
)
def test_names_that_it_has_not(name, fault, folder):
    with pytest.raises(UserError, match=fault):
        load_dataset(f"ogbench:{name}")


def test_a_file_that_is_missing_or_damaged(folder, monkeypatch, capsys):
    def fail(address):
        raise ogbench.utils.urllib.error.URLError("no network")

    (folder / f"{FILE}-val.npz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"cannot be read from .*; remove its files there"):
        load_dataset(f"ogbench:{NAME}")
    (folder / f"{FILE}.npz").unlink()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr("urllib.request.urlopen", fail)
    with pytest.raises(UserError, match=f"could not be downloaded .*no network.*; get {FILE}.npz and {FILE}-val.npz"):
        load_dataset(f"ogbench:{NAME}")
    assert capsys.readouterr().out == ""  # which may be JSON


def test_names_without_the_prefix(folder, monkeypatch):
    with pytest.raises(UserError, match=f"give ogbench:{NAME}"):
        load_dataset(NAME)
    with pytest.raises(UserError, match=r"rewards missing.*; if the file is OGBench's, name it with its task"):
        load_dataset(FILE)
    monkeypatch.delitem(gymnasium.registry, "pointmaze-medium-singletask-v0")  # as before the package is imported
    with pytest.raises(UserError, match="give ogbench:pointmaze-medium-singletask-v0"):
        offpcc.make("pointmaze-medium-singletask-v0")


def test_images_have_a_renderer_before_mujoco_is_imported(monkeypatch):
    monkeypatch.setattr(
        "offpcc.data.datasets.ogbench.choose_opengl", lambda: monkeypatch.setitem(sys.modules, "ogbench", None)
    )
    with pytest.raises(UserError, match="needs the OGBench package"):
        load_dataset("ogbench:visual-cube-single-play-singletask-v0")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogbench", None)
    with pytest.raises(UserError, match=r"needs the OGBench package .* run `pip install ogbench`"):
        load_dataset(f"ogbench:{NAME}")
