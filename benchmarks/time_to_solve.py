"""Seconds until an agent has solved its task: the test return passes a threshold and stays there for 3 epochs.

python -m benchmarks.time_to_solve --configs quickstart,paper

Trains by the command that users give, one run after another, and reads the time column of progress.csv, which begins
with the first step of training. Told are the seconds at the end of the first of the three epochs, and at that of the
third, when one knows. A run is stopped once it has solved the task or its limit is over. It writes time_to_solve.json
and .md.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import MEMORIES, chosen
from benchmarks.command import command, locked, positive
from benchmarks.machine import in_words, machine, versions
from benchmarks.results import read

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("results/benchmarks/time_to_solve.json")
RUNS = Path("results/time_to_solve")  # where the training runs themselves go
EPOCHS = 3
COLUMNS = ("config", "run_id", "solved", "step")  # of each row, and others
LOOK = 1.0  # seconds between two looks at a run's table
PATIENCE = 30.0  # seconds that a run that is stopped may take to save itself


@dataclass(frozen=True)
class Training:
    """What is trained, and how long it may take.

    Attributes:
        config: below configs/.
        seeds: how many, from 1.
        minutes: the limit of each.
        env: the task.
        algo: the algorithm.
        threshold: the return that a test has to reach.
        cell: the memory, in place of the config's.
    """

    config: str
    seeds: int = 3
    minutes: float = 60.0
    env: str = "pendulum-p-v0"
    algo: str = "rsac"
    threshold: float = -200.0
    cell: str = ""


PENDULUM = Training("configs/small.gin")
CARTPOLE = Training("configs/evidence/dmc_cartpole.gin", env="dmc-cartpole-balance-p-v0", threshold=950.0)
CORRIDOR = Training("configs/evidence/memories/corridor.gin", algo="rsac_s", threshold=0.9)
LENGTHS = (10, 30, 100, 300)  # of corridors
LONG_CORRIDOR = replace(
    CORRIDOR, config="configs/evidence/memories/corridor_1000.gin", env="corridor-1000-v0", minutes=30.0, seeds=1
)
TRAININGS = {
    "quickstart": Training("configs/quickstart.gin"),
    "paper": Training("configs/paper/pendulum_p.gin", seeds=1),
    **{f"pendulum_{cell}": replace(PENDULUM, cell=cell) for cell in MEMORIES},
    "pendulum_state_critics": Training("configs/evidence/critic_inputs/fast.gin", seeds=5),
    **{f"cartpole_{cell}": replace(CARTPOLE, cell=cell) for cell in MEMORIES},
    **{
        f"corridor_{length}_{cell}": replace(CORRIDOR, env=f"corridor-{length}-v0", cell=cell)
        for length in LENGTHS
        for cell in MEMORIES
    },
    **{f"corridor_1000_{cell}": replace(LONG_CORRIDOR, cell=cell) for cell in MEMORIES},
}
BY_DEFAULT = ("quickstart", "paper")


@dataclass(frozen=True)
class Epoch:
    """A row of progress.csv."""

    step: int
    test_return: float
    seconds: float


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Train and tell; the exit code."""
    options = parser().parse_args(arguments)
    wanted = chosen(options.configs, list(TRAININGS), "config")
    rows, order = read(options.out, COLUMNS), {name: number for number, name in enumerate(TRAININGS)}
    for name in wanted:
        training = TRAININGS[name]
        if options.limit is not None:
            training = replace(training, minutes=options.limit)
        for run_id in options.run_id or range(1, training.seeds + 1):
            row = one_run(name, training, run_id, options)
            with locked(options.out):  # another run may have written, too
                rows = read(options.out, COLUMNS)
                others = [other for other in rows if (other["config"], other["run_id"]) != (name, run_id)]
                rows = sorted([*others, row], key=lambda r: (order.get(r["config"], len(order)), r["run_id"]))
                _write(options.out, rows)
    tell(rows)
    print(f"written to {options.out} and .md")
    return 0


def one_run(name: str, training: Training, run_id: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train once, from the start.

    Raises:
        SystemExit: the training failed.
    """
    results = options.runs / name
    folder = results / training.env / training.algo / str(run_id)
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        sys.executable, "offpcc/launch.py", "--env", training.env, "--algo", training.algo,
        "--config", training.config, *(["--gin", f"Recurrent.cell = '{training.cell}'"] if training.cell else []),
        "--run_id", str(run_id), "--results", str(results.resolve()), "--threads", str(options.threads),
    ]  # fmt: skip
    print(" ".join(["python", *command[1:]]), flush=True)
    results.mkdir(parents=True, exist_ok=True)
    log = results / f"{run_id}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
        epochs, stopped = follow(process, folder / "progress.csv", training.threshold, 60.0 * training.minutes)
    if process.returncode and not stopped:
        said = log.read_text().strip().splitlines() or ["it wrote nothing"]
        raise SystemExit(f"benchmarks: the training failed with exit code {process.returncode}: {said[-1]}")
    first = solved_at(epochs, training.threshold)
    row = {
        "config": name,
        "command": shlex.join(["python", *command[1:-4]]),
        "env": training.env,
        "run_id": run_id,
        "threads": options.threads,
        "solved": first is not None,
        "seconds": None if first is None else epochs[first].seconds,
        "seconds_confirmed": None if first is None else epochs[first + EPOCHS - 1].seconds,
        "step": None if first is None else epochs[first].step,
        "threshold": training.threshold,
        "limit_minutes": training.minutes,
        "stopped": stopped,
        "last_step": epochs[-1].step if epochs else 0,
        "best_test_return": max((epoch.test_return for epoch in epochs), default=None),
        "machine": in_words(machine()),
        "versions": versions(),
    }
    print(f"  {in_time(row)}", flush=True)
    return row


def follow(
    process: subprocess.Popen[bytes], progress: Path, threshold: float, limit: float
) -> tuple[list[Epoch], bool]:
    """Wait until a run has solved its task, is over, or has used its limit.

    Returns:
        Its epochs within the limit, and whether it was stopped before its own end.
    """
    started = time.monotonic()
    try:
        while process.poll() is None and solved_at(read_epochs(progress), threshold) is None:
            if time.monotonic() - started > limit + PATIENCE:  # its clock begins after its imports
                break
            time.sleep(LOOK)
    finally:
        if stopped := process.poll() is None:
            process.terminate()  # a process in the background may ignore Ctrl-C
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return [epoch for epoch in read_epochs(progress) if epoch.seconds <= limit], stopped


def read_epochs(progress: Path) -> list[Epoch]:
    """The rows of a run's table that are whole, none if there is no table yet."""
    if not progress.exists():
        return []
    whole, _, _ = progress.read_text(encoding="utf-8").rpartition("\n")
    rows = [row for row in csv.DictReader(whole.splitlines()) if row["test/return"] and row["time/hours"]]
    return [Epoch(int(row["step"]), float(row["test/return"]), 3600.0 * float(row["time/hours"])) for row in rows]


def solved_at(epochs: Sequence[Epoch], threshold: float) -> int | None:
    """The first of `EPOCHS` epochs in a row whose tests reached `threshold`."""
    passed = [epoch.test_return >= threshold for epoch in epochs]
    return next((i for i in range(len(passed) - EPOCHS + 1) if all(passed[i : i + EPOCHS])), None)


def in_time(row: dict[str, Any]) -> str:
    """What a run came to, for people."""
    if row["solved"]:
        return f"{row['seconds']:,.0f} s"
    best = "no test" if row["best_test_return"] is None else f"best test {row['best_test_return']:,.4g}"
    within = f"within {row['limit_minutes']:g} minutes" if row["stopped"] else f"in its {row['last_step']:,} steps"
    return f"not solved {within} ({best})"


def tell(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("config", "seed", "solved after", "known after", "steps", title="Time to solve")
    for row in rows:
        known = f"{row['seconds_confirmed']:,.0f} s" if row["solved"] else ""
        table.add_row(row["config"], str(row["run_id"]), in_time(row), known, f"{row['step'] or row['last_step']:,}")
    for config in dict.fromkeys(row["config"] for row in rows):
        runs = [row for row in rows if row["config"] == config]
        solved = [row["seconds"] for row in runs if row["solved"]]
        if len(solved) > 1:
            which = "median" if len(solved) == len(runs) else f"median of {len(solved)} of {len(runs)}"
            table.add_row(config, which, f"{statistics.median(solved):,.0f} s", "", "")
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def markdown(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of a table with a row for each config; of each of its seeds the seconds and the steps."""
    lines = ["| config | task | test return | solved | after, of each seed | steps |", "|---|---|---|---|---|---|"]
    for config in dict.fromkeys(row["config"] for row in rows):
        seeds = [row for row in rows if row["config"] == config]
        solved = [row for row in seeds if row["solved"]]
        after = ", ".join(in_time(row) for row in seeds)
        steps = ", ".join(f"{row['step']:,}" for row in solved)
        task = f"{seeds[0]['env']} | {seeds[0]['threshold']:g}"
        lines.append(f"| `{config}` | {task} | {len(solved)} of {len(seeds)} | {after} | {steps} |")
    return lines


def _write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"epochs": EPOCHS, "rows": rows}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text("\n".join([*markdown(rows), ""]), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """Of the command's arguments."""
    whole = argparse.ArgumentParser(
        prog="python -m benchmarks.time_to_solve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = ",".join(BY_DEFAULT)
    whole.add_argument(
        "--configs", default=default, metavar="A,B", help=f"of {', '.join(TRAININGS)}; by default {default}"
    )
    whole.add_argument("--run_id", type=positive, nargs="+", metavar="N", help="by default the first 1, 3 or 5")
    whole.add_argument("--limit", type=float, metavar="MINUTES", help="of each run, by default 30 or 60")
    whole.add_argument("--threads", type=positive, default=1, metavar="N", help="as of the command; 1 is its default")
    whole.add_argument("--runs", type=Path, default=RUNS, metavar="FOLDER", help="where runs go")
    whole.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    return whole


if __name__ == "__main__":
    sys.exit(main())
