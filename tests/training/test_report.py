"""`offpcc report`: its statistics are those of plain references, and it says what it compares."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import offpcc
from offpcc.cli.main import main
from offpcc.training import seed_statistics
from offpcc.training.loggers import wandb_logger
from offpcc.utils.errors import UserError

TASKS = ("a-v0", "b-v0")
LEARNERS = {"sac": 0.2, "td3": 0.5}
SEEDS = 5


def write_run(folder, returns, offline=False, **details):
    folder.mkdir(parents=True)
    rows = ["epoch,step,updates,test/return,time/hours"]
    for place, value in enumerate(returns, 1):
        rows.append(f"{place},{0 if offline else 100 * place},{100 * place},{value},{place / 60}")
    (folder / "progress.csv").write_text("\n".join(rows) + "\n")
    (folder / "config.gin").write_text("")
    facts = {"env": folder.parents[1].name, "algo": folder.parent.name, "status": "finished", **details}
    (folder / "run.json").write_text(json.dumps(facts))


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for task, (name, level), seed in itertools.product(TASKS, LEARNERS.items(), range(1, SEEDS + 1)):
        low, high = sorted((level + 0.1 * draw.normal(size=2)).tolist())
        write_run(tmp_path / "runs" / task / name / str(seed), [0.0, high + 1.0, low])
    return tmp_path / "runs"


def row_of(report, task, algorithm):
    return next(row for row in report["rows"] if (row["task"], row["algorithm"]) == (task, algorithm))


# Statistics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [3, 4, 5, 8, 13])
def test_the_interquartile_mean_is_scipys(number):
    stats = pytest.importorskip("scipy.stats")
    scores = np.random.default_rng(number).normal(size=(2, number))
    expected = stats.trim_mean(scores.reshape(-1), 0.25)
    assert seed_statistics.interquartile_mean(list(scores)) == pytest.approx(expected)


def test_the_probability_of_improvement_counts_pairs():
    ours, others = [np.array([1.0, 2.0, 3.0]), np.array([5.0, 5.0])], [np.array([2.0, 0.0]), np.array([5.0, 6.0])]
    counted = [
        np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x in one for y in other])
        for one, other in zip(ours, others, strict=True)
    ]
    assert seed_statistics.probability_of_improvement(ours, others) == pytest.approx(np.mean(counted))
    stats = pytest.importorskip("scipy.stats")
    u = stats.mannwhitneyu(ours[0], others[0]).statistic
    assert seed_statistics.probability_of_improvement(ours[:1], others[:1]) == pytest.approx(u / 6)


def test_mean_median_gap_and_profile():
    tasks = [np.array([0.0, 0.5, 2.0]), np.array([1.0, 0.25])]
    assert seed_statistics.mean(tasks) == pytest.approx((2.5 / 3 + 0.625) / 2)
    assert seed_statistics.median(tasks) == pytest.approx((2.5 / 3 + 0.625) / 2)  # of two means
    assert seed_statistics.median(tasks[:1]) == 0.5
    assert seed_statistics.optimality_gap(tasks) == pytest.approx((1.5 / 3 + 0.75 / 2) / 2)
    np.testing.assert_allclose(
        seed_statistics.profile(tasks, np.array([0.1, 0.9])), [(2 / 3 + 1) / 2, (1 / 3 + 0.5) / 2]
    )


def test_the_interval_is_that_of_all_resamples():
    """Two tasks of three runs have 27 * 27 equally likely resamples."""
    tasks = [np.array([0.0, 1.0, 5.0]), np.array([2.0, 2.5, 9.0])]
    every = [
        np.mean([np.mean(first), np.mean(second)])
        for first in itertools.product(tasks[0], repeat=3)
        for second in itertools.product(tasks[1], repeat=3)
    ]
    low, high = seed_statistics.interval(seed_statistics.mean, tasks)
    exact = np.quantile(every, [0.025, 0.975])
    np.testing.assert_allclose([low, high], exact, atol=0.15)
    low, high = seed_statistics.interval(seed_statistics.mean, [np.array([1.0])])
    assert np.isnan(low)
    assert np.isnan(high)


def test_the_tuning_budget_is_that_of_all_choices():
    scores = np.array([3.0, -1.0, 0.5, 7.0, 7.0])
    expected = [np.mean([max(chosen) for chosen in itertools.combinations(scores, k)]) for k in range(1, 6)]
    np.testing.assert_allclose(seed_statistics.expected_best(scores), expected)


# Reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_files_and_their_values(results, capsys):
    words = ["report", "runs", "--baseline", "sac", "--normalise", "refs.toml", "--out", "out/mine"]
    Path("refs.toml").write_text('"a-v0" = [-1, 1]\n"b-v0" = [0, 2]\n')
    assert main(words) == 0
    assert {file.name for file in Path("out").iterdir()} == {"mine.md", "mine.png", "mine.json"}
    printed = capsys.readouterr().out
    assert Path("out/mine.md").read_text() in printed
    assert "P(better than sac)" in printed
    assert "IQM, last test of each run" in printed
    report = json.loads(Path("out/mine.json").read_text())
    tables = {task: [results / task / "td3" / str(seed) / "progress.csv" for seed in range(1, 6)] for task in TASKS}
    last = {task: [float(file.read_text().split(",")[-2]) for file in files] for task, files in tables.items()}
    scores = [(np.array(last["a-v0"]) + 1) / 2, np.array(last["b-v0"]) / 2]
    row = row_of(report, None, "td3")
    assert row["iqm"]["value"] == pytest.approx(float(seed_statistics.interquartile_mean(scores)))
    assert row["num_seeds"] == [5, 5]
    assert row["probability_of_improvement"]["value"] > 0.9
    assert row["iqm"]["low"] <= row["iqm"]["value"] <= row["iqm"]["high"]
    assert len(row["returns"]) == 10
    assert report["warnings"] == []


@pytest.mark.slow
def test_track_logs_table_figure_and_values_as_one_run(results, tmp_path):
    pytest.importorskip("wandb")
    variables = {"WANDB_MODE": "offline", "OFFPCC_WANDB_PROJECT": "lab", "WANDB_DATA_DIR": str(tmp_path / "staged")}
    variables["WANDB__SERVICE_WAIT"] = "200"  # seconds until its process answers, on a machine that does much else
    command = [sys.executable, Path(offpcc.__file__).with_name("launch.py"), "report", "runs/a-v0", "--out", "out/mine"]
    done = subprocess.run(
        [*command, "--track"], env=os.environ | variables, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0 and "Weights" not in done.stdout, done.stdout + done.stderr
    [run] = Path("out/wandb").glob("offline-run-*")
    [figure] = (run / "files").rglob("*.png")
    assert figure.read_bytes() == Path("out/mine.png").read_bytes()
    [table] = (run / "files").rglob("*.table.json")
    shown = json.loads(table.read_text())
    rows = [dict(zip(shown["columns"], row, strict=True)) for row in shown["data"]]
    written = json.loads(Path("out/mine.json").read_text())["rows"]
    assert [(row["task"], row["algorithm"]) for row in rows] == [("a-v0", "sac"), ("a-v0", "td3")]
    assert [row["iqm"] for row in rows] == [row["iqm"]["value"] for row in written]


def test_track_logs_the_written_files_as_one_artifact(results, monkeypatch):
    pytest.importorskip("wandb")
    run = Mock(id="abc")
    start = Mock(return_value=run)
    monkeypatch.setattr(wandb_logger, "start_run", start)
    values = offpcc.report(results, out="out/mine")
    files = {suffix: Path("out/mine").with_suffix(suffix) for suffix in (".md", ".png", ".json")}
    wandb_logger.upload_report(values, files, print)
    assert start.call_args.kwargs == {"job_type": "report", "group": "reports", "name": "mine"}
    [artifact] = run.log_artifact.call_args.args
    assert (artifact.name, artifact.type) == ("report-abc", "report")
    assert {name: entry.size for name, entry in artifact.manifest.entries.items()} == {
        file.name: file.stat().st_size for file in files.values()
    }
    run.finish.assert_called_once_with()


def test_best_and_last_are_never_mixed(results):
    last, best = (offpcc.report(results / "a-v0", test=test) for test in ("last", "best"))
    assert row_of(best, "a-v0", "sac")["iqm"]["value"] > row_of(last, "a-v0", "sac")["iqm"]["value"] + 0.9
    assert (last["test"], best["test"]) == ("last", "best")


def test_few_seeds_and_several_units_are_told(results):
    shutil.rmtree(results / "a-v0" / "sac" / "5")
    report = offpcc.report(results)
    assert any("fewer than 5 seeds" in text and "sac in a-v0 (4)" in text for text in report["warnings"])
    assert any("nothing is aggregated over tasks" in text for text in report["warnings"])
    assert {row["task"] for row in report["rows"]} == {*TASKS}


def test_offline_runs_have_a_tuning_budget(tmp_path):
    returns = [1.0, 5.0, 3.0]
    for seed, value in enumerate(returns, 1):
        write_run(tmp_path / "a-v0_from_data" / "iql" / str(seed), [0.0, value], offline=True, dataset="data.hdf5")
    budget = offpcc.report(tmp_path)["tuning_budget"]
    assert [one["algorithm"] for one in budget] == ["iql"]
    np.testing.assert_allclose(budget[0]["expected_best"], seed_statistics.expected_best(np.array(returns)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"baseline": "ddpg"}, "there are no runs of the baseline ddpg; there are sac, td3"),
        ({"normalise": "d4rl"}, "there are no references of a-v0, b-v0 to normalise returns"),
        ({"normalise": "gone.toml"}, "gone.toml cannot be read as references"),
        ({"normalise": {"a-v0": [1, 0], "b-v0": [0, 1]}}, "have to be two returns, low and high"),
        ({"normalise": {"a-v0": [0, 1]}}, "there are no references of b-v0"),
        ({"test": "first"}, "test"),
    ],
)
def test_bad_input(results, given, message):
    with pytest.raises(UserError, match=message):
        offpcc.report(results, "out/mine", **given)
    assert not Path("out").exists()


def test_bad_runs(results):
    with pytest.raises(UserError, match="is the only run with tests"):
        offpcc.report(results / "a-v0" / "sac" / "1")
    write_run(results / "a-v0" / "sac" / "9", [0.0, 1.0, 2.0], versions={"offpcc": "9.0.0"})
    with pytest.raises(UserError, match=r"offpcc 9\.0\.0 made the run"):
        offpcc.report(results)
    shutil.rmtree(results / "a-v0" / "sac" / "9")
    for task, name in zip(TASKS, LEARNERS, strict=True):
        shutil.rmtree(results / task / name)
    with pytest.raises(UserError, match="no algorithm has runs in all of a-v0, b-v0"):
        offpcc.report(results, normalise="minmax")
