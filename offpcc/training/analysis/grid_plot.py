"""Learning curves and final results over tasks and datasets, as a grid of panels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from offpcc.envs.d4rl.catalog import QUALITIES, reference_returns
from offpcc.training.analysis.run_tables import Array, Curve, RunGroup, Summary, means_of, read_progress, summarize
from offpcc.training.run_dir import RunFolder, path_part
from offpcc.utils.figures import line_looks, new_figure, save_figure

IMITATION = "bc"
ORDER = ("random", "medium-replay", "medium", "medium-expert", "expert")  # of columns, by skill
LAST = 10  # values whose mean is the line of an imitating agent
RETURN, SCORE = "test/return", "test/normalized_score"
TASK = re.compile(rf"(.+)-({'|'.join(sorted(QUALITIES, key=len, reverse=True))})(-v\d+)")


class Line(NamedTuple):
    """The runs of one algorithm on one dataset."""

    group: RunGroup
    name: str  # in the legend
    num_runs: int
    curve: Curve  # D4RL's scores, if `is_score`
    is_score: bool
    summary: Summary  # in the units of the metric

    @property
    def last(self) -> float:
        """The mean of the last values."""
        return float(self.curve.mean[-LAST:].mean())


def place_of(group: RunGroup) -> tuple[str, str]:
    """Return the row and the column of a group: its environment, and its dataset or "".

    ``hopper-medium-v2`` is in row ``hopper-v2`` and column ``medium``.
    """
    data = RunFolder.at(group.runs[0]).details().get("dataset")
    name = str(data["name"]) if isinstance(data, dict) and data.get("name") else ""
    for task in (group.environment, name):
        if match := TASK.fullmatch(task):
            return match[1] + match[3], match[2]
    env = RunFolder.at(group.runs[0]).details().get("env")
    start = f"{path_part(env)}_from_" if isinstance(env, str) and env else ""
    if start and group.environment.startswith(start):  # the label of a run from data, perhaps of a part of them
        return str(env), group.environment.removeprefix(start)
    return group.environment, name


def references_of(group: RunGroup) -> tuple[float, float] | None:
    """Return the returns with D4RL's scores 0 and 100 for the task of a group; None if D4RL gives none.

    Runs that tell their environment have scores only if their tables do. A run with changed rewards has none.
    """
    run = group.runs[0]
    env = RunFolder.at(run).details().get("env")
    if env and SCORE not in read_progress(run / "progress.csv"):
        return None
    row, column = place_of(group)
    task = row if not column else re.sub(r"(-v\d+)?$", rf"-{column}\1", row, count=1)
    return reference_returns(task) or reference_returns(str(env or ""))


def averaged(values: Array, number: int) -> Array:
    """Return the mean of each value and the `number` - 1 values before it, or of all before it if they are fewer."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    stops = np.arange(1, len(values) + 1)
    starts = np.maximum(stops - number, 0)
    return np.asarray((sums[stops] - sums[starts]) / (stops - starts))


def lines_of(folders: Sequence[Path], metric: str, average: int) -> list[Line]:
    """Return the lines of all groups of runs that have numbers.

    Raises:
        NoRunsError: none has.
    """
    known = [(*one, references_of(one[0]) if metric == RETURN else None) for one in means_of(folders, metric)[0]]
    in_returns, found = {place_of(group) for group, *_, references in known if references is None}, []
    for group, name, means, references in known:
        summary, (steps, mean, std) = summarize(group.environment, name, means), means.curve
        is_score = references is not None and place_of(group) not in in_returns  # one unit in each panel
        if references is not None and is_score:
            low, high = references
            mean, std = 100.0 * (mean - low) / (high - low), 100.0 * std / (high - low)
        curve = Curve(steps, averaged(mean, average), averaged(std, average))
        found.append(Line(group, name, means.num_runs, curve, is_score, summary))
    return found


def plot_grid(folders: Sequence[Path], file: Path, *, metric: str, average: int, final: bool) -> list[Summary]:
    """Plot groups of runs in a grid: a row for each environment, a column for each dataset, one legend for all.

    Returns are D4RL's scores in panels where all runs have these; with changed rewards, a run has none. A line has a
    band of one standard deviation over runs. BC is a dashed black line at the mean of its last values.

    The arguments and the result are those of `offpcc.plot`; the latter is in the units of the metric.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter

    found = lines_of(folders, metric, average)
    places = {id(line): place_of(line.group) for line in found}
    rows, columns = (list(dict.fromkeys(place[axis] for place in places.values())) for axis in (0, 1))
    columns.sort(key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    names = list(dict.fromkeys(line.name for line in found))
    looks = line_looks(name for name in names if name != IMITATION)
    looks[IMITATION] = {"color": "black", "linestyle": "--"}
    with new_figure(max(4.8, 3.2 * len(columns)), 2.6 * len(rows) + 0.8) as figure:
        panels = figure.subplots(len(rows), len(columns), squeeze=False)
        for axes in panels.flat:
            axes.set_visible(False)
        for line in found:
            row, column = places[id(line)]
            axes = panels[rows.index(row), columns.index(column)]
            what = "D4RL score" if line.is_score else metric.replace("/", " ").replace("_", " ")
            axes.set(title=" ".join(filter(None, (row, column))), ylabel=what, visible=True)
            look, (steps, mean, std) = looks[line.name], line.curve
            if final:
                place, band = names.index(line.name), std[-1] if line.num_runs > 1 else None
                axes.errorbar([place], [mean[-1]], yerr=band, fmt="o", capsize=3, color=look["color"])
                axes.set(xlim=(-0.5, len(names) - 0.5))
                axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
                continue
            axes.set_xlabel("steps")
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            if line.name == IMITATION:
                axes.axhline(line.last, **look)
                continue
            marker = "o" if len(steps) == 1 else None
            axes.plot(steps, mean, marker=marker, **look)
            axes.fill_between(steps, mean - std, mean + std, color=look["color"], alpha=0.2, linewidth=0)
        if any(line.num_runs > 1 for line in found):
            figure.suptitle("mean ± std over runs", fontsize="medium")
        if not final:
            handles = [Line2D([], [], **looks[name]) for name in names]
            figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 2 * len(columns)))
    save_figure(figure, file)
    return [line.summary for line in found]
