"""A run that is asked to stop stops between two turns of its loop, says so, and goes on as if nothing had happened."""

import itertools
import json
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import QUICK, merged, rows, run_folder
from exact_resume import assert_equal_runs

from offpcc.config import loading
from offpcc.training import fit
from offpcc.training.build import build
from offpcc.training.checkpoint import Checkpoints, read_checkpoint, resume
from offpcc.training.evaluation import Evaluation
from offpcc.training.loggers import CSVLogger
from offpcc.training.run_dir import RunFolder
from offpcc.training.run_fns import columns_of
from offpcc.utils import signals

# Epochs of 130 steps end in mid-episode, with updates owed and a memory under way.
ODD = ("train.num_steps_per_epoch=130", "train.update_after=110", "train.updates_per_step=0.055", "train.num_epochs=3")
LAUNCH = Path(signals.__file__).parents[1] / "launch.py"


@pytest.fixture
def stop_at(monkeypatch):
    """Send a signal after so many turns of the loop."""

    def arm(turns, number=signal.SIGTERM):
        left = iter(range(turns - 1, -1, -1))

        def on_progress(self, run):
            if next(left, None) == 0:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(Checkpoints, "on_progress", on_progress)

    return arm


def train_to(turn, results, algo, bindings, dataset=None):
    """Train in this process until so many more turns are done, or to the end; its folder."""
    loading.load_gin_config("test/template_short.gin", merged(*QUICK, *ODD, *bindings))
    small = {"algorithm": {"hidden_dims": (8,)}, "dataset": dataset}
    learner, folder = build("pendulum-p-v0", algo, seed=5, **small), RunFolder(results, "pendulum-p-v0", algo, 5)
    if folder.checkpoint.exists():
        assert resume(read_checkpoint(folder.checkpoint), learner) == []
    folder.path.mkdir(parents=True, exist_ok=True)
    checkpoints, turns = Checkpoints(folder, learner, "", 3), itertools.count(1)

    def on_progress(run):
        if next(turns) == turn:
            raise signals.Interrupted(signal.SIGTERM)

    checkpoints.on_progress = on_progress
    table = CSVLogger(folder.progress, columns_of(learner.algorithm, learner.tests), learner.loop.rows)
    try:
        learner.train(table, [checkpoints], num_test_episodes_per_epoch=1)
    except signals.Interrupted:
        checkpoints.save()
    return folder.path


@pytest.mark.parametrize(
    ("algo", "bindings", "turns"),
    [
        ("sac", (), (1, 57, 110, 112, 131, 140, 300)),  # exploring, learning, at and around an epoch's end
        # In the midst of what is paid at an episode's end.
        ("rsac", ("train.updates_per_step=0.2",), (130, 131, 202, 203, 204, 205, 208, 290)),
        ("rsac", ("environments.num_envs=3", "train.num_steps_per_epoch=200"), (3, 67, 68, 201, 205, 215)),
        ("riql", ("train.num_steps_per_epoch=20", "train.updates_per_step=0.5"), (1, 2, 3, 29, 30, 31, 32, 33, 70)),
    ],
    ids=["sac", "rsac", "environments", "offline"],
)
def test_stopped_anywhere_it_goes_on_exactly(algo, bindings, turns, tmp_path, pendulum_file):
    dataset = pendulum_file if algo == "riql" else None
    whole = train_to(None, tmp_path / "whole", algo, bindings, dataset)
    done = 0
    for turn in (*turns, None):
        parts = train_to(turn and turn - done, tmp_path / "parts", algo, bindings, dataset)
        done = turn
    assert_equal_runs(whole, parts)
    assert int(rows(whole)[-1].split(",")[1]) > 10, "hardly anything was learned"


def test_the_command_line_stops_and_goes_on(quick, tmp_path, monkeypatch, stop_at):
    assert quick("sac")[0] == 0
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "parts"))
    parts = tmp_path / "parts" / "pendulum-p-v0" / "sac" / "1"
    stop_at(307)
    code, _, err = quick("sac")
    assert code == 143
    assert re.match(r"offpcc: run 1 stopped at step 29\d of 500, and saved; to go on: ", err)
    assert err.endswith("--resume\n") and err.count("\n") == 1
    assert json.loads((parts / "run.json").read_text())["status"] == "stopped"
    code, out, err = quick("sac", "--resume")
    assert code == 0, err
    assert "not exact" not in out
    assert_equal_runs(run_folder(tmp_path), parts)
    assert json.loads((parts / "run.json").read_text())["status"] == "finished"


def test_stopped_in_a_test_it_tests_anew(quick, tmp_path, monkeypatch):
    assert quick("sac")[0] == 0
    expected = rows(run_folder(tmp_path))
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "parts"))
    parts = tmp_path / "parts" / "pendulum-p-v0" / "sac" / "1"
    with monkeypatch.context() as patch:
        original = Evaluation.run
        stop = lambda self, *rest: os.kill(os.getpid(), signal.SIGTERM) or original(self, *rest)  # noqa: E731
        patch.setattr(Evaluation, "run", stop)
        assert quick("sac")[0] == 143
    assert len(rows(parts)) == 1, "an epoch was ended without its test"
    assert quick("sac", "--resume")[0] == 0
    assert rows(parts) == expected


ENDS = {  # what is under way, and whether anything is left after it
    "offpcc.training.evaluation.Evaluation.run": "at step 500 of 500, and saved",
    "offpcc.training.checkpoint.Checkpoints.on_end": "after its last step, 500, and saved",
    "offpcc.data.recording.recorder.Recorder.merge": "after its last step, 500, and saved",
    "offpcc.training.fit.picture": "after its last step, 500, and saved",
    "offpcc.training.fit.tell_result": None,
}


@pytest.mark.parametrize("late", ENDS)
def test_stopped_at_the_very_end_what_is_told_is_so(late, launch, quick, tmp_path, monkeypatch):
    folder, played = run_folder(tmp_path), tmp_path / "played.hdf5"
    words = ("--save_dataset", played)
    assert quick("sac", *words)[0] == 0
    expected, data = rows(folder), played.read_bytes()
    folder.rename(tmp_path / "whole")
    played.unlink()
    with monkeypatch.context() as patch:
        original, calls = pkgutil.resolve_name(late), itertools.count(1)
        last = 2 if late.endswith("run") else 1

        def stopping(*given):
            if next(calls) == last:
                os.kill(os.getpid(), signal.SIGTERM)
            if late.endswith("picture"):  # whose episodes do so
                signals.poll()
            return original(*given)

        patch.setattr(late, stopping)
        code, _, err = quick("sac", *words)
    assert code == 143 and err.count("\n") == 1
    if ENDS[late] is None:
        assert err == "offpcc: run 1 is finished\n"
    else:
        told, _, advice = err.partition("; to go on: ")
        assert told == f"offpcc: run 1 stopped {ENDS[late]}"
        assert json.loads((folder / "run.json").read_text())["status"] == "stopped"
        code, out, err = launch(*shlex.split(advice)[1:])
        assert code == 0, err
        assert "not exact" not in out
    assert rows(folder) == expected and played.read_bytes() == data
    assert (folder / "actor_last.pt").read_bytes() == (tmp_path / "whole" / "actor_last.pt").read_bytes()
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


def test_one_that_was_finished_is_not_gone_on_with(quick, tmp_path, monkeypatch):
    original = fit.tell_result
    stopping = lambda *given: os.kill(os.getpid(), signal.SIGINT) or original(*given)  # noqa: E731
    monkeypatch.setattr(fit, "tell_result", stopping)
    code, _, err = quick("sac", "--run_id", 1, 2, 3)
    assert code == 130
    assert err.startswith("offpcc: run 1 is finished; to go on: ") and "--run_id 2 3 " in err
    assert not run_folder(tmp_path, run_id=2).exists()


def test_what_is_paid_at_the_end_is_paid_after_the_last_checkpoint(quick, tmp_path, monkeypatch):
    """Stopped there, a run may still be given more epochs, and is as if it had been given them at once."""
    bindings = [*ODD, "train.updates_per_step=0.1"]
    assert quick("rsac", bindings=bindings)[0] == 0
    expected = rows(run_folder(tmp_path, algo="rsac"))
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "parts"))
    parts = tmp_path / "parts" / "pendulum-p-v0" / "rsac" / "1"

    def on_epoch(self, run):
        original(self, run)
        if run.loop.epoch == 2:
            pending_updates = run.loop.pending_updates
            monkeypatch.setattr(
                signals, "poll", lambda: stop() if run.loop.pending_updates == pending_updates - 2.0 else None
            )

    def stop():
        monkeypatch.setattr(signals, "poll", lambda: None)
        raise signals.Interrupted(signal.SIGTERM)

    original = Checkpoints.on_epoch
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_epoch", on_epoch)
        assert quick("rsac", bindings=[*bindings, "train.num_epochs=2"])[0] == 143
    assert quick("rsac", "--resume", bindings=bindings)[0] == 0
    assert rows(parts) == expected


def test_several_runs_stop_as_one(quick, stop_at, tmp_path):
    stop_at(20)
    code, _, err = quick("sac", "--run_id", 1, 2, 3)
    assert code == 143
    assert "run 1 stopped at step" in err and "--run_id 1 2 3" in err
    assert not run_folder(tmp_path, run_id=2).exists()


@pytest.mark.parametrize("stopped_at", [20, 0], ids=["training", "set-up"])
def test_without_a_config_the_advice_goes_on_and_begins_the_other_runs(
    launch, stop_at, tmp_path, monkeypatch, stopped_at
):
    bindings = [*ODD[:2], "train.num_epochs=1", "train.updates_per_step=0.02", "train.num_test_episodes_per_epoch=1"]
    named = ("--env", "pendulum-p-v0", "--algo", "sac", "--run_id", 1, 2)
    with monkeypatch.context() as patch:
        if stopped_at:
            stop_at(stopped_at)
        else:
            patch.setattr(fit, "build_run", lambda *rest, **options: os.kill(os.getpid(), signal.SIGTERM))
        code, _, err = launch(*named, "--gin", *bindings)
    assert code == 143
    told, _, advice = err.partition("; to go on: ")
    assert "run 1 stopped" in told and "--run_id 1 2" in advice
    code, _, err = launch(*shlex.split(advice)[1:])
    assert code == 0, err
    one, other = (run_folder(tmp_path, run_id=number) for number in (1, 2))
    assert [json.loads((run / "run.json").read_text())["status"] for run in (one, other)] == ["finished"] * 2
    assert (one / "config.gin").read_text() == (other / "config.gin").read_text()


def test_sigint_is_130_and_set_up_may_be_stopped(quick, monkeypatch, tmp_path, stop_at):
    stop_at(20, number=signal.SIGINT)
    assert quick("sac")[0] == 130
    monkeypatch.setattr("offpcc.training.fit.build_run", lambda *rest, **options: os.kill(os.getpid(), signal.SIGINT))
    code, _, err = quick("sac", "--run_id", 2)
    assert code == 130
    assert err.startswith("offpcc: run 2 stopped; to go on: ") and err.count("\n") == 1
    assert not run_folder(tmp_path, run_id=2).exists()


def test_handlers_are_put_back(quick, stop_at):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stop_at(20)
    quick("sac")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# As processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def start(forks):
    """Start the command line in a process group of its own."""

    def begin(*words, config="test/template_short.gin", bindings=(), **environment):
        arguments = [*words, *(["--config", config] if config else []), *(["--gin", *bindings] if bindings else [])]
        return forks.start_command(arguments, Path.cwd(), {**os.environ, **environment})

    return begin


def wait_for(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def tables(results):
    return [file for file in results.rglob("progress.csv") if file.read_text().count("\n") > 1]


LONG = (*merged(*QUICK), "train.num_epochs=1_000", "Checkpoints.every=1_000")


@pytest.mark.slow
def test_a_whole_process_group_is_interrupted(tmp_path):
    """As by Ctrl-C: workers and Weights & Biases get the signal, too. It is a start as by a user, and no fork."""
    bindings = [*LONG, "environments.num_envs=2", "environments.worker_processes=True"]
    tracking = {"OFFPCC_WANDB_PROJECT": "test", "WANDB_MODE": "offline"}
    try:
        import wandb  # noqa: F401
    except ImportError:
        tracking = {}
    words = ("--env", "pendulum-p-v0", "--algo", "rsac", "--results", tmp_path)
    process = subprocess.Popen(
        [sys.executable, LAUNCH, *words, "--config", "test/template_short.gin", "--gin", *bindings],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **tracking},
        preexec_fn=lambda: (os.setpgid(0, 0), signal.signal(signal.SIGINT, signal.default_int_handler)),
    )  # fmt: skip
    wait_for(lambda: tables(tmp_path), process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.count("\n") == 1 and "run 1 stopped at step" in err
    assert "Traceback" not in out + err
    folder = tmp_path / "pendulum-p-v0" / "rsac" / "1"
    assert read_checkpoint(folder / "checkpoint.pt")["loop"]["step"] >= 250


def test_the_script_for_slurm_asks_for_another_turn(tmp_path):
    """The script of docs/sweeps.md, with commands in place of Slurm's."""
    page = (LAUNCH.parents[1] / "docs" / "sweeps.md").read_text()
    script = re.search(r"#!/bin/bash\n.*?(?=```)", page, re.DOTALL).group()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("PATH=$PWD/bin:$PATH\n")
    commands = {
        "srun": 'exec "$@"',
        "scontrol": 'echo "$@" >> asked',
        "offpcc": f'echo $$ > pid; exec {sys.executable} {LAUNCH} "$@" --results . --no_video --gin '
        + " ".join([*LONG, "train.stop_return=$STOP", "train.stop_tests=1"]),
    }
    (tmp_path / "bin").mkdir()
    for name, line in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "configs").symlink_to(LAUNCH.parents[1] / "configs")

    def begin(stop_return):
        task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "STOP": str(stop_return)}
        return subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", **task},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    process = begin(stop_return=0)
    wait_for(lambda: tables(tmp_path), process)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert "run 3 stopped at step" in err
    assert (tmp_path / "asked").read_text() == "requeue 7_3\n"
    out, err = begin(stop_return=-10_000).communicate(timeout=60)
    assert "going on in" in out and "reached" in out, out + err
    assert (tmp_path / "asked").read_text() == "requeue 7_3\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM)],
)
def test_a_second_interrupt_ends_at_once(first, then, tmp_path, start):
    """An environment that does not come back is left behind; a second SIGTERM is the machine's impatience."""
    (tmp_path / "stuck.py").write_text(STUCK)
    process = start(
        "--env",
        "stuck:stuck-v0",
        "--algo",
        "sac",
        "--results",
        tmp_path,
        bindings=LONG,
        PYTHONPATH=f"{tmp_path}:{LAUNCH.parents[1]}",
    )
    wait_for((tmp_path / "stuck").exists, process)
    process.send_signal(first)
    wait_for((tmp_path / "asked 1 times").exists, process)
    process.send_signal(then)
    if then == signal.SIGTERM:
        wait_for((tmp_path / "asked 2 times").exists, process)
        (tmp_path / "free").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + first
    assert "Traceback" not in out + err
    assert (tmp_path / "stuck-stuck-v0" / "sac" / "1" / "checkpoint.pt").exists() is (then != signal.SIGINT)


STUCK = """
import pathlib, time
import gymnasium
from offpcc.utils import signals

class Stuck(gymnasium.Wrapper):
    def step(self, action):
        self.steps = getattr(self, "steps", 0) + 1
        here = pathlib.Path(__file__).parent
        if self.steps == 20:
            (here / "stuck").touch()
            while not (here / "free").exists():
                (here / f"asked {len(signals._received)} times").touch()
                time.sleep(0.01)
        return self.env.step(action)

gymnasium.register("stuck-v0", entry_point=lambda: Stuck(gymnasium.make("Pendulum-v1")), max_episode_steps=200)
"""


def caught_by(process):
    """Signals that a process has handlers for."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


@pytest.mark.slow
def test_showing_measuring_and_recording_stop_without_a_traceback(quick, tmp_path, start):
    assert quick("sac")[0] == 0
    folder, data = run_folder(tmp_path), tmp_path / "data.hdf5"
    name = ("--env", "pendulum-p-v0", "--algo", "sac", "--results", tmp_path / "results")
    for number, words in (
        (signal.SIGTERM, ("evaluate", folder, "--episodes", 100_000)),
        (signal.SIGINT, (*name, "--record", "--episodes", 1_000)),
        (signal.SIGTERM, ("collect", "--env", "pendulum-p-v0", "--actor", folder, "--steps", 10**7, "--out", data)),
    ):
        process = start(*words, config=None)
        begun = {"collect": data.with_name("data.hdf5.episode_log"), "--env": folder / "videos"}.get(words[0])
        wait_for(lambda begun=begun: begun is None or begun.exists(), process)
        wait_for(lambda process=process: signal.SIGTERM in caught_by(process), process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number, err
        assert err.startswith("offpcc: stopped") and err.count("\n") == 1, err
        assert "Traceback" not in out
    assert not list(folder.rglob(".*.tmp-*"))
