"""The table of returns learned from recorded data."""

import pytest

from benchmarks.returns import table


def run(folder, returns, scores=None):
    folder.mkdir(parents=True)
    columns = ["step", "test/return"] + ["test/normalized_score"] * (scores is not None)
    rows = [[str(i), *map(str, values)] for i, values in enumerate(zip(returns, *([scores] if scores else [])))]  # noqa: B905
    (folder / "progress.csv").write_text("\n".join(",".join(row) for row in [columns, *rows]) + "\n")


def test_last_and_best_over_ids(tmp_path):
    run(tmp_path / "hop_from_data" / "riql" / "1", [1.0, 9.0, 4.0], [10.0, 90.0, 40.0])
    run(tmp_path / "hop_from_data" / "riql" / "2", [5.0, 2.0, 8.0], [50.0, 20.0, 80.0])
    run(tmp_path / "pend" / "bc" / "1", [-3.0, -2.0, ""])
    lines = table(tmp_path)
    assert lines[2:] == [
        "| hop, data | `riql` | 2 | 6.0 ± 2.0 | 8.5 ± 0.5 | 60.0 ± 20.0 |",
        "| pend | `bc` | 1 | -2.0 | -2.0 |  |",
    ]


def test_no_runs_are_told(tmp_path):
    with pytest.raises(SystemExit, match="no runs"):
        table(tmp_path)


def test_runs_of_other_settings_have_a_row_of_their_own_and_unequal_ends_are_told(tmp_path):
    for run_id, lr, returns in ((1, 0.1, [1.0]), (2, 0.2, [3.0, 4.0]), (3, 0.2, [5.0])):
        folder = tmp_path / "pend" / "bc" / str(run_id)
        run(folder, returns)
        (folder / "config.gin").write_text(f"BC.lr = {lr}")
    assert table(tmp_path)[2:] == [
        "| pend | `bc`, lr=0.1 | 1 | 1.0 | 1.0 |  |",
        "| pend | `bc`, lr=0.2 | 2, after 1 to 2 tests | 4.5 ± 0.5 | 4.5 ± 0.5 |  |",
    ]
