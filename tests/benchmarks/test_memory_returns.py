import pytest

from benchmarks.memory_returns import table


def write(folder, *returns):
    folder.mkdir(parents=True)
    rows = "".join(f"{1000 * (i + 1)},{value},0.1\n" for i, value in enumerate(returns))
    (folder / "progress.csv").write_text(f"step,test/return,time/hours\n{rows}")


def test_a_row_for_each_memory(tmp_path):
    write(tmp_path / "lru" / "corridor-100-v0" / "rsac_s" / "1", 0.1, 0.95, 0.95, 0.95)
    write(tmp_path / "lru" / "corridor-100-v0" / "rsac_s" / "2", 0.1, 0.1, 0.1, 0.05)
    write(tmp_path / "lru" / "corridor-30-v0" / "rsac_s" / "1", 0.0, 0.9, 0.9, 0.8)
    write(tmp_path / "mine" / "pendulum-p-v0" / "rsac" / "1", -1000, -150, -150, -1150)
    write(tmp_path / "lstm" / "pendulum-p-v0" / "rsac" / "1", -150, -150, -150, -1150)
    write(tmp_path / "lstm" / "pendulum-p-v0" / "rsac" / "2", -1500, -150, -150, -150)
    assert table(tmp_path) == [
        "| | pendulum-p-v0 | corridor-30-v0 | corridor-100-v0 |",
        "|---|---|---|---|",
        "| `lstm` | -650 ± 500; 2 of 2 after 2,000 |  |  |",
        "| `lru` |  | 0.80; 0 of 1 | 0.50 ± 0.45; 1 of 2 after 2,000 |",
        "| `mine` | -1,150; 0 of 1 |  |  |",
    ]


def test_no_runs_and_no_threshold(tmp_path):
    with pytest.raises(SystemExit, match="no runs with tests"):
        table(tmp_path)
    write(tmp_path / "lru" / "ant-p-v0" / "rsac" / "1", 1.0)
    with pytest.raises(SystemExit, match="no threshold for ant-p-v0"):
        table(tmp_path)


def test_runs_that_are_no_seeds_of_one_experiment_are_refused(tmp_path):
    place = tmp_path / "lru" / "pendulum-p-v0" / "rsac"
    for run_id, lr in ((1, 0.1), (2, 0.2)):
        write(place / str(run_id), -150.0)
        (place / str(run_id) / "config.gin").write_text(f"SAC.lr = {lr}")
    with pytest.raises(SystemExit, match=r"lru/pendulum-p-v0 are not to be averaged: lr=0.1; lr=0.2; take"):
        table(tmp_path)
    (place / "2").rename(tmp_path / "2")
    write(tmp_path / "lru" / "pendulum-p-v0" / "rsac_s" / "1", -150.0)
    with pytest.raises(SystemExit, match="not to be averaged: rsac; rsac_s"):
        table(tmp_path)
