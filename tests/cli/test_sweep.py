"""`offpcc sweep`: ordinary runs from a TOML file, resumed, stopped early, ranked."""

import csv
import importlib.util
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from conftest import rows

from offpcc.cli import sweep as sweeps
from offpcc.cli import sweep_ray
from offpcc.cli.sweep_file import read_sweep
from offpcc.training.loggers import WandbLogger
from offpcc.utils import ray_cluster, signals
from offpcc.utils.errors import UserError

LAUNCH = Path(signals.__file__).parents[1] / "launch.py"
TOP = 'env = "pendulum-p-v0"\nalgo = "sac"\nconfig = "test/template_short.gin"\nseeds = [1, 2]\nepochs = 2\n'
FIXED = "[gin]\ntrain.num_steps_per_epoch = 20\ntrain.num_test_episodes_per_epoch = 1\ntrain.update_after = 10\n"
GRID = "[grid]\nActorCritic.gamma = [0.9, 0.95]\n"
HALVING = '[stop]\nrule = "halving"\nfactor = 2\nfirst_epochs = 1\n'


@pytest.fixture
def here(launch, tmp_path, monkeypatch):
    """Sweep a text in this process, one run after another; a function of the text and of words of the command."""
    monkeypatch.setenv("WANDB_RUN_GROUP", "")

    def in_this_process(function, runs, jobs, ended, *_):
        for name, arguments in runs:
            started.append(name)
            ended(name, function(**arguments))

    started = []
    monkeypatch.setattr(sweeps, "run_in_processes", in_this_process)

    def run(text, *words):
        started.clear()
        (tmp_path / "s.toml").write_text(text)
        return *launch("sweep", "s.toml", *words), list(started)

    return run


def table(tmp_path):
    with (tmp_path / "results/s/summary.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_grid_makes_ordinary_runs_and_a_table(here, launch, tmp_path):
    code, out, err, started = here(TOP + FIXED + GRID)
    assert code == 0, err
    assert len(started) == 4 and os.environ["WANDB_RUN_GROUP"] == "s"
    found = table(tmp_path)
    assert [row["status"] for row in found] == ["finished"] * 2 and [row["rank"] for row in found] == ["1", "2"]
    assert {row["setting"].split()[1] for row in found} == {"ActorCritic.gamma=0.9", "ActorCritic.gamma=0.95"}
    for row in found:
        returns = [float(rows(Path(row["folder"]) / seed)[-1].split(",")[5]) for seed in ("1", "2")]
        assert float(row["return"]) == pytest.approx(sum(returns) / 2)
        assert float(row["std"]) == pytest.approx(statistics.pstdev(returns)), "as offpcc plot"
    assert float(found[0]["return"]) > float(found[1]["return"])
    assert json.loads((tmp_path / "results/s/summary.json").read_text())[0]["seeds"] == 2
    assert (tmp_path / "results/s/summary.txt").read_text() in out
    assert launch("report", "results/s", "--out", "r")[0] == 0 and "gamma-0.95" in (tmp_path / "r.md").read_text()
    again = here(TOP + FIXED + GRID)
    assert again[0] == 0 and not again[3]
    further = here(TOP.replace("[1, 2]", "[1, 2, 3]") + FIXED + GRID)
    assert sorted(name[-1] for name in further[3]) == ["3", "3"]
    code, _, err, started = here(TOP + FIXED.replace("after = 10", "after = 15") + GRID)
    assert code == 2 and not started and "update_after=10" in err and "update_after=15" in err and "name = " in err
    code, _, err, started = here(TOP.replace("epochs = 2", "epochs = 1") + FIXED + GRID)
    assert code == 2 and not started and "has 2 epochs" in err


@pytest.mark.parametrize("algo", ["mopo", "rmopo", "mbpo"])
def test_a_second_call_knows_the_settings_that_an_algorithm_in_a_model_chose(here, algo, pendulum_file, monkeypatch):
    """Their defaults depend on the algorithm and the data: no binding has them."""
    monkeypatch.setenv("OFFPCC_MODELS_DIR", "models")
    data = "" if algo == "mbpo" else f'dataset = "{pendulum_file}"\n'
    text = (
        f'env = "pendulum-v0"\nalgo = "{algo}"\n{data}seeds = [1]\nepochs = 1\n[gin]\n'
        "train.num_steps_per_epoch = 40\ntrain.num_test_episodes_per_epoch = 1\n"
        '"DynamicsModel.hidden_dims" = [8]\nDynamicsModel.num_members = 2\nDynamicsModel.num_elites = 2\n'
        '"ActorCritic.hidden_dims" = [8]\nModelTraining.max_epochs = 1\nImagination.every = 20\n'
        + ("train.update_after = 20\n" if algo == "mbpo" else "")
    )
    grid = "[grid]\nActorCritic.gamma = [0.9, 0.95]\n"
    code, _, err, started = here(text + grid)
    assert code == 0 and len(started) == 2, err
    for words in ((), ("--dry_run",)):
        code, _, err, started = here(text + grid, *words)
        assert code == 0 and not started, err
    code, _, err, started = here(text + "Imagination.length = 2\n" + grid)
    assert code == 2 and not started and "length=" in err


@pytest.mark.slow
def test_halving_resumes_the_better_half_exactly(here, tmp_path):
    code, _, err, started = here(TOP + FIXED + GRID + HALVING)
    assert code == 0, err
    assert len(started) == 6  # four runs for one epoch, two of them for the second
    found = table(tmp_path)
    assert [(row["epochs"], row["status"]) for row in found] == [("2", "finished"), ("1", "stopped early")]
    at_1 = [float(rows(Path(row["folder"]) / s)[1].split(",")[5]) for row in found for s in ("1", "2")]
    assert sum(at_1[:2]) > sum(at_1[2:])
    kept = [rows(Path(found[0]["folder"]) / seed) for seed in ("1", "2")]
    assert not here(TOP + FIXED + GRID + HALVING)[3]
    assert here(TOP + FIXED + GRID)[0] == 0  # without the rule, all go on
    assert [row["status"] for row in table(tmp_path)] == ["finished"] * 2
    assert here(TOP + 'name = "whole"\n' + FIXED + GRID)[0] == 0
    there = Path(found[0]["folder"].replace("/s/", "/whole/"))
    assert kept == [rows(there / seed) for seed in ("1", "2")]


def test_runs_are_quiet_unless_verbose_is_given(here, tmp_path):
    code, out, err, (one, two) = here(TOP + FIXED)
    assert code == 0, err
    told = [line for line in out.splitlines() if line.startswith((one, two))]
    assert len(told) == 2 and told[0].startswith(f"{one}: finished, 2 epochs, last test return -"), out
    assert "learning curve" not in out
    kept = (tmp_path / "results/s" / one / "output.txt").read_text()
    assert "learning curve" in kept and "20 of 40 steps" in kept
    code, out, err, _ = here(TOP.replace("epochs = 2", "epochs = 3") + FIXED, "--verbose")
    assert code == 0 and out.count("learning curve") == 2, err
    assert (tmp_path / "results/s" / one / "output.txt").read_text() == kept


def test_runs_with_the_default_config_propose_no_more_epochs_than_the_file(here):
    """The sweep would refuse a run that somebody continued so."""
    text = TOP.replace('config = "test/template_short.gin"\n', "").replace("[1, 2]", "[1]") + FIXED
    code, out, err, started = here(text, "--verbose")
    assert code == 0 and len(started) == 1 and "learning curve" in out and "train.num_epochs=N" not in out, err
    code, _, err, started = here(text.replace("epochs = 2", "epochs = 3"))
    assert code == 0 and len(started) == 1, err


def test_a_budget_of_epochs_starts_the_first_runs_and_no_others(here, launch, tmp_path):
    """Four runs of two epochs, and a budget for three of them."""
    text = TOP + FIXED + GRID + "[stop]\ntotal_epochs = {}\n"
    code, out, err, started = here(text.format(7))
    assert code == 0, err
    assert len(started) == 3
    names = {str(run.relative_to(tmp_path / "results/s")) for run in (tmp_path / "results/s").glob("*/*/*/[12]")}
    assert names == {*started}
    [last] = [line for line in out.splitlines() if line.startswith("not started, because of the 7 total_epochs")]
    assert last.split(": ")[1].endswith("/2") and last.split(": ")[1] not in names
    assert [row["status"] for row in table(tmp_path)].count("finished") == 1
    code, out, err = launch("sweep", "s.toml", "--watch")
    assert code == 0 and "finished" in out, err  # it ends, though a run will never start
    assert not here(text.format(7))[3]
    code, out, err, started = here(text.format(8))
    assert code == 0 and len(started) == 1 and "not started" not in out, err


def test_a_budget_counts_a_run_that_has_begun_whole(here, tmp_path):
    """Otherwise a sweep that was killed would start more runs than one that was not."""
    text = TOP + FIXED + GRID + "[stop]\ntotal_epochs = 7\n"
    begun = tmp_path / "results/s" / here(text)[3][-1]
    facts = json.loads((begun / "run.json").read_text())
    (begun / "run.json").write_text(json.dumps({**facts, "status": "unfinished", "epochs": None}))
    code, _, err, started = here(text)
    assert code == 0 and [tmp_path / "results/s" / name for name in started] == [begun], err


def test_a_failed_run_counts_with_the_epochs_of_its_table(here, tmp_path, monkeypatch):
    real = sweeps.run_train
    monkeypatch.setattr(sweeps, "run_train", lambda **given: real(**given) or 1)
    code, out, *_ = here(TOP.replace("[1, 2]", "[1]") + FIXED)
    assert code == 1 and "failed, 2 epochs" in out
    assert [row["epochs"] for row in table(tmp_path)] == ["2"]


def test_a_failed_run_is_reported_and_trained_again_on_request(here, tmp_path, monkeypatch):
    real, text = sweeps.run_train, TOP + FIXED
    monkeypatch.setattr(sweeps, "run_train", lambda **given: 1 if given["run_id"] == (1,) else real(**given))
    code, out, err, started = here(text)
    assert code == 1 and len(started) == 2 and "1 run failed" in err and "--retry" in err
    assert "failed: seed 1" in out and table(tmp_path)[0]["seeds"] == "1"
    assert out.startswith("checking 1 setting\n")
    monkeypatch.setattr(sweeps, "run_train", real)
    code, *_, started = here(text)
    assert code == 1 and not started
    code, *_, started = here(text, "--retry")
    assert code == 0 and len(started) == 1 and table(tmp_path)[0]["status"] == "finished"


def test_without_a_config_a_changed_binding_is_seen(here):
    """The runs that exist have a config of their own, which must not stand in for that of the file."""
    text = TOP.replace('config = "test/template_short.gin"\n', "").replace("[1, 2]", "[1]") + FIXED
    code, _, err, _ = here(text + "ActorCritic.hidden_dims = [8, 8]\n")
    assert code == 0, err
    code, _, err, started = here(text.replace("[1]", "[1, 2]"))
    assert code == 2 and not started and "hidden_dims=(8, 8)" in err, err


def test_a_run_that_reached_its_return_counts_as_a_whole_one(here, launch, tmp_path):
    text = TOP + FIXED + "train.stop_tests = 1\n[grid]\ntrain.stop_return = [-1e9, 1e9]\n"
    code, _, err, _ = here(text)
    assert code == 0, err
    found = table(tmp_path)
    assert sorted(row["epochs"] for row in found) == ["1", "2"] and {row["status"] for row in found} == {"finished"}
    returns = [float(row["return"]) for row in found]
    assert returns == sorted(returns, reverse=True)
    for row in found:  # also if the shorter one is better
        for seed in ("1", "2"):
            table_of_run = Path(row["folder"]) / seed / "progress.csv"
            lines = table_of_run.read_text().splitlines()
            cells = lines[-1].split(",")
            cells[5] = "5.0" if row["epochs"] == "1" else "4.0"
            table_of_run.write_text("\n".join([*lines[:-1], ",".join(cells), ""]))
    code, _, err, started = here(text)
    assert code == 0 and not started, err
    assert [row["epochs"] for row in table(tmp_path)] == ["1", "2"]
    assert launch("sweep", "s.toml", "--watch")[0] == 0


def test_another_return_to_reach_is_refused(here):
    """A run that reached the old one counts as a whole one, so it would not continue."""
    text = TOP + FIXED + "train.stop_tests = 1\ntrain.stop_return = {}\n"
    assert here(text.format("-1e9"))[0] == 0
    without = TOP + FIXED + "train.stop_tests = 1\n"
    for other in (text.format("-1.0"), without):
        code, _, err, started = here(other)
        assert code == 2 and not started and "train.stop_return" in err and "put the old value back" in err


@pytest.mark.parametrize(("idle", "other"), [("retry", "watch"), ("dry_run", "watch"), ("retry", "dry_run")])
def test_options_that_contradict_each_other_are_refused(here, idle, other):
    code, _, err, started = here(TOP + FIXED, f"--{idle}", f"--{other}")
    assert code == 2 and not started and f"--{idle} has no effect with --{other}" in err


def test_a_killed_run_gets_the_remedy_of_the_sweep(tmp_path, monkeypatch, capfd):
    """A sweep has no --resume."""
    given = []
    monkeypatch.setattr(sweeps, "run_in_processes", lambda *arguments: given.append(arguments[-1]))
    monkeypatch.setattr(sweeps.SweepRuns, "write", lambda self: None)
    sweeps.SweepRuns(None, tmp_path, []).train([], 1, False, None)
    assert given == ["the same command with --retry continues"]


def test_a_table_that_cannot_be_written_is_one_message(here, tmp_path):
    (tmp_path / "results" / "s" / "summary.csv").mkdir(parents=True)
    code, _, err, _ = here(TOP + FIXED)
    assert code == 2 and "summary.csv cannot be written" in err and "Traceback" not in err
    assert "and run the same command again" in err and "--resume" not in err


def test_the_table_stays_until_the_last_rung_is_trained(here, launch, tmp_path, monkeypatch):
    """Between two rungs all runs are finished for the moment."""
    real, calls = sweeps.run_in_processes, []

    def first_rung_only(*given):
        calls.append(1)
        if len(calls) > 1:
            raise sweeps.OutOfTimeError("2 runs are not finished")
        real(*given)

    monkeypatch.setattr(sweeps, "run_in_processes", first_rung_only)
    code, out, err, _ = here(TOP + FIXED + GRID + HALVING + "hours = 8\n")
    assert code == 0 and len(calls) == 2 and "hours of [stop] are over" in out, err
    assert (tmp_path / "results/s/summary.txt").read_text() in out
    drawn = []

    def drawn_again(seconds):
        drawn.append(seconds)
        raise signals.interrupted()

    # This module alone: a thread of another package may sleep at the same time.
    monkeypatch.setattr(sweeps, "time", SimpleNamespace(monotonic=time.monotonic, sleep=drawn_again))
    assert launch("sweep", "s.toml", "--watch")[0] == 0 and len(drawn) == 1


def test_a_failed_run_that_the_file_has_no_more_is_forgotten(here, tmp_path, monkeypatch):
    real = sweeps.run_train
    monkeypatch.setattr(sweeps, "run_train", lambda **given: 1 if "0.95" in str(given["gin"]) else real(**given))
    assert here(TOP + FIXED + GRID)[0] == 1
    code, _, err, _ = here(TOP + FIXED + GRID.replace(", 0.95", ""))
    assert code == 0 and "failed" not in err


def test_ray_chooses_the_gpu(here, monkeypatch):
    """The machine that starts a sweep may have none."""
    sent = []
    monkeypatch.setattr(sweeps, "check_address", lambda address, option: None)
    monkeypatch.setattr(sweeps, "connected", lambda address: nullcontext())
    monkeypatch.setattr(sweeps, "run_on_ray", lambda function, runs, *_: sent.extend(runs))
    for words, device in (((), "cpu"), (("--device", "cpu"), "cpu"), (("--device", "cuda"), "cuda")):
        sent.clear()
        code, _, err, _ = here(TOP + FIXED, "--address", "auto", *words)
        assert code == 0 and [given["device"] for _, given in sent] == [device, device], err
    code, _, err, _ = here(TOP + FIXED, "--address", "auto", "--jobs", "2")
    assert code == 2 and "--jobs 2 has no effect with --address" in err
    code, _, err, _ = here(TOP + FIXED, "--address", "auto", "--device", "cuda:1")
    assert code == 2 and "Ray chooses the GPU" in err


def test_why_a_task_failed_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_GROUP", "")
    error = RuntimeError("ray::train() (pid=1)")
    error.cause = FileNotFoundError("no such folder")
    assert sweep_ray._reason(error) == "FileNotFoundError: no such folder"
    assert sweep_ray._reason(RuntimeError("a node was lost\nmore")) == "a node was lost"
    with pytest.raises(UserError, match=r"the working directory .*nowhere is missing on this machine"):
        sweeps.train_run("g", str(tmp_path / "nowhere"), algo="sac", env="pendulum-v0")


def test_a_thread_may_connect_to_a_cluster(monkeypatch):
    """Only the main thread may set what a signal does."""
    monkeypatch.setitem(sys.modules, "ray", MagicMock())
    monkeypatch.setattr(ray_cluster, "check_address", lambda address, option: None)
    faults = []

    def connect():
        try:
            ray_cluster.connect("auto", "--address")
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    assert not faults


def test_a_dry_run_lists_and_writes_nothing(here, tmp_path):
    code, out, _, started = here(TOP + FIXED + GRID, "--dry_run")
    assert code == 0 and out.count(": new\n") == 4 and not started and not (tmp_path / "results").exists()


RANDOM = (
    "[random]\nsamples = {}\nseed = 3\nActorCritic.lr = {{log_uniform = [1e-5, 1e-2]}}\n"
    "SAC.alpha = {{choice = [0.1, 0.2]}}\n"
)


def test_the_sweeps_of_offpcc_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_sweep(Path("configs/sweeps/pendulum.toml")).name == "pendulum"


def test_samples_are_repeated_and_more_of_them_begin_alike(tmp_path):
    def settings(samples):
        (tmp_path / "s.toml").write_text(TOP + RANDOM.format(samples))
        return [point.swept for point in read_sweep(tmp_path / "s.toml").points]

    few, more = settings(3), settings(20)
    assert more[:3] == few and settings(3) == few
    rates = [float(one["ActorCritic.lr"]) for one in more]
    assert len({*rates}) == 20 and all(1e-5 <= rate <= 1e-2 for rate in rates) and min(rates) < 1e-4
    assert {one["SAC.alpha"] for one in more} == {"0.1", "0.2"}


def test_values_are_written_as_gin_reads_them(tmp_path):
    (tmp_path / "s.toml").write_text(
        TOP + '[gin]\na.b = "lstm"\na.c = "@LinearDecay()"\na.d = true\na.e = [1, "x"]\na.f = "None"\n"s/a.g" = 0.5\n'
    )
    fixed = read_sweep(tmp_path / "s.toml").fixed
    assert fixed == {"a.b": "'lstm'", "a.c": "@LinearDecay()", "a.d": "True", "a.e": "[1, 'x']", "a.f": "None"} | {
        "s/a.g": "0.5"
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("envs = 'a'\n" + TOP, "no key 'envs'; did you mean env?"),
        ("env = 3\nalgo = 'sac'", "env is 3; it has to be a name or a list"),
        ("algo = 'sac'", "there is no env or dataset"),
        ("env = 'pendulum-v0'", "there is no algo"),
        ("env = ", "is not valid TOML: Invalid value (at end of document); correct it"),
        (TOP.replace("[1, 2]", "[1, 1]"), "seeds is [1, 1]; it has to be a list of different"),
        (TOP.replace("epochs = 2", "epochs = 0"), "epochs is 0; it has to be"),
        (TOP.replace("sac", "sax"), "sax"),
        (TOP.replace("template_short", "template_shot"), "template_shot"),
        ("name = '../lr'\n" + TOP, "name is '../lr'; it has to be a folder's name of letters, digits, '.', '-' and "),
        (TOP + "[random]\nSAC.lr = {log_uniform = [0, 1e-4]}", "the highest number, both above 0, such as"),
        (TOP + "[grid]\nSAC.lr = 1", "grid.SAC.lr is 1; it has to be a list of values"),
        (TOP + "[grid]\nSAC.lrr = [1]", "has no parameter 'lrr'"),
        (TOP + "[grid]\nSAC.lrr = [1]", ".toml: template_short SAC.lrr=1: SAC.lrr: SAC has no parameter"),
        (TOP + "[grid]\nSACN.lr = [1]", ".toml: sac, template_short SACN.lr=1: SACN.lr has no effect"),
        (TOP + "[grid]\nActorCritic.lr = [1e-3, -1.0]", "SAC.lr is -1.0"),
        (TOP + "[random]\nuniform = [0, 1]", "it has to be a distribution of a binding: {uniform = [0.9, 0.999]}"),
        (TOP + "[random]\nSAC.lr = {uniforme = [0, 1]}", "a distribution of a binding (did you mean uniform?): {"),
        (TOP + "[random]\nSAC.lr = {log_uniform = [0, 1]}", "the lowest and the highest number"),
        (TOP + "[random]\nsamples = 0\nSAC.lr = {uniform = [0, 1]}", "random.samples is 0"),
        (TOP + "[gin]\nSAC.lr = 1.0\n[grid]\nSAC.lr = [1.0]", "SAC.lr is in two of"),
        (TOP + "[gin]\ntrain.num_epochs = 1", "write epochs = N"),
        ("[grid]\nalgo = ['sac']\nenv = ['pendulum-v0']", "env is in [grid], which is for gin bindings"),
        (TOP + "[stop]\nrule = 'median'", "stop.rule is 'median'; it has to be 'halving'"),
        (TOP + "stop = 3", "it has to be a table with hours, total_epochs, or with rule = 'halving'"),
        (TOP + "[stop]\nhours = 0", "stop.hours is 0; it has to be a number above 0"),
        (TOP + "[stop]\ntotal_epochs = 0.5", "stop.total_epochs is 0.5; it has to be a whole number above 0"),
        (TOP + "[stop]\nhours = 1\nfactor = 3", "no key 'stop.factor'"),
        (TOP + "[stop]\nrule = 'halving'\nfirst_epochs = 2", "stop.first_epochs is 2"),
        (TOP + f"[grid]\nSAC.alpha = {[0.1] * 51}", "the sweep has 102 runs; add --yes"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_before_a_run_starts(here, tmp_path, text, told):
    code, _, err, started = here(text)
    assert code == 2 and told in err and len(err.splitlines()) < 4, err
    assert not started and not (tmp_path / "results").exists()


def test_a_missing_file_is_told(launch):
    code, _, err = launch("sweep", "nowhere.toml")
    assert code == 2 and "there is no file nowhere.toml; name the TOML file of a sweep" in err


def test_an_address_without_ray_or_a_cluster_is_refused(here, monkeypatch):
    code, _, err, _ = here(TOP, "--address", "10.0.0.1")
    assert code == 2 and ("HOST:PORT" in err or "pip install ray" in err)
    if importlib.util.find_spec("ray") is not None:
        code, _, err, started = here(TOP, "--address", "127.0.0.1:1")
        assert code == 2 and err.count("\n") == 1 and "--address 127.0.0.1:1: there is no Ray cluster" in err
        assert not started and not Path("results").exists()
        monkeypatch.setattr(
            "ray.init", MagicMock(side_effect=ConnectionError("Could not find any running Ray; set `--address`"))
        )
        code, out, err, started = here(TOP, "--address", "auto")
        assert code == 2 and "--address auto: there is no Ray cluster (none runs on this machine)" in err, err
        assert out == "checking 1 setting\n" and not started and not Path("results").exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err, _ = here(TOP, "--address", "auto")
    assert code == 2 and "pip install ray" in err


def test_the_command_that_watches_has_the_folder_of_results(here, launch, tmp_path):
    _, out, _, _ = here(TOP + FIXED, "--results", "other place")
    assert " sweep s.toml --results 'other place' --watch" in out
    _, out, _ = launch("sweep", "s.toml", "--watch", "--results", "other place")
    assert "there is no sweep" not in out


def test_a_folder_without_a_sweep_is_told(here, launch, tmp_path, monkeypatch):
    (tmp_path / "s.toml").write_text(TOP + FIXED)
    stop = SimpleNamespace(monotonic=time.monotonic, sleep=MagicMock(side_effect=signals.Interrupted(2)))
    monkeypatch.setattr(sweeps, "time", stop)
    code, out, _ = launch("sweep", "s.toml", "--watch", "--results", "nowhere")
    assert code == 0 and "there is no sweep in" in out and "add --results FOLDER" in out


def test_a_finished_sweep_needs_no_cluster(here, monkeypatch):
    assert here(TOP + FIXED)[0] == 0
    monkeypatch.setattr(sweeps, "check_address", lambda address, option: None)
    monkeypatch.setattr(sweeps, "connected", MagicMock(side_effect=UserError("there is no Ray cluster")))
    code, out, err, started = here(TOP + FIXED, "--address", "auto")
    assert code == 0 and "finished" in out and not started, err


def test_one_connection_serves_all_rungs_and_is_closed(here, monkeypatch):
    calls = []
    monkeypatch.setattr(sweeps, "check_address", lambda address, option: None)
    monkeypatch.setattr(sweep_ray, "connect", lambda *given: calls.append("connect"))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(shutdown=lambda: calls.append("shutdown")))

    def train(function, runs, ended, deadline):
        calls.append(len(runs))
        for name, arguments in runs:
            ended(name, function(**arguments))

    monkeypatch.setattr(sweeps, "run_on_ray", train)
    assert here(TOP + FIXED + GRID + HALVING, "--address", "auto")[0] == 0
    assert calls == ["connect", 4, 2, "shutdown"]
    calls.clear()
    monkeypatch.setattr(sweeps, "run_on_ray", MagicMock(side_effect=UserError("lost")))
    assert here(TOP.replace("2", "3") + FIXED, "--address", "auto")[0] == 2
    assert calls == ["connect", "shutdown"]


def test_a_table_that_is_too_wide_shows_returns_and_states():
    row = ("1", "pendulum-p-v0", "rsac", "sac " * 30, -150.25, 3.5, 2, 40, "finished", "results/s")
    line = sweeps._table([dict(zip(sweeps.COLUMNS, row, strict=True))], 80).splitlines()[1]
    assert len(line) <= 80 and "..." in line and "-150.2" in line and line.endswith("finished")
    short = ("1", "cp-v0", "rsac", "lr=1", -150.25, 3.5, 2, 40, "epoch 12-14 of 40: -150.2", "results/s")
    table = [dict(zip(sweeps.COLUMNS, short, strict=True))]
    assert sweeps._table(table, 40) == sweeps._table(table), "columns do not become wider"
    assert "sac " * 30 in sweeps._table([dict(zip(sweeps.COLUMNS, row, strict=True))])


def test_the_runs_of_a_sweep_are_one_group(tmp_path, monkeypatch):
    wandb = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_RUN_GROUP", "")
    names = {"environment": "e", "algorithm": "a", "config_name": "c", "run_id": 1, "wandb_id": "i", "config": {}}
    monkeypatch.setattr(sweeps, "run_train", lambda **given: WandbLogger(tmp_path, **names) and 0)
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path))
    assert sweeps.train_run("my sweep", str(Path.cwd()), algo="sac", env="pendulum-v0") == 0
    assert wandb.init.call_args.kwargs["group"] == "my sweep"


# In processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path, forks):
    """Start a sweep."""

    def begin(*words):
        environment = os.environ | {"OFFPCC_RESULTS": str(tmp_path / "results"), "OMP_NUM_THREADS": "1"}
        return forks.start_command(["sweep", "s.toml", *words], tmp_path, environment, errors_apart=False)

    return begin


def wait_for_rows(tmp_path, process, number=3):
    started = time.monotonic()
    while not any(len(rows(file.parent)) > number for file in tmp_path.glob("results/s/*/*/*/*/progress.csv")):
        assert process.poll() is None and time.monotonic() - started < 300
        time.sleep(0.1)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_stopped(here, tmp_path, start):
    long = TOP.replace("epochs = 2", "epochs = 6").replace("[1, 2]", "[1, 2, 3]")
    long += FIXED.replace("epoch = 20", "epoch = 250")
    (tmp_path / "s.toml").write_text(long)
    process = start("--jobs", "2")
    wait_for_rows(tmp_path, process)
    process.kill()
    process.communicate(timeout=300)  # its runs have ended, too
    again = start("--jobs", "2")
    out, _ = again.communicate(timeout=600)
    assert again.returncode == 0, out
    assert "going on in" in "".join(file.read_text() for file in tmp_path.glob("results/s/*/*/*/*/output.txt"))
    found = {run.name: rows(run) for run in tmp_path.glob("results/s/*/*/*/*") if run.name.isdecimal()}
    assert sorted(found) == ["1", "2", "3"] and all(len(lines) == 7 for lines in found.values())
    code, _, err, _ = here('name = "whole"\n' + long)
    assert code == 0, err
    assert found == {run.name: rows(run) for run in tmp_path.glob("results/whole/*/*/*/*") if run.name.isdecimal()}


@pytest.mark.slow
def test_the_runs_of_a_lost_machine_go_on_on_another(tmp_path, monkeypatch, start):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "results"))
    text = TOP.replace("epochs = 2", "epochs = 6") + FIXED.replace("epoch = 20", "epoch = 250")
    (tmp_path / "s.toml").write_text(text)
    folder = tempfile.mkdtemp(prefix="ray")  # short, because Ray's sockets have names of 107 letters at most
    monkeypatch.setenv("RAY_TMPDIR", folder)  # a cluster of this machine writes its address into the usual one
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        process = start("--address", cluster.address)
        wait_for_rows(tmp_path, process)
        cluster.add_node(num_cpus=1)
        cluster.remove_node(lost, allow_graceful=False)
        out, _ = process.communicate(timeout=400)
        assert process.returncode == 0, out
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    found = {run.name: rows(run) for run in tmp_path.glob("results/s/*/*/*/*") if run.name.isdecimal()}
    assert sorted(found) == ["1", "2"] and all(len(lines) == 7 for lines in found.values())
    assert [row["status"] for row in table(tmp_path)] == ["finished"]


@pytest.mark.slow
def test_a_signal_stops_a_sweep_that_goes_on(tmp_path, start):
    (tmp_path / "s.toml").write_text(TOP.replace("epochs = 2", "epochs = 12") + FIXED.replace("= 20", "= 250"))
    process = start()
    wait_for_rows(tmp_path, process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 143 and "the same command continues the sweep" in out and "Traceback" not in out
    assert json.loads((tmp_path / "results/s/failed.json").read_text()) == {}


@pytest.mark.slow
def test_a_sweep_ends_after_its_hours_and_goes_on(tmp_path, start):
    text = TOP.replace("epochs = 2", "epochs = 16") + FIXED.replace("= 20", "= 250")
    (tmp_path / "s.toml").write_text(f"{text}[stop]\nhours = 0.001\n")  # four seconds
    process = start()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert (
        "the 0.001 hours of [stop] are over" in out
        and "runs are not finished; the same command continues the sweep" in out
    )
    assert json.loads((tmp_path / "results/s/failed.json").read_text()) == {}
    assert "finished" not in [row["status"] for row in table(tmp_path)]
    (tmp_path / "s.toml").write_text(text)
    process = start()
    assert process.wait(300) == 0
    assert table(tmp_path)[0]["status"] == "finished"


def test_the_tables_of_watch_and_dry_run_show_how_far_runs_are_and_ends_with_them(here, launch, tmp_path, monkeypatch):
    assert here(TOP + FIXED)[0] == 0
    code, out, err = launch("sweep", "s.toml", "--watch")
    assert code == 0 and "finished" in out and out.endswith("\n"), err
    (tmp_path / "s.toml").write_text(TOP.replace("epochs = 2", "epochs = 5") + FIXED)
    shown = (tmp_path / "results/s/summary.txt").read_text()

    def stop(seconds):
        raise signals.Interrupted(signal.SIGINT)

    monkeypatch.setattr(sweeps, "time", SimpleNamespace(monotonic=time.monotonic, sleep=stop))
    finished = sweeps.SweepRuns.status
    monkeypatch.setattr(sweeps.SweepRuns, "status", lambda self, run: finished(self, run) and "unfinished")
    for words in (["--watch"], ["--dry_run"]):
        code, out, err = launch("sweep", "s.toml", *words)
        assert code == 0 and "epoch 2 of 5: -" in out, err
    assert (tmp_path / "results/s/summary.txt").read_text() == shown, "nothing is written"


def test_each_algorithm_may_have_a_config_of_its_own(here, tmp_path):
    top = TOP.replace('"sac"', '["sac", "td3"]').replace('config = "test/template_short.gin"\n', "")
    (tmp_path / "own.gin").write_text("include 'configs/test/template_short.gin'\nTD3.lr = 2e-3\n")
    table = '[config]\nsac = "test/template_short.gin"\ntd3 = "own.gin"\n'
    code, out, err, _ = here(f"{top}{table}{FIXED}", "--dry_run")
    assert code == 0, err
    assert out.count("/sac/") == out.count("/td3/") == 2
    (tmp_path / "s.toml").write_text(f"{top}{table}{FIXED}")
    points = {point.algo: Path(point.config).name for point in read_sweep(tmp_path / "s.toml").points}
    assert points == {"sac": "template_short.gin", "td3": "own.gin"}
    code, _, err, _ = here(f"{top}[config]\nsac = 'test/template_short.gin'\n{FIXED}", "--dry_run")
    assert code == 2 and "a table with a file for each algo: sac, td3" in err


def test_a_text_in_braces_is_a_dictionary(tmp_path):
    (tmp_path / "s.toml").write_text(f"{TOP}[grid]\nmake.kwargs = [\"{{'g': 9.0}}\", \"{{'g': 5.0}}\"]\n")
    assert [point.swept for point in read_sweep(tmp_path / "s.toml").points] == [
        {"make.kwargs": "{'g': 9.0}"},
        {"make.kwargs": "{'g': 5.0}"},
    ]
