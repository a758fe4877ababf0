"""An environment that raises when it is closed is told of in one line, and nothing else comes of it."""

import json
import os
import signal
import subprocess
import sys

import gymnasium
import pytest
from conftest import rows, run_folder
from misbehaving import Raises, Unclosable, Walk

import offpcc
from offpcc.algorithms.agent import load_actor
from offpcc.envs.guard import Guard, close, opened
from offpcc.training.evaluation import Evaluation
from offpcc.training.loggers import Loggers

NAME = "unclosable-v0"


def unclosable(**attributes):
    """A class for each test, as of each class it is told once."""
    return type("Odd", (Unclosable,), attributes)


@pytest.fixture
def registered():
    gymnasium.register(NAME, entry_point=unclosable(), max_episode_steps=30)
    yield NAME
    del gymnasium.registry[NAME]


def assert_told_once(text, name=NAME):
    lines = [line for line in text.splitlines() if "the door is stuck" in line]
    assert len(lines) == 1 and "Traceback" not in text and "and more of it" not in text
    assert lines[0].startswith(f"offpcc: {name} raised RuntimeError: the door is stuck (")
    assert "misbehaving.py:" in lines[0] and "no data is lost" in lines[0] and "fix" in lines[0]


@pytest.mark.pictures
def test_a_finished_run_stays_finished(quick, launch, registered, tmp_path):
    words = ("--run_id", 1, "--save_dataset", tmp_path / "played.hdf5")
    code, out, err = quick("sac", *words, env=registered, bindings=["environments.num_envs=2"])
    folder = run_folder(tmp_path, registered)
    assert code == 0, err
    assert_told_once(err)
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert "trained in " in out and "learning curve" in out and (tmp_path / "played.hdf5").is_file()
    assert len(rows(folder)) > 1 and load_actor(folder / "actor_last.pt", "cpu").action_dim == 1


def test_a_stopped_run_is_told_to_be_stopped(quick, registered, tmp_path, monkeypatch):
    monkeypatch.setattr(Evaluation, "run", lambda *given: os.kill(os.getpid(), signal.SIGTERM))
    code, _, err = quick("sac", env=registered)
    assert code == 143 and "stopped at step " in err and "to go on: " in err
    assert_told_once(err)


def test_what_ended_a_run_is_told_not_what_came_of_its_closing(quick, tmp_path):
    gymnasium.register(NAME, entry_point=unclosable(odd=Raises.odd), max_episode_steps=30)
    try:
        code, _, err = quick("sac", env=NAME)
    finally:
        del gymnasium.registry[NAME]
    assert code == 2 and "raised ValueError: too far" in err
    assert_told_once(err)


@pytest.mark.parametrize(
    "words",
    [("check", "--steps", 40), ("collect", "--actor", "random", "--steps", 25, "--out", "some.hdf5")],
    ids=lambda words: words[0],
)
def test_commands_come_to_their_end(launch, registered, words):
    code, out, err = launch(*words, "--env", registered)
    assert code == 0 and "unclosable" in out, out + err
    assert_told_once(err)


def test_what_was_made_of_one_that_closes(launch, quick, registered, tmp_path, monkeypatch):
    recorded = tmp_path / "some.hdf5"
    with monkeypatch.context() as patch:
        patch.setattr(gymnasium.registry[NAME], "entry_point", Walk)
        assert quick("sac", "--save_dataset", recorded, env=registered, bindings=["train.num_epochs=2"])[0] == 0
    code, out, err = launch("evaluate", run_folder(tmp_path, registered), "--episodes", 3)
    assert code == 0 and "return over 3 episodes" in out, err
    assert_told_once(err)
    monkeypatch.setattr(gymnasium.registry[NAME], "entry_point", unclosable())
    code, out, err = launch("check", "--env", registered, "--dataset", recorded)
    assert code == 0 and "observation 0" in out, out + err
    assert_told_once(err)


def test_in_python_a_learner_closes_all(registered, capsys):
    learner = offpcc.build(registered, "sac", environments={"num_envs": 2})
    learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=40, updates_per_step=0, num_test_episodes_per_epoch=2)
    learner.close()
    assert_told_once(capsys.readouterr().err)


CLOSES = """
import sys
import misbehaving
from offpcc.envs.vector.local import environments
from offpcc.envs.wrappers import EpisodeReturn

if __name__ == "__main__":
    make_env = lambda: EpisodeReturn(getattr(misbehaving, sys.argv[1])(), 2.0)
    environments(make_env, 0, 2.0, worker_processes=True).close()
"""


@pytest.mark.parametrize("env", ["Unclosable", "Shut"])
def test_a_worker_process_tells_of_it(env, tmp_path):
    """Started in a process of its own, as its workers write to the streams that the first of them found."""
    (tmp_path / "closes.py").write_text(CLOSES)
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, str(tmp_path / "closes.py"), env]
    done = subprocess.run(words, capture_output=True, text=True, env=paths, timeout=300)
    assert done.returncode == 0
    if env == "Unclosable":
        assert_told_once(done.stderr, env)
    else:
        (line,) = done.stderr.splitlines()
        assert "Shut did not return within make.timeout = 2 seconds (" in line and "when it was closed" in line


def test_each_class_is_told_of_and_of_each_once(capsys):
    one, other = unclosable(), unclosable()
    for env in (one(), Guard(one(), "environment 1"), gymnasium.Wrapper(one())):
        close(env)
    assert_told_once(capsys.readouterr().err, "Odd")
    with pytest.raises(KeyError), opened(other()):
        raise KeyError("what happened before goes on")
    assert_told_once(capsys.readouterr().err, "Odd")


def leave(self):
    raise SystemExit(3)


def interrupt(self):
    raise KeyboardInterrupt


def test_leaving_is_a_fault_like_any_other_but_not_what_a_signal_asks_for(capsys):
    close(unclosable(close=leave)())
    assert "raised SystemExit: 3 (" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        close(unclosable(close=interrupt)())
