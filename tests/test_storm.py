"""A small storm and a short watch; `make storm` and `make soak-long` are the whole ones."""

import itertools
import os
import signal
import subprocess

import pytest
import soak
import storm as storm_module
from conftest import merged
from storm import ROOT, kinds, storm, table, updates


def test_an_undisturbed_run_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(storm_module, "LONGEST_RUN", 0.1)
    process = subprocess.Popen(["sleep", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        storm_module.finish(process, tmp_path)
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.slow
def test_ten_kills(tmp_path, forks):
    def start(words):
        return forks.start_command(words, ROOT, {**os.environ, "PYTHONPATH": str(ROOT)})

    chosen = [kind for kind in kinds() if kind.name in ("online, memory", "recording itself")]
    for kind in chosen:
        kind.bindings = tuple(merged(*kind.bindings, "train.num_epochs=6", updates(0.2)))
    assert storm(chosen, kills=10, seconds=3_000, seed=1, place=tmp_path, start=start), table(chosen)
    assert sum(kind.kills for kind in chosen) == 10, table(chosen)
    assert sum(kind.hit.total() for kind in chosen) > 0, "no file was being written when a process was killed"
    assert sum(kind.within for kind in chosen) > 0, "no run was gone on with amid an epoch"


def test_a_storm_covers_what_it_should():
    told = [" ".join((*kind.words, *kind.bindings)) for kind in kinds()]
    assert len(told) >= 6
    for part in ("--dataset", "pendulum-img", "num_envs=", "worker_processes=True", "--save_dataset", "collect",
                 "--algo sac", "--algo rsac", "num_envs=2", "num_envs=3",
                 *(f"updates_per_step={number}" for number in (0.05, 0.1, 0.3, 0.5, 2))):  # fmt: skip
        assert any(part in words for words in told), part
    # Within an epoch, statistics are under way; at its end, nothing is.
    assert sum("Checkpoints.every_steps=" in words for words in told) >= 4


@pytest.mark.slow
def test_a_watched_run_is_resumed_after_kills_and_in_a_second_watch(tmp_path, monkeypatch):
    """With a command that notes its starts and then waits, in place of a training."""
    program, starts, file = tmp_path / "program.py", tmp_path / "starts", tmp_path / "samples.csv"
    program.write_text(f"import sys, time\nopen({str(starts)!r}, 'a').write(sys.argv[1] + '\\n')\ntime.sleep(600)\n")
    for name, value in {"LAUNCH": program, "INTERVAL": 0.1, "LEAST": 0.03}.items():
        monkeypatch.setattr(soak, name, value)
    for minutes in (0.12, 0.2):
        samples = soak.load(file)
        with (tmp_path / "told.txt").open("a") as told:
            code = soak.watch(["--resume"], minutes, (0.05, 0.06), samples, file, told, {**os.environ})
        assert code in (0, -signal.SIGTERM)  # 0 if a kill came shortly before the end
        assert len(soak.load(file)) == len(samples)
    assert samples[-1].start == len(starts.read_text().split()) >= 3
    assert all(one.minutes < other.minutes for one, other in itertools.pairwise(samples))
    with (tmp_path / "told.txt").open("a") as told:
        assert soak.watch([], 0.2, None, samples, file, told, {**os.environ}) == 0, "all minutes are watched"
    program.write_text("raise SystemExit(3)")
    with (tmp_path / "told.txt").open("a") as told:
        assert soak.watch([], 9.0, None, samples, file, told, {**os.environ}) == 3, "a run that fails ends the watch"


@pytest.mark.parametrize(
    ("last", "files", "is_flat"), [(100.0, 5, True), (101.0, 5, True), (103.0, 5, False), (100.0, 6, False)]
)
def test_growth_of_memory_or_files_is_seen(last, files, is_flat, capsys):
    """What a process holds in its first minutes does not count."""
    given = [soak.Sample(minute, 1, minute, 50.0 if minute < 5 else 100.0, 5) for minute in range(25)]
    given += [soak.Sample(25 + minute, 2, minute, 1.0 if minute < 5 else last, files) for minute in range(25)]
    assert soak.summarize(given, 5.0, 0.02) is is_flat
    assert "in 49 minutes and 2 starts" in capsys.readouterr().out
    assert not soak.summarize(given[:3], 5.0, 0.02), "too short"
