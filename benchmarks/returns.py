"""Tables of returns learned from recorded data, as Markdown: last and best test of runs, mean and s.d. over their ids.

python -m benchmarks.returns results/published_offline

As in CORL's tables, "last" is the last test of a run and "best" the best of its tests; best is chosen by the tests
themselves, so it flatters, and most where tests move up and down.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path


def tests_of(file: Path) -> tuple[list[float], list[float]]:
    """Returns and D4RL scores of a run's tests, in order; no scores where there is no reference."""
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    columns = ([float(row[name]) for row in rows if row.get(name)] for name in ("test/return", "test/normalized_score"))
    returns, scores = columns
    return returns, scores


def of_ids(values: list[float]) -> str:
    """Mean and standard deviation over run ids; of one id, its value alone."""
    text = f"{statistics.mean(values):,.1f}"
    return text if len(values) == 1 else f"{text} ± {statistics.pstdev(values):,.1f}"


def table(folder: Path) -> list[str]:
    """Lines of a table with a row for each environment, data set and algorithm below `folder`.

    Raises:
        SystemExit: there is no run.
    """
    runs: dict[tuple[str, str], list[tuple[list[float], list[float]]]] = defaultdict(list)
    for file in sorted(folder.rglob("progress.csv")):
        task, algorithm, _ = file.parent.parts[-3:]
        found = tests_of(file)
        if found[0]:
            runs[task, algorithm].append(found)
    if not runs:
        raise SystemExit(f"no runs with tests in {folder}")
    lines = ["| environment and data | algorithm | ids | last | best | D4RL score, last |", "|---|---|---|---|---|---|"]
    for (task, algorithm), found in runs.items():
        last, best = ([pick(returns) for returns, _ in found] for pick in (lambda r: r[-1], max))
        scores = [scores[-1] for _, scores in found if scores]
        score = of_ids(scores) if scores else ""
        name = task.replace("_from_", ", ")
        lines.append(f"| {name} | `{algorithm}` | {len(found)} | {of_ids(last)} | {of_ids(best)} | {score} |")
    return lines


def tell(description: str | None, table: Callable[[Path], list[str]]) -> None:
    """Print the table of a folder that the command line names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print("\n".join(table(parser.parse_args().folder)))


if __name__ == "__main__":
    tell(__doc__, table)
