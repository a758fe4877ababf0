"""Plots of learning curves: of a run, and of means over seeds."""

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from offpcc.training.analysis.run_tables import (
    Curve,
    Progress,
    Summary,
    curve_of,
    has_trained_online,
    means_of,
    read_progress,
    summarize,
    switch_of,
)
from offpcc.utils.figures import COLORS, line_looks, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OFFLINE_STEPS = "steps of learning from recorded data"
BOTH_STEPS = "steps from recorded data, then environment steps"
LABEL = 36  # characters in a line of a label
TITLE, MOST_LINES = 44, 6  # characters in a line of a title, and lines
LONGEST_TITLE = TITLE * MOST_LINES
UNBROKEN = "\0"  # placeholder for a space without a line break
THIN = 0.8  # points; width of the line of a single run


def plot_run(folder: Path, file: Path) -> None:
    """Plot a run's learning curve: test return with a band of one standard deviation, and training return.

    The folder is `<environment>/<algorithm>/<run id>`. A run without both returns, which learns from a dataset and has
    no environment, gets a plot of its losses.
    """
    progress = read_progress(folder / "progress.csv")
    environment, algorithm, run_id = folder.resolve().parts[-3:]
    figure, ((axes,),) = _panels([f"{environment}, {algorithm}, run {run_id}"], "return")
    train = curve_of(progress, "train/return")
    if len(train.steps):
        _draw(axes, train, COLORS[0], label="training", alpha=0.35)
    _mark_switch(axes, progress)
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
    save_figure(figure, file)


def plot_runs(
    folders: Sequence[Path],
    file: Path,
    *,
    metric: str = "test/return",
    announce: Callable[[str], None] | None = None,
) -> list[Summary]:
    """Plot groups of runs for comparison. A group consists of the runs of one folder with equal settings.

    Each group has a line for the mean over its runs and a band of one standard deviation, up to the last common step.
    The legend names its algorithm with the settings that differ.
    Thin lines show the longer runs from there on. Each environment has its own panel. Where learning goes on in the
    environment after recorded data, a vertical line marks the switch, and a thin line shows each run.

    The arguments and the result are those of `offpcc.plot`.
    """
    means, faults = means_of(folders, metric)
    if announce is not None:
        for fault in faults:
            announce(f"left out: {fault}")
    environments = list(dict.fromkeys(group.environment for group, *_ in means))
    ylabel = metric.replace("/", " ").replace("_", " ")
    if any(found.num_runs > 1 for *_, found in means):
        ylabel += "\n(mean ± std over runs)"
    figure, panels = _panels(environments, ylabel)
    axes_of = dict(zip(environments, panels.flat, strict=False))
    online = {group.environment for group, *_ in means if any(map(has_trained_online, group.runs))}
    for environment in axes_of.keys() - online:
        axes_of[environment].set(xlabel=OFFLINE_STEPS)
    looks = line_looks(name for _, name, _ in means)
    summaries = []
    for group, name, found in means:
        num_runs, curve, beyond = found
        axes = axes_of[group.environment]
        label = f"{name} ({num_runs}{UNBROKEN}{'run' if num_runs == 1 else 'runs'})"
        label = textwrap.fill(label, LABEL).replace(UNBROKEN, " ")
        tables = [read_progress(run / "progress.csv") for run in group.runs]
        is_marked = [_mark_switch(axes, table) for table in tables]
        if any(is_marked):
            beyond = [one for table in tables if len((one := curve_of(table, metric)).steps)]
        for rest in beyond:
            axes.plot(rest.steps, rest.mean, **looks[name], linewidth=THIN, alpha=0.7)
        _draw(axes, curve, **looks[name], label=label)
        summaries.append(summarize(group.environment, name, found))
    save_figure(figure, file)
    return summaries


def _panels(titles: Sequence[str], ylabel: str) -> "tuple[Figure, npt.NDArray[Any]]":
    """Return an empty figure with one panel per title, at most three per row."""
    from matplotlib.ticker import EngFormatter

    num_columns = min(3, len(titles))
    num_rows = math.ceil(len(titles) / num_columns)
    with new_figure(4.8 * num_columns, 3.4 * num_rows) as figure:
        panels = figure.subplots(num_rows, num_columns, squeeze=False)
        for axes, title in zip(panels.flat, titles, strict=False):
            axes.set(title=_wrapped(title), xlabel="environment steps", ylabel=ylabel)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        for axes in panels.flat[len(titles) :]:
            axes.remove()
    return figure, panels


def _wrapped(title: str) -> str:
    """Return a title in at most six lines that fit a panel: of a long one, one for environment, data and phase each."""
    parts = re.split("(?=_from_|_then_)", title[:LONGEST_TITLE]) if len(title) > TITLE else [title]
    lines = [line for part in parts for line in textwrap.wrap(part, TITLE)]
    is_cut = len(title) > LONGEST_TITLE or len(lines) > MOST_LINES
    return "\n".join([*lines[: MOST_LINES - 1], "..."] if is_cut else lines)


def _mark_switch(axes: "Axes", progress: Progress) -> bool:
    """Mark the step at which a run went on in its environment; return whether it did, after other steps."""
    step = switch_of(progress)
    if step:
        axes.axvline(step, color="0.5", linestyle=":", linewidth=THIN)
        axes.set(xlabel=BOTH_STEPS)
    return bool(step)


def _draw(axes: "Axes", curve: Curve, color: str, **line: Any) -> None:
    """Draw a line and its band. Draw a single point as a dot with an error bar, because a line would not show it."""
    if len(curve.steps) == 1:
        line["alpha"] = line.get("alpha", 1.0)
        axes.errorbar(curve.steps, curve.mean, yerr=curve.std, fmt="o", capsize=3, color=color, **line)
        return
    axes.plot(curve.steps, curve.mean, color=color, **line)
    if curve.std.any():
        axes.fill_between(
            curve.steps, curve.mean - curve.std, curve.mean + curve.std, color=color, alpha=0.2, linewidth=0
        )
