"""Short trainings under SIGKILLs at random instants; each is to end as if nothing had happened.

python tests/storm.py --kills 100 --minutes 25

Every kind is first run undisturbed. Then it is run again and again elsewhere, killed, gone on with by `--resume`, and
killed again, until it ends: its table (columns of time apart), its actors and its data set are to be the undisturbed
run's byte for byte, and after each kill every file that is there is to be whole. Half of the kills come at random
instants, of the whole run or of what follows its start; half while a file is being written, as its temporary file in
the folder shows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import imageio.v2 as imageio

from offpcc.algorithms.agent import load_actor
from offpcc.config.loading import values
from offpcc.training.analysis.run_tables import read_progress

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = (sys.executable, str(ROOT / "offpcc" / "launch.py"))
SHORT = (
    "train.num_steps_per_epoch=70",
    "train.num_epochs=10",
    "train.update_after=50",
    "train.updates_per_step=0.5",
    "train.num_test_episodes_per_epoch=1",
)
RECORDED = (
    "train.num_steps_per_epoch=30",
    "train.num_epochs=10",
    "train.num_test_episodes_per_epoch=1",
)
Process = Any  # a subprocess.Popen, or what can be used as one
Start = Callable[[list[str]], Process]  # starts the command line with these words
BETWEEN_EPOCHS, WITHIN_EPOCHS = "Checkpoints.every=1", "Checkpoints.every_steps=23"
LONGEST_RUN = 300  # seconds, after which something hangs


@dataclass
class Kind:
    """A command that is killed."""

    name: str
    words: tuple[str, ...]
    bindings: tuple[str, ...] = ()
    file: str | None = None  # the data set that it writes
    kills: int = 0
    hit: Counter[str] = field(default_factory=Counter)  # files that were being written at the moment
    resumes: int = 0
    rounds: int = 0
    faults: list[str] = field(default_factory=list)
    within: int = 0  # resumed amid an epoch
    begins: float = 0.0  # seconds of the CPU's until the undisturbed run makes its first file
    work: float = 0.0  # until it ends

    def command(self, folder: Path, data: Path, *extra: str) -> list[str]:
        """Words of the command line."""
        words = [word.format(data=data, out=folder) for word in self.words]
        bindings = ["--gin", *self.bindings] if self.bindings else []
        results = [] if words[0] == "collect" else ["--results", str(folder / "results")]
        return [*words, *results, *bindings, *extra]


def online(
    name: str, env: str, algo: str, *bindings: str, words: tuple[str, ...] = (), file: str | None = None
) -> Kind:
    config = ("--config", "test/template_short.gin")
    chosen = {binding.split("=")[0]: binding for binding in (*SHORT, *bindings)}
    return Kind(name, ("--env", env, "--algo", algo, *config, *words), (*chosen.values(),), file)


def offline(name: str, algo: str, *bindings: str) -> Kind:
    words = ("--env", "pendulum-p-v0", "--dataset", "{data}", "--algo", algo, "--config", "test/offline_short.gin")
    return Kind(name, words, (*RECORDED, *bindings))


def updates(number: float) -> str:
    return f"train.updates_per_step={number}"


def kinds() -> list[Kind]:
    """What is killed; updates per step, and environments side by side, differ."""
    small = ("ReplayBuffer.batch_size=8", "SAC.hidden_dims=(32, 32)")
    record = ("--save_dataset", "{out}/played.hdf5")
    collect = ("collect", "--env", "pendulum-p-v0", "--actor", "random", "--steps", "30000", "--out", "{out}/data.hdf5")
    several = ("pendulum-p-v0", "rtd3", "train.num_steps_per_epoch=240", "train.num_epochs=5")
    workers = ("environments.num_envs=2", "environments.worker_processes=True")
    return [
        online("online", "pendulum-p-v0", "sac", BETWEEN_EPOCHS, *small, updates(2)),
        online("online, memory", "pendulum-p-v0", "rsac", WITHIN_EPOCHS),
        online("few updates", "pendulum-p-v0", "rsac", WITHIN_EPOCHS, updates(0.05), "environments.num_envs=2"),
        online("images", "pendulum-img-v0", "csac", BETWEEN_EPOCHS, "ReplayBuffer.batch_size=4", updates(0.1)),
        offline("recorded", "iql", BETWEEN_EPOCHS),
        offline("recorded, memory", "rtd3_bc", WITHIN_EPOCHS),
        online("3 environments", *several, WITHIN_EPOCHS, updates(0.3), "environments.num_envs=3"),
        online("workers", *several, WITHIN_EPOCHS, updates(2), *workers),
        online(
            "recording itself",
            "pendulum-p-v0",
            "td3",
            BETWEEN_EPOCHS,
            "environments.num_envs=2",
            words=record,
            file="played.hdf5",
        ),
        Kind("collect", collect, file="data.hdf5"),
    ]


def storm(chosen: list[Kind], kills: int, seconds: float, seed: int, place: Path, start: Start) -> bool:
    """Kill runs of each kind in turns; whether all came to the same."""
    chance, data = random.Random(seed), place / "swings.hdf5"
    if any("{data}" in kind.words for kind in chosen):
        words = ("collect", "--env", "pendulum-v0", "--actor", "random", "--steps", "1000", "--out", str(data))
        finish(start([*words]), data.parent)
    for kind in chosen:
        folder = place / kind.name / "whole"
        kind.begins, kind.work = finish(start(kind.command(folder, data)), folder)
    left, deadline = kills, time.monotonic() + seconds
    while left > 0 and time.monotonic() < deadline:
        for kind in chosen:
            if left > 0:
                most = min(left, -(-kills // len(chosen)))
                left -= one_round(kind, most, chance, place / kind.name, data, deadline, start)
                print(f"{kills - left} of {kills} kills, {kind.name}: {kind.faults or 'equal'}", flush=True)
    return not any(kind.faults for kind in chosen)


def one_round(
    kind: Kind, kills: int, chance: random.Random, place: Path, data: Path, deadline: float, start: Start
) -> int:
    """Run a kind to its end, killed at most so many times; how often it was."""
    folder, done, options = place / "killed", 0, []
    shutil.rmtree(folder, ignore_errors=True)
    while True:
        process = start(kind.command(folder, data, *options))
        may_be_killed = done < kills and time.monotonic() < deadline
        if may_be_killed and kill(process, kind, chance, folder):
            done, options = done + 1, ["--resume"]
            kind.kills += 1
            kind.hit.update(file.name.removeprefix(".").split(".")[0] for file in being_written(folder))
            kind.faults += halves(folder)
            kind.resumes += 1
            continue
        told, errors = process.communicate(timeout=LONGEST_RUN)
        kind.within += is_amid_an_epoch(told, kind)
        if process.returncode != 0 or "not exact" in told:
            kind.faults.append(f"exit code {process.returncode} after {done} kills: {told[-500:]} {errors[-2000:]}")
        break
    kind.rounds += 1
    kind.faults += differences(place / "whole", folder)
    return done


def kill(process: Process, kind: Kind, chance: random.Random, folder: Path) -> bool:
    """Kill a process at a random instant, or while it writes a file; whether it still ran."""
    aims, since = kind.kills % 2 == 1, kind.begins if kind.kills % 4 else 0.2 * kind.work
    instant = since + chance.uniform(0.0, 0.5 if aims else 0.75) * (kind.work - since)
    target = chance.choice(("", "checkpoint", "progress", "/.actor"))  # part of a file's place
    latest, delay = instant + 0.4 * kind.work, chance.choice((0.0, 0.0005, 0.002))  # the file is about to be renamed
    while process.poll() is None and (done := work(process)) < latest:
        if done >= instant and not aims:
            break
        if done >= instant and any(target in str(file) for file in being_written(folder)):
            time.sleep(delay)
            break
        time.sleep(0.0001 if aims and done >= instant else 0.005)
    process.send_signal(signal.SIGKILL)
    told, _ = process.communicate()
    kind.within += is_amid_an_epoch(told, kind)
    return process.returncode == -signal.SIGKILL


def is_amid_an_epoch(told: str, kind: Kind) -> bool:
    """Whether a run says that it goes on within an epoch."""
    place = re.search(r"going on in .* after epoch (\d+), step ([\d,]+)", told)
    steps = re.search(r"num_steps_per_epoch=(\d+)", " ".join(kind.bindings))
    return bool(place and steps) and int(place[1]) * int(steps[1]) < int(place[2].replace(",", ""))


def work(process: Process) -> float:
    """Seconds of the CPU's so far: unlike those of a clock, they pass no faster where others keep the machine busy."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def being_written(folder: Path) -> Iterator[Path]:
    """Temporary files."""
    for here, _, files in os.walk(folder):
        for name in files:
            if ".tmp-" in name or name == "merged.hdf5":
                yield Path(here, name)


def start(words: list[str]) -> Process:
    """Start the command line."""
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*LAUNCH, *words], env={**os.environ, **settings}, cwd=ROOT, stdout=pipe, stderr=pipe, text=True
    )


def finish(process: Process, folder: Path) -> tuple[float, float]:
    """Wait for a process undisturbed; the seconds of the CPU's until its folder holds a file, and until its end."""
    begins = ends = 0.0
    deadline = time.monotonic() + LONGEST_RUN
    while True:
        try:
            told, errors = process.communicate(timeout=0.01)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                process.kill()
                raise
            ends = work(process)
            if not any(files for _, _, files in os.walk(folder)):
                begins = ends
    if process.returncode != 0:
        raise RuntimeError(f"an undisturbed run failed: {told[-500:]}{errors[-2000:]}")
    return begins, ends


# What is there --------------------------------------------------------------------------------------------------------


def halves(folder: Path) -> list[str]:
    """Files that are not whole; those under way do not count, nor does what only ever grows."""
    faults = []
    for file in sorted(folder.rglob("*")):
        read = READERS.get(
            "actor" if file.name.startswith("actor") else file.name if file.name in READERS else file.suffix
        )
        if read is None or ".tmp-" in file.name or file.name == "merged.hdf5" or "tensorboard" in file.parts:
            continue
        try:
            read(file)
        except Exception as error:
            faults.append(f"{file} is not whole: {type(error).__name__}: {error}")
    return faults


def read_table(file: Path) -> None:
    text = file.read_text()
    assert text.endswith("\n") and len({line.count(",") for line in text.splitlines()}) == 1
    read_progress(file)


def read_config(file: Path) -> None:
    text = file.read_text()
    assert text.endswith("\n") and values(text)


def read_hdf5(file: Path) -> None:
    with h5py.File(file) as data:
        assert len(data["rewards"]) == len(data["observations"][:])


def read_video(file: Path) -> None:
    with imageio.get_reader(file) as frames:
        assert frames.count_frames() == 201


READERS: dict[str, Callable[[Path], object]] = {
    "actor": load_actor,
    "progress.csv": read_table,
    "config.gin": read_config,
    ".json": lambda file: json.loads(file.read_text()),
    ".hdf5": read_hdf5,
    ".mp4": read_video,
    ".png": imageio.imread,
}


def differences(whole: Path, killed: Path) -> list[str]:
    """Files of a run that are not those of the undisturbed one."""
    faults = halves(killed)
    for file in sorted(whole.rglob("*")):
        other = killed / file.relative_to(whole)
        if file.suffix == ".hdf5" or file.name.startswith("actor") or file.name == "progress.csv":
            if not other.is_file():
                faults.append(f"{other} is missing")
            elif content(file) != content(other):
                faults.append(f"{other} is not {file}")
    leftovers = [str(file) for file in being_written(killed)]
    return faults + [f"{file} was left" for file in leftovers]


def content(file: Path) -> object:
    if file.name == "progress.csv":
        return [line.rsplit(",", 2)[0] for line in file.read_text().splitlines()]
    return file.read_bytes()


def table(chosen: list[Kind]) -> str:
    """What was done, how often a run was resumed amid an epoch, and what came of it."""
    lines = [f"{'kind':18}{'kills':>7}{'resumed':>9}{'amid':>6}{'ended':>7}  {'equal':7}killed while they were written"]
    for kind in chosen:
        equal = "no" if kind.faults else "yes"
        hit = ", ".join(f"{file} {number}" for file, number in kind.hit.most_common())
        lines.append(f"{kind.name:18}{kind.kills:7}{kind.resumes:9}{kind.within:6}{kind.rounds:7}  {equal:7}{hit}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in all")
    parser.add_argument("--minutes", type=float, default=25.0, help="after which no more are made")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", metavar="NAME", help="some of them")
    options = parser.parse_args()
    chosen = [kind for kind in kinds() if not options.kinds or kind.name in options.kinds]
    with tempfile.TemporaryDirectory(prefix="storm_") as place:
        is_calm = storm(chosen, options.kills, 60.0 * options.minutes, options.seed, Path(place), start)
        print(table(chosen), *(fault for kind in chosen for fault in kind.faults), sep="\n")
        if not is_calm:
            shutil.copytree(place, kept := f"{place}_kept")
            print(f"all files are in {kept}")
    return 0 if is_calm else 1


if __name__ == "__main__":
    sys.exit(main())
