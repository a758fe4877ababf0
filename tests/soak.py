"""A long training with everything on, whose memory and open files are watched: both are to stay as they are.

python tests/soak.py --minutes 45

A recurrent agent trains with TensorBoard, Weights & Biases (offline), checkpoints, tests and a recording of itself, and
its replay buffer is full after the first minutes. What the process holds is read every ten seconds; told are
means of the fifths of the time that is left, and the exit code is 1 if the last is above the first of them by more
than `--growth` or if a file was left open.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAUNCH = Path(__file__).resolve().parents[1] / "offpcc" / "launch.py"
INTERVAL = 10.0  # seconds
BINDINGS = (
    "train.num_epochs=1_000_000",
    "train.num_steps_per_epoch=500",
    "train.update_after=500",
    "train.num_test_episodes_per_epoch=2",
    "RecurrentReplayBuffer.capacity=5_000",
    "Checkpoints.every_minutes=0.5",
)


def megabytes(process: int) -> float:
    """What a process holds in memory."""
    words = Path(f"/proc/{process}/status").read_text().split()
    return int(words[words.index("VmRSS:") + 1]) / 1024


def main() -> int:
    """Train, watch, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--full", type=float, default=5.0, help="minutes after which the buffer is full")
    parser.add_argument("--growth", type=float, default=0.02, help="share by which memory may grow after that")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = ["--env", "pendulum-p-v0", "--algo", "rsac", "--config", "small.gin", "--track"]
        words += ["--results", folder, "--save_dataset", f"{folder}/recorded.hdf5", "--gin", *BINDINGS]
        with (Path(folder) / "told.txt").open("w") as told:
            process = subprocess.Popen(
                [sys.executable, str(LAUNCH), *words],
                stdout=told,
                stderr=subprocess.STDOUT,
                env={**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": folder},
            )
            samples: list[tuple[float, float, int]] = []  # minutes, megabytes, open files
            started = time.monotonic()
            while (minutes := (time.monotonic() - started) / 60.0) < options.minutes and process.poll() is None:
                time.sleep(INTERVAL)
                samples.append((minutes, megabytes(process.pid), len(list(Path(f"/proc/{process.pid}/fd").iterdir()))))
            process.send_signal(signal.SIGTERM)
            asked = time.monotonic()
            code = process.wait(120)
            print(f"ended with {code}, {time.monotonic() - asked:.1f} s after SIGTERM")
        print(*(Path(folder) / "told.txt").read_text().splitlines()[-2:], sep="\n")
    later = [sample for sample in samples if sample[0] >= options.full]
    size = max(len(later) // 5, 1)
    parts = [later[i : i + size] for i in range(0, size * 5, size)]
    print("minutes       MB   open files")
    for part in parts:
        print(
            f"{part[0][0]:5.1f} to {part[-1][0]:5.1f} {statistics.mean(p[1] for p in part):8.1f}"
            f" {min(p[2] for p in part)} to {max(p[2] for p in part)}"
        )
    first, last = parts[0], parts[-1]
    grown = statistics.mean(p[1] for p in last) / statistics.mean(p[1] for p in first) - 1.0
    print(f"memory grew by {100 * grown:.2f} %")
    flat = grown <= options.growth and max(p[2] for p in last) <= max(p[2] for p in first)
    return 0 if flat and code == 128 + signal.SIGTERM else 1


if __name__ == "__main__":
    raise SystemExit(main())
