"""Large buffers, large recordings, and several runs at a time.

python -m benchmarks.large buffer --steps 10_000_000
python -m benchmarks.large frames --steps 1_000_000 --memory_limit 500_000_000
python -m benchmarks.large data --gigabytes 5
python -m benchmarks.large runs --numbers 1 2 4

``buffer`` fills a replay buffer with transitions of Hopper's size and prints its bytes and the time to sample 256 of
them. ``frames`` does so with stacks of four frames of random bytes, most of them in a file, and samples 32. ``data``
writes a file of images of 3 x 84 x 84 and one of vectors of Hopper's size, and reads each in a process
of its own, whose memory it prints. ``runs`` updates SAC in N processes at a time, with one thread each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.cases import CASES
from benchmarks.checkpoints import ACTIONS, OBSERVATIONS, play
from benchmarks.command import above_zero, command, positive
from benchmarks.libraries.offpcc_agents import prepare
from benchmarks.machine import in_words, machine
from benchmarks.worker import resident
from offpcc.data import ReplayBuffer
from offpcc.data.offline import read
from offpcc.utils.system import keep_freed_memory

FRAME, VECTOR, ACTION_DIM = (3, 84, 84), (11,), 3
STACKED = spaces.Box(0, 255, (4, 84, 84), np.uint8)
EPISODE_LENGTH = 1_000
SAMPLES = 1_000  # of a measurement
Push = Callable[[ReplayBuffer, int, np.random.Generator], None]
ROWS = 10_000  # of a file that are written at a time


def measure_buffer(buffer: ReplayBuffer, push: Push, num_steps: int, rounds: int) -> None:
    """Fill a buffer; print the growth of the process and the time of a sample at every tenfold number of steps."""
    print(f"transitions   bytes per transition   us to sample {buffer.batch_size}, median of the rounds")
    generator, filled, before = np.random.default_rng(1), 0, resident()
    while filled < num_steps:
        wanted = min(num_steps, 10 * filled or num_steps // 100 or num_steps)
        push(buffer, wanted - filled, generator)
        filled = wanted
        num_bytes = (resident() - before) / filled
        taken = [_seconds(partial(sample_often, buffer)) * 1e6 / SAMPLES for _ in range(rounds)]
        print(f"{filled:11,}   {num_bytes:20.1f}   {statistics.median(taken):.1f}", flush=True)


def sample_often(buffer: ReplayBuffer) -> None:
    """Sample without keeping the batches."""
    for _ in range(SAMPLES):
        buffer.sample()


def push_frames(buffer: ReplayBuffer, num_steps: int, generator: np.random.Generator) -> None:
    """Push episodes of stacks of random frames."""
    for start in range(0, num_steps, EPISODE_LENGTH):
        length = min(EPISODE_LENGTH, num_steps - start)
        frames = generator.integers(0, 256, (length + STACKED.shape[0], *STACKED.shape[1:]), np.uint8)
        for t in range(length):
            now, after = frames[t : t + STACKED.shape[0]], frames[t + 1 : t + 1 + STACKED.shape[0]]
            buffer.push(now, np.ones(ACTION_DIM), 0.0, after, terminated=False, truncated=t == length - 1)


def measure_data(gigabytes: float, memory_limit: int, folder: Path | None) -> None:
    """Write files of the size, and print time and memory of reading them."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        kinds = ("images", FRAME, np.uint8, memory_limit), ("vectors", VECTOR, np.float32, None)
        for name, shape, dtype, limit in kinds:
            file = Path(place, f"{name}.hdf5")
            num = write(file, gigabytes, shape, dtype)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, before, peak = pool.apply(read_file, (file, limit))
            size, most = file.stat().st_size / 1e9, f", memory_limit {limit / 1e9:g} GB" if limit else ""
            print(
                f"{name}: {num:,} steps in a file of {size:.2f} GB{most}: read in {seconds:.0f} s; the process had "
                f"{before / 1e9:.2f} GB of its own before, and {peak / 1e9:.2f} GB at most",
                flush=True,
            )
            file.unlink()


def write(file: Path, gigabytes: float, shape: tuple[int, ...], dtype: Any) -> int:
    """Write whole episodes of random numbers under D4RL's names until the file has the size; return their steps."""
    generator, row = np.random.default_rng(1), int(np.prod(shape)) * np.dtype(dtype).itemsize
    total = max(round(gigabytes * 1e9 / (row + 4 * ACTION_DIM + 6)) // EPISODE_LENGTH, 1) * EPISODE_LENGTH
    with h5py.File(file, "w") as stream:
        stream.create_dataset("observations", (total, *shape), dtype, chunks=(min(100, total), *shape))
        stream.create_dataset("actions", (total, ACTION_DIM), np.float32)
        stream.create_dataset("rewards", (total,), np.float32)
        stream["terminals"] = np.zeros(total, bool)
        stream["timeouts"] = np.arange(1, total + 1) % EPISODE_LENGTH == 0
        for start in range(0, total, ROWS):
            num = min(ROWS, total - start)
            if dtype == np.uint8:
                seen = generator.integers(0, 256, (num, *shape), np.uint8)
            else:
                seen = generator.standard_normal((num, *shape), np.float32)
            stream["observations"][start : start + num] = seen
            stream["actions"][start : start + num] = generator.uniform(-1, 1, (num, ACTION_DIM))
            stream["rewards"][start : start + num] = generator.standard_normal(num)
    return total


def read_file(file: Path, memory_limit: int | None) -> tuple[float, float, float]:
    """Seconds of reading a file as a run does, and bytes of this process's own memory: before, and the most.

    Pages of files that are mapped do not count, because the system takes them back when it needs them.
    """
    keep_freed_memory()
    before, seen, is_over = resident(), [resident()], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            seen.append(resident())

    watching = threading.Thread(target=watch)
    watching.start()
    seconds = _seconds(lambda: read(str(file), memory_limit=memory_limit))
    is_over.set()
    watching.join()
    return seconds, before, max(seen)


def measure_runs(numbers: Sequence[int], seconds: float, rounds: int) -> None:
    """Print updates/s of each of N runs, and of all; numbers take turns."""
    context = multiprocessing.get_context("spawn")
    found: dict[int, list[list[float]]] = {number: [] for number in numbers}
    for _ in range(rounds):
        for number in numbers:
            barrier = context.Barrier(number)
            with context.Pool(number, _take, (barrier,)) as pool:
                found[number].append(pool.map(update, [seconds] * number, chunksize=1))
    alone = statistics.median(sum(rates) for rates in found[numbers[0]]) / numbers[0]
    print("runs at a time   updates/s of each   of all   of all / one run's at the first number")
    for number, rates in found.items():
        total = statistics.median(map(sum, rates))
        print(f"{number:14}   {total / number:17.1f}   {total:6.1f}   {total / alone:.2f}")


_barrier: Any = None


def _take(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def update(seconds: float) -> float:
    """Updates/s of SAC with one thread, while the other processes do the same."""
    torch.set_num_threads(1)
    work = prepare(CASES["sac"], 10_000)
    work.run()
    _barrier.wait()
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        work.run()
        done += 1
    return done / (time.perf_counter() - started)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one part."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.large", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["buffer", "frames", "data", "runs"])
    parser.add_argument("--steps", type=positive, default=10_000_000, help="transitions in the buffer")
    parser.add_argument("--gigabytes", type=above_zero, default=5.0, help="size of each file")
    parser.add_argument(
        "--memory_limit", type=positive, default=1_000_000_000, help="bytes of images in memory (frames, data)"
    )
    parser.add_argument("--folder", type=Path, help="where the files are written; they are deleted afterwards")
    parser.add_argument("--numbers", type=positive, nargs="+", default=[1, 2, 4], help="runs at a time")
    parser.add_argument("--seconds", type=above_zero, default=10.0, help="of each measurement of runs")
    parser.add_argument("--rounds", type=positive, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(in_words(machine()))
    if options.part in ("buffer", "frames"):
        is_vector, rows = options.part == "buffer", options.steps + (options.steps // EPISODE_LENGTH + 1) * 4
        limits: dict[str, Any] = {} if is_vector else {"frame_stack": 4, "memory_limit": options.memory_limit}
        seen, size = (OBSERVATIONS, 256) if is_vector else (STACKED, 32)
        buffer = ReplayBuffer(seen, ACTIONS, capacity=rows, batch_size=size, **limits)
        measure_buffer(buffer, play if is_vector else push_frames, options.steps, options.rounds)
    elif options.part == "data":
        measure_data(options.gigabytes, options.memory_limit, options.folder)
    else:
        measure_runs(options.numbers, options.seconds, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
