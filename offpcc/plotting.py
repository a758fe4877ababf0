"""Learning curves, as one would put them in a paper."""

import math
import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from offpcc.pictures import COLORS, LINE_STYLES, STYLE, save
from offpcc.progress import Curve, Mean, NoRunsError, curve_of, find_runs, mean_over_runs, read_progress
from offpcc.settings import group_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OFFLINE_STEPS = "steps of learning from recorded data"
LABEL = 36  # letters in a line of a label
UNBROKEN = "\0"  # a space at which a label is not broken
THIN = 0.8  # points; a line of one run beside that of a mean


class Summary(NamedTuple):
    """How a group of runs ended.

    Attributes:
        environment: The environment's name.
        label: The group's name in the legend.
        num_runs: Runs with at least one number for the metric.
        final_mean: Mean over runs at `steps`.
        final_std: Standard deviation over runs at `steps` (divided by the number of runs, as NumPy does).
        steps: The last environment step that all runs of the group have a number for.
        longest: The last environment step of the run that goes on longest.
    """

    environment: str
    label: str
    num_runs: int
    final_mean: float
    final_std: float
    steps: int
    longest: int


class Group(NamedTuple):
    """Runs of one algorithm in one folder that have the same settings."""

    folder: Path
    settings: str  # what tells them from the other runs in the folder; "" where all are alike
    runs: list[Path]


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
    """Compare groups of runs. A group are the runs of one folder that have the same settings.

    Each group has a line for the mean over its runs and a band of one standard deviation, as far as all of its runs
    reach. Thin lines show the runs that go on from there, each to its own end. Each environment has a panel of its own.

    Args:
        folders: Folders of runs, algorithms or environments.
        file: The picture (PNG, PDF or SVG, by its suffix).
        metric: The column of `progress.csv` to plot.
        labels: Names for the legend, one per group in the order in which `folders` gives them; the
            algorithms' names by default, with the settings that differ.
        announce: Told which groups are left out, as none of their runs has the metric at a step that all have reached.

    Returns:
        A summary of each group.

    Raises:
        NoRunsError: If a folder holds no runs, or no group's runs have a number at a common step.
        KeyError: If a run's `progress.csv` lacks the metric.
        UserError: If a run's table or config cannot be read.
        ValueError: If the number of labels is not that of groups.
    """
    groups = _groups(folders)
    names = _labels(groups) if labels is None else list(labels)
    if len(names) != len(groups):
        told = ", ".join(f"{group.folder} {group.settings}".strip() for group in groups)
        raise ValueError(f"{len(names)} labels for {len(groups)} groups of runs: {told}")

    means: list[tuple[Group, str, Mean]] = []
    missing = []
    for group, name in zip(groups, names, strict=True):
        told = f"{group.folder} with {group.settings}" if group.settings else str(group.folder)
        try:
            means.append((group, name, mean_over_runs(told, group.runs, metric)))
        except NoRunsError as error:
            missing.append(str(error))
    if not means:
        raise NoRunsError(missing[0])
    for fault in missing:
        (announce or (lambda text: None))(f"left out: {fault}")
    environments = list(dict.fromkeys(group.folder.parent.name for group, *_ in means))
    figure, panels = _panels(environments, metric.replace("/", " ").replace("_", " "))
    axes_of = dict(zip(environments, panels.flat, strict=False))
    for environment, axes in axes_of.items():
        runs_there = [run for group, *_ in means if group.folder.parent.name == environment for run in group.runs]
        if not any(_has_trained_online(run) for run in runs_there):
            axes.set(xlabel=OFFLINE_STEPS)
    styles = {name: i for i, name in enumerate(dict.fromkeys(names))}
    summaries = []
    for group, name, (num_runs, curve, beyond) in means:
        axes, environment = axes_of[group.folder.parent.name], group.folder.parent.name
        color, line_style = COLORS[styles[name] % 6], LINE_STYLES[styles[name] // 6 % 4]
        label = f"{name} ({num_runs}{UNBROKEN}{'run' if num_runs == 1 else 'runs'})"
        label = textwrap.fill(label, LABEL).replace(UNBROKEN, " ")
        for rest in beyond:
            axes.plot(rest.steps, rest.mean, color=color, linestyle=line_style, linewidth=THIN, alpha=0.7)
        _draw(axes, curve, color, linestyle=line_style, label=label)
        last = int(curve.steps[-1]), float(curve.mean[-1]), float(curve.std[-1])
        longest = max([last[0], *(int(rest.steps[-1]) for rest in beyond)])
        summaries.append(Summary(environment, name, num_runs, last[1], last[2], last[0], longest))
    save(figure, file)
    return summaries


def _groups(folders: Sequence[Path]) -> list[Group]:
    """The runs in some folders, each once, by folder and settings."""
    runs_of: dict[Path, dict[Path, None]] = {}
    for folder in folders:
        for run in find_runs(folder):
            runs_of.setdefault(run.resolve().parent, {})[run.resolve()] = None
    return [
        Group(folder, settings, runs)
        for folder, found in runs_of.items()
        for settings, runs in group_runs(list(found)).items()
    ]


def _labels(groups: Sequence[Group]) -> list[str]:
    """Names for groups: that of their folder, and the settings that differ within it."""
    folders = list(dict.fromkeys(group.folder for group in groups))
    name_of = dict(zip(folders, _names(folders), strict=True))
    return [", ".join(filter(None, (name_of[group.folder], group.settings))) for group in groups]


def _has_trained_online(run: Path) -> bool:
    return len(curve_of(read_progress(run / "progress.csv"), "train/return").steps) > 0


def _names(groups: Sequence[Path]) -> list[str]:
    """The algorithms' names, or what tells their folders apart.

    Where two folders of one environment have the same algorithm, it is what lies above the environments, such as `lstm`
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
