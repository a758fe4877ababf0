"""Recordings as Minari data sets."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from collected import ENV, left, run, unit_actions

from offpcc.data import offline
from offpcc.data.datasets.load import load_dataset
from offpcc.data.recording import minari_writer
from offpcc.envs.make import make
from offpcc.training.collect import Seeds
from offpcc.utils import signals
from offpcc.utils.errors import UserError

GOALS = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict


class Goals(gymnasium.Env):
    observation_space = Dict(place=Box(-9, 9, (2,), np.float32), goal=Box(-9, 9, (1,), np.float32))
    action_space = Box(-1, 1, (1,), np.float32)

    def _seen(self):
        return {"place": np.array([self.x, 0.5], np.float32), "goal": np.ones(1, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        return self._seen(), {}

    def step(self, action):
        self.x += 0.1 * float(action[0])
        return self._seen(), -abs(self.x - 1.0), False, False, {}


class Places(Goals):
    # Without the goal, as a robot would see it.

    observation_space = Dict(place=Box(-9, 9, (2,), np.float32))

    def _seen(self):
        return {"place": np.array([self.x, 0.5], np.float32)}


gymnasium.register("goals-v0", Goals, max_episode_steps=20)
gymnasium.register("places-v0", Places, max_episode_steps=20)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def minari(here, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here / "minari"))
    return pytest.importorskip("minari")


def assert_alike(one, other):
    assert one.stops.tolist() == other.stops.tolist()
    for name in ("observations", "rewards", "terminations", "truncations", "final_observations", "last_is_transition"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.is_whole.tolist() == other.is_whole.tolist()
    assert unit_actions(one) == pytest.approx(unit_actions(other), abs=1e-6)


@pytest.mark.parametrize("env", [ENV, "pendulum-img-v0"])
@pytest.mark.parametrize("block", [1, 2**25])
def test_minari_reads_the_same_data_back(minari, monkeypatch, env, block):
    monkeypatch.setattr(minari_writer, "BLOCK_BYTES", block)
    file = run(env=env, minari="pendulum/mine/random-v0", seed=2)
    assert_alike(load_dataset("minari:pendulum/mine/random-v0"), load_dataset(file))
    recorded = minari.load_dataset("pendulum/mine/random-v0")
    assert (recorded.total_episodes, recorded.total_steps) == (3, 450)
    assert recorded.action_space.high.tolist() == [2]
    assert recorded.storage.metadata["algorithm_name"] == "random"
    seeds = [one["seed"] for one in recorded.storage.get_episode_metadata(range(3))]
    assert seeds == [Seeds.of(2, number).reset for number in range(3)]
    recovered = recorded.recover_environment()
    assert recovered.observation_space == recorded.observation_space
    episode = recorded[1]
    assert np.array_equal(recovered.reset(seed=seeds[1])[0], episode.observations[0])
    observation, *_ = recovered.step(episode.actions[0])
    assert np.allclose(observation, episode.observations[1], atol=1e-5)
    assert left(Path("minari"))[0] == "pendulum"


def test_minari_data_is_there_wholly_or_not_at_all(minari, monkeypatch):
    def full(*arguments):
        real(*arguments)
        raise OSError(28, "No space left on device")

    real = minari_writer._fill
    with monkeypatch.context() as patch:
        patch.setattr(minari_writer, "_fill", full)
        with pytest.raises(UserError, match=r"--minari mine-v0 cannot be written .*No space left.* with --resume"):
            run(minari="mine-v0")
    assert left(Path("minari")) == []
    Path("minari/.unfinished-mine-v0/mine-v0").mkdir(parents=True)
    run(minari="mine-v0", resume=True)
    assert_alike(load_dataset("minari:mine-v0"), load_dataset("data.hdf5"))
    assert [path.name for path in Path("minari").iterdir()] == ["mine-v0"]
    assert os.environ["MINARI_DATASETS_PATH"] == str(Path("minari").resolve())
    run(minari="mine-v0", resume=True)


def test_an_environment_that_cannot_be_written_down_is_left_out(minari):
    run(env="dicing-v0", steps=25, minari="dicing-v0")
    assert minari.load_dataset("dicing-v0").env_spec is None
    assert load_dataset("minari:dicing-v0").lengths.tolist() == [10, 10, 5]


def test_minari_ids_are_checked_before_anything_is_recorded(minari, here):
    for name, message in (
        ("mine", "is not an id of a Minari dataset"),
        ("mine v0", "is not an id"),
        ("../mine-v0", "is not an id"),
        ("m/mine-v0", r"is not an id .*\(of two letters or more\)"),
    ):
        with pytest.raises(UserError, match=message):
            run(minari=name)
    assert left(here) == []
    run("a.hdf5", steps=20, minari="mine-v0")
    with pytest.raises(UserError, match=r"--minari mine-v0 exists already, in .*; raise its version"):
        run("b.hdf5", steps=20, minari="mine-v0")
    with pytest.raises(UserError, match="mine-v0 exists already"):
        run("a.hdf5", steps=30, minari="mine-v0", resume=True)
    assert not Path("b.hdf5").exists()


def test_without_minari_the_remedy_is_told(here, monkeypatch):
    for module in ("minari", "minari.dataset.minari_dataset"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"--minari mine-v0 needs the Minari package.*pip install minari"):
        run(minari="mine-v0")
    assert left(here) == []


def test_the_id_may_be_given_as_data_sets_are_named(minari, capsys):
    run(steps=20, minari="minari:mine-v0")
    assert "Minari's minari:mine-v0\n" in capsys.readouterr().out
    assert len(load_dataset("minari:mine-v0").rewards) == 20


def test_stopped_while_minari_is_written(minari, monkeypatch):
    def interrupted(*arguments):
        raise signals.Interrupted(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(minari_writer, "_fill", interrupted)
        with pytest.raises(signals.Interrupted) as stop:
            run(steps=20, minari="mine-v0")
    assert stop.value.message.startswith("stopped; data.hdf5 is written, minari:mine-v0 is not")
    assert left(Path("minari")) == []
    run(steps=20, minari="mine-v0", resume=True)
    assert_alike(load_dataset("minari:mine-v0"), load_dataset("data.hdf5"))


def test_dict_observations_that_offpcc_recorded_fit_their_environment(minari, here, launch):
    (here / "goals.py").write_text(GOALS)
    sys.modules.pop("goals", None)
    task = "--import", "goals", "--env", "goals-v0"
    recording = "--actor", "random", "--steps", 60, "--out", "goals.hdf5", "--minari", "goals/random-v0"
    assert launch("collect", *task, *recording)[0] == 0
    data, file = load_dataset("minari:goals/random-v0"), load_dataset("goals.hdf5")
    assert data.observation_space is not None and np.array_equal(data.observations, file.observations)
    code, out, err = launch("check", *task, "--dataset", "minari:goals/random-v0")
    assert code == 0 and "sees the Dict that was recorded" in out, (out, err)


def test_an_entry_for_critics_alone_stays_hidden_from_the_agent(minari, here, launch):
    (here / "goals.py").write_text(GOALS)
    sys.modules.pop("goals", None)
    task = "--import", "goals", "--env", "goals-v0"
    recording = "--actor", "random", "--steps", 60, "--out", "goals.hdf5", "--minari", "goals/random-v0"
    assert launch("collect", *task, *recording, "--gin", "make.state = 'goal'")[0] == 0
    load_dataset("goals.hdf5").save("again.hdf5")
    for source in ("goals.hdf5", "minari:goals/random-v0", "again.hdf5"):
        data = load_dataset(source)
        assert data.observation_space.state_key == "goal", source
        without = data.without_states()
        assert list(without.observation_space.entries) == ["place"], source
        assert offline.read(source).rows.observations.shape[1] == 8, source  # two numbers of four bytes
        assert offline.read(source, state="goal").rows.observations.shape[1] == 12, source
        with make("goals-v0", scale_actions=True) as env:  # an environment without make.state shows all entries
            assert offline.read(source, env).packed == env.observation_space, source
        with make("places-v0", scale_actions=True) as env:  # one that lacks the entry
            assert offline.read(source, env).packed == env.observation_space, source
    assert launch("collect", *task, *recording[:-3], "plain.hdf5")[0] == 0
    for source in ("goals.hdf5", "plain.hdf5"):
        with make("goals-v0", scale_actions=True, state="goal") as env:
            assert offline.read(source, env).packed.state_key == "goal", source
    without.save("without.hdf5")
    assert load_dataset("without.hdf5").observation_space.state_key is None


def test_parts_of_a_recording_do_not_inherit_its_number_of_whole_episodes(minari):
    """Minari copies the metadata of a dataset into its parts."""
    run(minari="pendulum/mine/random-v0")
    assert load_dataset("minari:pendulum/mine/random-v0").is_whole.tolist() == [True, True, False]
    storage = minari.load_dataset("pendulum/mine/random-v0").storage
    assert storage.metadata["recorded_episodes"] == 3
    storage.update_metadata({"recorded_episodes": 5})  # as in a part with three of five episodes
    assert load_dataset("minari:pendulum/mine/random-v0").is_whole.all()
