"""Bytes and seconds of checkpoints with a million transitions of Hopper's size, and their share of training time.

python -m benchmarks.checkpoints

Seconds are the least of several, so that what else the machine does counts little. The share of training time is that
of a checkpoint after 10,000 new steps, about as many as SAC makes updates in the default interval.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box

from benchmarks.command import positive
from benchmarks.machine import in_words, machine
from offpcc.algorithms import ALGORITHMS
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.training.checkpoint import load_buffer, parts_folder, read_checkpoint, save_checkpoint
from offpcc.training.experiment import Experiment
from offpcc.training.metrics import Loop
from offpcc.training.spec import EVERY_MINUTE
from offpcc.utils.system import keep_freed_memory

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (11,), np.float32), Box(-1.0, 1.0, (3,), np.float32)  # Hopper's
EPISODE_LENGTH = 1_000
Buffer = ReplayBuffer | RecurrentReplayBuffer


def learner(algo: str, buffer: Buffer) -> Experiment:
    """An agent of two layers of 256 units, or with memory of the paper's size, that plays nowhere."""
    return Experiment(ALGORITHMS[algo](OBSERVATIONS, ACTIONS, hidden_dims=(256, 256)), buffer, None, None, Loop())


def play(buffer: Buffer, num_steps: int, generator: np.random.Generator) -> None:
    """Push episodes of random numbers."""
    for start in range(0, num_steps, EPISODE_LENGTH):
        length = min(EPISODE_LENGTH, num_steps - start)
        observations = generator.standard_normal((length + 1, 11), np.float32)
        actions, rewards = generator.uniform(-1, 1, (length, 3)).astype(np.float32), generator.standard_normal(length)
        for t in range(length):
            transition = observations[t], actions[t], rewards[t], observations[t + 1]
            buffer.push(*transition, terminated=False, truncated=t == length - 1)


def seconds_of(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def sizes(file: Path) -> dict[Path, tuple[int, int]]:
    """Bytes of the files of a checkpoint, and when they were written."""
    files = [file, *parts_folder(file).iterdir()]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def written(file: Path, before: dict[Path, tuple[int, int]]) -> int:
    """Bytes that were written since."""
    return sum(found[0] for path, found in sizes(file).items() if before.get(path) != found)


def rate(trained: Experiment, num_updates: int, rounds: int) -> float:
    """Updates a second, of the fastest round."""

    def update() -> None:
        for _ in range(num_updates):
            trained.algorithm.update_networks(trained.buffer.sample())

    update()
    return num_updates / min(seconds_of(update) for _ in range(rounds))


def measure(algo: str, buffer: Buffer, num_steps: int, rounds: int) -> float:
    """Fill a buffer, write it, write what 1,000 and 10,000 steps change, read it; seconds of the last write."""
    generator = np.random.default_rng(1)
    run = learner(algo, buffer)
    play(buffer, num_steps, generator)
    print(f"\n{algo}, {type(buffer).__name__} of {num_steps:,} steps")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "checkpoint.pt")

        def save() -> None:
            save_checkpoint(file, run, "", 1)

        def save_all() -> None:
            run.saved.parts, run.saved.checkpoints = {}, {}
            save()

        first = min(seconds_of(save_all) for _ in range(rounds))
        whole = sum(size for size, _ in sizes(file).values())
        print(f"  all of it              {whole:13,} bytes  {first:7.3f} s  (the file itself {file.stat().st_size:,})")
        for num_new in (1_000, 10_000):
            taken = []
            for _ in range(rounds):
                play(buffer, num_new, generator)
                before = sizes(file)
                taken.append((seconds_of(save), written(file, before)))
            last = min(taken)[0]
            print(f"  after {num_new:6,} new steps {max(taken, key=lambda t: t[1])[1]:13,} bytes  {last:7.3f} s")
        again = learner(algo, type(buffer)(OBSERVATIONS, ACTIONS, capacity=buffer.capacity))
        proving = min(seconds_of(lambda: read_checkpoint(file)) for _ in range(rounds))
        content = read_checkpoint(file)
        loading = min(seconds_of(lambda: load_buffer(content, again)) for _ in range(rounds))
        print(f"  read back              proven in {proving:.3f} s, loaded in {loading:.3f} s")
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=1_000_000, help="transitions in each buffer")
    parser.add_argument("--rounds", type=positive, default=5, help="of which the fastest counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print(in_words(machine()))
    buffer = ReplayBuffer(OBSERVATIONS, ACTIONS, capacity=options.steps, batch_size=256)
    seconds = measure("sac", buffer, options.steps, options.rounds)
    updates = rate(learner("sac", buffer), 100, options.rounds)
    interval = 60.0 * (EVERY_MINUTE.every_minutes or 0.0)
    print(
        f"  share of training time {100 * seconds / (interval + seconds):.2f}% at the default of {interval:.0f} s, in "
        f"which {updates:.0f} updates a second make {updates * interval:,.0f} steps"
    )
    episodes = max(options.steps // EPISODE_LENGTH, 1)
    memory = RecurrentReplayBuffer(OBSERVATIONS, ACTIONS, capacity=episodes)
    seconds = measure("rsac", memory, episodes * EPISODE_LENGTH, options.rounds)
    print(f"  share of training time {100 * seconds / (interval + seconds):.2f}% at the default, after 10,000 steps")


if __name__ == "__main__":
    main()
