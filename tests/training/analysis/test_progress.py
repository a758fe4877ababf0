import math

import pytest
from test_plotting import COLUMNS, write_run

from offpcc.training.analysis.run_tables import NoRunsError, find_runs, mean_over_runs, read_progress
from offpcc.utils.errors import UserError


def test_read_progress_gives_columns_with_nan_for_empty_cells(tmp_path):
    write_run(tmp_path / "1", [1.5, None])
    progress = read_progress(tmp_path / "1" / "progress.csv")
    assert list(progress) == COLUMNS.strip().split(",")
    assert progress["step"] == [1000.0, 2000.0]
    assert progress["test/return"][0] == 1.5
    assert math.isnan(progress["test/return"][1])


def test_a_line_that_a_killed_process_left_unfinished_is_skipped(tmp_path):
    write_run(tmp_path / "1", [1.5, -2.25])
    file = tmp_path / "1" / "progress.csv"
    file.write_text(file.read_text() + file.read_text().splitlines()[-1][:-2])
    assert read_progress(file)["test/return"] == [1.5, -2.25]


@pytest.mark.parametrize("text", ["", "epoch\n1\n", "step\nmany\n", None])
def test_what_is_no_progress_is_refused(tmp_path, text):
    file = tmp_path / "progress.csv"
    file.mkdir() if text is None else file.write_text(text)
    with pytest.raises(UserError, match=rf"^{file} cannot be read as a run's progress .*; put it back from a copy"):
        read_progress(file)


def test_find_runs_at_every_level(tmp_path):
    runs = [write_run(tmp_path / name, [1.0]) for name in ("env/sac/1", "env/sac/2", "env/td3/1")]
    assert find_runs(tmp_path / "env") == runs
    assert find_runs(tmp_path / "env" / "sac") == runs[:2]
    assert find_runs(runs[2]) == [runs[2]]


def test_no_runs_are_an_error_that_names_the_folder(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NoRunsError, match=r"no runs in .*progress\.csv; ") as caught:
            find_runs(folder)
        assert str(folder) in caught.value.message
    assert issubclass(NoRunsError, ValueError)


def test_of_a_metric_that_no_run_has_the_others_are_told(tmp_path):
    run = write_run(tmp_path / "env" / "iql" / "1", [None, None])
    with pytest.raises(NoRunsError, match=r"no run in .* has a number for 'test/return'; .* --metric train/return$"):
        mean_over_runs(run.parent, [run], "test/return")
    empty = write_run(tmp_path / "env" / "iql" / "2", [])
    with pytest.raises(NoRunsError, match=r"train them first$"):
        mean_over_runs(empty.parent, [empty], "test/return")


def test_of_many_runs_a_few_are_told(tmp_path):
    runs = [write_run(tmp_path / "iql" / str(i), [*[None] * i, 1.0]) for i in range(9)]
    with pytest.raises(NoRunsError, match=r"run 5 has one, at 6,000; and 3 more; name only"):
        mean_over_runs(tmp_path / "iql", runs, "test/return")
