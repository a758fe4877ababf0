"""A run's folder: its files, its provenance (`run.json`), and whether a run may use it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import torch

from offpcc.algorithms.agent import BEST
from offpcc.config.gin_files import CHECKOUT
from offpcc.envs.make import simulator
from offpcc.training.experiment import Experiment
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import open_regular, read_json, write_json, write_text
from offpcc.utils.paths import refuse_link, shown
from offpcc.utils.version import versions

LONGEST_NAME = 200  # letters; a folder's name may have 255
LARGEST_RECORD = 2**24  # bytes of a run.json
TOLD = ("config_name", "wandb_id")  # texts of a run.json that are read again


class RunFolder:
    """`results/<env>/<algo>/<run_id>/`.

    Args:
        results: the folder of all runs.
        env: the environment's id, or what else a run is called by; signs that do not belong in a path become "-".
        algo: the algorithm's name.
        run_id: the run's number.
    """

    def __init__(self, results: Path, env: str, algo: str, run_id: int) -> None:
        self._set(results / path_part(env) / path_part(algo) / str(run_id), run_id)

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """A run's folder that may have been moved or copied."""
        folder = cls.__new__(cls)
        folder._set(path, int(path.name) if path.name.isdecimal() else 0)
        return folder

    def _set(self, path: Path, run_id: int) -> None:
        self.path, self.siblings, self.run_id = path, path.parent, run_id
        self.results = self.siblings.parent.parent
        self.config = self.path / "config.gin"
        self.record = self.path / "run.json"
        self.progress = self.path / "progress.csv"
        self.progress_before = self.path / "progress_before.csv"
        self.checkpoint = self.path / "checkpoint.pt"
        self.checkpoint_before = previous(self.checkpoint)
        self.checkpoint_parts = parts_folder(self.checkpoint)
        self.actor_last = self.path / "actor_last.pt"
        self.actor_best = self.path / BEST
        self.bad_batch = self.path / "bad_batch.pt"
        self.curve = self.path / "curve.png"
        self.videos = self.path / "videos"

    def status(self) -> str | None:
        """None if there is no such run, else "finished" or "unfinished"."""
        if not (self.record.exists() or self.progress.exists() or self.has_checkpoint()):
            return None
        return "finished" if self.details().get("status") == "finished" else "unfinished"

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint, good or not; a process killed in the right moment leaves the one before."""
        return any(os.path.lexists(file) for file in (self.checkpoint, self.checkpoint_before))

    def details(self) -> dict[str, Any]:
        """What run.json tells; empty where there is none."""
        try:
            if not self.record.is_file() or self.record.stat().st_size > LARGEST_RECORD:
                return {}
            return dict(read_json(self.record))
        except (OSError, RecursionError, TypeError, ValueError):
            return {}

    def refuse_links(self) -> None:
        """Refuse a folder with links in it, through which a run would write and remove what is not its own.

        Raises:
            UserError: naming the first.
        """
        for path in sorted(self.path.glob("*")):
            refuse_link(path)

    def next_free_id(self) -> int:
        """The smallest id above all that exist."""
        taken = [int(p.name) for p in self.siblings.glob("*") if p.name.isascii() and p.name.isdecimal()]
        return max(taken, default=0) + 1

    def actor(self) -> Path:
        """The actor to show: the best, else the last, else one put there by hand.

        Raises:
            UserError: there is none.
        """
        no_actors = (self.checkpoint, self.checkpoint_before, self.bad_batch)
        others = [file for file in sorted(self.path.glob("*.pt")) if file not in no_actors]
        for file in (self.actor_best, self.actor_last, *others):
            if file.is_file():
                return file
        ids = sorted(path.name for path in self.path.glob("*") if RunFolder.at(path).status())
        remedy = f"name a run in it, such as {self.path / ids[0]}" if ids else "train one first, or put its file there"
        raise UserError(f"there is no saved actor in {self.path}; {remedy}")

    def note(self, **facts: Any) -> None:
        """Add facts to run.json."""
        write_json(self.record, self.details() | facts)

    def keep_table(self) -> str:
        """Put a table that would be overwritten aside, if it has rows; what to tell of that."""
        try:
            with open_regular(self.progress) as file:
                num_rows = file.read().count(b"\n") - 1
        except OSError:
            return ""
        if num_rows < 1:
            return ""
        self.progress.replace(self.progress_before)
        return f"; its table of {num_rows} epochs is kept as {self.progress_before.name}"

    def create(self, config: str, facts: dict[str, Any]) -> None:
        """Make the folder and write what the run is."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be made ({first_line(error)}); name another folder with --results"
            ) from error
        unfinished = [file for place in (self.path, self.checkpoint_parts) for file in place.glob(".*.tmp-*")]
        for file in (*unfinished, *self.videos.glob(".best_actor*.tmp-*")):  # of a run that was killed while it wrote
            file.unlink(missing_ok=True)
        write_text(self.config, config)
        known, began = self.details(), {**facts, "wandb_id": uuid.uuid4().hex[:12]}
        if known:  # what the run began with stays; what it goes on with is added
            resumes = known.get("resumes")
            resumes = [*(resumes if isinstance(resumes, list) else []), facts]
            lost = {name: began[name] for name in TOLD if not isinstance(known.get(name), str)}
            self.note(status="running", simulator=facts["simulator"], resumes=resumes, **lost)
        else:
            self.note(**began, status="running")


def path_part(name: str) -> str:
    """`name` as one part of a path."""
    part = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")
    if not part or len(part) > LONGEST_NAME:
        raise UserError(
            f"{shown(name)} is no name that a folder could have; give that of an environment, an algorithm or a data "
            f"set"
        )
    return part


def facts(env: str | None, algo: str, run_id: int, config: str, learner: Experiment) -> dict[str, Any]:
    """What run.json tells of a run's origin."""
    device = learner.algorithm.device
    return {
        "command": sys.argv,
        "env": env,
        "dataset": learner.recording and learner.recording.facts(),
        "algo": algo,
        "config_name": config,
        "run_id": run_id,
        "seed": run_id,
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "simulator": simulator(),
        "git_commit": git_commit(),
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
    }


def git_commit() -> str | None:
    """The checkout's commit, "+" where files differ from it; None outside a checkout."""
    if CHECKOUT is None:
        return None
    try:
        command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--abbrev=40", "--dirty=+", "--match="]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


LONGEST_SOURCE = 1000  # letters; the end of a path tells two files of one name apart no less than its beginning


class Origin(NamedTuple):
    """Where a run is tested, and which recorded data it learns from."""

    env: str | None
    source: str | None  # of recorded data; None where the run acts in the environment
    fingerprint: str | None = None  # of recorded data, where it is known

    @property
    def told_of_data(self) -> str:
        """The data in words, or the lack of it."""
        if self.source is None:
            return f"in {shown(str(self.env))}, not from recorded data"
        return f"from {shown(self.source, LONGEST_SOURCE)}{f' ({shown(self.fingerprint)})' if self.fingerprint else ''}"


def check_origin(folder: RunFolder, origin: Origin) -> None:
    """Refuse a run that learns from something else than a run of its algorithm's folder, its own included.

    Runs that act in their environment need no look: the folder's name is the environment's. What `run.json` does not
    tell, as it is missing or damaged, is taken to agree.

    Args:
        folder: the run's; nothing is made.
        origin: of the run.

    Raises:
        UserError: naming the other run and what it learned from.
    """
    numbers = [int(path.name) for path in folder.siblings.glob("*") if path.name.isdecimal()]
    for number in sorted(numbers, key=lambda number: (number != folder.run_id, number)):  # its own first
        other = _origin_of(RunFolder.at(folder.siblings / str(number)).details())
        if other is None or (other.source is None and origin.source is None):
            continue
        if (fault := _difference(other, origin)) is not None:
            raise UserError(f"run {number} in {folder.siblings} {fault}")


def _origin_of(details: dict[str, Any]) -> Origin | None:
    """What a run.json tells, which may have come from elsewhere; None where that is nothing."""
    env, data = details.get("env"), details.get("dataset")
    if not isinstance(env, str | None) or not isinstance(data, dict | None) or (env is None and data is None):
        return None
    if data is None:
        return Origin(env, None)
    fingerprint = data.get("fingerprint")
    return Origin(env, str(data.get("source")), fingerprint if isinstance(fingerprint, str) else None)


def _difference(other: Origin, origin: Origin) -> str | None:
    """How the run that is there differs from the one that is to be, and what to do; None if it does not."""
    elsewhere = "give another --results"
    has_other_data = None not in (known := (other.fingerprint, origin.fingerprint)) and len({*known}) > 1
    if (other.source is None) != (origin.source is None) or has_other_data:
        return (
            f"learned {other.told_of_data}, but this one would learn {origin.told_of_data}, and ids of one folder "
            f"count as seeds of one experiment; {elsewhere}, or the file of the data another name"
        )
    if other.env == origin.env:
        return None
    there = f"was tested in {shown(other.env)}" if other.env else "was not tested"
    here = f"would be tested in {shown(origin.env)}" if origin.env else "would not be tested"
    way = (
        f"add --env {shown(other.env)}"
        if other.env
        else f"name {shown(str(origin.source))} by --dataset, without --env"
    )
    return f"{there}, but this one {here}; {way}, or {elsewhere}"


def previous(file: Path) -> Path:
    """Where the checkpoint before `file` is kept."""
    return file.with_stem(f"{file.stem}_before")


def parts_folder(file: Path) -> Path:
    """Where the pieces of the buffer lie, of both checkpoints."""
    return file.with_name("checkpoint_parts")
