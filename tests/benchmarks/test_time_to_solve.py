import json
import subprocess
import sys

import pytest

from benchmarks import time_to_solve
from benchmarks.time_to_solve import Epoch, follow, in_time, read_epochs, solved_at


def epochs(*returns):
    return [Epoch(1_000 * (i + 1), value, 10.0 * (i + 1)) for i, value in enumerate(returns)]


@pytest.mark.parametrize("returns, index", [
    ((-900, -150, -190, -200), 1),
    ((-150, -150, -201, -150, -150, -150), 3),
    ((-150, -150), None),
    ((), None),
])  # fmt: skip
def test_solved_means_three_epochs_in_a_row(returns, index):
    assert solved_at(epochs(*returns), -200.0) == index


def test_reading_a_table(tmp_path):
    file = tmp_path / "progress.csv"
    assert read_epochs(file) == []
    file.write_text("step,test/return,time/hours,more\n1000,-300.5,0.5,\n2000,,1.0,\n3000,-1")
    assert read_epochs(file) == [Epoch(1000, -300.5, 1800.0)]


def table(path, hours):
    """A program that writes a table, a row at once, and then sleeps."""
    rows = "".join(f"{i},-100,{hour}\\n" for i, hour in enumerate(hours))
    return f"import time; open({str(path)!r}, 'w').write('step,test/return,time/hours\\n{rows}'); time.sleep(60)"


def test_a_run_is_stopped_when_it_has_solved(tmp_path, monkeypatch):
    monkeypatch.setattr(time_to_solve, "LOOK", 0.05)
    file = tmp_path / "progress.csv"
    process = subprocess.Popen([sys.executable, "-c", table(file, (0.01, 0.02, 0.03))], stderr=subprocess.DEVNULL)
    epochs, stopped = follow(process, file, -200.0, 600.0)
    assert len(epochs) == 3 and stopped
    assert process.returncode is not None


def test_what_came_after_the_limit_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(time_to_solve, "LOOK", 0.05)
    file = tmp_path / "progress.csv"
    process = subprocess.Popen([sys.executable, "-c", table(file, (0.01, 0.02, 0.03))], stderr=subprocess.DEVNULL)
    assert len(follow(process, file, -200.0, 80.0)[0]) == 2


def test_in_words():
    assert in_time({"solved": True, "seconds": 61.6}) == "62 s"
    row = {"solved": False, "limit_minutes": 60.0, "best_test_return": -412.3, "stopped": True, "last_step": 9_000}
    assert in_time(row) == "not solved within 60 minutes (best test -412.3)"
    assert in_time(row | {"stopped": False}) == "not solved in its 9,000 steps (best test -412.3)"


def test_the_command(tmp_path, monkeypatch, capsys):
    out = tmp_path / "solve.json"

    def run(name, training, run_id, options):
        row = {"config": name, "run_id": run_id, "solved": run_id == 1, "seconds": 9.0, "seconds_confirmed": 11.0}
        row |= {"env": training.env, "threshold": training.threshold}
        return row | {
            "step": 3_000,
            "last_step": 4_000,
            "limit_minutes": training.minutes,
            "best_test_return": -500.0,
            "stopped": True,
        }

    monkeypatch.setattr(time_to_solve, "one_run", run)
    assert time_to_solve.main(["--out", str(out)]) == 0
    assert time_to_solve.main(["--configs", "paper", "--run_id", "2", "--limit", "5", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["config"], row["run_id"]) for row in rows] == [
        ("quickstart", 1), ("quickstart", 2), ("quickstart", 3), ("paper", 1), ("paper", 2),
    ]  # fmt: skip
    assert "not solved within 5 minutes" in capsys.readouterr().out
    assert out.with_suffix(".md").read_text().splitlines()[2:] == [
        "| `quickstart` | pendulum-p-v0 | -200 | 1 of 3 | 9 s, not solved within 60 minutes (best test -500), "
        "not solved within 60 minutes (best test -500) | 3,000 |",
        "| `paper` | pendulum-p-v0 | -200 | 1 of 2 | 9 s, not solved within 5 minutes (best test -500) | 3,000 |",
    ]
    assert time_to_solve.main(["--configs", "fast"]) == 2
    assert "there is no config 'fast'; choose from quickstart, paper, pendulum_lstm" in capsys.readouterr().err
    assert time_to_solve.main(["--configs", "corridor_100_lr"]) == 2
    assert "did you mean corridor_100_lru" in capsys.readouterr().err


LAUNCH = """
import pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = pathlib.Path(given["--results"], given["--env"], given["--algo"], given["--run_id"])
folder.mkdir(parents=True)
rows = "".join(f"{1000 * (i + 1)},0.95,{0.01 * i}\\n" for i in range(NUM_EPOCHS))
(folder / "progress.csv").write_text("step,test/return,time/hours\\n" + rows)
print(given.get("--gin", "as configured"))
sys.exit(CODE)
"""


def launched(tmp_path, monkeypatch, num_epochs, code, name="corridor_100_lru"):
    """A training of a program that stands in for the command line's."""
    launch = tmp_path / "offpcc" / "launch.py"
    launch.parent.mkdir(exist_ok=True)
    launch.write_text(LAUNCH.replace("NUM_EPOCHS", str(num_epochs)).replace("CODE", str(code)))
    monkeypatch.setattr(time_to_solve, "ROOT", tmp_path)
    monkeypatch.setattr(time_to_solve, "LOOK", 0.05)
    options = time_to_solve.parser().parse_args(["--runs", str(tmp_path / "runs")])
    return time_to_solve.one_run(name, time_to_solve.TRAININGS[name], 2, options)


def test_a_training_is_told_by_how_it_ended(tmp_path, monkeypatch):
    row = launched(tmp_path, monkeypatch, 3, 0)
    assert (row["solved"], row["step"], row["threshold"]) == (True, 1_000, 0.9)
    assert row["command"] == (
        "python offpcc/launch.py --env corridor-100-v0 --algo rsac_s --config configs/evidence/memories/corridor.gin "
        "--gin 'Recurrent.cell = '\"'\"'lru'\"'\"'' --run_id 2"
    )
    assert (tmp_path / "runs" / "corridor_100_lru" / "2.log").read_text() == "Recurrent.cell = 'lru'\n"
    row = launched(tmp_path, monkeypatch, 2, 0)
    assert in_time(row) == "not solved in its 2,000 steps (best test 0.95)"
    with pytest.raises(SystemExit, match=r"failed with exit code 3: Recurrent\.cell = 'lru'"):
        launched(tmp_path, monkeypatch, 2, 3)
