"""The folder of a run: its files, its provenance (`run.json`), and the check whether a run may use it."""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch

from offpcc.algorithms.agent import BEST
from offpcc.config.gin_files import CHECKOUT
from offpcc.data.datasets.load import MINARI, OGBENCH
from offpcc.envs.make import simulator_version
from offpcc.training.experiment import Experiment
from offpcc.training.spec import RunSpec
from offpcc.utils.errors import UserError
from offpcc.utils.files import read_json, write_json, write_text
from offpcc.utils.paths import refuse_link, shown
from offpcc.utils.version import __version__, version_numbers, versions
from offpcc.utils.words import counted

LONGEST_NAME = 200  # bytes; file systems allow 255 in a folder's name
READ_LATER = ("config_name", "wandb_id")  # strings in run.json that later code reads


class RunFolder:
    """The folder of a run: `results/<env>/<algo>/<run_id>/`, or any folder; see `at`.

    `env` may be another label of the run. Characters that are not safe in a path become "-".
    """

    is_in_results = True  # whether the folders beside it are runs with other seeds

    def __init__(self, results: Path, env: str, algo: str, run_id: int) -> None:
        self._set(results / path_part(env) / path_part(algo) / str(run_id), run_id)

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """Return the folder at `path`, also if it was moved or copied there."""
        folder = cls.__new__(cls)
        folder.is_in_results = False
        folder._set(path, int(path.name) if path.name.isdecimal() else 0)
        return folder

    def _set(self, path: Path, run_id: int) -> None:
        self.path, self.siblings, self.run_id = path, path.parent, run_id
        self.results = self.siblings.parent.parent
        self.config = self.path / "config.gin"
        self.record = self.path / "run.json"
        self.progress = self.path / "progress.csv"
        self.checkpoint = self.path / "checkpoint.pt"
        self.checkpoint_before = previous(self.checkpoint)
        self.checkpoint_parts = parts_folder(self.checkpoint)
        self.actor_last = self.path / "actor_last.pt"
        self.actor_best = self.path / BEST
        self.bad_batch = self.path / "bad_batch.pt"
        self.curve = self.path / "curve.png"
        self.videos = self.path / "videos"

    def status(self) -> str | None:
        """Return None if there is no such run, else "finished" or "unfinished"."""
        if not (self.record.exists() or self.progress.exists() or self.has_checkpoint()):
            return None
        return "finished" if self.details().get("status") == "finished" else "unfinished"

    def has_checkpoint(self) -> bool:
        """Check whether a checkpoint exists, valid or not. A killed process may leave only the previous one."""
        return any(os.path.lexists(file) for file in (self.checkpoint, self.checkpoint_before))

    def details(self) -> dict[str, Any]:
        """Return the content of run.json; an empty dict if the file is missing or unreadable."""
        try:
            return dict(read_json(self.record)) if self.record.is_file() else {}
        except (OSError, TypeError, ValueError):
            return {}

    def _starts(self) -> list[dict[str, Any]]:
        """Return the facts of the start and of each resume, in their order."""
        details = self.details()
        resumes = details.get("resumes")
        return [one for one in (details, *(resumes if isinstance(resumes, list) else [])) if isinstance(one, dict)]

    def env_steps(self) -> int | None:
        """Return how many environment steps its online phase has, as last planned; None if it has none."""
        planned = [one.get("then_env_steps") for one in self._starts()]
        return next((number for number in reversed(planned) if isinstance(number, int) and number > 0), None)

    def video_files(self) -> list[Path]:
        """Return the videos, sorted by name, without one that is being written."""
        return sorted(file for file in self.videos.glob("[!.]*.mp4") if file.is_file())

    def version(self) -> str | None:
        """Return the version of offpcc that made the run; None if it is unknown."""
        versions = self.details().get("versions")
        made_by = versions.get("offpcc") if isinstance(versions, dict) else None
        return shown(made_by) if isinstance(made_by, str) else None

    def made_by_another(self) -> str:
        """Return which version of offpcc made the run, and which this is; "" if they are equal or one is unknown."""
        made_by, made_at, here = self.version(), self.details().get("git_commit"), git_commit()
        is_same_commit = made_at == here or not isinstance(made_at, str) or here is None
        if made_by is None or (made_by == __version__ and is_same_commit):
            return ""
        one, other = _with_commit(made_by, made_at), _with_commit(__version__, here)
        return f"{one} made the run, and this is {other}"

    def refuse_newer(self) -> None:
        """Raise if a newer version of offpcc made the run or went on with it: its files may mean something else."""
        used = [start.get("versions") for start in self._starts()]
        made_by = [str(versions.get("offpcc", "")) for versions in used if isinstance(versions, dict)]
        if newer := [version for version in made_by if version_numbers(version) > version_numbers(__version__)]:
            raise UserError(
                f"offpcc {shown(newer[-1])} made the run in {self.path}, and this is offpcc {__version__}, which may "
                f"misread its files; install that version, or leave the run out"
            )

    def refuse_links(self) -> None:
        """Raise if the folder contains links: a run could write or remove other files through them."""
        for path in sorted(self.path.glob("*")):
            refuse_link(path)

    def next_free_id(self) -> int:
        """Return one more than the largest id that exists."""
        taken = [int(p.name) for p in self.siblings.glob("*") if p.name.isascii() and p.name.isdecimal()]
        return max(taken, default=0) + 1

    def actor(self) -> Path:
        """Return the file of the best actor, else of the last, else an actor's file from the user."""
        self.refuse_newer()
        no_actors = (self.checkpoint, self.checkpoint_before, self.bad_batch)
        others = [file for file in sorted(self.path.glob("*.pt")) if file not in no_actors]
        for file in (self.actor_best, self.actor_last, *others):
            if file.is_file():
                return file
        below = (path for depth in ("*", "*/*", "*/*/*") for path in sorted(self.path.glob(depth)))
        run = next((path for path in below if RunFolder.at(path).status()), None)
        remedy = f"name a run in it, such as {run}" if run else "train one first, or put its file there"
        if (status := self.status()) is not None:
            remedy = "it had no test yet; resume the run" if status == "unfinished" else "train the run again"
        raise UserError(f"there is no saved actor in {self.path}; {remedy}")

    def env(self) -> str:
        """Return the environment of the run, by its name."""
        # A folder must not choose what is imported, so drop the module of "module:id".
        known = self.details().get("env", self.siblings.parent.name)
        if not known:
            raise UserError(f"{self.path} was trained without an environment: give one for the evaluation with --env")
        if self.details().get("env_made"):
            raise UserError(
                f"a function made the environment of {self.path}: name a registered one with --env, or use Python, "
                f"offpcc.load_run({str(self.path)!r}).evaluate(env=...)"
            )
        module, _, name = str(known).rpartition(":")
        if module and name not in gymnasium.registry:
            raise UserError(
                f"{self.path} was trained in {shown(str(known))}, but a run's folder imports nothing: add --import "
                f"{shown(module)}; in Python, import that module first"
            )
        return shown(name)

    def note(self, **facts: Any) -> None:
        """Add facts to run.json."""
        write_json(self.record, self.details() | facts)

    def keep_table(self) -> str:
        """Rename progress.csv to progress_before.csv, or progress_before_2.csv and so on, before it is overwritten.

        Return a message about it, or "" if it has no rows.
        """
        try:
            num_rows = self.progress.read_bytes().count(b"\n") - 1
        except OSError:
            return ""
        if num_rows < 1:
            return ""
        numbered = (f"progress_before_{number}.csv" for number in itertools.count(2))
        names = itertools.chain(["progress_before.csv"], numbered)
        free = next(name for name in names if not os.path.lexists(self.path / name))
        self.progress.rename(self.path / free)
        return f"; its table of {counted(num_rows, 'epoch')} is kept as {free}"

    def create(self, config: str, facts: dict[str, Any]) -> None:
        """Write config.gin and run.json into the folder, which exists."""
        unfinished = [file for place in (self.path, self.checkpoint_parts) for file in place.glob(".*.tmp-*")]
        for file in (*unfinished, *self.videos.glob(".best_actor*.tmp-*")):  # of a run that was killed
            file.unlink(missing_ok=True)
        known, began = self.details(), {**facts, "wandb_id": uuid.uuid4().hex[:12]}
        if known:  # keep the facts of the start; append those of the resume
            resumes = known.get("resumes")
            resumes = [*(resumes if isinstance(resumes, list) else []), facts]
            lost = {name: began[name] for name in READ_LATER if not isinstance(known.get(name), str)}
            self.note(status="running", simulator=facts["simulator"], resumes=resumes, **lost)
        else:
            self.note(**began, status="running")
        write_text(self.config, config)  # after run.json, without which it is no file of ours


def path_part(name: str) -> str:
    """Return `name` as one part of a path, with unsafe characters replaced; letters of all scripts are safe."""
    part = re.sub(r"[^\w.-]+", "-", name).strip(".-")
    if not part or len(os.fsencode(part)) > LONGEST_NAME:
        raise UserError(
            f"{shown(name)} cannot be the name of a folder; rename the file, or give the name of an environment, an "
            f"algorithm or a dataset"
        )
    return part


def facts(spec: RunSpec, experiment: Experiment) -> dict[str, Any]:
    """Return the provenance of a run for run.json."""
    device = experiment.algorithm.device
    return {
        "command": sys.argv,
        "env": spec.env,
        **({"env_made": spec.env_made} if spec.env_function is not None else {}),
        "dataset": experiment.recording and experiment.recording.facts(),
        "algo": spec.algo,
        "config_name": Path(spec.config.file or "").stem,
        "run_id": spec.seed,
        "seed": spec.seed,
        "dataset_fraction": spec.dataset_fraction,
        **({"dataset_steps": spec.dataset_steps} if spec.dataset_steps else {}),
        **({"then_env_steps": spec.then_env_steps} if spec.then_env_steps else {}),
        **({"from": str(spec.start_from), "switch_epoch": experiment.loop.switch_epoch} if spec.start_from else {}),
        **({"init": str(spec.init)} if spec.init else {}),
        **({"model": str(spec.model)} if spec.model else {}),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "simulator": simulator_version(),
        "git_commit": git_commit(),
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
    }


def _with_commit(version: str, commit: Any) -> str:
    return f"offpcc {version} (commit {shown(commit)})" if isinstance(commit, str) else f"offpcc {version}"


def git_commit() -> str | None:
    """Return the checkout's commit, with a "+" if files differ from it; None outside a checkout."""
    if CHECKOUT is None:
        return None
    try:
        command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--abbrev=40", "--dirty=+", "--match="]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


LONGEST_SOURCE = 1000  # characters; long, because two paths may differ only near the start or the end


class Origin(NamedTuple):
    """The environment of a run's tests, and the dataset that it learns from."""

    env: str | None
    source: str | None  # of the dataset; None if the run acts in the environment
    fingerprint: str | None = None  # of the dataset, if known

    @property
    def data_text(self) -> str:
        """Text for messages: the dataset, or that there is none."""
        if self.source is None:
            return f"in {shown(str(self.env))}, not from recorded data"
        return f"from {shown(self.source, LONGEST_SOURCE)}{f' ({shown(self.fingerprint)})' if self.fingerprint else ''}"


def check_origin(folder: RunFolder, origin: Origin) -> None:
    """Raise if this run before a resume, or a run beside it in a folder of results, has a different origin.

    Two runs that act in their environment need no check, because the folder's name is that of the environment. A
    missing or damaged `run.json` passes the check.
    """
    found = folder.siblings.glob("*") if folder.is_in_results else ()
    numbers = sorted(int(path.name) for path in found if path.name.isdecimal())
    paths = [folder.path, *(folder.siblings / str(number) for number in numbers)]  # this run first
    for path in paths:
        other = _origin_of(RunFolder.at(path).details())
        if other is None or (other.source is None and origin.source is None):
            continue
        if (fault := _difference(other, origin)) is not None:
            name = f"run {path.name} in {folder.siblings}" if folder.is_in_results else f"the run in {path}"
            raise UserError(f"{name} {fault}")


def check_same_record(folder: RunFolder, spec: RunSpec) -> None:
    """Raise if a run that is resumed was started with another environment, algorithm, seed or part of the data.

    A run with an online phase has to keep it. A fact that is missing in `run.json`, or damaged, passes the check.
    """
    details = folder.details()
    for option, start in (("init", spec.init), ("from", spec.start_from)):
        first = details.get(option)
        if start is None or not details or not folder.has_checkpoint():
            continue
        if not isinstance(first, str) or Path(first).resolve() != Path(str(start)).resolve():
            began = f"began with {shown(first)}" if isinstance(first, str) else f"began without --{option}"
            raise UserError(
                f"--{option} {start} has no effect on the run in {folder.path}, which {began}; leave it out"
            )
    if not spec.then_env_steps and (steps := folder.env_steps()):
        raise UserError(
            f"the run in {folder.path} has {counted(steps, 'step')} in its environment after the recorded data, but "
            f"here it has none; add --then_env_steps {steps}"
        )
    model = details.get("model")
    was_moved = isinstance(model, str) and not Path(model).exists()  # its new place may be named
    if isinstance(model, str) and spec.model and not was_moved and spec.model.resolve() != Path(model).resolve():
        raise UserError(
            f"the run in {folder.path} was made with the model {shown(model)}, but here it is {spec.model}; leave "
            f"--model out"
        )
    of_function = [("env_made", str)] if spec.env_function is not None else []
    for name, kind in (
        ("env", str),
        *of_function,
        ("algo", str),
        ("seed", int),
        ("dataset_fraction", float),
        ("dataset_steps", int),
    ):
        known, given = details.get(name), getattr(spec, name)
        if isinstance(known, kind) and known != given:
            raise UserError(
                f"the run in {folder.path} was made with {name} {shown(str(known))}, but here it is "
                f"{shown(str(given))}: a resumed run keeps its {name}; give the same value, or another folder"
            )


def source_of(data: dict[str, Any]) -> Any:
    """Return what names a run's data once more, from its `run.json`: the name of a library, or else the file."""
    name = data.get("name")
    return name if str(name).startswith((MINARI, OGBENCH)) else data.get("source")


def _origin_of(details: dict[str, Any]) -> Origin | None:
    """Return the origin in a run.json, which may come from other software; None if there is no valid one."""
    env, data = details.get("env"), details.get("dataset")
    if not isinstance(env, str | None) or not isinstance(data, dict | None) or (env is None and data is None):
        return None
    if data is None:
        return Origin(env, None)
    fingerprint = data.get("fingerprint")
    return Origin(env, str(source_of(data)), fingerprint if isinstance(fingerprint, str) else None)


def _difference(other: Origin, origin: Origin) -> str | None:
    """Return how the existing run differs from the new one, with a remedy; None if they agree."""
    elsewhere = "give another --results"
    has_other_data = None not in (known := (other.fingerprint, origin.fingerprint)) and len({*known}) > 1
    if (other.source is None) != (origin.source is None) or has_other_data:
        return (
            f"learned {other.data_text}, but this one would learn {origin.data_text}, and ids of one folder count as "
            f"seeds of one experiment (a hash identifies the rows used for learning, so it also depends on "
            f"dataset.best_fraction); {elsewhere}, or rename the data file"
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
    """Return the file of the checkpoint before `file`."""
    return file.with_stem(f"{file.stem}_before")


def parts_folder(file: Path) -> Path:
    """Return the folder with the buffer chunks of both checkpoints."""
    return file.with_name("checkpoint_parts")
