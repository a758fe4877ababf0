"""What runs wrote down of their progress: finding it, reading it, and the curves that it holds."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offpcc.errors import UserError, first_line
from offpcc.files import open_regular

Array = npt.NDArray[np.float64]
Progress = dict[str, list[float]]  # the columns of a `progress.csv`
LARGEST = 2**30  # bytes of a `progress.csv`
MOST_TOLD = 6  # runs or columns that a message tells of


class NoRunsError(UserError, ValueError):
    """There is nothing to plot."""


class Curve(NamedTuple):
    """A line and its band: environment steps, and a mean with a standard deviation at each."""

    steps: Array
    mean: Array
    std: Array


class Mean(NamedTuple):
    """Several runs of one setting.

    Attributes:
        num_runs: Runs with at least one number.
        curve: Mean and standard deviation over these runs, as far as all of them reach.
        beyond: The runs that go on after its last step, each from there to its own end.
    """

    num_runs: int
    curve: Curve
    beyond: list[Curve]


def find_runs(folder: Path) -> list[Path]:
    """Find the runs in a run's, an algorithm's or an environment's folder.

    Args:
        folder: Where to look, at any depth.

    Returns:
        The folders that hold a `progress.csv`, sorted.

    Raises:
        NoRunsError: If there are none.
    """
    runs = sorted(file.parent for file in folder.rglob("progress.csv") if file.is_file())
    if not runs:
        raise NoRunsError(f"no runs in {folder}: neither it nor a folder inside it holds a progress.csv")
    return runs


def read_progress(file: Path) -> Progress:
    """Read a run's `progress.csv` as columns, with nan for empty cells.

    Raises:
        UserError: If it is damaged, or something else.
    """
    try:
        if not file.is_file() or file.stat().st_size > LARGEST:
            raise ValueError("it is no file of a reasonable size")
        with open_regular(file, "r", encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
            columns = {name: [float(row[name] or "nan") for row in rows] for name in reader.fieldnames or ()}
        if "step" not in columns:
            raise ValueError("it has no column 'step'")
        if not all(map(str.isprintable, columns)):
            raise ValueError("it has a column whose name cannot be printed")
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise UserError(
            f"{file} cannot be read as a run's progress ({first_line(error)}); put it back from a copy, or leave its "
            f"run out"
        ) from error
    return columns


def curve_of(progress: Progress, metric: str) -> Curve:
    """A metric where it is known; its band, where the file has one, is the column named `<metric>_std`."""
    steps, mean = np.asarray(progress["step"]), np.asarray(progress.get(metric, []))
    if not len(mean):
        return Curve(mean, mean, mean)
    std = np.asarray(progress.get(f"{metric}_std", np.zeros_like(mean)))
    known = ~np.isnan(mean)
    return Curve(steps[known], mean[known], np.nan_to_num(std[known]))


def mean_over_runs(group: str | Path, runs: Sequence[Path], metric: str) -> Mean:
    """Mean and standard deviation over runs, where all have a number; runs without any do not count.

    Args:
        group: what the runs are called together, for messages.
        runs: their folders.
        metric: a column of their tables.

    Raises:
        NoRunsError: there is no step where all have one.
        KeyError: a run's `progress.csv` lacks the metric.
    """
    curves = []
    for run in runs:
        progress = read_progress(run / "progress.csv")
        if metric not in progress:
            raise KeyError(f"no column {metric!r} in the progress.csv of {run}; it has {', '.join(progress)}")
        curves.append(curve_of(progress, metric))
    known = [curve for curve in curves if len(curve.steps)]
    if not known:
        raise NoRunsError(f"no run in {group} has a number for {metric!r}; {_advice(runs)}")
    values = [dict(zip(curve.steps, curve.mean, strict=True)) for curve in known]
    common = sorted(set.intersection(*map(set, values)))
    if not common:
        told = [_extent(run.name, curve.steps) for run, curve in zip(runs, curves, strict=True)]
        raise NoRunsError(
            f"the runs in {group} have no number for {metric!r} at a common step: {_cut(told, '; ')}; name only "
            f"folders of runs that share steps, or train on those that ended early"
        )
    table = np.array([[run[step] for step in common] for run in values])
    beyond = [
        Curve(*(column[curve.steps >= common[-1]] for column in curve))
        for curve in known
        if curve.steps[-1] > common[-1]
    ]
    return Mean(len(known), Curve(np.array(common), table.mean(axis=0), table.std(axis=0)), beyond)


def _extent(name: str, steps: Array) -> str:
    """At which steps a run has numbers."""
    if not len(steps):
        return f"run {name} has none"
    if len(steps) == 1:
        return f"run {name} has one, at {steps[0]:,.0f}"
    return f"run {name} has {len(steps)}, from {steps[0]:,.0f} to {steps[-1]:,.0f}"


def _advice(runs: Sequence[Path]) -> str:
    """Which columns there are numbers of instead."""
    tables = [read_progress(run / "progress.csv") for run in runs]
    known = [name for name in dict.fromkeys(column for table in tables for column in table) if "/" in name]
    full = [name for name in known if any(len(curve_of(table, name).steps) for table in tables)]
    return f"there are some for --metric {_cut(full, ', ')}" if full else "train them first"


def _cut(words: Sequence[str], between: str) -> str:
    more = len(words) - MOST_TOLD
    return between.join([*words[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])
