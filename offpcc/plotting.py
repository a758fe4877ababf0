"""Learning curves, as one would put them in a paper."""

import csv
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from offpcc.errors import UserError, first_line
from offpcc.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

# Okabe & Ito's colours, which colour-blind people tell apart, without black and the yellow lost on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINE_STYLES = ("-", "--", ":", "-.")

STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "offpcc",
}

# What would make two pictures of the same numbers differ: dates, and the plotting library's version.
METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


PICTURES = frozenset((".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".eps", ".ps"))
LARGEST = 2**30  # bytes of a progress.csv


class NoRunsError(ValueError):
    """There is nothing to plot."""


class Summary(NamedTuple):
    """How a group of runs ended.

    Attributes:
        environment: The environment's name.
        label: The group's name in the legend.
        num_runs: Runs with at least one number for the metric.
        final_mean: Mean over runs at `steps`.
        final_std: Standard deviation over runs at `steps` (divided by the number of runs, as NumPy does).
        steps: The last environment step that all runs of the group have a number for.
    """

    environment: str
    label: str
    num_runs: int
    final_mean: float
    final_std: float
    steps: int


class _Curve(NamedTuple):
    """One line of a picture: environment steps, and a mean with a standard deviation at each."""

    steps: Array
    mean: Array
    std: Array


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


def read_progress(file: Path) -> dict[str, list[float]]:
    """Read a run's `progress.csv` as columns, with nan for empty cells.

    Raises:
        UserError: If it is damaged, or something else.
    """
    try:
        if not file.is_file() or file.stat().st_size > LARGEST:
            raise ValueError("it is no file of a reasonable size")
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
            columns = {name: [float(row[name] or "nan") for row in rows] for name in reader.fieldnames or ()}
        if "step" not in columns:
            raise ValueError("it has no column 'step'")
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise UserError(
            f"{file} cannot be read as a run's progress ({first_line(error)}); put it back from a copy, or leave its "
            f"run out"
        ) from error
    return columns


def plot_run(folder: Path, file: Path) -> None:
    """Plot a run's learning curve: test return with a band of one standard deviation, and training return.

    Of a run without either, from recorded data and without an environment, the losses are plotted.

    Args:
        folder: The run's folder, `<environment>/<algorithm>/<run id>`.
        file: The picture (PNG, PDF or SVG, by its suffix).
    """
    progress = read_progress(folder / "progress.csv")
    environment, algorithm, run_id = folder.resolve().parts[-3:]
    figure, ((axes,),) = _panels([f"{environment}, {algorithm}, run {run_id}"], "return")
    train = _curve(progress, "train/return")
    if len(train.steps):
        _draw(axes, train, COLORS[0], label="training", alpha=0.35)
    test = _curve(progress, "test/return")
    if len(test.steps):
        _draw(axes, test, COLORS[0], label="test (mean ± std over episodes)")
    if not len(train.steps):
        axes.set(xlabel="steps of learning from recorded data")
    if not len(train.steps) and not len(test.steps):
        losses = [name for name in progress if name.endswith("_loss")]
        for name, color in zip(losses, COLORS, strict=False):
            _draw(axes, _curve(progress, name), color, label=name.removeprefix("update/"))
        axes.set(ylabel="loss")
    _save(figure, file)


def plot_runs(
    folders: Sequence[Path],
    file: Path,
    *,
    metric: str = "test/return",
    labels: Sequence[str] | None = None,
    announce: Callable[[str], None] | None = None,
) -> list[Summary]:
    """Compare groups of runs, a group being the runs that differ in their id only.

    Each group has a line for the mean over its runs and a band of one standard deviation, at the steps that
    all of its runs have reached. Each environment has a panel of its own.

    Args:
        folders: Folders of runs, algorithms or environments.
        file: The picture (PNG, PDF or SVG, by its suffix).
        metric: The column of `progress.csv` to plot.
        labels: Names for the legend, one per group in the order in which `folders` gives them; the
            algorithms' names by default.
        announce: Told which groups are left out, as none of their runs has the metric at a step that all have reached.

    Returns:
        A summary of each group.

    Raises:
        NoRunsError: If a folder holds no runs, or no group's runs have a number at a common step.
        KeyError: If a run's `progress.csv` lacks the metric.
        ValueError: If the number of labels is not that of groups.
    """
    groups: dict[Path, dict[Path, None]] = {}
    for folder in folders:
        for run in find_runs(folder):
            groups.setdefault(run.resolve().parent, {})[run.resolve()] = None
    names = _names(list(groups)) if labels is None else list(labels)
    if len(names) != len(groups):
        raise ValueError(f"{len(names)} labels for {len(groups)} groups of runs: {', '.join(map(str, groups))}")

    curves: dict[Path, tuple[int, _Curve]] = {}
    missing = []
    for group, runs in groups.items():
        try:
            curves[group] = _mean_over_runs(group, list(runs), metric)
        except NoRunsError as error:
            missing.append(str(error))
    if not curves:
        raise NoRunsError(missing[0])
    for fault in missing:
        (announce or (lambda text: None))(f"left out: {fault}")
    environments = list(dict.fromkeys(group.parent.name for group in curves))
    figure, panels = _panels(environments, metric.replace("/", " ").replace("_", " "))
    axes_of = dict(zip(environments, panels.flat, strict=False))
    styles = {name: i for i, name in enumerate(dict.fromkeys(names))}
    summaries = []
    for group, name in zip(groups, names, strict=True):
        if group not in curves:
            continue
        num_runs, curve = curves[group]
        color, line_style = COLORS[styles[name] % 6], LINE_STYLES[styles[name] // 6 % 4]
        noun = "run" if num_runs == 1 else "runs"
        _draw(
            axes_of[group.parent.name],
            curve,
            color,
            linestyle=line_style,
            label=f"{name} ({num_runs} {noun})",
        )
        last = int(curve.steps[-1]), float(curve.mean[-1]), float(curve.std[-1])
        summaries.append(Summary(group.parent.name, name, num_runs, last[1], last[2], last[0]))
    _save(figure, file)
    return summaries


def _names(groups: Sequence[Path]) -> list[str]:
    """The algorithms' names, or paths where two groups of one environment have the same."""
    short = [group.name for group in groups]
    if len({(group.parent.name, group.name) for group in groups}) == len(groups):
        return short
    return [os.path.relpath(group, os.path.commonpath(groups)) for group in groups]


def _curve(progress: dict[str, list[float]], metric: str) -> _Curve:
    """A metric where it is known; its band, where the file has one, is the column named `<metric>_std`."""
    steps, mean = np.asarray(progress["step"]), np.asarray(progress.get(metric, []))
    if not len(mean):
        return _Curve(mean, mean, mean)
    std = np.asarray(progress.get(f"{metric}_std", np.zeros_like(mean)))
    known = ~np.isnan(mean)
    return _Curve(steps[known], mean[known], np.nan_to_num(std[known]))


def _mean_over_runs(group: Path, runs: Sequence[Path], metric: str) -> tuple[int, _Curve]:
    """Mean and standard deviation over runs, where all have a number; runs without any do not count."""
    curves = []
    for run in runs:
        progress = read_progress(run / "progress.csv")
        if metric not in progress:
            raise KeyError(f"no column {metric!r} in the progress.csv of {run}; it has {', '.join(progress)}")
        curves.append(_curve(progress, metric))
    values = [dict(zip(curve.steps, curve.mean, strict=True)) for curve in curves if len(curve.steps)]
    common = sorted(set.intersection(*map(set, values))) if values else []
    if not common:
        raise NoRunsError(f"the runs in {group} have no number for {metric!r} at a common step")
    table = np.array([[run[step] for step in common] for run in values])
    return len(values), _Curve(np.array(common), table.mean(axis=0), table.std(axis=0))


def _panels(titles: Sequence[str], ylabel: str) -> "tuple[Figure, npt.NDArray[Any]]":
    """An empty figure with a panel per title, at most three side by side."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    num_columns = min(3, len(titles))
    num_rows = math.ceil(len(titles) / num_columns)
    with matplotlib.rc_context(STYLE):
        # Without pyplot, a figure needs no display and is freed like any object.
        figure = Figure(figsize=(4.8 * num_columns, 3.4 * num_rows), layout="constrained")
        panels = figure.subplots(num_rows, num_columns, squeeze=False)
        for axes, title in zip(panels.flat, titles, strict=False):
            axes.set(title=title, xlabel="environment steps", ylabel=ylabel)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        for axes in panels.flat[len(titles) :]:
            axes.remove()
    return figure, panels


def _draw(axes: "Axes", curve: _Curve, color: str, **line: Any) -> None:
    """Draw a line and its band; a lone point, which neither shows, as a dot with a bar."""
    if len(curve.steps) == 1:
        line["alpha"] = line.get("alpha", 1.0)
        axes.errorbar(curve.steps, curve.mean, yerr=curve.std, fmt="o", capsize=3, color=color, **line)
        return
    axes.plot(curve.steps, curve.mean, color=color, **line)
    if curve.std.any():
        axes.fill_between(
            curve.steps, curve.mean - curve.std, curve.mean + curve.std, color=color, alpha=0.2, linewidth=0
        )


def _save(figure: "Figure", file: Path) -> None:
    import matplotlib

    with matplotlib.rc_context(STYLE), replacing(file) as temporary:
        for axes in figure.axes:
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
        figure.savefig(temporary, dpi=150, metadata=METADATA.get(file.suffix))
