"""Tables of returns learned from recorded data, as Markdown: last and best test of runs, mean and s.d. over seeds.

Runs of one folder that have other settings have a row of their own, which names what differs.

python -m benchmarks.returns results/published_offline

As in CORL's tables, "last" is the last test of a run and "best" the best of its tests; best is chosen by the tests
themselves, so it flatters, and most where tests move up and down.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from offpcc.training.comparison import group_runs


def tests_of(file: Path) -> tuple[list[float], list[float]]:
    """Returns and D4RL scores of a run's tests, in order; no scores where there is no reference."""
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    columns = ([float(row[name]) for row in rows if row.get(name)] for name in ("test/return", "test/normalized_score"))
    returns, scores = columns
    return returns, scores


def of_seeds(values: list[float]) -> str:
    """Mean and standard deviation over seeds; of one seed, its value alone."""
    text = f"{statistics.mean(values):,.1f}"
    return text if len(values) == 1 else f"{text} ± {statistics.pstdev(values):,.1f}"


def table(folder: Path) -> list[str]:
    """Lines of a table with a row for each environment, data set, algorithm and setting below `folder`.

    Raises:
        SystemExit: there is no run.
    """
    folders: dict[Path, list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("progress.csv")):
        folders[file.parent.parent].append(file.parent)
    lines = []
    for place, runs in folders.items():
        name = place.parent.name.replace("_from_", ", ")
        for settings, members in group_runs(runs).items():
            found = [tests for run in members if (tests := tests_of(run / "progress.csv"))[0]]
            if not found:
                continue
            last, best = ([pick(returns) for returns, _ in found] for pick in (lambda r: r[-1], max))
            scores = [scores[-1] for _, scores in found if scores]
            score = of_seeds(scores) if scores else ""
            algorithm = f"`{place.name}`{f', {settings}' if settings else ''}"
            lines.append(
                f"| {name} | {algorithm} | {num_seeds(found)} | {of_seeds(last)} | {of_seeds(best)} | {score} |"
            )
    if not lines:
        raise SystemExit(f"no runs with tests in {folder}")
    return [
        "| environment and data | algorithm | seeds | last | best | D4RL score, last |",
        "|---|---|---|---|---|---|",
        *lines,
    ]


def num_seeds(found: Sequence[tuple[list[float], list[float]]]) -> str:
    """How many seeds there are, and where they were not tested alike often, how often each was."""
    numbers = [len(returns) for returns, _ in found]
    return str(len(found)) if len({*numbers}) == 1 else f"{len(found)}, after {min(numbers)} to {max(numbers)} tests"


def tell(description: str | None, table: Callable[[Path], list[str]]) -> None:
    """Print the table of a folder that the command line names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print("\n".join(table(parser.parse_args().folder)))


if __name__ == "__main__":
    tell(__doc__, table)
