"""What it costs to watch updates for NaN and infinity, as a share of the update.

python -m benchmarks.watching

One agent is updated watched and unwatched by turns, so that what else the machine does falls on both alike. Told are
the medians of the CPU time of an update, and of what a pair of turns differs by.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.cases import CASES
from benchmarks.command import command, positive
from benchmarks.libraries import offpcc_agents

MEASURED = {  # a case, and options of its agent
    "SAC": ("sac", {}),
    "SAC, not fused": ("sac", {"fused": False}),
    "TD3+BC": ("td3_bc", {}),
    "IQL": ("iql", {}),
    "BC": ("bc", {}),
    "RSAC, LSTM 1 x 64": ("rsac_small", {}),
}
STORED, BATCHES = 20_000, 4  # transitions; different batches


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all of `MEASURED`; the exit code."""
    parser = argparse.ArgumentParser(description="what it costs to watch updates for NaN and infinity")
    parser.add_argument("--turns", type=positive, default=300, help="of each kind, of one update for each batch")
    turns = parser.parse_args(arguments).turns
    torch.set_num_threads(1)
    for title, (name, options) in MEASURED.items():
        update, difference = measure(name, turns, **options)
        print(f"{title:20}{update:10.0f} us, watching {difference:6.1f} us, {100.0 * difference / update:5.2f}%")
    return 0


def measure(name: str, turns: int, **options: Any) -> tuple[float, float]:
    """Microseconds of an update without watching, and those that watching adds."""
    case = CASES[name]
    agent = offpcc_agents.algorithm(case.algorithm, case.sizes, **options)
    storage = offpcc_agents.buffer(case.sizes, STORED)
    batches = [storage.sample() for _ in range(BATCHES)]
    page: Callable[..., Any] = type(agent).inner_update
    fused = agent._fused

    def unwatched(batch: Any) -> Any:
        return fused(agent, batch) if fused is not None and fused.fits(agent) else page(agent, batch)

    watched: Callable[..., Any] = agent.update_networks

    def seconds(update: Callable[..., Any]) -> float:
        started = time.thread_time()
        for batch in batches:
            update(batch)
        return (time.thread_time() - started) / len(batches)

    plain, added = [], []
    for turn in range(turns):
        orders = (unwatched, watched) if turn % 2 else (watched, unwatched)
        taken = {update: seconds(update) for update in orders}
        plain.append(taken[unwatched])
        added.append(taken[watched] - taken[unwatched])
    return 1e6 * statistics.median(plain), 1e6 * statistics.median(added)


if __name__ == "__main__":
    sys.exit(main())
