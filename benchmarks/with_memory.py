"""What a memory is worth: returns of algorithms with and without one, and how far back each kind of memory looks.

python -m benchmarks.with_memory results/published_offline/pendulum-p-v0_from_pendulum_replay --output memory.png

Each folder has runs of algorithms and of their versions with memory, such as `iql` and `riql`. They are drawn side by
side, with a dot for each run id, by the return of the last test. The last panel has the corridors of
results/benchmarks/time_to_solve.json: how many seeds solved a corridor of N steps. It prints the same as Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.cases import MEMORIES
from benchmarks.command import command
from benchmarks.pictures import INK, PEER, STYLE, save
from benchmarks.results import read
from benchmarks.returns import of_seeds, tests_of

CORRIDORS = Path("results/benchmarks/time_to_solve.json")
COLOR = "#0072B2"
Pairs = dict[str, tuple[list[float], list[float]]]  # algorithm: last returns without memory, and with it
Solved = dict[str, dict[int, tuple[int, int]]]  # memory: length of the corridor: solved, and all


def pairs(folder: Path) -> Pairs:
    """Return the last test returns of the algorithms that have runs without and with memory.

    Raises:
        SystemExit: no algorithm has both.
    """
    last: dict[str, list[float]] = defaultdict(list)
    for file in sorted(folder.glob("*/*/progress.csv")):
        if returns := tests_of(file)[0]:
            last[file.parts[-3]].append(returns[-1])
    found = {name: (last[name], last[f"r{name}"]) for name in last if f"r{name}" in last}
    if not found:
        raise SystemExit(f"benchmarks: no algorithm in {folder} has runs with and without memory")
    return dict(sorted(found.items(), key=lambda item: statistics.mean(item[1][1])))


def corridors(file: Path) -> Solved:
    """Return how many runs of each memory solved corridors, by length."""
    counts: dict[str, dict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in read(file, ("config", "solved")):
        kind, _, rest = row["config"].partition("_")
        length, _, memory = rest.partition("_")
        if kind == "corridor" and length.isdigit() and memory in MEMORIES:
            counts[memory][int(length)].append(bool(row["solved"]))
    return {
        memory: {length: (sum(runs), len(runs)) for length, runs in sorted(counts[memory].items())}
        for memory in MEMORIES
        if memory in counts
    }


def table(all_pairs: Mapping[str, Pairs]) -> list[str]:
    """Return a table with a row for each task and algorithm."""
    lines = ["| environment and data | algorithm | without memory | with memory |", "|---|---|---|---|"]
    for task, found in all_pairs.items():
        name = task.replace("_from_", ", ")
        rows = reversed(found.items())
        lines += [
            f"| {name} | `{algo}` | {of_seeds(without)} | {of_seeds(with_it)} |" for algo, (without, with_it) in rows
        ]
    return lines


def draw(all_pairs: Mapping[str, Pairs], solved: Solved, titles: Sequence[str], file: Path) -> None:
    """Draw a panel for each task, and one of the corridors if there are any."""
    heights = [*map(len, all_pairs.values()), len(solved)]
    number = len(all_pairs) + bool(solved)
    with pyplot.rc_context(STYLE):
        size = 3.5 * number, 0.36 * max(heights) + 1.0
        figure, (panels,) = pyplot.subplots(1, number, figsize=size, squeeze=False, layout="constrained")
        for axes, found, title in zip(panels, all_pairs.values(), titles, strict=False):
            _draw_pairs(axes, found, title)
        if solved:
            _draw_corridors(panels[-1], solved)
        save(figure, file)


def _draw_pairs(axes: Axes, found: Pairs, title: str) -> None:
    values = [value for both in found.values() for runs in both for value in runs]
    left = min([0.0, *values]) if min(values) >= 0.0 else 1.05 * min(values)
    for place, both in enumerate(found.values()):
        for shift, runs, color, label in (
            (-0.19, both[0], PEER, "without memory"),
            (0.19, both[1], COLOR, "with memory"),
        ):
            mean = statistics.mean(runs)
            axes.barh(place + shift, mean - left, 0.36, left=left, color=color, label=label if not place else None)
            axes.plot(runs, [place + shift] * len(runs), "o", color=INK, markersize=2.5, zorder=3)
    axes.set_yticks(range(len(found)), list(found))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7, length=2)
    axes.set_title(title, loc="left")
    axes.set_xlabel("return of the last test", fontsize=8, labelpad=1)
    axes.set_xlim(left, max(0.0, *values) if left < 0.0 else 1.05 * max(values))
    axes.legend(fontsize=7, loc="lower right", frameon=False)


def _draw_corridors(axes: Axes, solved: Solved) -> None:
    lengths = sorted({length for row in solved.values() for length in row})
    for place, row in enumerate(reversed(solved.values())):
        for column, length in enumerate(lengths):
            if length not in row:
                axes.text(column, place, "not run", ha="center", va="center", fontsize=7, color="#999999")
                continue
            number, of = row[length]
            share = number / of
            color = tuple(1.0 - share * (1.0 - part) for part in (0.0, 0.447, 0.698))
            axes.add_patch(pyplot.Rectangle((column - 0.46, place - 0.42), 0.92, 0.84, facecolor=color, edgecolor=PEER))
            ink = "white" if share > 0.5 else INK
            axes.text(column, place, f"{number} of {of}", ha="center", va="center", fontsize=8, color=ink)
    axes.set(xlim=(-0.6, len(lengths) - 0.4), ylim=(-0.6, len(solved) - 0.4))
    axes.set_xticks(range(len(lengths)), [f"{length}" for length in lengths])
    axes.set_yticks(range(len(solved)), list(reversed(solved)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("a cue N steps ago: runs that use it", loc="left")
    axes.set_xlabel("N", fontsize=8, labelpad=1)


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and draw the picture if asked."""
    options = parser().parse_args(arguments)
    found = {folder.name: pairs(folder) for folder in options.folder}
    print(*table(found), sep="\n")
    solved = corridors(options.corridors) if options.corridors.exists() else {}
    if options.output:
        titles = options.title or [name.replace("_from_", ", ") for name in found]
        if len(titles) != len(found):
            raise SystemExit(f"benchmarks: {len(titles)} titles for {len(found)} folders")
        draw(found, solved, titles, options.output)
    return 0


def parser() -> argparse.ArgumentParser:
    """Of the command's arguments."""
    whole: Any = argparse.ArgumentParser(
        prog="python -m benchmarks.with_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("folder", nargs="+", type=Path, help="of one environment and data set")
    whole.add_argument("--title", nargs="+", help="one for each folder")
    whole.add_argument("--corridors", type=Path, default=CORRIDORS, metavar="FILE.json")
    whole.add_argument("--output", type=Path, metavar="FILE.png")
    return whole  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main())
