"""Speed of the memories: what learning from sequences costs, and a step of acting, each beside the LSTM.

python -m benchmarks.memories --cells lstm,mingru --lengths 64,200 --rounds 3

Learning is one pass forward and one backward over a batch of sequences, of the memory alone. Acting is one step of one
environment by the memory's mirror (`offpcc.networks.numpy_inference`), as an agent acts on the CPU; beside it, the
products of a vector with each of the memory's matrices, without which there is no step. Memories take turns, round
after round, in this process. It writes memories.json, .md and .png.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import pictures
from benchmarks.cases import MEMORIES
from benchmarks.command import command, positive
from benchmarks.machine import in_words, machine, versions
from benchmarks.results import number
from offpcc.networks.cells import CELLS, Cell, run_chunked
from offpcc.networks.cells.base import PIECE
from offpcc.networks.numpy_inference import Array, mirror_of, view_as_numpy
from offpcc.utils.errors import UserError
from offpcc.utils.system import keep_freed_memory

OUT = Path("results/benchmarks/memories.json")
LENGTHS = (64, 200, 1000, 5000)
BASELINE = "lstm"
PRODUCTS = "acting, products alone"
ACTS = 300  # steps of one measurement
WARM_UP = 30  # steps
Row = dict[str, Any]


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all memories; the exit code."""
    options = parser().parse_args(arguments)
    if options.device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {options.device}, but PyTorch finds no GPU; leave --device out")
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the command line does
    rows = [*learning(options), *acting(options)]
    about = {
        "machine": machine(), "versions": versions(), "date": datetime.date.today().isoformat(),
        "width": options.width, "layers": options.layers, "inputs": options.inputs, "batch": options.batch,
        "threads": options.threads, "device": options.device, "rows": rows,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(markdown(about), encoding="utf-8")
    pictures.memories(rows, options.out.with_suffix(".png"), in_short(about))
    print(f"written to {options.out}, .md and .png")
    return 0


def built(name: str, options: argparse.Namespace) -> Cell:
    """A memory of the sizes that are measured."""
    torch.manual_seed(1)
    return CELLS[name](options.inputs, options.width, options.layers)


def learning(options: argparse.Namespace) -> list[Row]:
    """Milliseconds of a pass forward and backward, a row for each memory and length."""
    rows = []
    for length in options.lengths:
        works = {name: learns(built(name, options).to(options.device), length, options) for name in options.cells}
        for name, times in in_turn(works, options.rounds).items():
            rows.append(row(name, "learning", "ms", times, length))
            print(told(rows[-1]), flush=True)
    return rows


def learns(cell: Cell, length: int, options: argparse.Namespace) -> Callable[[], float]:
    """What takes one pass forward and backward, and gives its milliseconds."""
    x = torch.randn(options.batch, length, options.inputs, generator=torch.Generator().manual_seed(1))
    x = x.to(options.device).requires_grad_(next(cell.parameters(), None) is None)
    asked = torch.ones(options.batch, length, cell.dim, device=options.device)

    def run() -> float:
        cell.zero_grad(set_to_none=True)
        wait(options.device)
        started = time.perf_counter()
        run_chunked(cell, x)[0].backward(asked)
        wait(options.device)
        return 1e3 * (time.perf_counter() - started)

    return run


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def acting(options: argparse.Namespace) -> list[Row]:
    """Microseconds of one step for one environment, a row for each memory, and of its products alone."""
    cells = {name: built(name, options) for name in options.cells}
    steps = {name: acts(cell, options.inputs) for name, cell in cells.items()}
    products = {name: multiplies(cell) for name, cell in cells.items() if matrices(cell)}
    rows = []
    for of, works in (("acting", steps), (PRODUCTS, products)):
        rows += [row(name, of, "us", times) for name, times in in_turn(works, options.rounds).items()]
    print(*map(told, rows), sep="\n", flush=True)
    return rows


def acts(cell: Cell, num_in: int) -> Callable[[], float]:
    """What takes some steps, the state handed on, and gives the microseconds of one.

    Raises:
        ValueError: the memory has no mirror.
    """
    mirror = mirror_of(cell)
    if mirror is None:
        raise ValueError(f"{type(cell).__name__} has no mirror; measure memories that have one")
    x, state = np.random.default_rng(1).standard_normal((1, num_in), np.float32), None
    for _ in range(WARM_UP):
        _, state = mirror(x, state)

    def run() -> float:
        after, started = state, time.perf_counter()
        for _ in range(ACTS):
            _, after = mirror(x, after)
        return 1e6 * (time.perf_counter() - started) / ACTS

    return run


def matrices(cell: Cell) -> list[Array]:
    """What a vector is multiplied by in a step, each (num_in, num_out)."""
    return [view_as_numpy(weight).T for weight in cell.parameters() if weight.dim() == 2]


def multiplies(cell: Cell) -> Callable[[], float]:
    """What takes the products of some steps, and gives the microseconds of one step's."""
    random = np.random.default_rng(1)
    pairs = [(random.standard_normal((1, len(matrix)), np.float32), matrix) for matrix in matrices(cell)]

    def run() -> float:
        started = time.perf_counter()
        for _ in range(ACTS):
            for x, matrix in pairs:
                np.dot(x, matrix)
        return 1e6 * (time.perf_counter() - started) / ACTS

    return run


def in_turn(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each gives in each round, after one that does not count."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for round_number in range(rounds + 1):
        for name, work in works.items():
            value = work()
            if round_number > 0:
                found[name].append(value)
    return found


def row(name: str, of: str, unit: str, times: Sequence[float], length: int | None = None) -> Row:
    """One measurement as it is kept; acting has no length."""
    summary = {"median": statistics.median(times), "low": min(times), "high": max(times), "rounds": len(times)}
    return {"memory": name, "of": of, "length": length, "unit": unit, **summary}


def told(found: Row) -> str:
    """A row in one line, for who waits."""
    length = "" if found["length"] is None else f" {found['length']} steps"
    spread = f"{number(found['low'])} to {number(found['high'])}"
    return f"{found['memory']:<7} {found['of']}{length}: {number(found['median'])} {found['unit']} ({spread})"


def groups(rows: Sequence[Row]) -> dict[tuple[str, int | None], list[Row]]:
    """Rows that were measured in turn."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    for each in rows:
        found.setdefault((each["of"], each["length"]), []).append(each)
    return found


def times_as_fast(found: Row, group: Sequence[Row]) -> float | None:
    """As the LSTM of the same group."""
    baseline = next((other for other in group if other["memory"] == BASELINE), None)
    return baseline["median"] / found["median"] if baseline else None


def in_short(about: Mapping[str, Any]) -> str:
    """What was measured on what, for people."""
    threads = f"{about['threads']} thread{'s' * (about['threads'] > 1)}"
    where = threads if about["device"] == "cpu" else f"{about['device']}, acting on the CPU with {threads}"
    return (
        f"{about['layers']} x {about['width']}, {about['inputs']} inputs, batch {about['batch']}; "
        f"{in_words(about['machine'])}, {where}; medians, lowest to highest"
    )


def markdown(about: Mapping[str, Any]) -> str:
    """The table with what it was measured on and with."""
    packages = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = ["# Memories", "", f"{in_short(about)}. Measured on {about['date']}.", f"Versions: {packages}.", ""]
    lines += [
        "Learning is a pass forward and backward over whole sequences, of the memory alone, on the CPU in pieces of "
        f"{PIECE} steps, as agents learn; acting is one step of one environment. Memories took turns, round after "
        "round, in one process.",
        "", "| | memory | median | low to high | x as fast as LSTM |", "|---" * 5 + "|",
    ]  # fmt: skip
    for (of, length), group in groups(about["rows"]).items():
        title = of if length is None else f"{of}, {length:,} steps"
        for each in group:
            ratio = times_as_fast(each, group)
            cells = [
                title, each["memory"], f"{number(each['median'])} {each['unit']}",
                f"{number(each['low'])} to {number(each['high'])}", "" if ratio is None else f"{ratio:.2f}",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """Of the command's arguments."""
    whole = argparse.ArgumentParser(
        prog="python -m benchmarks.memories", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    whole.add_argument("--cells", type=names, default=MEMORIES, metavar="NAMES", help="some of " + ",".join(CELLS))
    whole.add_argument("--lengths", type=numbers, default=LENGTHS, metavar="N,N", help="steps of a sequence")
    whole.add_argument("--width", type=positive, default=256, metavar="N")
    whole.add_argument("--layers", type=positive, default=1, metavar="N")
    whole.add_argument("--inputs", type=int, default=8, metavar="N", help="numbers of an input")
    whole.add_argument("--batch", type=positive, default=10, metavar="N", help="sequences")
    whole.add_argument("--threads", type=positive, default=1, metavar="N")
    whole.add_argument("--device", default="cpu", help="of learning; acting is on the CPU")
    whole.add_argument("--rounds", type=positive, default=7, metavar="N")
    whole.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    return whole


def names(given: str) -> tuple[str, ...]:
    """Names of memories with commas between them.

    Raises:
        argparse.ArgumentTypeError: there is no such memory.
    """
    found = tuple(given.split(","))
    unknown = [name for name in found if name not in CELLS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no memory {unknown[0]!r}; choose from {', '.join(CELLS)}")
    return found


def numbers(given: str) -> tuple[int, ...]:
    """Positive numbers with commas between them.

    Raises:
        argparse.ArgumentTypeError: they are something else.
    """
    try:
        found = tuple(int(part) for part in given.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{given!r} are no lengths; write positive numbers, such as 64,200")
    return found


if __name__ == "__main__":
    sys.exit(main())
