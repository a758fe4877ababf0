"""Learning curves, as one would put them in a paper."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from offpcc.pictures import COLORS, LINE_STYLES, STYLE, save
from offpcc.progress import Curve, NoRunsError, curve_of, find_runs, mean_over_runs, read_progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OFFLINE_STEPS = "steps of learning from recorded data"


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
    train = curve_of(progress, "train/return")
    if len(train.steps):
        _draw(axes, train, COLORS[0], label="training", alpha=0.35)
    test = curve_of(progress, "test/return")
    if len(test.steps):
        _draw(axes, test, COLORS[0], label="test (mean ± std over episodes)")
    if not len(train.steps):
        axes.set(xlabel=OFFLINE_STEPS)
    if not len(train.steps) and not len(test.steps):
        losses = [name for name in progress if name.endswith("_loss")]
        for name, color in zip(losses, COLORS, strict=False):
            _draw(axes, curve_of(progress, name), color, label=name.removeprefix("update/"))
        axes.set(ylabel="loss")
    save(figure, file)


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

    curves: dict[Path, tuple[int, Curve]] = {}
    missing = []
    for group, runs in groups.items():
        try:
            curves[group] = mean_over_runs(group, list(runs), metric)
        except NoRunsError as error:
            missing.append(str(error))
    if not curves:
        raise NoRunsError(missing[0])
    for fault in missing:
        (announce or (lambda text: None))(f"left out: {fault}")
    environments = list(dict.fromkeys(group.parent.name for group in curves))
    figure, panels = _panels(environments, metric.replace("/", " ").replace("_", " "))
    axes_of = dict(zip(environments, panels.flat, strict=False))
    for environment, axes in axes_of.items():
        runs_there = [run for group in curves if group.parent.name == environment for run in groups[group]]
        if not any(_has_trained_online(run) for run in runs_there):
            axes.set(xlabel=OFFLINE_STEPS)
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
    save(figure, file)
    return summaries


def _has_trained_online(run: Path) -> bool:
    return len(curve_of(read_progress(run / "progress.csv"), "train/return").steps) > 0


def _names(groups: Sequence[Path]) -> list[str]:
    """The algorithms' names, or what tells groups apart.

    Where two groups of one environment have the same algorithm, it is what lies above the environments, such as `lstm`
    of `lstm/pendulum-p-v0/rsac`, or where that is not enough the whole path.
    """
    algorithms = [group.name for group in groups]
    paths = [Path(os.path.relpath(group, os.path.commonpath(groups))) for group in groups]
    above = [path.parent.parent.as_posix() for path in paths]
    for names in (algorithms, above):
        if "." not in names and len({(g.parent.name, n) for g, n in zip(groups, names, strict=True)}) == len(groups):
            return names
    return [str(path) for path in paths]


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


def _draw(axes: "Axes", curve: Curve, color: str, **line: Any) -> None:
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
