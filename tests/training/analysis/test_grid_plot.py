"""Grids of learning curves and of final results."""

import json

import numpy as np
import pytest
from test_plotting import assert_picture, write_run

import offpcc
from offpcc.envs.d4rl.catalog import normalized_score
from offpcc.training.analysis import grid_plot
from offpcc.training.analysis.grid_plot import averaged
from offpcc.utils.errors import UserError

RETURNS = {"mopo": [[100.0, 900.0, 1700.0], [300.0, 1100.0, 1500.0]], "bc": [[200.0, 400.0, 600.0]]}


@pytest.fixture
def results(tmp_path):
    for task in ("hopper-medium-v2", "hopper-random-v2", "walker2d-medium-v2", "pendulum-v0"):
        for algo, runs in RETURNS.items():
            for run_id, returns in enumerate(runs):
                write_run(tmp_path / "results" / task / algo / str(run_id), returns)
    return tmp_path / "results"


@pytest.fixture
def figure(monkeypatch):
    found = []
    save = grid_plot.save_figure
    monkeypatch.setattr(grid_plot, "save_figure", lambda figure, file: (found.append(figure), save(figure, file)))
    return lambda: found[-1]


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}


def test_a_grid_has_environments_as_rows_and_data_as_columns(results, figure, tmp_path):
    offpcc.plot(results, tmp_path / "grid.png", grid=True)
    assert_picture(tmp_path / "grid.png")
    shown = panels(figure())
    assert set(shown) == {"hopper-v2 medium", "hopper-v2 random", "walker2d-v2 medium", "pendulum-v0"}
    place = {name: axes.get_subplotspec() for name, axes in shown.items()}
    rows = {name: spec.rowspan.start for name, spec in place.items()}
    columns = {name: spec.colspan.start for name, spec in place.items()}
    assert rows["hopper-v2 medium"] == rows["hopper-v2 random"] != rows["walker2d-v2 medium"]
    assert columns["hopper-v2 medium"] == columns["walker2d-v2 medium"] == columns["hopper-v2 random"] + 1


def test_curves_are_scores_with_bands_and_bc_is_a_dashed_line(results, figure, tmp_path):
    [mopo] = [one for one in offpcc.plot(results / "hopper-medium-v2", tmp_path / "a.png", grid=True)
              if one.label == "mopo"]  # fmt: skip
    assert (mopo.final_mean, mopo.final_std) == (1600.0, 100.0)  # returns
    axes = panels(figure())["hopper-v2 medium"]
    assert axes.get_ylabel() == "D4RL score"
    curve, imitation = sorted(axes.lines, key=lambda line: line.get_color() == "black")
    expected = [normalized_score("hopper-medium-v2", mean) for mean in (200.0, 1000.0, 1600.0)]
    np.testing.assert_allclose(curve.get_ydata(), expected)
    assert (imitation.get_linestyle(), imitation.get_color()) == ("--", "black")
    np.testing.assert_allclose(imitation.get_ydata(), normalized_score("hopper-medium-v2", 400.0))
    [band] = axes.collections
    one = normalized_score("hopper-medium-v2", 100.0) - normalized_score("hopper-medium-v2", 0.0)
    interval = band.get_datalim(axes.transData).intervaly
    np.testing.assert_allclose(interval, [expected[0] - one, expected[-1] + one])
    [legend] = figure().legends
    assert {text.get_text() for text in legend.get_texts()} == {"mopo", "bc"}
    assert figure().get_suptitle() == "mean ± std over runs"
    offpcc.plot(results / "pendulum-v0", tmp_path / "b.png", grid=True)
    assert panels(figure())["pendulum-v0"].get_ylabel() == "test return"


def test_final_results_have_a_point_with_an_interval_for_each_algorithm(results, figure, tmp_path):
    offpcc.plot(results / "pendulum-v0", tmp_path / "final.png", final=True)
    assert_picture(tmp_path / "final.png")
    axes = panels(figure())["pendulum-v0"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["bc", "mopo"]
    bc, mopo = (container for container in axes.containers)
    assert mopo.lines[0].get_ydata().tolist() == [1600.0]
    assert mopo.lines[2][0].get_segments()[0][:, 1].tolist() == [1500.0, 1700.0]
    assert (bc.lines[0].get_ydata().tolist(), bc.lines[2]) == ([600.0], ())


def test_runs_whose_tables_have_no_score_get_none(results, figure, tmp_path):
    task = results / "hopper-medium-v2"
    for run in (task / "mopo").iterdir():
        (run / "run.json").write_text(json.dumps({"env": "hopper-medium-v2"}))
    offpcc.plot(task, tmp_path / "a.png", grid=True)
    [axes] = panels(figure()).values()
    assert axes.get_ylabel() == "test return"  # also for bc, as a panel has one unit
    curve, imitation = sorted(axes.lines, key=lambda line: line.get_color() == "black")
    assert (curve.get_ydata()[0], imitation.get_ydata()[0]) == (200.0, 400.0)
    with pytest.raises(UserError, match="D4RL's references do not hold for mopo in hopper-medium-v2, whose tables"):
        offpcc.report(task, normalise="d4rl")
    for table in task.glob("mopo/*/progress.csv"):
        head, *rows = table.read_text().splitlines()
        table.write_text("\n".join([f"{head},test/normalized_score", *(f"{row},1.0" for row in rows), ""]))
    offpcc.plot(task, tmp_path / "b.png", grid=True)
    assert panels(figure())["hopper-v2 medium"].get_ylabel() == "D4RL score"


def test_a_grid_tells_the_end_of_the_longest_run(tmp_path):
    for run_id, returns in ((1, [1.0, 2.0]), (2, [3.0, 4.0, 5.0])):
        write_run(tmp_path / "results" / "pendulum-v0" / "sac" / str(run_id), returns)
    for grid in (True, False):
        [summary] = offpcc.plot(tmp_path / "results", tmp_path / "a.png", grid=grid)
        assert (summary.final_mean, summary.steps, summary.longest) == (3.0, 2000, 3000)


def test_a_moving_average_has_the_values_before_it(results, figure, tmp_path):
    np.testing.assert_allclose(averaged(np.array([1.0, 3.0, 8.0, 1.0]), 2), [1.0, 2.0, 5.5, 4.5])
    np.testing.assert_allclose(averaged(np.array([1.0, 3.0]), 10), [1.0, 2.0])
    offpcc.plot(results / "pendulum-v0", tmp_path / "a.png", grid=True, average=2)
    [curve] = [line for line in panels(figure())["pendulum-v0"].lines if line.get_color() != "black"]
    np.testing.assert_allclose(curve.get_ydata(), [200.0, 600.0, 1300.0])
    with pytest.raises(UserError, match="average 2 has no effect without a grid"):
        offpcc.plot(results, tmp_path / "a.png", average=2)


def test_runs_on_data_of_a_user_have_a_column_of_their_own(results, figure, tmp_path):
    for run in (results / "pendulum-v0" / "mopo").iterdir():
        (run / "run.json").write_text(json.dumps({"env": "pendulum-v0", "dataset": {"name": "mine"}}))
    offpcc.plot(results / "pendulum-v0", tmp_path / "a.png", grid=True)
    assert set(panels(figure())) == {"pendulum-v0", "pendulum-v0 mine"}


def test_data_sets_of_one_environment_are_columns_of_one_row(results, figure, tmp_path):
    for name in ("mine", "yours"):
        run = write_run(tmp_path / "own" / f"pendulum-v0_from_{name}" / "bc" / "1", [1.0, 2.0])
        (run / "run.json").write_text(json.dumps({"env": "pendulum-v0", "dataset": {"name": name}}))
    offpcc.plot(tmp_path / "own", tmp_path / "a.png", grid=True)
    assert set(panels(figure())) == {"pendulum-v0 mine", "pendulum-v0 yours"}


def test_the_command_draws_grids(results, launch, tmp_path):
    for option in ("--grid", "--final"):
        code, out, _ = launch("plot", results, option, "--output", tmp_path / "a.png")
        assert code == 0
        assert "hopper-medium-v2 mopo: test/return 1600.0 +- 100.0 over 2 runs at step 3,000" in out
        assert_picture(tmp_path / "a.png")
    code, _, err = launch("plot", tmp_path, "--grid", "--metric", "none", "--output", tmp_path / "a.png")
    assert code == 2
    assert "none" in err
