"""`--jobs`: several runs at a time, each in a process of its own, the same as one after another."""

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import QUICK, merged, rows, run_folder
from job_parts import end, in_folder, wait

from offpcc.cli.jobs import PrefixedStream, run_in_processes
from offpcc.utils import signals

LAUNCH = Path(signals.__file__).parents[1] / "launch.py"
SHORT = merged(*QUICK, "train.num_epochs=1", "train.num_test_episodes_per_epoch=1", "train.updates_per_step=0.02")
BASE = ("--env", "pendulum-p-v0", "--algo", "sac", "--config", "test/template_short.gin")


@pytest.fixture
def start(tmp_path, forks):
    """Start runs of the command line."""

    def begin(*words, results="results"):
        environment = os.environ | {"OFFPCC_RESULTS": str(tmp_path / results), "OMP_NUM_THREADS": "1"}
        return forks.start_command((*BASE, "--no_video", *words), tmp_path, environment)

    return begin


def test_runs_at_a_time_are_those_one_after_another(tmp_path, start):
    ids = ("--run_id", 1, 2, 3)
    together = start(*ids, "--jobs", 2, "--gin", *SHORT)
    out, err = together.communicate(timeout=600)
    assert together.returncode == 0, err
    one_by_one = start(*ids, "--gin", *SHORT, results="apart")
    assert one_by_one.wait(600) == 0, one_by_one.communicate()[1]
    lines = [line for line in out.splitlines() if line]
    assert all(line.startswith(("run 1: ", "run 2: ", "run 3: ")) for line in lines)
    assert {f"run {one}: " for one in (1, 2, 3)} == {line[:7] for line in lines if "of 250 steps" in line}
    for one in (1, 2, 3):
        here = run_folder(tmp_path, run_id=one)
        there = tmp_path / "apart" / here.relative_to(tmp_path / "results")
        assert rows(here) == rows(there)
        for name in ("actor_last.pt", "actor_best.pt", "config.gin"):
            assert (here / name).read_bytes() == (there / name).read_bytes()
    assert rows(run_folder(tmp_path, run_id=1)) != rows(run_folder(tmp_path, run_id=2))


def test_a_refused_run_does_not_stop_the_others(tmp_path, start):
    run_folder(tmp_path, run_id=1).mkdir(parents=True)
    (run_folder(tmp_path, run_id=1) / "run.json").write_text('{"status": "finished"}')
    process = start("--run_id", 1, 2, "--jobs", 2, "--gin", *SHORT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "run 1: offpcc: run 1 in" in err and "Traceback" not in err
    assert err.endswith("offpcc: run 1 failed, for the reason given above; the other runs are trained\n")
    assert (run_folder(tmp_path, run_id=2) / "actor_last.pt").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_all_runs_and_resume_goes_on(tmp_path, number, start):
    long = merged(*SHORT, "train.num_epochs=2000")
    process = start("--run_id", 1, 2, 3, "--jobs", 2, "--gin", *long)
    tables = [run_folder(tmp_path, run_id=one) / "progress.csv" for one in (1, 2)]
    started = time.monotonic()
    while not all(table.exists() and len(table.read_text().splitlines()) > 2 for table in tables):
        assert process.poll() is None and time.monotonic() - started < 300
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert err.count("and saved") == 2 and "Traceback" not in err + out
    assert "offpcc: stopped; 2 of 3 runs were training, and 1 had not started; to go on: " in err
    assert "--run_id 1 2 3 --jobs 2" in err
    assert not run_folder(tmp_path, run_id=3).exists()
    for one in (1, 2):
        folder = run_folder(tmp_path, run_id=one)
        assert json.loads((folder / "run.json").read_text())["status"] == "stopped"
        assert (folder / "checkpoint.pt").exists()
    done = len(tables[0].read_text().splitlines()) - 1
    again = start("--run_id", 1, "--resume", "--gin", *long)
    while len(tables[0].read_text().splitlines()) - 1 <= done + 1:
        assert again.poll() is None and time.monotonic() - started < 600
        time.sleep(0.1)
    again.terminate()
    assert again.wait(120) == 143


# Parts --------------------------------------------------------------------------------------------------------------


def test_the_worst_exit_code_is_that_of_all(capfd):
    runs = [("run 1", {"code": 1}), ("run 2", {"code": 2}), ("run 3", {"code": 0})]
    assert run_in_processes(end, runs, 2) == 2
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(
        f"run {one}: {line}" for one in (1, 2, 3) for line in ("a line", "another, without an end")
    )
    assert run_in_processes(end, [("run 1", {"number": signal.SIGKILL}), ("run 2", {})], 1) == 128 + signal.SIGKILL
    assert "run 1 was ended by signal 9" in capfd.readouterr().err


def test_a_run_that_was_finished_when_the_signal_came_was_not_training(tmp_path):
    def ask(name, code):
        raise signals.Interrupted(signal.SIGTERM)

    runs = [("run 1", {"name": "wait_for_files", "folder": tmp_path, "number": 2})]
    runs += [(f"run {one}", {"name": "be_interrupted", "folder": tmp_path, "is_late": one == 2}) for one in (2, 3)]
    with pytest.raises(signals.Interrupted) as stop:
        run_in_processes(in_folder, runs, 3, ask)
    assert stop.value.message == "stopped; 1 of 3 runs were training"


def test_an_error_while_a_result_is_written_ends_the_other_processes():
    def full(name, code):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        run_in_processes(wait, [("run 1", {"seconds": 0}), ("run 2", {"seconds": 60})], 2, full)
    assert not multiprocessing.active_children()


def test_lines_get_the_prefix_once_and_whole():
    inner = io.StringIO()
    stream = PrefixedStream(inner, "run 7: ")
    stream.write("one")
    assert inner.getvalue() == "" and not stream.isatty()
    stream.write(" line\n\ntwo\nthr")
    assert inner.getvalue() == "run 7: one line\n\nrun 7: two\n"
    stream.close_line()
    stream.close_line()
    assert inner.getvalue().endswith("run 7: thr\n")


@pytest.mark.parametrize("words", ["--jobs 0", "--jobs few", "--jobs"])
def test_a_number_of_jobs_is_above_0(launch, words):
    code, _, err = launch(*BASE, *words.split())
    assert code == 2 and "--jobs" in err


@pytest.mark.parametrize("words", [(), ("--jobs", 2)])
def test_runs_go_on_when_nobody_reads_their_output(words, tmp_path, monkeypatch):
    """As after `| head -1`, or in a terminal that was closed."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "results"))
    given = [*BASE, "--no_video", "--run_id", "1", "2", *map(str, words), "--gin", *SHORT]
    process = subprocess.Popen(
        [sys.executable, LAUNCH, *given], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(600) == 0, errors
    assert "Traceback" not in errors
    for one in (1, 2):
        facts = json.loads((run_folder(tmp_path, run_id=one) / "run.json").read_text())
        assert facts["status"] == "finished"
