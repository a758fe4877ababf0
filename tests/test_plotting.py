from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from offpcc.plotting import plot_run, plot_runs
from offpcc.progress import NoRunsError

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


def test_plot_run_draws_test_and_training_return_and_names_the_run(tmp_path, monkeypatch):
    import offpcc.plotting

    figures = []
    save = offpcc.plotting.save
    monkeypatch.setattr(offpcc.plotting, "save", lambda figure, file: (figures.append(figure), save(figure, file)))
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


def test_what_steps_are_and_where_the_legend_of_many_lines_is(tmp_path, monkeypatch):
    import offpcc.plotting

    figures = []
    save = offpcc.plotting.save
    monkeypatch.setattr(offpcc.plotting, "save", lambda figure, file: (figures.append(figure), save(figure, file)))
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
    assert td3 == ("env", "td3", 1, 8.0, 0.0, 2000)
    seen = colours(assert_picture(tmp_path / "curves.png"))
    assert (0x00, 0x72, 0xB2) in seen
    assert (0xD5, 0x5E, 0x00) in seen


def test_groups_end_where_their_shortest_run_ends(tmp_path):
    write_run(tmp_path / "env" / "sac" / "1", [1.0, None, 3.0, 4.0])
    write_run(tmp_path / "env" / "sac" / "2", [5.0, 6.0, 7.0])
    write_run(tmp_path / "env" / "sac" / "3", [])
    [summary] = plot_runs([tmp_path], tmp_path / "curve.png")
    assert summary == ("env", "sac", 2, 5.0, 2.0, 3000)


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


def test_other_metrics_and_labels(tmp_path):
    write_run(tmp_path / "env" / "sac" / "1", [1.0, 2.0])
    write_run(tmp_path / "env" / "td3" / "1", [1.0, 2.0])
    summaries = plot_runs([tmp_path], tmp_path / "c.png", metric="train/return", labels=["ours", "theirs"])
    assert [(summary.label, summary.final_mean) for summary in summaries] == [
        ("ours", -2.0),
        ("theirs", -2.0),
    ]
    with pytest.raises(ValueError, match="1 labels for 2 groups"):
        plot_runs([tmp_path], tmp_path / "c.png", labels=["ours"])
    with pytest.raises(KeyError, match=r"no column 'test/lenght'.*test/return"):
        plot_runs([tmp_path], tmp_path / "c.png", metric="test/lenght")


def test_groups_of_one_name_are_told_apart(tmp_path):
    for root in ("before", "after"):
        write_run(tmp_path / root / "env" / "sac" / "1", [1.0, 2.0])
    summaries = plot_runs([tmp_path / "before", tmp_path / "after"], tmp_path / "c.png")
    assert [summary.label for summary in summaries] == ["before", "after"]
    write_run(tmp_path / "after" / "env" / "td3" / "1", [1.0, 2.0])
    summaries = plot_runs([tmp_path / "before", tmp_path / "after"], tmp_path / "c.png")
    assert [summary.label for summary in summaries] == ["before/env/sac", "after/env/sac", "after/env/td3"]
    write_run(tmp_path / "env" / "sac" / "1", [1.0, 2.0])
    summaries = plot_runs([tmp_path / "env", tmp_path / "before"], tmp_path / "c.png")
    assert [summary.label for summary in summaries] == ["env/sac", "before/env/sac"]


def test_runs_without_a_common_step_are_an_error(tmp_path):
    write_run(tmp_path / "env" / "sac" / "1", [1.0, None])
    write_run(tmp_path / "env" / "sac" / "2", [None, 1.0])
    write_run(tmp_path / "env" / "sac" / "3", [None, None, 1.0, 2.0])
    write_run(tmp_path / "env" / "sac" / "4", [None])
    with pytest.raises(NoRunsError, match="common step") as caught:
        plot_runs([tmp_path], tmp_path / "c.png")
    assert (
        "run 1 has one, at 1,000; run 2 has one, at 2,000; run 3 has 2, from 3,000 to 4,000; run 4 has none; name only"
        in caught.value.message
    )
    assert not (tmp_path / "c.png").exists()


def test_runs_without_tests_are_left_out_beside_others_and_named(tmp_path):
    write_run(tmp_path / "env" / "sac" / "1", [1.0, 2.0])
    write_run(tmp_path / "env" / "iql" / "1", [None, None])
    told = []
    summaries = plot_runs([tmp_path], tmp_path / "c.png", announce=told.append)
    assert [summary.label for summary in summaries] == ["sac"]
    assert len(told) == 1 and "left out" in told[0] and "iql" in told[0]
