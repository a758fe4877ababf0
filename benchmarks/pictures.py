"""Pictures of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.cases import CASES
from benchmarks.results import Row, groups, number

FLOOR, PEER, INK = "#D55E00", "#B8BEC6", "#333333"
COLORS = {
    "floor": "#F2C4A5",
    "offpcc": "#0072B2",
    "offpcc-compiled": "#56B4E9",
    "offpcc-bf16": "#009E73",
}  # Okabe & Ito's
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
MEMORIES = {
    "lstm": "#333333", "gru": "#0072B2", "mingru": "#D55E00", "lru": "#009E73", "gpt": "#CC79A7", "concat": "#B8BEC6",
    "rnn": "#56B4E9",
}  # fmt: skip
COLUMNS, FEWEST = 4, 3  # panels side by side; bars that a panel has room for, at least


def throughput(rows: Sequence[Row], file: Path) -> None:
    """A panel for each case, a bar for each library, the floor as a line."""
    together = groups(rows)
    threads = max(row["threads"] for row in rows)  # one picture; the table tells the others
    shown = {name: group for (name, of), group in together.items() if of == threads}
    columns = min(COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    with pyplot.rc_context(STYLE):
        figure, panels = pyplot.subplots(
            lines, columns, figsize=(3.6 * columns, 1.75 * lines + 0.8), squeeze=False, layout="constrained"
        )
        for axes, (name, group) in zip(panels.flat, shown.items(), strict=False):
            _bars(axes, name, group)
        for axes in panels.flat[len(shown) :]:
            axes.set_axis_off()
        machines = " and ".join(sorted({row["machine"] for group in shown.values() for row in group}))
        figure.suptitle(f"{machines}, {threads} thread{'s' * (threads > 1)}; medians, lowest to highest", fontsize=9)
        save(figure, file)


def _bars(axes: Axes, name: str, group: Sequence[Row]) -> None:
    floor = next((row["median"] for row in group if row["library"] == "floor"), None)
    places, widths = range(len(group)), [row["median"] for row in group]
    errors = [[row["median"] - row["low"] for row in group], [row["high"] - row["median"] for row in group]]
    colors = [COLORS.get(row["library"], PEER) for row in group]
    axes.barh(places, widths, 0.72, xerr=errors, color=colors, error_kw={"elinewidth": 0.8, "ecolor": "#666666"})
    reach = max(row["high"] for row in group)
    for place, row in zip(places, group, strict=True):
        label = axes.text(row["high"] + 0.03 * reach, place, number(row["median"]), va="center", fontsize=8, zorder=3)
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})  # where the floor's line crosses it
    if floor is not None:
        axes.axvline(floor, color=FLOOR, linewidth=1.1, linestyle=(0, (4, 2)), zorder=2)
    unit, case = group[0]["unit"], CASES.get(name)
    better = "" if unit.endswith("/s") else ", lower is better"
    axes.set_title(case.title if case else name, loc="left")
    axes.set_xlabel(f"{'µs' if unit == 'us' else unit}{better}", fontsize=8, labelpad=1)
    axes.set(xlim=(0.0, 1.22 * reach), ylim=(max(len(group), FEWEST) - 0.4, -0.6))
    axes.set_yticks(list(places), [row["library"] for row in group])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7, length=2)
    axes.locator_params(axis="x", nbins=4)


def growth(panels: Mapping[str, Mapping[str, Any]], file: Path, about: str) -> None:
    """A panel for each thing that grows: its cost, and the floor's where there is one."""
    with pyplot.rc_context(STYLE):
        figure, grid = pyplot.subplots(2, 3, figsize=(10.5, 5.6), layout="constrained")
        for axes, panel in zip(grid.flat, panels.values(), strict=False):
            _curves(axes, panel)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        figure.suptitle(about, fontsize=9)
        save(figure, file)


def memories(rows: Sequence[Mapping[str, Any]], file: Path, about: str) -> None:
    """Learning over the sequences' length, a curve for each memory, and a step of acting, a bar for each."""
    with pyplot.rc_context(STYLE):
        figure, (left, right) = pyplot.subplots(
            1, 2, figsize=(10.0, 3.8), width_ratios=(1.5, 1.0), layout="constrained"
        )
        learning = [row for row in rows if row["of"] == "learning"]
        for name in dict.fromkeys(row["memory"] for row in learning):
            curve = [row for row in learning if row["memory"] == name]
            lengths = [row["length"] for row in curve]
            left.plot(lengths, [row["median"] for row in curve], "o-", color=MEMORIES[name], label=name, markersize=4)
            lows, highs = ([row[end] for row in curve] for end in ("low", "high"))
            left.fill_between(lengths, lows, highs, color=MEMORIES[name], alpha=0.15, linewidth=0)
        lengths = sorted({row["length"] for row in learning})
        left.set(xscale="log", yscale="log", xlabel="steps of a sequence", ylabel="ms, forward and backward")
        left.set_xticks(lengths, [f"{length:,}" for length in lengths])
        left.minorticks_off()
        left.grid(alpha=0.25, linewidth=0.5)
        left.set_title("learning", loc="left")
        left.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        _steps_of_acting(right, [row for row in rows if row["of"] == "acting"])
        figure.suptitle(about, fontsize=8)
        save(figure, file)


def _steps_of_acting(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    places, widths = range(len(rows)), [row["median"] for row in rows]
    errors = [[row["median"] - row["low"] for row in rows], [row["high"] - row["median"] for row in rows]]
    colors = [MEMORIES[row["memory"]] for row in rows]
    axes.barh(places, widths, 0.72, xerr=errors, color=colors, error_kw={"elinewidth": 0.8, "ecolor": "#666666"})
    reach = max(row["high"] for row in rows)
    for place, row in zip(places, rows, strict=True):
        axes.text(row["high"] + 0.03 * reach, place, number(row["median"]), va="center", fontsize=8)
    axes.set(xlim=(0.0, 1.2 * reach), ylim=(len(rows) - 0.4, -0.6), xlabel="µs, lower is better")
    axes.set_yticks(list(places), [row["memory"] for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_title("acting, one step", loc="left")


def _curves(axes: Axes, panel: Mapping[str, Any]) -> None:
    for name, curve in panel["curves"].items():
        is_floor = name == "floor"
        style = {"color": FLOOR, "linestyle": (0, (4, 2))} if is_floor else {"color": COLORS["offpcc"], "marker": "o"}
        axes.plot(panel["x"], [point["median"] for point in curve], label=name, linewidth=1.5, markersize=4, **style)
        lows, highs = ([point[end] for point in curve] for end in ("low", "high"))
        axes.fill_between(panel["x"], lows, highs, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks(panel["x"], [_short(x) for x in panel["x"]])
    highest = max(point["high"] for curve in panel["curves"].values() for point in curve)
    lowest = min(point["low"] for curve in panel["curves"].values() for point in curve)
    if lowest > 0.0:
        axes.set_yscale("log")
    axes.minorticks_off()
    if highest < 10.0 * lowest:  # a flat line looks flat
        axes.set_ylim(lowest / 4.0, highest * 4.0)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_title(panel["title"], loc="left")
    axes.set_xlabel(panel["of"], fontsize=8)
    axes.set_ylabel(panel["unit"], fontsize=8)
    if len(panel["curves"]) > 1:
        axes.legend(frameon=False, fontsize=8)


def _short(x: float) -> str:
    return f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x >= 1e4 else f"{x:g}"


def save(figure: Any, file: Path) -> None:
    """Write a figure, and close it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150, metadata={"Software": None})
    pyplot.close(figure)
