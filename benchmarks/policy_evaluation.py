"""How well values from data rank policies: the policies of one training run, fitted Q evaluation, and played episodes.

python -m benchmarks.policy_evaluation pendulum-v0 sac results/evidence/policy_evaluation/pendulum-v0.json

An agent is trained; the agent at the start and after every second epoch is one policy. A few of them, which explore,
record the data. The value of each policy (its mode) from these data is compared with its discounted return.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import operator
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offpcc
from benchmarks.command import command, positive
from benchmarks.machine import in_words, machine, versions
from offpcc.cli.evaluate_from_data import MOST_CHOSEN, measure_returns
from offpcc.training.analysis.run_statistics import rank_correlation, regret_at
from offpcc.training.spec import configured_make

GAMMA = 0.95  # rewards after the pendulum's 200 steps then weigh 0.004 %
EVERY = 2  # epochs between two policies
RECORDED_STEPS = 4_000  # by each policy that records


@command
def main() -> None:
    """Train, record, estimate, play, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("algo")
    parser.add_argument("file", type=Path)
    parser.add_argument("--config", default="configs/small.gin")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--updates", type=positive, default=5_000)
    parser.add_argument("--episodes", type=positive, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    offpcc.configure(given.config)
    learner = offpcc.build(given.env, given.algo, seed=given.seed)
    policies: list[tuple[int, Any]] = [(0, copy.deepcopy(learner.algorithm))]

    def keep(run: Any) -> None:
        if run.loop.epoch % EVERY == 0:
            policies.append((run.loop.step, copy.deepcopy(run.algorithm)))

    learner.train(callbacks=[keep])
    learner.close()
    recorders = [agent for _, agent in policies[:: max(len(policies) // 4, 1)]]
    parts = [offpcc.collect(given.env, one, RECORDED_STEPS, seed=number) for number, one in enumerate(recorders)]
    data = functools.reduce(operator.add, parts)
    rows: list[dict[str, Any]] = []
    for step, agent in policies:
        start = time.monotonic()
        sizes = {"hidden_dims": (64, 64), "lr": 1e-3, "polyak": 0.98}
        segments = {} if agent.memoryless else {"batch_size": 16, "segment_len": 64}
        how = {"num_updates": given.updates, "gamma": GAMMA, "seed": given.seed}
        estimate = offpcc.evaluate_from_data(agent, data, given.env, algorithm=sizes, buffer=segments, **how)
        seconds = time.monotonic() - start
        played = measure_returns(agent, configured_make(given.env), GAMMA, given.episodes, 10, 2_000_000, 27_000)
        low, high = estimate.interval
        rows.append(
            {"step": step, "value": estimate.value, "low": low, "high": high, **played._asdict(), "seconds": seconds}
        )
        print(rows[-1], flush=True)
    values, returns = (np.array([row[name] for row in rows]) for name in ("value", "discounted"))
    found = {
        "env": given.env,
        "algo": given.algo,
        "seed": given.seed,
        "gamma": GAMMA,
        "updates": given.updates,
        "num_transitions": data.num_transitions,
        "policies": rows,
        "rank_correlation": rank_correlation(values, returns),
        "mean_absolute_error": float(np.abs(values - returns).mean()),
        **{f"regret@{k}": regret_at(k, values, returns) for k in MOST_CHOSEN},
        "machine": in_words(machine()),
        "versions": versions(),
    }
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
