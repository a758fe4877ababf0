"""`offpcc collect`: what is recorded and told, stopped and gone on with, refused."""

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
from collected import ENV, agent, left, run
from rich.console import Console

from offpcc.cli import collect
from offpcc.data.datasets.load import load_dataset
from offpcc.data.recording.episode_log import log_path
from offpcc.data.recording.recorder import Recorder
from offpcc.training.loggers import console
from offpcc.utils.errors import UserError
from offpcc.utils.signals import Interrupted
from offpcc.utils.spaces import OneHot

STOP = Interrupted(2)

PACKAGE = Path(collect.__file__).parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What is recorded -----------------------------------------------------------------------------------------------------


def test_actions_are_in_the_environments_units(here):
    with h5py.File(run()) as file:
        assert 1.9 < file["actions"][:].max() <= 2
        assert file["metadata/action_high"][:].tolist() == [2]
        told = {name: file[f"metadata/{name}"][()] for name in ("env", "algorithm", "actor", "seen_through", "seed")}
    assert (told["env"], told["algorithm"], told["actor"]) == (ENV.encode(), b"random", b"random")
    assert json.loads(told["seen_through"]) == ["KeepIndices(indices=[0, 1])"]


def test_a_runs_folder_names_its_actor_and_the_environments_wrappers(here):
    folder = here / "results" / "pendulum-v0" / "sac" / "1"
    folder.mkdir(parents=True)
    agent("td3.pt", "td3")
    (folder / "config.gin").write_text("make.wrappers = [@DropIndices]\nDropIndices.indices = (2,)\nSAC.lr = 0.5\n")
    agent(folder / "actor_last.pt")
    data = load_dataset(run(env="pendulum-v0", actor=str(folder), steps=20))
    assert data.observations.shape == (20, 2)
    assert data.metadata["seen_through"] == '["DropIndices(indices=[2])"]'
    assert data.metadata["actor"] == "actor_last.pt"
    assert "DropIndices.indices = (2,)" in data.metadata["config"]
    assert "lr" not in data.metadata["config"]
    shutil.copy("td3.pt", folder / "actor_best.pt")
    (folder / "run.json").write_text('{"env": "pendulum-v0", "algo": "td3", "run_id": 0}')
    told = load_dataset(run("b.hdf5", env="pendulum-v0", actor=str(folder), steps=9)).metadata
    assert (told["algorithm"], told["actor"]) == ("td3", "pendulum-v0/td3/0/actor_best.pt")


def test_what_was_recorded_is_told_and_the_next_command_is_one(here, capsys):
    run(steps=450)
    told = capsys.readouterr().out
    returns = load_dataset("data.hdf5").returns
    assert f"450 steps, 2 whole episodes (and a last one, which was cut), mean return {returns[:2].mean():.1f}" in told
    words = shlex.split(told.splitlines()[-1])
    expected = ["--env", ENV, "--algo", "riql", "--dataset", "data.hdf5", "--config", "configs/offline_quickstart.gin"]
    assert words[-len(expected) :] == expected
    from offpcc.cli.main import parser

    assert parser().parse_args(["train", *expected]).dataset == "data.hdf5"
    run("short.hdf5", steps=20)
    assert "20 steps, 0 whole episodes (and a last one, which was cut)\n" in capsys.readouterr().out
    (here / "mine.gin").write_text("SAC.lr = 0.5\n")  # such a file may import the environment
    run("mine.hdf5", steps=20, config="mine.gin")
    assert capsys.readouterr().out.endswith("--dataset mine.hdf5 --config configs/offline_quickstart.gin\n")


def test_the_next_command_has_the_wrappers_of_the_run(here, capsys):
    folder = here / "results" / "pendulum-v0" / "sac" / "1"
    folder.mkdir(parents=True)
    (folder / "config.gin").write_text("make.wrappers = [@DropIndices]\nDropIndices.indices = (2,)\nSAC.lr = 0.5\n")
    agent(folder / "actor_last.pt")
    run(env="pendulum-v0", actor=str(folder), steps=9)
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    bound = words[words.index("--gin") + 1 :]
    assert bound == ["DropIndices.indices = (2,)", "make.wrappers = [@DropIndices]"]
    (here / "mine.gin").write_text("SAC.lr = 0.5\n")
    run("mine.hdf5", env="pendulum-v0", actor=str(folder), steps=9, config="mine.gin")
    assert "make.wrappers = [@DropIndices]" in shlex.split(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    "algo, env, advised, config",
    [
        (None, "pendulum-v0", "iql", "offline_quickstart"),
        (None, ENV, "riql", "offline_quickstart"),
        (None, "pendulum-img-v0", "criql", "defaults/recorded"),
        ("td3", ENV, "iql", "offline_quickstart"),
        ("rtd3", "pendulum-v0", "riql", "offline_quickstart"),
        (None, "cartpole-v0", "dcql", "discrete/cartpole_data"),
        (None, "BreakoutNoFrameskip-v4", "cdcql", "discrete/atari_dcql"),
    ],
)
def test_memory_is_advised_where_the_actor_has_one_or_random_data_hides_much(here, capsys, algo, env, advised, config):
    run(env=env, actor=agent("actor.pt", algo, env) if algo else "random", steps=9)
    command = capsys.readouterr().out
    assert f" --algo {advised} " in command and command.endswith(f" --config configs/{config}.gin\n")


def test_images_with_discrete_actions_are_advised_a_config_with_convolutions():
    env = gymnasium.Env()
    env.observation_space = gymnasium.spaces.Box(0, 255, (96, 96, 3), np.uint8)
    env.action_space = OneHot(gymnasium.spaces.Discrete(5))
    assert collect.advised("race-v0", env, None) == ("cdcql", "configs/defaults/recorded.gin")


@pytest.mark.parametrize("actor", ["random", "actor.pt"])
def test_bindings_of_the_command_line_change_the_environment(here, launch, actor):
    agent("actor.pt")
    words = ("collect", "--env", "pendulum-v0", "--actor", actor, "--steps", 9, "--out")
    seen = "make.wrappers = [@DropIndices]", "DropIndices.indices = (2,)"
    code, out, err = launch(*words, "a.hdf5", "--gin", *seen)
    assert (code, load_dataset("a.hdf5").observations.shape) == (0, (9, 2)), err
    advised = shlex.split(out.splitlines()[-1])
    assert [advised[advised.index("--gin") + 1 :].count(text) for text in seen] == [1, 1]
    code, _, err = launch(*words, "b.hdf5", "--gin", "SAC.lr = 0.1")
    assert (code, "SAC.lr has no effect" in err, (here / "b.hdf5").exists()) == (2, True, False), err


def test_progress_is_lines_or_in_a_terminal_a_bar(here, monkeypatch, capsys):
    run(steps=200)
    lines = [line for line in capsys.readouterr().out.splitlines() if " of 200 steps" in line]
    assert len(lines) == 10
    assert lines[-1] == "200 of 200 steps, 1 episode"
    screen = io.StringIO()
    monkeypatch.setattr(console, "standard_console", lambda: Console(file=screen, force_terminal=True, width=80))
    run("bar.hdf5", steps=200)
    assert "200 of 200 steps, 1 episode" in screen.getvalue()
    assert " of 200 steps" not in capsys.readouterr().out


def test_the_command_line_records(here, launch):
    code, told, err = launch("collect", "--env", ENV, "--actor", "random", "--steps", 30, "--out", "new/data.hdf5")
    assert code == 0, err
    assert "dataset new/data.hdf5" in told
    assert load_dataset("new/data.hdf5").num_steps == 30


# Stopped and gone on with ---------------------------------------------------------------------------------------------

KILLING = """
import os, signal, sys, time
from pathlib import Path
from offpcc.cli.collect import record_dataset

def options(out, resume):
    return dict(
        env="pendulum-p-v0", actor="random", steps=1450, out=Path(out), minari=None, seed=4, deterministic=False,
        resume=resume, config=None, device=None, threads=1)

def go_on(out, resume=True):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(record_dataset(**options(out, resume)))
    return child

assert os.waitpid(go_on("whole.hdf5", False), 0)[1] == 0
killed = 0
for number, wanted in enumerate(map(int, sys.argv[1:])):
    out = Path(f"{number}.hdf5")
    log = Path(f"{out}.episode_log")
    for kill in (wanted, wanted + 6_000):
        child = go_on(out)
        done = 0
        while not done and (log.stat().st_size if log.exists() else 0) < kill:
            done = os.waitpid(child, os.WNOHANG)[0]
            time.sleep(0.0002)
        if not done:
            time.sleep(0.0007 * number)
            os.kill(child, signal.SIGKILL)
            killed += os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.waitpid(go_on(out), 0)[1] == 0
    same = out.read_bytes() == Path("whole.hdf5").read_bytes()
    print(same, log.exists(), [p.name for p in Path().glob(".*")])
assert killed, "nothing was killed"
"""


@pytest.mark.slow
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
            raise STOP
        push(self, *step)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "push", interrupted)
        with pytest.raises(Interrupted) as stop:
            run(**options)
    kept = ("0 steps of 0 finished episodes", "20 steps of 1 finished episode", "40 steps of 2 finished episodes")
    assert f"{kept[pushes // 20]} are kept; run the same command with --resume to continue" in stop.value.message
    assert run(resume=True, **options).read_bytes() == expected
    assert ("going on after 40 steps of 2 episodes\n" in capsys.readouterr().out) is (pushes == 44)
    assert not log_path(Path("data.hdf5")).exists()


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
        patch.setattr(Recorder, "merge", lambda self: (_ for _ in ()).throw(STOP))
        with pytest.raises(Interrupted):
            run(steps=800)
    assert run(resume=True, steps=250).read_bytes() == expected


def test_a_finished_recording_has_nothing_left_to_do(here, capsys):
    before = run().read_bytes()
    assert run(resume=True).read_bytes() == before
    assert "data.hdf5 is finished, with 450 steps; there is nothing left to record" in capsys.readouterr().out
    assert not log_path(Path("data.hdf5")).exists()


@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_by_name(here, finished, monkeypatch):
    actor, other = agent("actor.pt"), agent("other.pt", "td3")
    (here / "noisy.gin").write_text("make.wrappers = [@Flicker]\nFlicker.probability = 0.1\n")
    if finished:
        run(actor=actor)
    else:
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(Recorder, "merge", lambda self: (_ for _ in ()).throw(STOP))
            run(actor=actor)
    for name, options in (
        ("seed is 1", {"seed": 1}),
        ("env is pendulum-p-concat5-v0|env is pendulum-v-v0", {"env": "pendulum-v-v0", "actor": "random"}),
        ("algorithm is td3", {"actor": other}),
        ("deterministic is True", {"deterministic": True}),
        ("epsilon is 0.2", {"epsilon": 0.2}),
        ("seen_through is .*Flicker", {"config": "noisy.gin"}),
    ):
        with pytest.raises(UserError, match=f"({name}).* was recorded with .* keeps its settings"):
            run(**{"actor": actor, **options, "resume": True})
    shutil.copy(other, actor)
    with pytest.raises(UserError, match=r"(algorithm|actor_sha256) is .* was recorded with"):
        run(actor=actor, resume=True)


@pytest.mark.parametrize("finished", [False, True])
def test_the_same_agent_elsewhere_and_another_version_go_on(here, finished, monkeypatch, capsys):
    """What tells of the agent is its content; where it lies, which may tell who you are, is nowhere in the file."""
    actor = agent("actor.pt")
    expected = run("whole.hdf5", actor=actor).read_bytes()
    with monkeypatch.context() as patch, nullcontext() if finished else pytest.raises(Interrupted):
        patch.setattr("offpcc.data.recording.metadata.__version__", "0.0.1")
        if not finished:
            patch.setattr(Recorder, "merge", lambda self: (_ for _ in ()).throw(STOP))
        run(actor=actor, steps=300)
    (here / "elsewhere").mkdir()
    shutil.move(actor, "elsewhere")
    capsys.readouterr()
    data = load_dataset(run(actor=str(here / "elsewhere" / ".." / "elsewhere" / "actor.pt"), resume=True))
    told = capsys.readouterr().out
    assert "this resume may not be exact: offpcc is " in told and "was recorded with 0.0.1\n" in told
    assert data.metadata["offpcc"].startswith("0.0.1, then ")
    assert data.metadata["actor"] == "actor.pt"
    assert str(here).encode() not in Path("data.hdf5").read_bytes()
    whole = load_dataset("whole.hdf5")
    assert data.num_steps == 450 and (data.observations == whole.observations).all()
    assert (data.rewards == whole.rewards).all()
    assert run("data2.hdf5", actor="elsewhere/actor.pt").read_bytes() == expected


def test_a_damaged_recording_is_refused_as_a_whole(here, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Recorder, "merge", lambda self: (_ for _ in ()).throw(STOP))
        run()
    log = log_path(Path("data.hdf5"))
    content = bytearray(log.read_bytes())
    content[(start := content.rfind(b"EPIS", 0, len(content) // 3)) + 100] ^= 1  # in the first episode
    log.write_bytes(content)
    with pytest.raises(
        UserError, match=rf"is damaged at byte {start:,}, .* run `truncate -s {start} .*`, which keeps the 0 episodes"
    ):
        run(resume=True)
    assert log.read_bytes() == content


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
        (
            r"observations of shape \(3,\) .* was trained with observations of shape \(2,\)",
            {"actor": actor, "env": "pendulum-v0"},
        ),
        ("--deterministic has no effect on random actions", {"deterministic": True}),
        ("--epsilon 0.2 has no effect on random actions", {"epsilon": 0.2}),
        ("--deterministic has no effect with --epsilon", {"actor": actor, "epsilon": 0.2, "deterministic": True}),
        ("--device cuda has no effect on random actions; leave it out", {"device": "cuda"}),
        ("--threads 4 has no effect on random actions", {"threads": 4}),
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
    with pytest.raises(UserError, match=r"data.hdf5 exists and is not overwritten; give another file.*--resume"):
        run()
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Recorder, "merge", lambda self: (_ for _ in ()).throw(STOP))
        run("other.hdf5")
    with pytest.raises(UserError, match=r"other.hdf5.episode_log holds an unfinished recording.*--resume"):
        run("other.hdf5")
