"""Environment steps per second of N environments side by side, in one process and in processes of their own.

python -m benchmarks.environments --envs pendulum-v0 ant-mujoco-v0 --rounds 5

An agent acts, nothing is learned. The cases take turns, round after round; told are median, lowest and highest.
"""

import argparse
import statistics
import sys
import time

import torch

import offpcc
from benchmarks.command import command, positive

CASES = [(num_envs, processes) for processes in (False, True) for num_envs in (1, 4, 16)]


class Agents:
    """One learner per case, built once."""

    def __init__(self, env, algo, num_steps):
        self.num_steps = num_steps
        self.learners = {
            case: offpcc.build(env, algo, environments={"num_envs": case[0], "worker_processes": case[1]})
            for case in CASES
        }

    def rate(self, case):
        """Environment steps per second of one round."""
        interaction, taken = self.learners[case].interaction, 0
        started = time.perf_counter()
        while taken < self.num_steps:
            taken += interaction.step(explore_at_random=False)
        return taken / (time.perf_counter() - started)

    def close(self):
        for learner in self.learners.values():
            learner.close()


@command
def main():
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=["pendulum-v0", "ant-mujoco-v0"])
    parser.add_argument("--algos", nargs="+", default=["sac", "rsac"])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--steps", type=positive, default=1_600, help="environment steps per case and round")
    parser.add_argument("--threads", type=positive, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| environment | algorithm | N | in | steps/s, median (lowest to highest) |")
    print("|---|---|---|---|---|")
    for env in options.envs:
        for algo in options.algos:
            agents = Agents(env, algo, options.steps)
            for case in CASES:
                agents.rate(case)  # builds environments and processes
            rates = {case: [] for case in CASES}
            for _ in range(options.rounds):
                for case in CASES:
                    rates[case].append(agents.rate(case))
            agents.close()
            for (num_envs, processes), found in rates.items():
                where = "processes" if processes else "one process"
                spread = f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"
                print(f"| {env} | `{algo}` | {num_envs} | {where} | {spread} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
