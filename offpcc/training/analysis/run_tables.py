"""Tables of runs: finds the folders of runs, reads their `progress.csv`, groups runs, aligns their curves.

It also tells what a run lost at its switch from recorded data to its environment.
"""

import csv
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offpcc.config.loading import named_in_results
from offpcc.training.comparison import group_runs
from offpcc.training.run_dir import RunFolder, path_part
from offpcc.utils.errors import UserError, first_line

Array = npt.NDArray[np.float64]
Progress = dict[str, list[float]]  # the columns of a `progress.csv`
DROP_STEPS = 50_000  # environment steps in which `drop` looks for the least return
MOST_LISTED = 6  # the most runs or columns that a message lists


class NoRunsError(UserError, ValueError):
    """Raised when there is nothing to plot."""


class Curve(NamedTuple):
    """A line and its band: environment steps, with mean and standard deviation at each step."""

    steps: Array
    mean: Array
    std: Array


class Mean(NamedTuple):
    """The mean of several runs with equal settings."""

    num_runs: int  # runs with at least one number
    curve: Curve  # mean and standard deviation over these runs, at the steps that all of them have
    beyond: list[Curve]  # the longer runs, each from the last step of `curve` to its own end


def find_runs(folder: Path) -> list[Path]:
    """Return the folders that hold a `progress.csv` in a folder, at any depth, sorted.

    Raises:
        NoRunsError: there are none.
    """
    runs = sorted(file.parent for file in folder.rglob("progress.csv") if file.is_file())
    if not runs:
        advice = named_in_results(folder) or "name a folder of runs, such as results/ENV"
        raise NoRunsError(f"no runs in {folder}: neither it nor a folder inside it holds a progress.csv; {advice}")
    return runs


def read_progress(file: Path) -> Progress:
    """Read a run's `progress.csv` as columns, with nan for empty cells; skip a last line without its line end."""
    try:
        if not file.is_file():
            raise ValueError("it is not a regular file")
        with file.open(encoding="utf-8", newline="") as stream:
            lines = stream.readlines()
            if len(lines) > 1 and not lines[-1].endswith("\n"):  # a process died while it wrote this line
                del lines[-1]
            reader = csv.DictReader(lines)
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
    """Return a metric at the steps with a number; there is none if the table has no such column.

    The band comes from the column `<metric>_std`, if there is one.
    """
    steps, mean = np.asarray(progress["step"]), np.asarray(progress.get(metric, []))
    if not len(mean):
        return Curve(mean, mean, mean)
    std = np.asarray(progress.get(f"{metric}_std", np.zeros_like(mean)))
    known = ~np.isnan(mean)
    return Curve(steps[known], mean[known], np.nan_to_num(std[known]))


class Loss(NamedTuple):
    """What a run lost at its switch, from its table."""

    drop: float  # the best test return offline minus the least of the first `DROP_STEPS` environment steps
    regret: float  # mean of 1 - score over the online tests; see `loss_at_switch`
    has_score: bool  # whether the score is the normalised one


def switch_of(progress: Progress) -> float | None:
    """Return the step of a table at which learning went on in the environment; None if it did not."""
    online = [
        step - env_step
        for step, env_step in zip(progress["step"], progress.get("env_step", ()), strict=False)
        if not math.isnan(env_step)
    ]
    return online[0] if online else None


def loss_at_switch(progress: Progress) -> Loss | None:
    """Return drop and regret of a table, as Tarasov et al. 2022 (CORL, arXiv:2210.07105) define regret.

    Without normalised scores, the score is (R - first) / (best - first), with the first and the best test return of the
    run. It is NaN where both are equal. A drop below 0 means that no test was worse than the best one offline. Without
    tests of both phases, the result is None.
    """
    if switch_of(progress) is None or "test/return" not in progress:
        return None
    returns, env_steps = np.asarray(progress["test/return"]), np.asarray(progress["env_step"])
    known, online = ~np.isnan(returns), ~np.isnan(env_steps)
    offline, early = returns[known & ~online], returns[known & online & (env_steps <= DROP_STEPS)]
    if not len(offline) or not len(early):
        return None
    if has_score := "test/normalized_score" in progress:
        scores = np.asarray(progress["test/normalized_score"])[known & online] / 100.0
    else:
        first, best = returns[known][0], returns[known].max()
        scores = (returns[known & online] - first) / (best - first) if best > first else np.full(1, np.nan)
    return Loss(float(offline.max() - early.min()), float((1.0 - scores).mean()), has_score)


class Aligned(NamedTuple):
    """The runs of a group that have a number for a metric, R of them, at the S steps that all of them have."""

    runs: list[Path]  # their folders
    curves: list[Curve]  # the numbers of each run at all of its steps
    steps: Array  # (S,), the common steps
    values: Array  # (R, S)


def align_runs(group: str | Path, runs: Sequence[Path], metric: str) -> Aligned:
    """Return the numbers of the runs of a group at their common steps. Runs without any number are left out.

    Raises:
        NoRunsError: no run has a number, or the runs have no common step.
    """
    curves = [curve_of(read_progress(run / "progress.csv"), metric) for run in runs]
    known = {run: curve for run, curve in zip(runs, curves, strict=True) if len(curve.steps)}
    if not known:
        raise NoRunsError(f"no run in {group} has a number for {metric!r}; {_advice(runs)}")
    values = [dict(zip(curve.steps, curve.mean, strict=True)) for curve in known.values()]
    common = sorted(set.intersection(*map(set, values)))
    if not common:
        extents = [_extent(run.name, curve.steps) for run, curve in zip(runs, curves, strict=True)]
        raise NoRunsError(
            f"the runs in {group} have no number for {metric!r} at a common step: {cut(extents, '; ')}; name only "
            f"folders of runs that share steps, or continue those that ended early"
        )
    table = np.array([[run[step] for step in common] for run in values])
    return Aligned(list(known), list(known.values()), np.array(common), table)


def mean_over_runs(group: str | Path, runs: Sequence[Path], metric: str) -> Mean:
    """Return mean and standard deviation over runs at their common steps; see `align_runs`."""
    _, known, common, table = align_runs(group, runs, metric)
    beyond = [
        Curve(*(column[curve.steps >= common[-1]] for column in curve))
        for curve in known
        if curve.steps[-1] > common[-1]
    ]
    return Mean(len(known), Curve(common, table.mean(axis=0), table.std(axis=0)), beyond)


def _extent(name: str, steps: Array) -> str:
    """Return the steps at which a run has numbers, as text."""
    if not len(steps):
        return f"run {name} has none"
    if len(steps) == 1:
        return f"run {name} has one, at {steps[0]:,.0f}"
    return f"run {name} has {len(steps)}, from {steps[0]:,.0f} to {steps[-1]:,.0f}"


def _advice(runs: Sequence[Path]) -> str:
    """Return a text that names the columns with numbers."""
    tables = [read_progress(run / "progress.csv") for run in runs]
    known = [name for name in dict.fromkeys(column for table in tables for column in table) if "/" in name]
    full = [name for name in known if any(len(curve_of(table, name).steps) for table in tables)]
    return f"`offpcc plot` has some for --metric {cut(full, ', ')}" if full else "train them first"


def cut(words: Sequence[str], between: str) -> str:
    """Return the first words, and the number of the others, for a message."""
    more = len(words) - MOST_LISTED
    return between.join([*words[:MOST_LISTED], *([f"and {more} more"] if more > 0 else [])])


class Summary(NamedTuple):
    """The final result of a group of runs."""

    environment: str  # the environment's name
    label: str  # the group's name in the legend
    num_runs: int  # runs with at least one number for the metric
    final_mean: float  # mean over runs at `steps`
    final_std: float  # standard deviation over runs at `steps` (with divisor N, NumPy's default)
    steps: int  # the last environment step at which all runs of the group have a number
    longest: int  # the last environment step of the longest run


def summarize(environment: str, label: str, found: Mean) -> Summary:
    """Return the final result of the runs of a group."""
    steps, mean, std = (column[-1] for column in found.curve)
    longest = max([int(steps), *(int(rest.steps[-1]) for rest in found.beyond)])
    return Summary(environment, label, found.num_runs, float(mean), float(std), int(steps), longest)


class RunGroup(NamedTuple):
    """Runs in the folder of one algorithm with equal settings."""

    folder: Path
    settings: str  # how they differ from other runs in the folder; "" if all are equal
    runs: list[Path]
    played: str = ""  # their environment, if the folder's place does not tell it
    kind: str = ""  # their algorithm and data, if the folder has runs of several kinds

    @property
    def environment(self) -> str:
        """The environment's name."""
        return self.played or self.folder.parent.name

    def __str__(self) -> str:
        return f"{self.folder} with {self.settings}" if self.settings else str(self.folder)


def losses_at_switch(groups: Sequence[RunGroup]) -> dict[tuple[str, str], list[Loss]]:
    """Return what runs lost when they went on in their environment, by environment and label as in `plot_runs`."""
    found = {}
    for group, name in zip(groups, labels_of(groups), strict=True):
        losses = [loss_at_switch(read_progress(run / "progress.csv")) for run in group.runs]
        found[group.environment, name] = [loss for loss in losses if loss is not None]
    return found


def groups_of(folders: Sequence[Path]) -> list[RunGroup]:
    """Group the runs in some folders by folder and settings, without duplicates."""
    runs_of: dict[Path, dict[Path, None]] = {}
    for folder in folders:
        for run in find_runs(folder):
            runs_of.setdefault(run.resolve().parent, {})[run.resolve()] = None
    groups = []
    for folder, found in runs_of.items():
        alike: dict[tuple[str, str, str], list[Path]] = {}
        for run in found:  # a folder that the user chose may have runs of all kinds
            alike.setdefault(_kind_of(run), []).append(run)
        if len(alike) == 2 and UNKNOWN in alike:  # a run without run.json is one of the others
            del alike[UNKNOWN]
            alike = {kind: list(found) for kind in alike}
        for (env, algo, data), runs in alike.items():
            kind = ", ".join(filter(None, (algo, data))) if len(alike) > 1 else ""
            played = env if kind else "" if _is_below_task(folder, env) else "_from_".join(filter(None, (env, data)))
            groups += [
                RunGroup(folder, ", ".join(filter(None, (kind, settings))), some, played, kind)
                for settings, some in group_runs(runs).items()
            ]
    return groups


def groups_with_numbers(folders: Sequence[Path], metric: str) -> tuple[list[RunGroup], list[NoRunsError]]:
    """Group the runs in some folders, without groups that have no number for a metric, such as runs that failed.

    Settings are compared among the other groups alone, so the former do not change their labels.

    Returns:
        The groups, and why the others are left out.

    Raises:
        NoRunsError: no group has a number.
    """
    groups, faults, kept = groups_of(folders), list[NoRunsError](), list[Path]()
    for group in groups:
        if any(len(curve_of(read_progress(run / "progress.csv"), metric).steps) for run in group.runs):
            kept += group.runs
        else:
            faults.append(NoRunsError(f"no run in {group} has a number for {metric!r}; {_advice(group.runs)}"))
    if not kept:
        raise faults[0]
    return groups_of(kept) if faults else groups, faults


def means_of(folders: Sequence[Path], metric: str) -> tuple[list[tuple[RunGroup, str, Mean]], list[NoRunsError]]:
    """Return the groups of runs in some folders, each with its label and its mean; and why others are left out.

    Raises:
        NoRunsError: no group has numbers at common steps.
    """
    groups, faults = groups_with_numbers(folders, metric)
    found = []
    for group, name in zip(groups, labels_of(groups), strict=True):
        try:
            found.append((group, name, mean_over_runs(str(group), group.runs, metric)))
        except NoRunsError as error:
            faults.append(error)
    if not found:
        raise faults[0]
    return found, faults


def _is_below_task(folder: Path, env: str) -> bool:
    """Return whether the folder above is one of the environment, as in a folder of results, or this is not known."""
    try:
        return not env or folder.parent.name.startswith(path_part(env))
    except UserError:  # run.json has a name that no folder can have
        return False


UNKNOWN = ("", "", "")  # the kind of a run without run.json


def _kind_of(run: Path) -> tuple[str, str, str]:
    """Return a run's environment, algorithm and data by its run.json; "" for what is unknown or not there."""
    details = RunFolder.at(run).details()
    data = details.get("dataset")
    env, algo, name = details.get("env"), details.get("algo"), data.get("name") if isinstance(data, dict) else None
    return str(env or ""), str(algo or ""), str(name or "")


def labels_of(groups: Sequence[RunGroup]) -> list[str]:
    """Return a name for each group: its folder's name and the settings that differ within the folder."""
    places = list(dict.fromkeys((group.environment, group.folder) for group in groups))
    name_of = dict(zip(places, _names(places), strict=True))
    names = [name_of[group.environment, group.folder] for group in groups]
    return [", ".join(filter(None, (name, group.settings))) for name, group in zip(names, groups, strict=True)]


def has_trained_online(run: Path) -> bool:
    """Return whether a run learned in an environment: it has no recorded data, or training episodes that ended."""
    has_no_data = RunFolder.at(run).details().get("dataset", "unknown") is None
    return has_no_data or len(curve_of(read_progress(run / "progress.csv"), "train/return").steps) > 0


def _names(places: Sequence[tuple[str, Path]]) -> list[str]:
    """Return names for folders of algorithms in environments: the algorithms, or parts of the paths to be unique.

    If two folders of one environment have the same algorithm, return the part of the path above the environment, such
    as `lstm` for `lstm/pendulum-p-v0/rsac`, without the digest of a sweep, and the algorithm's name where there is
    none. If this is not unique either, return both, or else the whole path.
    """
    environments, folders = zip(*places, strict=True)
    algorithms = [folder.name for folder in folders]
    paths = [Path(os.path.relpath(folder, os.path.commonpath(folders))) for folder in folders]
    above = [path.parent.parent.as_posix() if len(path.parts) > 2 else path.name for path in paths]
    short = {name: re.sub(r"-[0-9a-f]{6}$", "", name) for name in above}
    are_swept = all((folder.parent.parent.parent / "summary.json").is_file() for folder in folders)  # with a digest
    settings = [short[name] for name in above] if are_swept and len({*short.values()}) == len(short) else above
    both = [" ".join(dict.fromkeys((algorithm, name))) for algorithm, name in zip(algorithms, settings, strict=True)]
    for names in (algorithms, settings, both):
        if "" not in names and len(set(zip(environments, names, strict=True))) == len(places):
            return names
    return [str(path) for path in paths]
