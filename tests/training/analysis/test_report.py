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
from scipy import interpolate, stats

import offpcc
from offpcc.cli.main import main
from offpcc.training.analysis import report_figure, run_statistics
from offpcc.training.analysis.report import STATISTICS, _improvement, _in_latex, make_report
from offpcc.training.loggers import wandb_logger
from offpcc.utils.errors import UserError

TASKS = ("a-v0", "b-v0")
LEARNERS = {"sac": 0.2, "td3": 0.5}
SEEDS = 5


def write_run(folder, returns, offline=False, scored=False, **details):
    folder.mkdir(parents=True)
    rows = ["epoch,step,updates,test/return,time/hours" + ",test/normalized_score" * scored]
    for place, value in enumerate(returns, 1):
        rows.append(f"{place},{0 if offline else 100 * place},{100 * place},{value},{place / 60}" + ",50.0" * scored)
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


# The definitions of rliable, in SciPy's words, for tasks (..., R) with equally many runs.
PLAIN = {
    "iqm": lambda *tasks: stats.trim_mean(np.concatenate(tasks, -1), 0.25, axis=-1),
    "mean": lambda *tasks: np.mean([task.mean(-1) for task in tasks], axis=0),
    "median": lambda *tasks: np.median([task.mean(-1) for task in tasks], axis=0),
    "optimality_gap": lambda *tasks: 1.0 - np.minimum(np.concatenate(tasks, -1), 1.0).mean(-1),
}


def plain_improvement(*both):
    """Of tasks of X, then those of Y: the mean of U / (n m), as rliable defines it."""
    half = len(both) // 2
    of_tasks = [
        stats.mannwhitneyu(x, y, axis=-1, method="asymptotic").statistic / (x.shape[-1] * y.shape[-1])
        for x, y in zip(both[:half], both[half:], strict=True)
    ]
    return np.mean(of_tasks, axis=0)


def draw_tasks(number, seed, level=0.0):
    """Scores of 3 tasks at different levels, so that runs must not be drawn across tasks."""
    draw = np.random.default_rng(seed)
    return [level + task + (0.5 + task) * draw.normal(size=number) for task in range(3)]


def assert_interval(ours, statistic, data):
    """SciPy resamples each of its samples by itself, which is the stratified bootstrap."""
    options = {"method": "percentile", "n_resamples": 20_000, "vectorized": True, "axis": -1}
    theirs = stats.bootstrap(
        data, lambda *tasks, axis: statistic(*tasks), **options, rng=np.random.default_rng(1)
    ).confidence_interval
    np.testing.assert_allclose(ours, theirs, atol=0.04 * (theirs.high - theirs.low))


@pytest.mark.parametrize("number", [3, 4, 5, 8, 13])
@pytest.mark.parametrize("name", PLAIN)
def test_statistics_are_those_of_rliable(name, number):
    tasks = draw_tasks(number, number)
    assert STATISTICS[name](tasks) == pytest.approx(PLAIN[name](*tasks))


@pytest.mark.parametrize("name", PLAIN)
def test_intervals_are_those_of_scipy(name):
    tasks = draw_tasks(8, 2)
    assert_interval(run_statistics.interval(STATISTICS[name], tasks), PLAIN[name], tasks)


def test_the_probability_of_improvement_is_scipys():
    ours, others = draw_tasks(6, 3, level=0.5), draw_tasks(5, 4)
    others[1][:2] = ours[1][:2]  # equal ones count half
    estimate = _improvement(ours, others)
    assert estimate.value == pytest.approx(plain_improvement(*ours, *others))
    assert_interval(estimate[1:], plain_improvement, [*ours, *others])


def test_the_order_of_folders_does_not_pair_different_tasks(tmp_path):
    """P(better) compares runs of one task, also if the folders of an algorithm name its tasks in another order."""
    levels = {("a-v0", "sac"): 0.0, ("b-v0", "sac"): 0.8, ("b-v0", "td3"): 0.9, ("a-v0", "td3"): 0.1}
    for (task, name), level in levels.items():
        for seed in range(1, 3):
            write_run(tmp_path / task / name / str(seed), [level])
    folders = [tmp_path / task / name for task, name in levels]
    references = {task: [0.0, 1.0] for task in TASKS}
    report = offpcc.report(folders, baseline="sac", normalise=references)
    assert row_of(report, None, "td3")["probability_of_improvement"]["value"] == 1.0


def test_the_profile_is_scipys():
    tasks = draw_tasks(7, 5)
    thresholds = np.array([*np.linspace(-3.0, 6.0, 20), *tasks[0]])
    expected = stats.ecdf(np.concatenate(tasks)).sf.evaluate(thresholds)
    np.testing.assert_allclose(run_statistics.profile(tasks, thresholds), expected)


def test_curves_are_interquartile_means_with_intervals(results):
    """Of normalised scores over both tasks: at the common steps, and between two tests in time."""
    row = row_of(offpcc.report(results, normalise={"a-v0": [0, 1], "b-v0": [-1, 3]}), None, "sac")
    tables = {
        task: np.array([
            np.genfromtxt(results / task / "sac" / str(seed) / "progress.csv", delimiter=",", skip_header=1)
            for seed in range(1, SEEDS + 1)
        ])
        for task in TASKS
    }  # fmt: skip
    scores = [tables["a-v0"][..., 3], (tables["b-v0"][..., 3] + 1.0) / 4.0]  # (R, S)
    steps, hours = tables["a-v0"][0, :, 1], tables["a-v0"][0, :, 4]
    band = {name: np.array(values) for name, values in row["by_step"].items()}
    np.testing.assert_array_equal(band["at"], steps)
    np.testing.assert_allclose(band["value"], PLAIN["iqm"](*(task.T for task in scores)))
    for place in (1, 2):
        ends = band["low"][place], band["high"][place]
        assert_interval(ends, PLAIN["iqm"], [task[:, place] for task in scores])
    band = {name: np.array(values) for name, values in row["by_hours"].items()}
    assert (band["at"][0], band["at"][-1]) == pytest.approx((hours[0], hours[-1]))
    between = [interpolate.make_interp_spline(hours, task, k=1, axis=1)(band["at"]) for task in scores]
    np.testing.assert_allclose(band["value"], PLAIN["iqm"](*(task.T for task in between)))


def test_mean_median_gap_and_profile():
    tasks = [np.array([0.0, 0.5, 2.0]), np.array([1.0, 0.25])]
    assert run_statistics.mean(tasks) == pytest.approx((2.5 / 3 + 0.625) / 2)
    assert run_statistics.median(tasks) == pytest.approx((2.5 / 3 + 0.625) / 2)  # of two means
    assert run_statistics.median(tasks[:1]) == 0.5
    assert run_statistics.optimality_gap(tasks) == pytest.approx((1.5 / 3 + 0.75 / 2) / 2)
    np.testing.assert_allclose(
        run_statistics.profile(tasks, np.array([0.1, 0.9])), [(2 / 3 + 1) / 2, (1 / 3 + 0.5) / 2]
    )


def test_the_interval_is_that_of_all_resamples():
    """Two tasks of three runs have 27 * 27 equally likely resamples."""
    tasks = [np.array([0.0, 1.0, 5.0]), np.array([2.0, 2.5, 9.0])]
    every = [
        np.mean([np.mean(first), np.mean(second)])
        for first in itertools.product(tasks[0], repeat=3)
        for second in itertools.product(tasks[1], repeat=3)
    ]
    low, high = run_statistics.interval(run_statistics.mean, tasks)
    exact = np.quantile(every, [0.025, 0.975])
    np.testing.assert_allclose([low, high], exact, atol=0.15)
    low, high = run_statistics.interval(run_statistics.mean, [np.array([1.0])])
    assert np.isnan(low)
    assert np.isnan(high)


def test_the_tuning_budget_is_that_of_all_choices():
    scores = np.array([3.0, -1.0, 0.5, 7.0, 7.0])
    expected = [np.mean([max(chosen) for chosen in itertools.combinations(scores, k)]) for k in range(1, 6)]
    np.testing.assert_allclose(run_statistics.expected_best(scores), expected)


# Reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_files_and_their_values(results, capsys):
    words = ["report", "runs", "--baseline", "sac", "--normalise", "refs.toml", "--out", "out/mine"]
    Path("refs.toml").write_text('"a-v0" = [-1, 1]\n"b-v0" = [0, 2]\n')
    assert main(words) == 0
    assert {file.name for file in Path("out").iterdir()} == {"mine.md", "mine.tex", "mine.png", "mine.json"}
    printed = capsys.readouterr().out
    assert Path("out/mine.md").read_text() in printed
    assert "P(better than sac)" in printed
    assert "IQM, last test that all runs have" in printed
    report = json.loads(Path("out/mine.json").read_text())
    tables = {task: [results / task / "td3" / str(seed) / "progress.csv" for seed in range(1, 6)] for task in TASKS}
    last = {task: [float(file.read_text().split(",")[-2]) for file in files] for task, files in tables.items()}
    scores = [(np.array(last["a-v0"]) + 1) / 2, np.array(last["b-v0"]) / 2]
    row = row_of(report, None, "td3")
    assert row["iqm"]["value"] == pytest.approx(float(run_statistics.interquartile_mean(scores)))
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
    assert done.returncode == 0 and "later with wandb sync" in done.stdout, done.stdout + done.stderr
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


def test_scores_are_normalised_by_minmax_and_by_d4rl(results, tmp_path):
    report = offpcc.report(results, normalise="minmax")
    for task in TASKS:
        scores = np.concatenate([row_of(report, task, name)["scores"] for name in LEARNERS])
        returns = np.concatenate([row_of(report, task, name)["returns"] for name in LEARNERS])
        assert (scores.min(), scores.max()) == (0.0, 1.0)
        np.testing.assert_allclose(scores, (returns - returns.min()) / (returns.max() - returns.min()))
    for seed in "12":
        write_run(tmp_path / "one" / "c-v0" / "sac" / seed, [1.0, 2.0])
    with pytest.raises(UserError, match="two different returns of each task, but those of c-v0 are all 2; add runs"):
        offpcc.report(tmp_path / "one", normalise="minmax")
    for seed, value in enumerate((-20.272305, 3234.3), 1):  # the random and the expert return that D4RL publishes
        folder = tmp_path / "d4rl" / "hopper-medium-v2" / "iql" / str(seed)
        write_run(folder, [0.0, value], offline=True, scored=True)
    report = offpcc.report(tmp_path / "d4rl", normalise="d4rl")
    assert row_of(report, "hopper-medium-v2", "iql")["scores"] == pytest.approx([0.0, 1.0], abs=1e-6)


def test_every_cell_has_its_number_of_seeds_and_every_run_is_a_thin_line(results, tmp_path, monkeypatch):
    shutil.rmtree(results / "a-v0" / "sac" / "5")
    drawn = []
    monkeypatch.setattr(report_figure, "save_figure", lambda figure, file: drawn.append(figure))
    report = make_report([results], baseline="td3", normalise="minmax")
    table, _, _ = report.as_markdown().partition("Tuning budget")
    head, *lines = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + 3 * 2  # the rule of the table, then two algorithms over all tasks and in each of two
    for line in lines[1:]:
        task, name, _, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        number = {"a-v0": "4", "all tasks": "4 to 5"}.get(task, "5") if name == "sac" else "5"
        assert len(cells) == head.count("|") - 4
        assert all(cell.endswith(f"({number})") for cell in cells if cell), line
    report_figure.draw_report(report, tmp_path / "figure.png")
    panels = [axes for axes in drawn[0].axes if axes.get_title(loc="left").split("\n")[-1].startswith("IQM against")]
    thin = [sum(line.get_linewidth() == 0.6 for line in axes.lines) for axes in panels]
    assert thin == [19, 19, 9, 9, 10, 10]  # against steps and time: all tasks, then each


def test_the_latex_table_has_a_row_per_task_and_the_best_in_bold(results):
    report = make_report([results], normalise="minmax")
    lines = report.as_latex().splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    names = [name.strip() for name in lines[lines.index(r"\toprule") + 1].rstrip("\\ ").split("&")]
    assert [line.split(" & ")[0] for line in body] == ["a-v0", "b-v0", "all tasks"]
    values = {(entry.task, entry.name): entry.statistics["iqm"] for entry in report.entries}
    for line in body:
        task, *cells = line.removesuffix(r" \\").split(" & ")
        best = max(names[1:], key=lambda name: values[task, name].value)
        for name, cell in zip(names[1:], cells, strict=True):
            value, low, high = (f"{number:.3f}" for number in values[task, name])
            shown = rf"$\mathbf{{{value}}}$" if name == best else f"${value}$"
            assert cell == rf"{shown} {{\scriptsize $[{low}, {high}]$}}"
    assert all(line.startswith("%") for line in lines[: lines.index(r"\begin{tabular}{lcc}")])


def test_no_value_is_bold_if_algorithms_are_compared_at_different_steps(tmp_path):
    for task in ("a-v0", "b-v0"):
        for run_id in (1, 2):
            write_run(tmp_path / task / "sac" / str(run_id), [1.0, 2.0, 3.0])
            write_run(tmp_path / task / "td3" / str(run_id), [1.0, 2.0] if task == "a-v0" else [1.0, 2.0, 4.0])
    report = make_report([tmp_path], normalise="minmax")
    rows = {line.split(" & ")[0]: line for line in report.as_latex().splitlines() if "$" in line}
    assert ["mathbf" in rows[task] for task in ("a-v0", "b-v0", "all tasks")] == [False, True, False]


def test_special_characters_are_escaped_in_latex():
    assert _in_latex(r"td3_bc, gamma=50% {a} \x") == r"td3\_bc, gamma=50\% \{a\} \textbackslash{}x"


def test_few_seeds_and_several_units_are_told(results):
    shutil.rmtree(results / "a-v0" / "sac" / "5")
    report = offpcc.report(results)
    assert any("fewer than 5 seeds" in text and "sac in a-v0 (4)" in text for text in report["warnings"])
    assert any("nothing is aggregated over tasks" in text for text in report["warnings"])
    assert not any("one seed has none" in text for text in report["warnings"])
    for run_id in range(2, 5):
        shutil.rmtree(results / "a-v0" / "sac" / str(run_id))
    assert any("too narrow (one seed has none): sac in a-v0 (1)" in text for text in offpcc.report(results)["warnings"])
    assert {row["task"] for row in report["rows"]} == {*TASKS}


def test_the_table_tells_at_which_step_runs_are_compared(results):
    write_run(results / "a-v0" / "sac" / "6", [0.0], status="stopped")
    report = make_report([results / "a-v0"])
    told = "sac in a-v0 is compared after 100 of 300 steps, because runs 6 have no later test that all have"
    assert any(told in text for text in report.warnings)
    assert "| a-v0 | sac | 100 |" in report.as_markdown() and "| a-v0 | td3 | 300 |" in report.as_markdown()
    assert row_of(report.as_plain_data(), "a-v0", "sac")["returns"] == [0.0] * 6


@pytest.mark.parametrize("name", ["my_env-a-v0_from_log", "my_env:a-v0_from_log", "my_env:a-v0", "a-v0"])
def test_references_name_a_task_or_its_environment(tmp_path, name):
    for seed in (1, 2):
        folder = tmp_path / "my_env-a-v0_from_log" / "iql" / str(seed)
        write_run(folder, [5.0 * seed], env="my_env:a-v0", dataset="log.hdf5")
    report = offpcc.report(tmp_path, normalise={name: [0.0, 10.0], "other-v0": [0.0, 1.0]})
    assert report["references"] == {"my_env-a-v0_from_log": [0.0, 10.0]}
    assert report["rows"][0]["scores"] == [0.5, 1.0]


def test_offline_runs_have_a_tuning_budget(tmp_path):
    returns = [1.0, 5.0, 3.0]
    for seed, value in enumerate(returns, 1):
        write_run(tmp_path / "a-v0_from_data" / "iql" / str(seed), [0.0, value], offline=True, dataset="data.hdf5")
    budget = offpcc.report(tmp_path)["tuning_budget"]
    assert [one["algorithm"] for one in budget] == ["iql"]
    np.testing.assert_allclose(budget[0]["expected_best"], run_statistics.expected_best(np.array(returns)))
    write_run(tmp_path / "a-v0_from_data" / "iql" / "4", [0.0, 2.0], offline=True, dataset="data.hdf5")
    table = make_report([tmp_path]).as_markdown().partition("Tuning budget")[2]
    assert "| k = 1 | k = 2 | k = 3 | k = 4 |" in table, "all four policies, as in the figure"


def test_runs_online_have_no_tuning_budget_even_if_no_training_episode_ended(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / "a-v0" / "sac" / str(seed), [0.0, 1.0], dataset=None)
    assert not offpcc.report(tmp_path)["tuning_budget"]


def test_folders_of_the_users_own_are_the_tasks_of_their_runs(tmp_path):
    """`offpcc.fit(spec, run_dir)` takes any folder."""
    for name, env in (("first", "a-v0"), ("second", "b-v0")):
        for seed in (1, 2):
            write_run(tmp_path / "lab" / name / str(seed), [0.0, 1.0], env=env, algo="sac")
    rows = [(row["task"], row["algorithm"]) for row in offpcc.report(tmp_path / "lab")["rows"]]
    assert rows == [("a-v0", "first"), ("b-v0", "second")]
    assert {one.environment for one in offpcc.plot(tmp_path / "lab", tmp_path / "curves.png")} == {"a-v0", "b-v0"}


def test_folders_of_one_name_and_task_stay_apart(tmp_path):
    for place, value in (("exp1", 1.0), ("exp2", 7.0)):
        for seed in (1, 2):
            write_run(tmp_path / "lab" / place / "runs" / str(seed), [0.0, value], env="a-v0", algo="sac")
            data = {"name": place, "source": f"{place}.hdf5"}
            learned = {"env": "a-v0", "algo": "bc", "dataset": data}
            write_run(tmp_path / "data" / place / "runs" / str(seed), [0.0, value], offline=True, **learned)
    rows = offpcc.report(tmp_path / "lab")["rows"]
    assert [(row["task"], row["algorithm"], row["returns"]) for row in rows] == [
        ("a-v0", "exp1/runs", [1.0, 1.0]),
        ("a-v0", "exp2/runs", [7.0, 7.0]),
    ]
    rows = offpcc.report(tmp_path / "data")["rows"]
    assert [row["task"] for row in rows] == ["a-v0_from_exp1", "a-v0_from_exp2"]


def test_an_algorithms_name_does_not_make_the_folder_above_a_task(tmp_path):
    for name, env in (("sac", "a-v0"), ("td3", "b-v0")):
        for seed in (1, 2):
            write_run(tmp_path / "lab" / name / str(seed), [0.0, 1.0], env=env, algo=name)
    assert [row["task"] for row in offpcc.report(tmp_path / "lab")["rows"]] == ["a-v0", "b-v0"]


def test_algorithms_of_one_folder_have_budgets_of_their_own(tmp_path):
    for seed, (algo, value) in enumerate([("bc", 1.0), ("bc", 2.0), ("cql", 5.0), ("cql", 6.0)], 1):
        write_run(tmp_path / "lab" / "mine" / str(seed), [0.0, value], offline=True, env="a-v0", algo=algo)
    found = {one["algorithm"]: one["expected_best"] for one in offpcc.report(tmp_path)["tuning_budget"]}
    assert found == {"bc": [1.5, 2.0], "cql": [5.5, 6.0]}


def test_a_run_without_its_record_is_one_of_its_siblings(tmp_path, capsys):
    for seed in (1, 2, 3):
        write_run(tmp_path / "a-v0_from_data" / "iql" / str(seed), [0.0, 1.0], env="a-v0", algo="iql")
    (tmp_path / "a-v0_from_data" / "iql" / "3" / "run.json").unlink()
    (row,) = offpcc.report(tmp_path)["rows"]
    assert row["task"] == "a-v0_from_data" and len(row["scores"]) == 3
    assert main(["plot", str(tmp_path), "--output", str(tmp_path / "curves.png")]) == 0
    assert "a-v0_from_data iql: test/return 1.00 +- 0.00 over 3 runs" in capsys.readouterr().out


def test_plot_reads_a_folder_with_runs_of_several_environments(tmp_path, capsys):
    for seed, env in enumerate(("a-v0", "b-v0"), 1):
        write_run(tmp_path / "lab" / "mine" / str(seed), [0.0, 1.0], env=env, algo="sac", simulator=f"sim {seed}")
    assert main(["plot", str(tmp_path), "--output", str(tmp_path / "curves.png")]) == 0
    out = capsys.readouterr().out
    assert "a-v0 (sim 1)" in out and "b-v0 (sim 2)" in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"baseline": "ddpg"}, 'there are no runs of the baseline ddpg; give a label of the report: "sac", "td3"'),
        ({"normalise": "d4rl"}, "there are no reference returns for a-v0, b-v0 to normalise with"),
        ({"normalise": "gone.toml"}, "gone.toml cannot be read as references"),
        ({"normalise": {"a-v0": [1, 0], "b-v0": [0, 1]}}, "have to be two returns, low and high"),
        ({"normalise": {"a-v0": [0, 1]}}, "there are no reference returns for b-v0"),
        ({"test": "first"}, "test"),
    ],
)
def test_bad_input(results, given, message):
    with pytest.raises(UserError, match=message):
        offpcc.report(results, "out/mine", **given)
    assert not Path("out").exists()


def test_bad_runs(results):
    with pytest.raises(UserError, match="is the only run with any test,"):
        offpcc.report(results / "a-v0" / "sac" / "1")
    write_run(results / "a-v0" / "sac" / "9", [0.0, 1.0, 2.0], versions={"offpcc": "9.0.0"})
    with pytest.raises(UserError, match=r"offpcc 9\.0\.0 made the run"):
        offpcc.report(results)
    shutil.rmtree(results / "a-v0" / "sac" / "9")
    for task, name in zip(TASKS, LEARNERS, strict=True):
        shutil.rmtree(results / task / name)
    with pytest.raises(UserError, match="no algorithm has runs in all of a-v0, b-v0"):
        offpcc.report(results, normalise="minmax")
