"""How far the gradients of `precision="bfloat16"` are from those of float32, on the networks of the paper.

python -m benchmarks.bf16

Two agents with the same weights and noise make the same update of the same batch, a few times anew. Told is the norm
of the difference of their gradients over the norm of float32's, of each network and of all of them. It writes
bf16.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import CASES, chosen
from benchmarks.command import command, positive
from benchmarks.libraries import SOURCES, UnavailableError, offpcc_agents
from benchmarks.machine import in_words, machine, versions
from offpcc.algorithms import ActorCritic
from offpcc.utils.errors import UserError
from offpcc.utils.system import keep_freed_memory

OUT = Path("results/benchmarks/bf16.json")
CHECKED = [name for name, case in CASES.items() if "offpcc-bf16" in case.libraries]
STORED = 20_000  # transitions


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; the exit code, 2 where there is no such precision."""
    options = parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    rows = []
    try:
        for name in chosen(options.cases, CHECKED, "case"):
            rows += errors(name, options.batches)
            print(*(_told(row) for row in rows if row["case"] == name), sep="\n", flush=True)
    except UnavailableError as fault:
        raise UserError(str(fault)) from fault
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": in_words(machine()), "versions": versions(), "rows": rows}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written to {options.out}")
    return 0


def errors(name: str, batches: int) -> list[dict[str, Any]]:
    """Relative errors of each network's gradients.

    Raises:
        UnavailableError: this version has no such precision.
    """
    case, found = CASES[name], {}
    storage = offpcc_agents.buffer(case.sizes, STORED)
    for _ in range(batches):
        batch = storage.sample()
        exact, rounded = (
            offpcc_agents.algorithm(case.algorithm, case.sizes, **options)
            for options in ({}, SOURCES["offpcc-bf16"].arguments)
        )
        for learner in (exact, rounded):
            learner.update_networks(batch)
        ours, theirs = gradients(exact), gradients(rounded)
        for part in [*ours, "all"]:
            parts = list(ours) if part == "all" else [part]
            difference = torch.cat([theirs[each] - ours[each] for each in parts]).norm()
            error = float(difference / torch.cat([ours[each] for each in parts]).norm())
            found.setdefault(part, []).append(error)
    return [
        {"case": name, "network": part, "median": statistics.median(v), "high": max(v), "batches": batches}
        for part, v in found.items()
    ]


def gradients(learner: ActorCritic) -> dict[str, Tensor]:
    """Of the last update, as one vector for each network that has learned.

    Raises:
        UnavailableError: this version does not keep them.
    """
    found = {}
    for name, part in vars(learner).items():
        if name.startswith("target") or not isinstance(part, torch.nn.Module):
            continue
        kept = [parameter.grad.flatten().float() for parameter in part.parameters() if parameter.grad is not None]
        if kept:
            found[name] = torch.cat(kept)
    if not found:
        raise UnavailableError("an update leaves no gradients behind, so there is nothing to compare")
    return found


def _told(row: dict[str, Any]) -> str:
    return f"{row['case']:14} {row['network']:18} {100 * row['median']:7.3f} %   highest {100 * row['high']:7.3f} %"


def parser() -> argparse.ArgumentParser:
    """Of the command's arguments."""
    whole = argparse.ArgumentParser(
        prog="python -m benchmarks.bf16", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    whole.add_argument("--cases", default="rsac,rsac_small,cql", metavar="A,B", help=f"of {', '.join(CHECKED)}")
    whole.add_argument("--batches", type=positive, default=3, metavar="N")
    whole.add_argument("--threads", type=positive, default=2, metavar="N")
    whole.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    return whole


if __name__ == "__main__":
    sys.exit(main())
