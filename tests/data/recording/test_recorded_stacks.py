"""A recording of stacked frames holds each frame once, and shows the same observations as the environment."""

import h5py
import numpy as np
import pytest
from collected import run

from offpcc.data.datasets.load import load_dataset
from offpcc.data.offline import read
from offpcc.data.recording.episode_log import log_path
from offpcc.envs.make import make
from offpcc.envs.wrappers import Concatenate
from offpcc.training.collect import Seeds, play_episode
from offpcc.utils.signals import Interrupted

ENV, CONFIG = "pendulum-img-v0", "make.wrappers = [@Concatenate]\nConcatenate.num = 3\n"


def stop():
    raise Interrupted(2)


def stacking(num):
    return lambda env: Concatenate(env, num)


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "three.gin").write_text(CONFIG)
    return lambda out="data.hdf5", **options: run(out, env=ENV, config="three.gin", **{"steps": 250, **options})


def test_each_frame_is_stored_once(record):
    file = record()
    with h5py.File(file) as recorded:
        assert "observations" not in recorded and "next_observations" not in recorded
        assert recorded["frames"].shape == (250 + 2 * 3, 40, 40)  # two episodes, each with three frames at its ends
        assert recorded["frames"].compression == "gzip"
        assert recorded["metadata/frame_stack"][()] == 3
    data, env, step = load_dataset(file), make(ENV, wrappers=[stacking(3)], scale_actions=True), 0
    assert data.observations.shape == (250, 3, 40, 40)
    for number in range(2):
        for played in play_episode(env, None, Seeds.of(0, number)):
            if step < 250:
                np.testing.assert_array_equal(data.observations[step], played.observation)
                step += 1
    assert step == 250


def test_a_resumed_recording_has_the_same_bytes(record, tmp_path, monkeypatch):
    whole = record("whole.hdf5", steps=450).read_bytes()
    record("parts.hdf5", steps=250)
    assert record("parts.hdf5", steps=450, resume=True).read_bytes() == whole

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("offpcc.data.recording.recorder.Recorder.merge", lambda recorder: stop())
        record("stopped.hdf5", steps=450)
    assert log_path(tmp_path / "stopped.hdf5").exists()
    assert record("stopped.hdf5", steps=450, resume=True).read_bytes() == whole


@pytest.mark.parametrize("num", [3, 2, 1])
def test_agents_may_see_fewer_of_the_newest_frames(record, num):
    env = make(ENV, wrappers=[stacking(num)] if num > 1 else [], scale_actions=True)
    whole, rows = load_dataset(record()), read("data.hdf5", env).rows
    assert rows.observations.shape[1:] == (num, 40, 40)
    first = int(rows.starts[0])
    for step in (0, 1, 5, 100):
        np.testing.assert_array_equal(rows.observations[first + step], whole.observations[step][3 - num :])


def test_minari_gets_whole_stacks(record, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    record(minari="pendulum/stacks-v0")
    data = load_dataset("data.hdf5")
    episode = next(iter(minari.load_dataset("pendulum/stacks-v0").iterate_episodes()))
    np.testing.assert_array_equal(episode.observations[:-1], data.observations[:200])


@pytest.mark.slow
def test_a_run_that_records_its_steps_stores_each_frame_once(launch, tmp_path):
    (tmp_path / "three.gin").write_text(
        f"include 'configs/test/template_short.gin'\n{CONFIG}make.kwargs = {{'max_episode_steps': 7}}\n"
        "train.num_epochs = 1\ntrain.num_steps_per_epoch = 30\ntrain.update_after = 30\n"
        "train.num_test_episodes_per_epoch = 0\n"
    )
    given = ("--env", ENV, "--algo", "csac", "--config", tmp_path / "three.gin", "--run_id", 1)
    code, _, err = launch(*given, "--save_dataset", tmp_path / "seen.hdf5")
    assert code == 0, err
    data = load_dataset(tmp_path / "seen.hdf5")
    assert data.stacks is not None and data.observations.shape == (30, 3, 40, 40)
    np.testing.assert_array_equal(data.observations[1][:2], data.observations[0][1:])
