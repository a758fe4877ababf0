"""What memories learn, all else equal, as Markdown: a row for each memory, a column for each task.

python -m benchmarks.memory_returns results/published_memories

Below the folder is one for each memory, and in it are runs. Told are the last test's return, mean and standard
deviation over run ids, how many of them have solved the task, and after how many steps (their median): from there on
three tests in a row reach the task's threshold.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import MEMORIES
from benchmarks.returns import tell
from benchmarks.time_to_solve import CARTPOLE, CORRIDOR, PENDULUM, Epoch, read_epochs, solved_at

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


def table(folder: Path) -> list[str]:
    """Lines of the table of all runs below `folder`.

    Raises:
        SystemExit: there is no run, or no threshold for a task.
    """
    runs: dict[str, dict[str, list[list[Epoch]]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(folder.rglob("progress.csv")):
        if epochs := read_epochs(file):
            memory, task = file.relative_to(folder).parts[:2]
            runs[task][memory].append(epochs)
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
