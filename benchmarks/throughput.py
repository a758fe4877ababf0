"""Updates, acting, sampling, memory and whole steps of offpcc, of its peers, and of the matrix products alone.

python -m benchmarks.throughput --cases sac,td3,rsac_small

In each case the libraries, each in a process of its own, are measured in turn for some seconds, round after round.
A table is printed; throughput.json, throughput.md and throughput.png are written, where a case that is measured again
replaces its rows. Libraries that are no packages take part by `--clone NAME=FOLDER`, the folder of their clone:
corl, offlinerl-kit, cleanrl, pomdp-baselines, mbrl-lib, offpcc-2021 (the original offpcc), seohongpark (FQL) and
ikostrikov (RLPD). Other code takes part by `--clone NAME=FILE.py`: the file defines prepare(case, num_transitions),
which returns benchmarks.libraries.Work for the cases that it knows and raises its UnavailableError for the rest.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.cases import CASES, CLONES, LIBRARIES, ON_GPU, Case, chosen
from benchmarks.command import above_zero, command, locked, positive
from benchmarks.machine import in_words, machine
from benchmarks.results import Row, groups
from benchmarks.rounds import Plan, measure
from offpcc.utils.errors import UserError

OUT = {"cpu": Path("results/benchmarks/throughput.json"), "cuda": Path("results/benchmarks/gpu.json")}
WIDTH = 110  # of a table that goes to a file
BUSY = 0.5  # load before the first measurement, above which a person is warned


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit code, 2 for a fault in what was asked for."""
    options = parser().parse_args(arguments)
    out: Path = options.out or OUT[options.device]
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    names = chosen(options.cases, list(CASES), "case")
    libraries = chosen(options.libraries, list(dict.fromkeys([*LIBRARIES, *dict(options.clone)])), "library")
    results.read(out)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda, but PyTorch finds no GPU; leave --device out")
    if options.device == "cuda":  # the other cases also run parts on the CPU
        left_out = [name for name in names if CASES[name].kind != "update"] if options.cases else []
        left_out += [name for name in libraries if name not in ON_GPU] if options.libraries else []
        if left_out := [*left_out, *dict(options.clone)]:
            told = f"not measured on a GPU: {', '.join(left_out)}"
            console.print(told, style="yellow", soft_wrap=True)
        names = [name for name in names if CASES[name].kind == "update"]
    plan = Plan(
        options.threads, options.rounds, options.seconds, options.transitions, options.device, dict(options.clone)
    )
    console.print(
        f"{in_words(machine(plan.device))}; {plan.threads} threads, {plan.rounds} rounds of {plan.seconds:g} s"
    )
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY:
        told = f"the machine is busy (load {os.getloadavg()[0]:.1f}): threads wait for each other, so trust no number"
        console.print(told, style="yellow", soft_wrap=True)
    new: list[Row] = []
    rows: list[Row] = []
    for name in names:
        new += one_case(CASES[name], libraries, plan, console)
        with locked(out):  # another run may have written, too; what is measured is not lost if the next case is stopped
            rows = results.replaced(results.read(out), new)
            results.write(out, rows, plan.device)
    if not new:
        print("benchmarks: nothing could be measured, see above", file=sys.stderr)
        return 1
    if importlib.util.find_spec("matplotlib") is not None:
        from benchmarks import pictures

        pictures.throughput(rows, out.with_suffix(".png"))
    console.print(f"written to {out}, .md and .png", soft_wrap=True)
    return 0


def one_case(case: Case, libraries: Sequence[str], plan: Plan, console: Console) -> list[Row]:
    """Measure a case, and print its table."""
    case = replace(case, device=plan.device)
    others = [name for name in plan.clones if name not in CLONES]
    there = [name for name in (*case.libraries, *others) if name not in CLONES or name in plan.clones]
    taking_part = [name for name in there if name in libraries]
    if plan.device == "cuda":
        there = [*there, "offpcc-bf16", "offpcc-eager"]
        taking_part = [name for name in ON_GPU if name in there and name in libraries]
    with console.status(f"{case.title}: {', '.join(taking_part)}"):
        found = measure(case, taking_part, plan, lambda text: console.print(text, style="yellow", soft_wrap=True))
    rows = results.rows_of(case, found, plan)
    for group in groups(rows).values():
        table = Table(*results.HEADINGS[1:], title=f"{case.title} ({case.name})", title_justify="left")
        for row in group:
            table.add_row(*results.cells(row, group)[1:])
        console.print(table)
    return rows


def parser() -> argparse.ArgumentParser:
    """Of the command's arguments."""
    whole = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"cases: {', '.join(CASES)}",
    )
    whole.add_argument("--cases", default="", metavar="A,B", help="by default all")
    whole.add_argument("--libraries", default="", metavar="A,B", help=f"by default all of {', '.join(LIBRARIES)}")
    whole.add_argument("--clone", type=_clone, action="append", default=[], metavar="NAME=PATH", help="see above")
    whole.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: libraries that use a GPU")
    whole.add_argument("--threads", type=positive, default=2, metavar="N", help="in every worker")
    whole.add_argument("--rounds", type=positive, default=7, metavar="N")
    whole.add_argument("--seconds", type=above_zero, default=3.0, metavar="S", help="of each measurement")
    whole.add_argument("--transitions", type=positive, default=100_000, metavar="N", help="in each buffer of vectors")
    whole.add_argument("--out", type=Path, metavar="FILE.json", help=f"by default {OUT['cpu']}, {OUT['cuda']} of a GPU")
    return whole


def _clone(text: str) -> tuple[str, str]:
    name, separator, file = text.partition("=")
    path = Path(file).resolve()
    if name in CLONES and separator and file:
        if not path.is_dir():
            raise argparse.ArgumentTypeError(f"{file!r} is no folder; {name} is read from a folder, its clone")
    elif not (name and separator and file) or name in LIBRARIES:
        raise argparse.ArgumentTypeError(f"{text!r} is neither CLONE=FOLDER nor NAME=FILE.py with a name of its own")
    return name, str(path)


if __name__ == "__main__":
    sys.exit(main())
