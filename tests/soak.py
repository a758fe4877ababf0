"""A long training whose memory and open files are watched: both are to stay as they are.

python tests/soak.py --minutes 45
python tests/soak.py --minutes 480 --kill_after 20 60 --samples a.csv -- --env pendulum-v0 --algo sac --config small.gin

The first command trains a recurrent agent with TensorBoard, Weights & Biases (offline), checkpoints, tests and a
recording of itself; its replay buffer is full after the first minutes. The second watches the run that follows ``--``,
resumes it after a SIGKILL at a random time from 20 to 60 minutes after each start, and adds to the samples of an
earlier watch, so that it may last several days. Memory and files are read every ten seconds. The table has the means of
the fifths of the time, without the first minutes after each start. The exit code is 1 if the last is above the first by
more than `--growth`, if a file was left open, or if the run failed.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TextIO

LAUNCH = Path(__file__).resolve().parents[1] / "offpcc" / "launch.py"
INTERVAL = 10.0  # seconds
LEAST = 1.0  # minutes left for which a run is started: an earlier SIGTERM comes before it can save itself
ENDED_BY_TERM = 128 + signal.SIGTERM
BINDINGS = (
    "train.num_epochs=1_000_000",
    "train.num_steps_per_epoch=500",
    "train.update_after=500",
    "train.num_test_episodes_per_epoch=2",
    "RecurrentReplayBuffer.capacity=5_000",
    "Checkpoints.every_minutes=0.5",
)


@dataclass
class Sample:
    """What a process holds at one time.

    Attributes:
        minutes: since the first start, without the time between two watches.
        start: the number of the process: 1 and one more for each resume.
        age: minutes since the start of this process.
        megabytes: resident memory.
        files: number of open files.
    """

    minutes: float
    start: int
    age: float
    megabytes: float
    files: int


def megabytes(process: int) -> float:
    """Return the resident memory of a process."""
    words = Path(f"/proc/{process}/status").read_text().split()
    return int(words[words.index("VmRSS:") + 1]) / 1024 if "VmRSS:" in words else 0.0


def load(file: Path | None) -> list[Sample]:
    """Read the samples of earlier watches."""
    if file is None or not file.exists():
        return []
    with file.open() as stream:
        return [Sample(float(a), int(b), float(c), float(d), int(e)) for a, b, c, d, e in csv.reader(stream)]


def watch(
    words: Sequence[str],
    minutes: float,
    kill_after: Sequence[float] | None,
    samples: list[Sample],
    file: Path | None,
    told: TextIO,
    environment: dict[str, str],
) -> int:
    """Run the command until `minutes` are watched or it ends; return its exit code, or 0 if all are watched already.

    Args:
        words: arguments of launch.py; with `kill_after`, the run has to resume by them.
        minutes: of all samples.
        kill_after: the least and the most minutes from a start to a SIGKILL; None for no kill.
        samples: of earlier watches; new ones are added.
        file: takes the new samples, too; None for no file.
        told: takes the output.
        environment: environment variables.
    """
    while not samples or samples[-1].minutes < minutes - LEAST:
        process = subprocess.Popen(
            [sys.executable, str(LAUNCH), *words], stdout=told, stderr=subprocess.STDOUT, env=environment
        )
        started, before = time.monotonic(), samples[-1].minutes if samples else 0.0
        number = samples[-1].start + 1 if samples else 1
        lasts = random.uniform(*kill_after) if kill_after else math.inf
        try:
            while process.poll() is None and (age := (time.monotonic() - started) / 60.0) < lasts:
                if before + age >= minutes:
                    process.send_signal(signal.SIGTERM)
                    asked = time.monotonic()
                    code = process.wait(120)
                    print(f"ended with {code}, {time.monotonic() - asked:.1f} s after SIGTERM")
                    return code
                time.sleep(INTERVAL)
                age = (time.monotonic() - started) / 60.0
                if process.poll() is None:
                    files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
                    samples.append(Sample(before + age, number, age, megabytes(process.pid), files))
                    if file is not None:
                        with file.open("a") as stream:
                            csv.writer(stream).writerow(astuple(samples[-1]))
            if (ended := process.poll()) is not None:
                return ended
        finally:  # also if the watch fails: nobody else ends the run
            process.kill()
            process.wait()
    return 0


def summarize(samples: Sequence[Sample], full: float, growth: float) -> bool:
    """Print the fifths of the time, and return whether memory and open files stayed as they were."""
    later = [sample for sample in samples if sample.age >= full]
    if not later:
        print(f"no process lived for {full:g} minutes")
        return False
    size = max(len(later) // 5, 1)
    parts = [part for i in range(0, size * 5, size) if (part := later[i : i + size])]
    print("minutes       MB   open files")
    for part in parts:
        held = [sample.files for sample in part]
        mean = statistics.mean(sample.megabytes for sample in part)
        print(f"{part[0].minutes:5.1f} to {part[-1].minutes:5.1f} {mean:8.1f} {min(held)} to {max(held)}")
    first, last = parts[0], parts[-1]
    means = [statistics.mean(sample.megabytes for sample in part) for part in (first, last)]
    grown = means[1] / means[0] - 1.0
    print(f"memory grew by {100 * grown:.2f} % in {samples[-1].minutes:.0f} minutes and {samples[-1].start} starts")
    return grown <= growth and max(one.files for one in last) <= max(one.files for one in first)


def main() -> int:
    """Train, watch, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=45.0, help="to watch, in all")
    parser.add_argument("--full", type=float, default=5.0, help="minutes after a start that are left out")
    parser.add_argument("--growth", type=float, default=0.02, help="share by which memory may grow after that")
    parser.add_argument("--kill_after", type=float, nargs=2, help="least and most minutes from a start to a SIGKILL")
    parser.add_argument("--samples", type=Path, help="file that keeps the samples; an existing one is continued")
    parser.add_argument("words", nargs="*", help="arguments of a run to watch, after --")
    options = parser.parse_args()
    if options.kill_after and not options.words:
        parser.error("--kill_after needs the words of a run, after --")
    samples = load(options.samples)
    if options.samples:
        options.samples.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        words = ["--env", "pendulum-p-v0", "--algo", "rsac", "--config", "small.gin", "--track"]
        words += ["--results", folder, "--save_dataset", f"{folder}/recorded.hdf5", "--gin", *BINDINGS]
        environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": folder}
        if options.words:
            words = [*options.words, "--resume"]
        with (Path(folder) / "told.txt").open("w") as told:
            code = watch(words, options.minutes, options.kill_after, samples, options.samples, told, environment)
        print(*(Path(folder) / "told.txt").read_text().splitlines()[-2:], sep="\n")
    is_flat = summarize(samples, options.full, options.growth)
    return 0 if is_flat and (code == ENDED_BY_TERM or (options.words and code == 0)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
