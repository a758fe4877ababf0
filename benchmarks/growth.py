"""How the cost of an update grows with what it is made of, and the memory of a buffer with what is stored.

python -m benchmarks.growth

Each panel's points are measured in turn, round after round, in this process. Sampling and updating from a buffer is to
cost the same however much it holds. It writes growth.json and growth.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import pictures
from benchmarks.cases import CASES, EPISODE_LENGTH, Case
from benchmarks.command import above_zero, command, positive
from benchmarks.libraries import Work, floor, offpcc_agents
from benchmarks.machine import in_words, machine, versions
from benchmarks.recorded import transitions
from benchmarks.worker import rate, resident, warm_up

OUT = Path("results/benchmarks/growth.json")
STORED = 20_000  # transitions, where their number does not matter
Libraries = dict[str, Callable[[Case, int], Work]]
BOTH: Libraries = {"offpcc": offpcc_agents.prepare, "floor": floor.prepare}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One thing that grows.

    Attributes:
        title: for people.
        of: what x is.
        x: its values.
        case: that is measured.
        sized: changes of the case's sizes for a value.
        stored: transitions in the buffer for a value.
        libraries: that are measured.
    """

    title: str
    of: str
    x: tuple[int, ...]
    case: str
    sized: Callable[[int], dict[str, Any]] = lambda x: {}
    stored: Callable[[int], int] = lambda x: STORED
    libraries: Libraries = dataclasses.field(default_factory=lambda: BOTH)


PANELS = {
    "batch": Panel(
        "SAC, batch", "transitions of a batch", (32, 64, 128, 256, 512, 1024, 2048), "sac", lambda x: {"batch_size": x}
    ),
    "length": Panel(
        "RSAC, LSTM 1 x 64, length", "steps of a segment", (10, 25, 50, 100, 200), "rsac_small",
        lambda x: {"segment_len": x},
    ),
    "width": Panel(
        "SAC, width", "width of two hidden layers", (32, 64, 128, 256, 512, 1024), "sac",
        lambda x: {"hidden_dims": (x, x)},
    ),
    "critics": Panel("SAC, critics", "critics", (1, 2, 5, 10, 20), "sac", lambda x: {"num_critics": x}),
    "stored": Panel(
        "SAC, what the buffer holds", "steps in the buffer", (1_000, 10_000, 100_000, 1_000_000), "sac",
        stored=lambda x: x, libraries={"offpcc": offpcc_agents.prepare},
    ),
}  # fmt: skip
MILESTONES = (10_000, 30_000, 100_000, 300_000, 1_000_000)  # transitions


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all panels; the exit code."""
    options = parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    panels = {"memory": memory(options.largest)}  # first, while the process holds little else
    for name, panel in PANELS.items():
        panels[name] = measured(panel, options)
        print(name, *_told(panels[name]), sep="\n  ", flush=True)
    print("memory", *_told(panels["memory"]), sep="\n  ")
    panels["memory"] = panels.pop("memory")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(), "versions": versions(), "threads": options.threads, "panels": panels}
    options.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    told = f"{in_words(machine())}, {options.threads} threads; medians, lowest to highest"
    pictures.growth(panels, options.out.with_suffix(".png"), told)
    print(f"written to {options.out} and .png")
    return 0


def measured(panel: Panel, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of an update at each x, of each library."""
    x = [value for value in panel.x if panel.stored(value) <= max(options.largest, STORED)]
    works = {}
    for value in x:
        case = CASES[panel.case]
        case = dataclasses.replace(case, sizes=dataclasses.replace(case.sizes, **panel.sized(value)))
        for name, prepare in panel.libraries.items():
            works[name, value] = prepare(case, min(panel.stored(value), options.largest))
            warm_up(works[name, value], options.seconds)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in works}
    for _ in range(options.rounds):
        for key, work in works.items():
            times[key].append(1e3 / rate(work, options.seconds))
    curves = {name: [_point(times[name, value]) for value in x] for name in panel.libraries}
    return {"title": panel.title, "of": panel.of, "unit": "ms per update", "x": x, "curves": curves}


def memory(largest: int) -> dict[str, Any]:
    """Megabytes that the process has grown by at each number of stored transitions."""
    made, x, points = transitions(EPISODE_LENGTH), [m for m in MILESTONES if m <= largest] or [largest], []
    rows = list(zip(*made, strict=True))
    before, stored = resident(), 0
    push = offpcc_agents.store(x[-1])
    for milestone in x:
        while stored < milestone:
            observation, action, reward, following, *ends = rows[stored % EPISODE_LENGTH]
            push(observation, action, float(reward), following, *map(bool, ends))
            stored += 1
        points.append(_point([(resident() - before) / 1e6]))
    title, of = "memory of stored steps", "steps in the buffer"
    return {"title": title, "of": of, "unit": "MB", "x": x, "curves": {"offpcc": points}}


def _point(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _told(panel: dict[str, Any]) -> list[str]:
    return [
        f"{name}: " + ", ".join(f"{x:,}: {point['median']:.3g}" for x, point in zip(panel["x"], curve, strict=True))
        + f" {panel['unit']}"
        for name, curve in panel["curves"].items()
    ]  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Of the command's arguments."""
    whole = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    whole.add_argument("--threads", type=positive, default=2, metavar="N")
    whole.add_argument("--rounds", type=positive, default=5, metavar="N")
    whole.add_argument("--seconds", type=above_zero, default=1.0, metavar="S", help="of each measurement")
    whole.add_argument("--largest", type=positive, default=1_000_000, metavar="N", help="most steps in a buffer")
    whole.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    return whole


if __name__ == "__main__":
    sys.exit(main())
