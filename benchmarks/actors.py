"""Environment steps per second of a slow environment, in worker processes and in Ray actors.

python benchmarks/actors.py --seconds_per_step 0.005 --numbers 1 2 4 8

An agent acts, nothing is learned. Without --address, Ray starts here, with one CPU for each actor. The cases take
turns, round after round; told are median, lowest and highest.
"""

import argparse
import functools
import statistics
import time

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box

import offpcc

KINDS = {
    "worker processes": {"worker_processes": True},
    "actors in lockstep": {"ray_address": "auto", "lockstep": True},
    "actors": {"ray_address": "auto"},
}


class Slow(gymnasium.Env):
    """Each step takes some seconds, as on a robot or in a remote simulator; the processor is free meanwhile."""

    observation_space = Box(-1.0, 1.0, (8,), np.float32)
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, seconds):
        self.seconds, self.length = seconds, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        time.sleep(self.seconds)
        self.length += 1
        return self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32), 0.0, False, self.length == 100, {}


def rate(env, algo, num_envs, kind, num_steps):
    """Environment steps per second after some steps to warm up."""
    learner = offpcc.build(env, algo, environments={"num_envs": num_envs, **KINDS[kind]})
    try:
        for number in (200, num_steps):
            taken, started = 0, time.perf_counter()
            while taken < number * num_envs:
                taken += learner.interaction.step(explore_at_random=False)
        return taken / (time.perf_counter() - started)
    finally:
        learner.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seconds_per_step", type=float, default=0.005)
    parser.add_argument("--numbers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--algos", nargs="+", default=["sac", "rsac"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1_000, help="environment steps per environment and round")
    parser.add_argument("--address", help="of a Ray cluster; without it, Ray starts here")
    options = parser.parse_args()
    import ray

    own = {} if options.address else {"num_cpus": max(options.numbers), "include_dashboard": False}
    ray.init(options.address, log_to_driver=False, **own)
    torch.set_num_threads(1)
    print("| algorithm | N | in | steps/s, median (lowest to highest) |\n|---|---|---|---|")
    for algo in options.algos:
        cases = [(number, kind) for number in options.numbers for kind in KINDS]
        rates = {case: [] for case in cases}
        for _ in range(options.rounds):
            for case in cases:
                rates[case].append(rate(functools.partial(Slow, options.seconds_per_step), algo, *case, options.steps))
        for (number, kind), found in rates.items():
            spread = f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"
            print(f"| `{algo}` | {number} | {kind} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
