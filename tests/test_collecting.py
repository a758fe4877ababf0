"""`offpcc collect`: what is recorded, killed and gone on with, refused; and Minari's copy of it."""

import functools
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from rich.console import Console

from offpcc import collecting
from offpcc.algorithms import ALGORITHMS
from offpcc.assembly import load_actor, save_actor
from offpcc.collecting import Seeds, collect
from offpcc.core import Step
from offpcc.data.loading import load
from offpcc.data.recorder import Recorder, shards_folder
from offpcc.domains.making import make
from offpcc.errors import UserError
from offpcc.networks.encoders import Recurrent

ENV = "pendulum-p-v0"
PACKAGE = Path(collecting.__file__).parents[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(out="data.hdf5", **options):
    """The command, in this process; the file."""
    given = {
        "env": ENV, "actor": "random", "steps": 450, "minari": None, "seed": 0, "deterministic": False,
        "resume": False, "config": None, "device": "cpu", "threads": 1,
    }  # fmt: skip
    code = collect(Namespace(out=Path(out), **{**given, **options}))
    assert code == 0
    return Path(out)


def agent(file, algo="sac", env=ENV, **arguments):
    """An actor that nobody trained, with small networks."""
    example = make(env)
    if algo.startswith("r"):
        arguments["encoder"] = functools.partial(Recurrent, hidden_dim=8, num_layers=1)
    algorithm = ALGORITHMS[algo](example.observation_space, example.action_space, seed=1, hidden_dims=(8,), **arguments)
    save_actor(algorithm, Path(file))
    return str(file)


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# What is recorded -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [ENV, "pendulum-va-concat10-v0", "pendulum-img-v0"])
def test_random_episodes_are_played_as_they_are_recorded(here, env):
    data = load(run(env=env, seed=7))
    assert data.num_steps == 450 and data.lengths.tolist() == [200, 200, 50]
    assert not data.terminations.any()
    assert np.flatnonzero(data.truncations).tolist() == [199, 399, 449]
    played, after = make(env).env.env, data.next_observations  # below the one that scales actions
    with h5py.File("data.hdf5") as file:
        actions = file["actions"][:]
    for number, (start, stop) in enumerate(data.episodes):
        observation, _ = played.reset(seed=Seeds.of(7, number).reset)
        for i in range(start, stop):
            assert np.array_equal(data.observations[i], observation)
            observation, reward, *_ = played.step(actions[i])
            assert np.array_equal(after[i], observation)
            assert data.rewards[i] == np.float32(reward)
    assert data.observations.dtype == played.observation_space.dtype
    assert -1 <= data.actions.min() < -0.95 and 0.95 < data.actions.max() <= 1
    assert abs(data.actions.mean()) < 0.1


def test_actions_are_in_the_environments_units(here):
    with h5py.File(run()) as file:
        assert 1.9 < file["actions"][:].max() <= 2
        assert file["metadata/action_high"][:].tolist() == [2]
        told = {name: file[f"metadata/{name}"][()] for name in ("env", "algorithm", "actor", "seen_through", "seed")}
    assert (told["env"], told["algorithm"], told["actor"]) == (ENV.encode(), b"random", b"random")
    assert json.loads(told["seen_through"]) == ["KeepIndices(indices=[0, 1])"]


@pytest.mark.parametrize("algo", ["rsac", "td3"])
def test_an_agent_keeps_its_memory_over_an_episode(here, algo):
    """Its actions are those it takes when it is shown the recorded episode step by step."""
    actor = agent("actor.pt", algo, "brief-v0")
    data = load(run(env="brief-v0", actor=actor, deterministic=True, steps=50))
    algorithm = load_actor(Path(actor))
    for start, stop in data.episodes:
        memory, action, reward = None, np.zeros((1, 1), np.float32), 0.0
        for i in range(start, stop):
            step = Step(data.observations[i][None], action, np.full((1, 1), reward, np.float32), np.array([i == start]))
            action, memory = algorithm.act(step, memory, deterministic=True)
            assert data.actions[i] == pytest.approx(action[0], abs=1e-6)
            reward = data.rewards[i]


@pytest.mark.parametrize("algo", ["sac", "ddpg", "rtd3"])
def test_an_agent_explores_unless_it_is_to_be_deterministic(here, algo):
    actor = agent("actor.pt", algo)
    explored = load(run("explored.hdf5", actor=actor, steps=40))
    decided = load(run("decided.hdf5", actor=actor, steps=40, deterministic=True))
    assert np.array_equal(explored.observations[0], decided.observations[0])
    assert np.abs(explored.actions[0] - decided.actions[0]).item() > 0.01
    assert explored.metadata["algorithm"] == algo


def test_an_episode_follows_from_the_seed_and_its_number_alone(here):
    actor = agent("actor.pt", "rsac", "brief-v0")
    with make("brief-v0") as env:
        algorithm = load_actor(Path(actor))
        for played in (None, algorithm):
            alone = [list(collecting.play(env, played, Seeds.of(3, number))) for number in (2, 0)]
            after_others = [list(collecting.play(env, played, Seeds.of(3, number))) for number in (0, 1, 2)]
            for one, other in zip(alone, (after_others[2], after_others[0]), strict=True):
                for a, b in zip(one, other, strict=True):
                    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            assert not np.array_equal(after_others[0][0].observation, after_others[1][0].observation)
            assert not np.array_equal(after_others[0][0].action, after_others[1][0].action)
    assert len({*Seeds.of(3, 0), *Seeds.of(3, 1), *Seeds.of(4, 0)}) == 12


class Dicing(gymnasium.Env):
    """Draws from everybody's generators, which it should not."""

    observation_space = gymnasium.spaces.Box(-9, 9, (3,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float32([np.random.random(), torch.rand(()).item(), 0]), {}

    def step(self, action):
        return np.float32([np.random.random(), torch.rand(()).item(), 0]), 0.0, False, False, {}


gymnasium.register("brief-v0", entry_point="offpcc.domains.pendulum:Pendulum", max_episode_steps=20)
gymnasium.register("dicing-v0", entry_point=Dicing, max_episode_steps=10)


def test_everybodys_generators_are_seeded_too(here):
    assert (
        run("a.hdf5", env="dicing-v0", steps=25).read_bytes() == run("b.hdf5", env="dicing-v0", steps=25).read_bytes()
    )
    run("c.hdf5", env="dicing-v0", steps=25, seed=1)
    assert not np.array_equal(load("a.hdf5").observations, load("c.hdf5").observations)


def test_a_runs_folder_names_its_actor_and_the_environments_wrappers(here):
    folder = here / "results" / "pendulum-v0" / "sac" / "1"
    folder.mkdir(parents=True)
    agent("td3.pt", "td3")
    (folder / "config.gin").write_text("make.wrappers = [@DropIndices]\nDropIndices.indices = (2,)\nSAC.lr = 0.5\n")
    agent(folder / "actor_last.pt")
    data = load(run(env="pendulum-v0", actor=str(folder), steps=20))
    assert data.observations.shape == (20, 2)
    assert data.metadata["seen_through"] == '["DropIndices(indices=[2])"]'
    assert data.metadata["actor"].endswith("actor_last.pt")
    assert "DropIndices.indices = (2,)" in data.metadata["config"]
    assert "lr" not in data.metadata["config"]
    shutil.copy("td3.pt", folder / "actor_best.pt")
    assert load(run("b.hdf5", env="pendulum-v0", actor=str(folder), steps=9)).metadata["algorithm"] == "td3"


def test_what_was_recorded_is_told_and_the_next_command_is_one(here, capsys):
    run(steps=450)
    told = capsys.readouterr().out
    returns = load("data.hdf5").returns
    assert f"450 steps, 2 whole episodes (and a last one, which was cut), mean return {returns[:2].mean():.1f}" in told
    words = shlex.split(told.splitlines()[-1])
    expected = ["--env", ENV, "--algo", "iql", "--dataset", "data.hdf5", "--config", "configs/algorithms/iql.gin"]
    assert words[-len(expected) :] == expected
    from offpcc.launch import parser

    assert parser().parse_args(["train", *expected]).dataset == "data.hdf5"
    run("short.hdf5", steps=20)
    assert "20 steps, 0 whole episodes (and a last one, which was cut)\n" in capsys.readouterr().out
    run("image.hdf5", env="pendulum-img-v0", steps=20)
    assert "--algo ciql" in capsys.readouterr().out


def test_progress_is_lines_or_in_a_terminal_a_bar(here, monkeypatch, capsys):
    run(steps=200)
    lines = [line for line in capsys.readouterr().out.splitlines() if " of 200 steps" in line]
    assert len(lines) == 10
    assert lines[-1] == "200 of 200 steps, 1 episodes"
    screen = io.StringIO()
    monkeypatch.setattr(collecting, "Console", lambda: Console(file=screen, force_terminal=True, width=80))
    run("bar.hdf5", steps=200)
    assert "200/200" in screen.getvalue()
    assert "steps, 1 episodes" in screen.getvalue()
    assert " of 200 steps" not in capsys.readouterr().out


def test_the_command_line_records(here, launch):
    code, told, err = launch("collect", "--env", ENV, "--actor", "random", "--steps", 30, "--out", "new/data.hdf5")
    assert code == 0, err
    assert "data set new/data.hdf5" in told
    assert load("new/data.hdf5").num_steps == 30


# Stopped and gone on with ---------------------------------------------------------------------------------------------

KILLING = """
import os, signal, sys, time
from argparse import Namespace
from pathlib import Path
from offpcc.collecting import collect

def options(out, resume):
    return Namespace(
        env="pendulum-p-v0", actor="random", steps=1450, out=Path(out), minari=None, seed=4, deterministic=False,
        resume=resume, config=None, device="cpu", threads=1)

def go_on(out, resume=True):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(collect(options(out, resume)))
    return child

assert os.waitpid(go_on("whole.hdf5", False), 0)[1] == 0
killed = 0
for number, wanted in enumerate(map(int, sys.argv[1:])):
    out = Path(f"{number}.hdf5")
    folder = Path(f"{out}.shards")
    for kill in (wanted, wanted + 6_000):
        child = go_on(out)
        done = 0
        while not done and sum(os.path.getsize(p) for p in folder.glob("*.episodes") if p.exists()) < kill:
            done = os.waitpid(child, os.WNOHANG)[0]
            time.sleep(0.0002)
        if not done:
            time.sleep(0.0007 * number)
            os.kill(child, signal.SIGKILL)
            killed += os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.waitpid(go_on(out), 0)[1] == 0
    same = out.read_bytes() == Path("whole.hdf5").read_bytes()
    print(same, folder.exists(), [p.name for p in Path().glob(".*")])
assert killed, "nothing was killed"
"""


def test_killed_at_any_instant_and_gone_on_with_it_is_the_same_file(here):
    """SIGKILL, twice each: before an episode has ended, in the midst, and near the end."""
    instants = ("0", "1", "3000", "8000", "13000")
    (here / "killing.py").write_text(KILLING)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [sys.executable, "killing.py", *instants], capture_output=True, text=True, env=environment, cwd=here
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True False []"] * len(instants)


@pytest.mark.parametrize("algo, pushes", [(None, 0), (None, 13), (None, 20), (None, 44), ("rsac", 13), ("rtd3", 44)])
def test_stopped_by_the_user(here, algo, pushes, monkeypatch, capsys):
    options = {"env": "brief-v0", "steps": 45, "actor": agent("actor.pt", algo, "brief-v0") if algo else "random"}
    expected = run("whole.hdf5", **options).read_bytes()
    push, count = Recorder.push, iter(range(1_000))

    def interrupted(self, *step):
        if next(count) == pushes:
            raise KeyboardInterrupt
        push(self, *step)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "push", interrupted)
        with pytest.raises(AssertionError):
            run(**options)
    whole = pushes // 20
    assert f"{20 * whole} steps of {whole} finished episodes are kept" in capsys.readouterr().err
    assert run(resume=True, **options).read_bytes() == expected
    assert not shards_folder(Path("data.hdf5")).exists()


def test_more_steps_go_on_with_a_finished_recording(here):
    for steps in (150, 400, 450, 830):
        expected = run(f"{steps}.hdf5", steps=steps).read_bytes()
        assert run(resume=True, steps=steps).read_bytes() == expected
    before = Path("data.hdf5").read_bytes()
    with pytest.raises(UserError, match=r"--steps is 450, but data.hdf5 has 830 already.*--dataset_fraction"):
        run(resume=True, steps=450)
    assert Path("data.hdf5").read_bytes() == before


def test_fewer_steps_end_an_unfinished_recording(here, monkeypatch):
    expected = run("whole.hdf5", steps=250).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "merge", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(AssertionError):
            run(steps=800)
    assert run(resume=True, steps=250).read_bytes() == expected


def test_a_finished_recording_has_nothing_left_to_do(here, capsys):
    before = run().read_bytes()
    shards_folder(Path("data.hdf5")).mkdir()
    (shards_folder(Path("data.hdf5")) / "000001.episodes").touch()
    assert run(resume=True).read_bytes() == before
    assert "data.hdf5 is finished, with 450 steps; there is nothing left to record" in capsys.readouterr().out
    assert not shards_folder(Path("data.hdf5")).exists()


@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_by_name(here, finished, monkeypatch):
    actor, other = agent("actor.pt"), agent("other.pt", "td3")
    (here / "noisy.gin").write_text("make.wrappers = [@Flicker]\nFlicker.probability = 0.1\n")
    if finished:
        run(actor=actor)
    else:
        with monkeypatch.context() as patch, pytest.raises(AssertionError):
            patch.setattr(Recorder, "merge", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
            run(actor=actor)
    for name, options in (
        ("seed is 1", {"seed": 1}),
        ("env is pendulum-p-concat5-v0|env is pendulum-v-v0", {"env": "pendulum-v-v0", "actor": "random"}),
        ("actor is other.pt|algorithm is td3", {"actor": other}),
        ("deterministic is True", {"deterministic": True}),
        ("seen_through is .*Flicker", {"config": "noisy.gin"}),
    ):
        with pytest.raises(UserError, match=f"({name}).* was recorded with .* keeps its settings"):
            run(**{"actor": actor, **options, "resume": True})
    shutil.copy(other, actor)
    with pytest.raises(UserError, match=r"(algorithm|actor_sha256) is .* was recorded with"):
        run(actor=actor, resume=True)


# Refused --------------------------------------------------------------------------------------------------------------


def test_what_is_at_fault_is_told_and_nothing_is_made(here):
    actor = agent("actor.pt")
    (here / "folder").mkdir()
    (here / "folder.hdf5").mkdir()
    (here / "text.pt").write_text("text")
    before = left(here)
    for message, options in (
        ("there is no such environment; did you mean pendulum-", {"env": "pendulum-q-v0"}),
        ("there is no actor nowhere; give a run's folder", {"actor": "nowhere"}),
        ("there is no saved actor in", {"actor": "folder"}),
        ("text.pt is no actor of offpcc", {"actor": "text.pt"}),
        (r"observations of shape \(3,\) .* was trained with \(2,\)", {"actor": actor, "env": "pendulum-v0"}),
        ("--deterministic has no effect on random actions", {"deterministic": True}),
        ("folder.hdf5 is a folder", {"out": "folder.hdf5"}),
        ("data.csv does not end in .hdf5", {"out": "data.csv"}),
        ("text.pt is a file, not a folder", {"out": "text.pt/data.hdf5"}),
        ("there is no config", {"config": "nowhere.gin"}),
    ):
        with pytest.raises(UserError, match=message):
            run(**options)
    assert left(here) == before


def test_an_existing_recording_is_not_overwritten(here, monkeypatch):
    run()
    with pytest.raises(UserError, match=r"data.hdf5 is there and is not overwritten; give another file.*--resume"):
        run()
    with monkeypatch.context() as patch, pytest.raises(AssertionError):
        patch.setattr(Recorder, "merge", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        run("other.hdf5")
    with pytest.raises(UserError, match=r"other.hdf5.shards holds an unfinished recording.*--resume"):
        run("other.hdf5")


# Minari ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def minari(here, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here / "minari"))
    return pytest.importorskip("minari")


def assert_alike(one, other):
    assert one.stops.tolist() == other.stops.tolist()
    for name in ("observations", "rewards", "terminations", "truncations", "final_observations", "last_is_transition"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.actions == pytest.approx(other.actions, abs=1e-6)


@pytest.mark.parametrize("env", [ENV, "pendulum-img-v0"])
@pytest.mark.parametrize("block", [1, 2**25])
def test_minari_reads_the_same_data_back(minari, monkeypatch, env, block):
    monkeypatch.setattr(collecting, "MINARI_BLOCK", block)
    file = run(env=env, minari="pendulum/mine/random-v0", seed=2)
    assert_alike(load("minari:pendulum/mine/random-v0"), load(file))
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

    real = collecting.fill_minari
    with monkeypatch.context() as patch:
        patch.setattr(collecting, "fill_minari", full)
        with pytest.raises(UserError, match=r"--minari mine-v0 cannot be written .*No space left.* with --resume"):
            run(minari="mine-v0")
    assert left(Path("minari")) == []
    Path("minari/.unfinished-mine-v0/mine-v0").mkdir(parents=True)
    run(minari="mine-v0", resume=True)
    assert_alike(load("minari:mine-v0"), load("data.hdf5"))
    assert sorted(path.name for path in Path("minari").iterdir()) == ["mine-v0"]
    assert os.environ["MINARI_DATASETS_PATH"] == str(Path("minari").resolve())
    run(minari="mine-v0", resume=True)


def test_an_environment_that_cannot_be_written_down_is_left_out(minari):
    run(env="dicing-v0", steps=25, minari="dicing-v0")
    assert minari.load_dataset("dicing-v0").env_spec is None
    assert load("minari:dicing-v0").lengths.tolist() == [10, 10, 5]


def test_minari_ids_are_checked_before_anything_is_recorded(minari, here):
    for name, message in (
        ("mine", "is no id of a Minari data set"),
        ("mine v0", "is no id"),
        ("../mine-v0", "is no id"),
    ):
        with pytest.raises(UserError, match=message):
            run(minari=name)
    assert left(here) == []
    run("a.hdf5", steps=20, minari="mine-v0")
    with pytest.raises(UserError, match=r"--minari mine-v0 is there already, in .*; raise its version"):
        run("b.hdf5", steps=20, minari="mine-v0")
    with pytest.raises(UserError, match="mine-v0 is there already"):
        run("a.hdf5", steps=30, minari="mine-v0", resume=True)
    assert not Path("b.hdf5").exists()


def test_without_minari_the_remedy_is_told(here, monkeypatch):
    for module in ("minari", "minari.dataset.minari_dataset"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"--minari mine-v0 needs the Minari package.*pip install 'offpcc\[offline\]'"):
        run(minari="mine-v0")
    assert left(here) == []


def test_a_minari_that_changes_images_is_refused_for_them(minari, here, monkeypatch):
    monkeypatch.setattr(minari, "create_dataset_from_buffers", lambda dataset_id, buffer: None)
    with pytest.raises(UserError, match="changes images"):
        run(env="pendulum-img-v0", minari="mine-v0")
    assert left(here) == []
