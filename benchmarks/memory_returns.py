"""What memories learn, all else equal, as Markdown: a row for each memory, a column for each task.

python -m benchmarks.memory_returns results/published_memories

Below the folder is one for each memory, and in it are runs. A cell has the mean and the standard deviation of the last
test's return over seeds, and how many of them have solved the task: three tests in a row reach its threshold. Then it
has the steps until the first of these tests, as the median of the runs that solved it (the larger one of two).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import MEMORIES
from benchmarks.returns import tell
from benchmarks.time_to_solve import CARTPOLE, CORRIDOR, PENDULUM, Epoch, read_epochs, solved_at
from offpcc.training.comparison import group_runs

THRESHOLDS = {
    "pendulum": PENDULUM.threshold,
    "dmc-cartpole-balance": CARTPOLE.threshold,
    "corridor": CORRIDOR.threshold,
}


def threshold_of(task: str) -> float:
    """What a return has to reach.

    Raises:
        SystemExit: no threshold is known.
    """
    for family, threshold in THRESHOLDS.items():
        if task.startswith(family):
            return threshold
    raise SystemExit(f"benchmarks: there is no threshold for {task}")


def told(task: str, runs: Sequence[Sequence[Epoch]]) -> str:
    """A cell of the table: what the runs of one memory came to."""
    last, threshold = [run[-1].test_return for run in runs], threshold_of(task)
    digits = 2 if abs(threshold) < 10.0 else 0
    spread = f" ± {statistics.pstdev(last):,.{digits}f}" if len(last) > 1 else ""
    solved = [(run, solved_at(run, threshold)) for run in runs]
    after = [run[first].step for run, first in solved if first is not None]
    text = f"{statistics.mean(last):,.{digits}f}{spread}; {len(after)} of {len(runs)}"
    return text + (f" after {statistics.median_high(after):,}" if after else "")


def check_alike(folder: Path, runs: Sequence[Path]) -> None:
    """Refuse runs that are no seeds of one experiment.

    Raises:
        SystemExit: they are of several algorithms, or of several settings.
    """
    kinds = sorted({run.parent.name for run in runs})
    if len(kinds) == 1:
        kinds = list(group_runs(runs))
    if len(kinds) > 1:
        raise SystemExit(f"benchmarks: runs in {folder} are not to be averaged: {'; '.join(kinds)}; take some away")


def table(folder: Path) -> list[str]:
    """Lines of the table of all runs below `folder`.

    Raises:
        SystemExit: there is no run, no threshold for a task, or runs of one cell are not of one setting.
    """
    runs: dict[str, dict[str, list[list[Epoch]]]] = defaultdict(lambda: defaultdict(list))
    folders: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("progress.csv")):
        if epochs := read_epochs(file):
            memory, task = file.relative_to(folder).parts[:2]
            runs[task][memory].append(epochs)
            folders[memory, task].append(file.parent)
    for (memory, task), found in folders.items():
        check_alike(folder / memory / task, found)
    if not runs:
        raise SystemExit(f"benchmarks: no runs with tests in {folder}")
    tasks = sorted(runs, key=lambda task: [int(word) if word.isdigit() else 0 for word in task.split("-")])
    found = {memory for by_memory in runs.values() for memory in by_memory}
    rows = [memory for memory in MEMORIES if memory in found] + sorted(found - set(MEMORIES))
    lines = [f"| | {' | '.join(tasks)} |", "|---" * (len(tasks) + 1) + "|"]
    for memory in rows:
        cells = [told(task, runs[task][memory]) if runs[task][memory] else "" for task in tasks]
        lines.append(f"| `{memory}` | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    tell(__doc__, table)
