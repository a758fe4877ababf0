"""The figure of a report: a row of panels for each task."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offpcc.training.analysis.plotting import THIN
from offpcc.training.analysis.report import Budget, Estimate, Report, ReportRow, range_of
from offpcc.utils.figures import line_looks, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 3.5, 2.9  # inches of a panel
EACH = 0.45  # inches of an algorithm in a panel of intervals
TOP, APART = -0.32, 0.15  # places of the first mark of an algorithm and of the next ones, in rows
MARKS = {"iqm": "o", "mean": "s", "median": "^", "optimality_gap": "x"}
NAMES = {"iqm": "IQM", "mean": "mean", "median": "median", "optimality_gap": "optimality gap (less is better)"}
LABEL = 22  # letters in a line of a name beside an axis
FAINT = 0.35  # opacity of the line of a run


def draw_report(report: Report, file: Path) -> None:
    """Draw the statistics, profiles and curves of a report, with every seed as a dot and as a thin line."""
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys([*(one.name for one in report.entries), *(one.algorithm for one in report.budgets)]))
    looks = line_looks(names)
    marks = [mark for mark in MARKS if report.normalise or mark != "optimality_gap"]
    kinds = ["statistics", *(["improvement"] if report.baseline else []), "profile", "by_step", "by_hours"]
    kinds += ["budget"] if report.budgets else []
    scopes = {task: [entry for entry in report.entries if entry.task == task] for task in report.scopes}
    heights = [max(HEIGHT, 1.0 + EACH * len(entries)) for entries in scopes.values()]
    with new_figure(WIDTH * len(kinds), sum(heights) + 1.0) as figure:
        panels = figure.subplots(len(scopes), len(kinds), squeeze=False, height_ratios=heights)
        for (task, entries), row in zip(scopes.items(), panels, strict=True):
            for kind, axes in zip(kinds, row, strict=True):
                axes.set_title(f"{task if kind == kinds[0] else ''}\n{_title(kind, report)}", loc="left")
                if kind == "statistics":
                    _draw_statistics(axes, entries, marks, looks, report)
                elif kind == "improvement":
                    _draw_improvement(axes, entries, looks, report)
                elif kind == "budget":
                    _draw_budgets(axes, [one for one in report.budgets if one.task == task], looks, report)
                else:
                    _draw_bands(axes, entries, kind, looks, report)
        handles = [Line2D([], [], **looks[name]) for name in names]
        handles += [Line2D([], [], color="0.3", linestyle="", marker=MARKS[mark], markersize=5) for mark in marks]
        handles.append(Line2D([], [], color="0.3", linestyle="", marker="o", markersize=3, alpha=0.6))
        texts = [*names, *(NAMES[mark] for mark in marks), "one run"]
        figure.legend(handles, texts, loc="outside lower center", ncols=min(len(texts), 2 * len(kinds)))
    save_figure(figure, file)


def _title(kind: str, report: Report) -> str:
    titles = {
        "statistics": f"{report.test} tests, 95% intervals",
        "improvement": f"better than {report.baseline}",
        "profile": "performance profile",
        "by_step": "IQM against steps",
        "by_hours": "IQM against time",
        "budget": "tuning budget",
    }
    return titles[kind]


def _unit(report: Report) -> str:
    return "normalised score" if report.normalise else report.metric.removeprefix("test/").replace("_", " ")


def _draw_statistics(
    axes: Axes, entries: list[ReportRow], marks: list[str], looks: dict[str, Any], report: Report
) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, entry in enumerate(entries):
        for i, mark in enumerate(marks):
            color = looks[entry.name]["color"]
            _draw_estimate(axes, entry.statistics[mark], place + TOP + APART * i, color, MARKS[mark])
        scores = [score for runs in entry.members for score in runs.scores]
        axes.plot(scores, [place + TOP + APART * len(marks)] * len(scores), "o", color="0.3", markersize=3, alpha=0.6)
    labels = [textwrap.fill(f"{entry.name} ({range_of(entry.num_seeds)})", LABEL) for entry in entries]
    _set_rows(axes, labels, f"{_unit(report)} of the {report.test} test")
    axes.xaxis.set_major_locator(MaxNLocator(5))  # more numbers of four digits would overlap


def _draw_improvement(axes: Axes, entries: list[ReportRow], looks: dict[str, Any], report: Report) -> None:
    for place, entry in enumerate(entries):
        if entry.improvement is not None:
            _draw_estimate(axes, entry.improvement, place, looks[entry.name]["color"], "o")
    axes.axvline(0.5, color="0.5", linestyle=":", linewidth=THIN)
    _set_rows(axes, [""] * len(entries), f"P(better than {report.baseline})")
    axes.set_xlim(-0.03, 1.03)


def _draw_estimate(axes: Axes, estimate: Estimate, place: float, color: str, marker: str) -> None:
    if not math.isnan(estimate.low):
        axes.plot([estimate.low, estimate.high], [place, place], color=color, linewidth=2.5, alpha=0.45)
    axes.plot([estimate.value], [place], marker=marker, color=color, markersize=5)


def _set_rows(axes: Axes, labels: list[str], xlabel: str) -> None:
    """Give each algorithm a row of a panel; the first is at the top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.grid(visible=False, axis="y")
    for place in range(1, len(labels)):
        axes.axhline(place - 0.5, color="0.85", linewidth=0.5)
    axes.set(xlabel=xlabel, ylim=(len(labels) - 0.5, -0.5))


def _draw_bands(axes: Axes, entries: list[ReportRow], kind: str, looks: dict[str, Any], report: Report) -> None:
    """Draw performance profiles, or learning curves with every run as a thin line."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for entry in entries:
        look, band = looks[entry.name], getattr(entry, kind)
        if kind != "profile":
            for runs in entry.members:
                for curve, hours in zip(runs.curves, runs.hours, strict=True):
                    at = curve.steps if kind == "by_step" else hours
                    marker = "." if len(at) == 1 else None
                    axes.plot(at, curve.mean, marker=marker, color=look["color"], linewidth=0.6, alpha=FAINT)
        if band is not None:
            axes.plot(band.at, band.value, marker="o" if len(band.at) == 1 else None, **look)
            axes.fill_between(band.at, band.low, band.high, color=look["color"], alpha=0.15, linewidth=0)
    if kind == "profile":
        axes.set(xlabel=_unit(report), ylabel="share of runs above", ylim=(-0.02, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(5))
    elif kind == "by_step":
        offline = {runs.is_offline for entry in entries for runs in entry.members}
        xlabel = "steps or updates" if len(offline) > 1 else "updates" if True in offline else "environment steps"
        axes.set(xlabel=xlabel, ylabel=_unit(report))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.set(xlabel="hours of training", ylabel=_unit(report))
        axes.xaxis.set_major_locator(MaxNLocator(5))


def _draw_budgets(axes: Axes, budgets: list[Budget], looks: dict[str, Any], report: Report) -> None:
    from matplotlib.ticker import MaxNLocator

    for one in budgets:
        axes.plot(range(1, len(one.expected_best) + 1), one.expected_best, marker=".", **looks[one.algorithm])
    axes.set(xlabel="policies evaluated online", ylabel=f"expected best {_unit(report)}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
