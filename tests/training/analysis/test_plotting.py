import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from offpcc.cli.commands import run_plot
from offpcc.training.analysis import plotting
from offpcc.training.analysis.plotting import plot_run, plot_runs
from offpcc.training.analysis.report import make_report
from offpcc.training.analysis.run_tables import NoRunsError
from offpcc.utils.errors import UserError

COLUMNS = "epoch,step,train/return,test/return,test/return_std\n"


def write_run(folder, returns, steps_per_epoch=1000):
    """A run whose test returns are given; None for an epoch without a test."""
    folder.mkdir(parents=True)
    rows = [
        f"{i},{i * steps_per_epoch},{-i}.0,{'' if value is None else value},{'' if value is None else 0.5}\n"
        for i, value in enumerate(returns, start=1)
    ]
    (folder / "progress.csv").write_text(COLUMNS + "".join(rows))
    return folder


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    found, save = [], plotting.save_figure
    monkeypatch.setattr(plotting, "save_figure", lambda figure, file: (found.append(figure), save(figure, file)))
    return found


def write_runs(folder, config, returns):
    """Runs with a config, by their ids."""
    for run_id, values in returns.items():
        (write_run(folder / str(run_id), values) / "config.gin").write_text(config)


def assert_picture(file):
    picture = matplotlib.image.imread(file)
    assert min(picture.shape[:2]) > 300
    assert picture.std() > 0.01  # not blank
    return picture


def colours(picture):
    return {tuple(pixel) for pixel in np.round(255 * picture[..., :3]).astype(int).reshape(-1, 3)}


def test_no_runs_are_an_error(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NoRunsError):
            plot_runs([folder], tmp_path / "curve.png")


@pytest.mark.parametrize(
    "returns",
    [[1.0, 5.0, 3.0], [1.0], [None, 2.0, None, 4.0], [None, None]],
    ids=["full", "one", "gaps", "none"],
)
def test_plot_run(tmp_path, returns):
    run = write_run(tmp_path / "Pendulum-v1" / "sac" / "1", returns)
    plot_run(run, run / "curve.png")
    assert_picture(run / "curve.png")
    assert sorted(file.name for file in run.iterdir()) == ["curve.png", "progress.csv"]


def test_plot_run_without_training_or_std_columns(tmp_path):
    run = tmp_path / "env" / "cql" / "1"
    run.mkdir(parents=True)
    (run / "progress.csv").write_text("step,test/return\n10,1.0\n20,2.0\n")
    plot_run(run, run / "curve.png")
    assert_picture(run / "curve.png")


def test_plot_run_draws_test_and_training_return_and_names_the_run(tmp_path, figures):
    run = write_run(tmp_path / "Pendulum-v1" / "sac" / "3", [1.0, None, 5.0])
    plot_run(run, tmp_path / "curve.png")
    [axes] = figures[0].axes
    train, test = axes.lines
    assert train.get_xydata().tolist() == [[1000, -1], [2000, -2], [3000, -3]]
    assert test.get_xydata().tolist() == [[1000, 1], [3000, 5]]
    [band] = axes.collections
    assert band.get_datalim(axes.transData).intervaly.tolist() == [0.5, 5.5]
    assert axes.get_title() == "Pendulum-v1, sac, run 3"
    assert axes.get_xlabel() == "environment steps"


def test_a_long_title_has_lines_that_fit_the_panel(tmp_path, figures):
    label = "water-maze-simple-pomdp-v0_from_water_maze_replay_then_online"
    write_run(tmp_path / label / "rcalql" / "1", [1.0, 5.0])
    plot_runs([tmp_path / label], tmp_path / "curves.png")
    title = figures[0].axes[0].get_title()
    assert title.split("\n") == ["water-maze-simple-pomdp-v0", "_from_water_maze_replay", "_then_online"]
    plot_run(tmp_path / label / "rcalql" / "1", tmp_path / "curve.png")
    assert figures[1].axes[0].get_title().replace("\n", "") == f"{label}, rcalql, run 1"


@pytest.mark.parametrize("name", ["x" * 10**6, "a_from_b" * 100, "many words " * 100])
def test_a_title_has_six_lines_at_most(name):
    lines = plotting._wrapped(name).split("\n")
    assert len(lines) == 6 and lines[-1] == "..." and all(len(line) <= plotting.TITLE for line in lines)


def test_what_steps_are_and_where_the_legend_of_many_lines_is(tmp_path, figures):
    for number in range(7):
        write_run(tmp_path / "many" / f"algo{number}" / "1", [1.0, 2.0])
    recorded = write_run(tmp_path / "recorded" / "riql" / "1", [1.0, 2.0]) / "progress.csv"
    recorded.write_text(COLUMNS + "1,1000,,1.0,0.5\n2,2000,,2.0,0.5\n")
    plot_runs([tmp_path], tmp_path / "curves.png")
    many, few = figures[0].axes
    assert (many.get_xlabel(), few.get_xlabel()) == ("environment steps", "steps of learning from recorded data")
    legends = [axes.get_legend().get_window_extent() for axes in (many, few)]
    assert legends[0].x0 >= many.get_window_extent().x1 and legends[1].x1 <= few.get_window_extent().x1


def test_a_summary_is_numpys_mean_and_std_over_runs(tmp_path):
    returns = np.random.default_rng(0).normal(size=(3, 4))
    for i, values in enumerate(returns.tolist()):
        write_run(tmp_path / "env" / "sac" / str(i), values)
    write_run(tmp_path / "env" / "td3" / "0", [7.0, 8.0])
    sac, td3 = plot_runs([tmp_path / "env"], tmp_path / "curves.png")
    assert (sac.environment, sac.label, sac.num_runs, sac.steps) == ("env", "sac", 3, 4000)
    assert sac.final_mean == pytest.approx(returns[:, -1].mean(), rel=1e-12)
    assert sac.final_std == pytest.approx(returns[:, -1].std(), rel=1e-12)
    assert td3 == ("env", "td3", 1, 8.0, 0.0, 2000, 2000)
    seen = colours(assert_picture(tmp_path / "curves.png"))
    assert (0x00, 0x72, 0xB2) in seen
    assert (0xD5, 0x5E, 0x00) in seen


def test_groups_end_where_their_shortest_run_ends(tmp_path):
    write_run(tmp_path / "env" / "sac" / "1", [1.0, None, 3.0, 4.0])
    write_run(tmp_path / "env" / "sac" / "2", [5.0, 6.0, 7.0])
    write_run(tmp_path / "env" / "sac" / "3", [])
    [summary] = plot_runs([tmp_path], tmp_path / "curve.png")
    assert summary == ("env", "sac", 2, 5.0, 2.0, 3000, 4000)


def test_runs_given_twice_count_once(tmp_path, monkeypatch):
    run = write_run(tmp_path / "env" / "sac" / "1", [1.0])
    monkeypatch.chdir(run.parent)
    [summary] = plot_runs([tmp_path / "env", run, Path("1")], tmp_path / "curve.png")
    assert summary.num_runs == 1


def test_environments_have_panels_of_their_own(tmp_path):
    for environment in ("a", "b", "c", "d"):
        write_run(tmp_path / environment / "sac" / "1", [1.0, 2.0])
    plot_runs([tmp_path / "a"], tmp_path / "one.png")
    summaries = plot_runs([tmp_path], tmp_path / "four.png")
    assert [summary.environment for summary in summaries] == ["a", "b", "c", "d"]
    one, four = assert_picture(tmp_path / "one.png"), assert_picture(tmp_path / "four.png")
    assert four.shape[:2] == (2 * one.shape[0], 3 * one.shape[1])


def test_other_metrics(tmp_path):
    write_run(tmp_path / "env" / "sac" / "1", [1.0, 2.0])
    write_run(tmp_path / "env" / "td3" / "1", [1.0, 2.0])
    summaries = plot_runs([tmp_path], tmp_path / "c.png", metric="train/return")
    assert [(summary.label, summary.final_mean) for summary in summaries] == [("sac", -2.0), ("td3", -2.0)]
    with pytest.raises(UserError, match=r"no run in .* has a number for 'test/lenght'.*test/return"):
        plot_runs([tmp_path], tmp_path / "c.png", metric="test/lenght")


def test_runs_without_the_metric_are_left_out(tmp_path):
    """A run that only learns from data has no tests, and is beside others in results/."""
    write_run(tmp_path / "env" / "sac" / "1", [1.0, 2.0])
    write_run(tmp_path / "env" / "bc" / "1", [1.0, 2.0])
    table = tmp_path / "env" / "bc" / "1" / "progress.csv"
    table.write_text("step,update/loss\n1000,0.5\n")
    told = []
    summaries = plot_runs([tmp_path], tmp_path / "c.png", announce=told.append)
    assert [summary.label for summary in summaries] == ["sac"]
    assert [("env/bc" in line, "update/loss" in line) for line in told] == [(True, True)]


def test_groups_of_one_name_are_told_apart(tmp_path):
    for root in ("before", "after"):
        write_run(tmp_path / root / "env" / "sac" / "1", [1.0, 2.0])
    summaries = plot_runs([tmp_path / "before", tmp_path / "after"], tmp_path / "c.png")
    assert [summary.label for summary in summaries] == ["before", "after"]
    write_run(tmp_path / "after" / "env" / "td3" / "1", [1.0, 2.0])
    summaries = plot_runs([tmp_path / "before", tmp_path / "after"], tmp_path / "c.png")
    assert [summary.label for summary in summaries] == ["sac before", "sac after", "td3 after"]
    for name in ("gamma-0.9-948b00", "gamma-0.99-12ab34"):
        write_run(tmp_path / "sweep" / name / "env" / "sac" / "1", [1.0, 2.0])
    labels = [summary.label for summary in plot_runs([tmp_path / "sweep"], tmp_path / "c.png")]
    assert labels == ["gamma-0.9-948b00", "gamma-0.99-12ab34"]
    (tmp_path / "sweep" / "summary.json").touch()  # of a sweep: names end with digests
    labels = [summary.label for summary in plot_runs([tmp_path / "sweep"], tmp_path / "c.png")]
    assert labels == ["gamma-0.9", "gamma-0.99"]
    write_run(tmp_path / "sweep" / "gamma-0.9-cd5678" / "env" / "sac" / "1", [1.0, 2.0])
    labels = [summary.label for summary in plot_runs([tmp_path / "sweep"], tmp_path / "c.png")]
    assert labels == ["gamma-0.9-948b00", "gamma-0.9-cd5678", "gamma-0.99-12ab34"]
    write_run(tmp_path / "env" / "sac" / "1", [1.0, 2.0])
    summaries = plot_runs([tmp_path / "env", tmp_path / "before"], tmp_path / "c.png")
    assert [summary.label for summary in summaries] == ["sac", "before"]


def test_runs_without_a_common_step_are_an_error(tmp_path):
    write_run(tmp_path / "env" / "sac" / "1", [1.0, None])
    write_run(tmp_path / "env" / "sac" / "2", [None, 1.0])
    write_run(tmp_path / "env" / "sac" / "3", [None, None, 1.0, 2.0])
    write_run(tmp_path / "env" / "sac" / "4", [None])
    with pytest.raises(NoRunsError, match="common step") as caught:
        plot_runs([tmp_path], tmp_path / "c.png")
    told = (
        "run 1 has one, at 1,000; run 2 has one, at 2,000; run 3 has 2, from 3,000 to 4,000; run 4 has none; name only"
    )
    assert told in caught.value.message
    assert not (tmp_path / "c.png").exists()


def test_runs_without_tests_are_left_out_beside_others_and_named(tmp_path):
    write_run(tmp_path / "env" / "sac" / "1", [1.0, 2.0])
    write_run(tmp_path / "env" / "iql" / "1", [None, None])
    told = []
    summaries = plot_runs([tmp_path], tmp_path / "c.png", announce=told.append)
    assert [summary.label for summary in summaries] == ["sac"]
    assert len(told) == 1 and "left out" in told[0] and "iql" in told[0]


def test_runs_without_tests_do_not_change_the_labels_of_others(tmp_path, figures, capsys):
    folder = tmp_path / "env" / "sac"
    write_runs(folder, "SAC.lr = 0.001", {1: [1.0, 2.0], 2: [3.0, 4.0]})
    write_runs(folder, "SAC.lr = 0.01", {3: [None]})
    assert [summary.label for summary in plot_runs([folder], tmp_path / "c.png")] == ["sac"]
    assert make_report([folder], baseline="sac").entries[0].name == "sac"
    assert run_plot([folder], tmp_path / "c.png", "test/return") == 0
    assert "env sac: test/return" in capsys.readouterr().out
    write_runs(folder, "SAC.lr = 0.01", {4: [1.0, 2.0]})
    assert {summary.label for summary in plot_runs([folder], tmp_path / "c.png")} == {"sac, lr=0.001", "sac, lr=0.01"}


def test_a_folder_of_two_algorithms_of_which_one_has_no_tests(tmp_path, figures, capsys):
    for run_id, (algo, values) in enumerate({"iql": [1.0, 2.0], "td3_bc": [None]}.items(), 1):
        details = {"env": "pendulum-v0", "algo": algo, "dataset": {"name": "data"}}
        (write_run(tmp_path / "mine" / str(run_id), values) / "run.json").write_text(json.dumps(details))
    assert run_plot([tmp_path / "mine"], tmp_path / "c.png", "test/return") == 0
    assert "pendulum-v0_from_data mine: test/return" in capsys.readouterr().out


def test_runs_of_other_settings_have_a_line_of_their_own(tmp_path, figures):
    folder = tmp_path / "env" / "sac"
    write_runs(folder, "SAC.lr = 0.001\ntrain.num_epochs = 2", {1: [1.0, 2.0], 2: [3.0, 4.0]})
    write_runs(folder, "SAC.lr = 0.0001\ntrain.num_epochs = 2", {3: [10.0, 20.0], 4: [30.0, 40.0]})
    summaries = plot_runs([tmp_path], tmp_path / "c.png")
    assert summaries == [
        ("env", "sac, lr=0.001", 2, 3.0, 1.0, 2000, 2000),
        ("env", "sac, lr=0.0001", 2, 30.0, 10.0, 2000, 2000),
    ]
    assert figures[0].axes[0].get_ylabel() == "test return\n(mean ± std over runs)"
    first, second = figures[0].axes[0].lines
    assert first.get_ydata().tolist() == [2.0, 3.0] and second.get_ydata().tolist() == [20.0, 30.0]
    assert first.get_label() == "sac, lr=0.001 (2 runs)" and first.get_color() != second.get_color()
    seen = colours(assert_picture(tmp_path / "c.png"))
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= seen


def test_runs_that_differ_in_length_alone_are_of_one_group_and_each_is_drawn_to_its_end(tmp_path, figures):
    folder = tmp_path / "env" / "sac"
    write_runs(folder, "train.num_epochs = 1", {1: [1.0], 2: [3.0]})
    write_runs(folder, "train.num_epochs = 13", {3: [5.0, *map(float, range(12))]})
    assert plot_runs([tmp_path], tmp_path / "c.png") == [
        ("env", "sac", 3, 3.0, pytest.approx(np.std([1.0, 3.0, 5.0])), 1000, 13_000)
    ]
    rest, mean, *_ = figures[0].axes[0].lines
    assert mean.get_xydata().tolist() == [[1000.0, 3.0]]
    assert rest.get_xdata().tolist() == [1000.0 * step for step in range(1, 14)]
    assert rest.get_ydata().tolist() == [5.0, *range(12)]
    assert rest.get_linewidth() < 1.0 and rest.get_label().startswith("_"), "it is thin, and not in the legend"


def test_thin_lines_begin_where_the_mean_ends(tmp_path, figures):
    write_runs(tmp_path / "env" / "sac", "", {1: [1.0, 2.0], 2: [3.0, 4.0, 5.0], 3: [5.0, 6.0, None, 8.0, None]})
    plot_runs([tmp_path], tmp_path / "c.png")
    *thin, mean = figures[0].axes[0].lines
    assert mean.get_xydata().tolist() == [[1000.0, 3.0], [2000.0, 4.0]]
    assert [line.get_xydata().tolist() for line in thin] == [
        [[2000.0, 4.0], [3000.0, 5.0]],
        [[2000.0, 6.0], [4000.0, 8.0]],
    ]


def test_a_run_without_a_config_is_not_averaged_with_one_that_has_a_config(tmp_path):
    write_runs(tmp_path / "env" / "sac", "SAC.lr = 0.001", {1: [1.0]})
    write_run(tmp_path / "env" / "sac" / "2", [3.0])
    summaries = plot_runs([tmp_path], tmp_path / "c.png")
    assert [summary.final_mean for summary in summaries] == [1.0, 3.0]
    assert [summary.label for summary in summaries] == ["sac", "sac, without config.gin"]


def test_long_names_and_dollar_signs_stand_whole_beside_the_lines(tmp_path, figures):
    names = {"env": "a$b_{$", "algo": "sac"}
    for run_id, gamma in enumerate((0.9, 0.99), start=1):
        config = f"SAC.gamma = {gamma}\nSAC.hidden_dims = ({run_id}, 64)\nSAC.precision = '$x{run_id}^$'"
        write_runs(tmp_path / names["env"] / names["algo"], config, {run_id: [1.0, 2.0]})
    plot_runs([tmp_path], tmp_path / "c.png")
    (axes,) = figures[0].axes
    legend, canvas = axes.get_legend().get_window_extent(), figures[0].bbox
    assert legend.x0 >= axes.get_window_extent().x1 and legend.x1 <= canvas.x1 + 1.0
    assert legend.y0 >= canvas.y0 and axes.get_window_extent().width > 350.0
    text = axes.get_legend().get_texts()[0].get_text()
    assert text.replace("\n", " ") == "sac, gamma=0.9, hidden_dims=(1, 64), precision='$x1^$' (1 run)"


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    write_runs(tmp_path / "env" / "sac", "SAC.lr = = 3", {1: [1.0]})
    with pytest.raises(UserError, match=r"config\.gin:1: .* is not gin's syntax"):
        plot_runs([tmp_path], tmp_path / "c.png")


def test_runs_of_different_tasks_and_data_in_one_folder_are_not_averaged(tmp_path):
    """As `fit` writes them into folders that its user chose."""
    facts = [("pendulum-v0", "sac", None), ("corridor-10-v0", "sac", None), ("pendulum-v0", "td3", None)]
    facts += [(None, "td3_bc", {"name": "one"}), (None, "td3_bc", {"name": "other"}), ("pendulum-v0", "sac", None)]
    for number, (env, algo, data) in enumerate(facts):
        run = write_run(tmp_path / "runs" / str(number), [float(number), float(number)])
        (run / "run.json").write_text(json.dumps({"env": env, "algo": algo, "dataset": data}))
    found = plot_runs([tmp_path / "runs"], tmp_path / "curves.png")
    unknown = tmp_path.name  # of a run without an environment, the folder's name
    expected = {("pendulum-v0", 2, 2.5), ("corridor-10-v0", 1, 1.0), ("pendulum-v0", 1, 2.0), (unknown, 1, 3.0)}
    assert {(one.environment, one.num_runs, one.final_mean) for one in found} == expected | {(unknown, 1, 4.0)}
    assert len({(one.environment, one.label) for one in found}) == 5
