"""Runs in a folder: what they wrote, and how a test stops and resumes them."""

import csv

from exact_resume import assert_equal_runs

from offpcc.training.checkpoint import Checkpoints
from offpcc.training.fit import fit
from offpcc.utils import signals


def quiet_fit(spec, folder=None, **given):
    """`offpcc.fit` without its messages at the start."""
    return fit(spec, folder, announce=lambda line: None, **given)


def progress_rows(folder):
    """The rows of progress.csv, as dictionaries of strings."""
    with (folder / "progress.csv").open() as file:
        return list(csv.DictReader(file))


def stop_at(number):
    """A method that ends a run at its call of this number, and does nothing else."""
    count = 0

    def stopping(self, *rest):
        nonlocal count
        count += 1
        if count == number:
            raise signals.Interrupted(2)

    return stopping


def assert_stops_and_resumes_exactly(command, whole, stops, monkeypatch):
    """Stop the run of a command at each of these calls of `on_progress`, and compare the resumed run with `whole`.

    `command(*more)` runs the command with more words; its results are in the folder OFFPCC_RESULTS.
    """
    folder = whole.parents[2]
    for stop in stops:
        results = folder.with_name(f"{folder.name}_{stop}")
        monkeypatch.setenv("OFFPCC_RESULTS", str(results))
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "on_progress", stop_at(stop))
            code, _, err = command()
        assert code == 130, err
        code, out, err = command("--resume")
        assert code == 0, err
        assert "not exact" not in out and f"going on in {results}" in out
        assert_equal_runs(whole, results / whole.relative_to(folder))
