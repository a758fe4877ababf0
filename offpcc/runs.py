"""A run's folder: what is in it, how it is made, and what a checkpoint holds."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import platform
import random
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpcc import __version__
from offpcc.agent import read_tensors
from offpcc.assembly import Learner
from offpcc.configuration import CHECKOUT, values
from offpcc.domains.making import simulator
from offpcc.errors import UserError
from offpcc.files import read_json, replacing, write_json, write_text

CHECKPOINT_FORMAT = 4


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
        self.config = self.path / "config.gin"
        self.record = self.path / "run.json"
        self.progress = self.path / "progress.csv"
        self.checkpoint = self.path / "checkpoint.pt"
        self.actor_last = self.path / "actor_last.pt"
        self.actor_best = self.path / "actor_best.pt"
        self.bad_batch = self.path / "bad_batch.pt"
        self.curve = self.path / "curve.png"
        self.videos = self.path / "videos"

    def status(self) -> str | None:
        """None if there is no such run, else "finished" or "unfinished"."""
        if not any(file.exists() for file in (self.record, self.progress, self.checkpoint)):
            return None
        return "finished" if self.details().get("status") == "finished" else "unfinished"

    def details(self) -> dict[str, Any]:
        """What run.json tells; empty where there is none."""
        try:
            return dict(read_json(self.record))
        except (OSError, ValueError):
            return {}

    def next_free_id(self) -> int:
        """The smallest id above all that exist."""
        taken = [int(p.name) for p in self.siblings.glob("*") if p.name.isdigit()]
        return max(taken, default=0) + 1

    def actor(self) -> Path:
        """The actor to show: the best, else the last, else one put there by hand.

        Raises:
            UserError: there is none.
        """
        others = [file for file in sorted(self.path.glob("*.pt")) if file not in (self.checkpoint, self.bad_batch)]
        for file in (self.actor_best, self.actor_last, *others):
            if file.is_file():
                return file
        ids = sorted(path.name for path in self.path.glob("*") if RunFolder.at(path).status())
        remedy = f"name a run in it, such as {self.path / ids[0]}" if ids else "train one first, or put its file there"
        raise UserError(f"there is no saved actor in {self.path}; {remedy}")

    def note(self, **facts: Any) -> None:
        """Add facts to run.json."""
        write_json(self.record, self.details() | facts)

    def create(self, config: str, facts: dict[str, Any]) -> None:
        """Make the folder and write what the run is."""
        self.path.mkdir(parents=True, exist_ok=True)
        for unfinished in self.path.glob(".*.tmp-*"):  # of a run that was killed while it wrote
            unfinished.unlink(missing_ok=True)
        write_text(self.config, config)
        known = self.details()
        if known:  # what the run began with stays; what it goes on with is added
            resumes = [*known.get("resumes", []), facts]
            self.note(status="running", simulator=facts["simulator"], resumes=resumes)
        else:
            self.note(**facts, status="running", wandb_id=uuid.uuid4().hex[:12])


def path_part(name: str) -> str:
    """`name` as one part of a path."""
    part = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")
    if not part:
        raise UserError(f"{name!r} is no name that a folder could have; give an environment's or algorithm's name")
    return part


def save_checkpoint(file: Path, learner: Learner, config: str, num_epochs: int) -> None:
    """Write all that a run needs to go on exactly."""
    with replacing(file) as temporary, temporary.open("wb") as opened:  # given a name, torch would write it into it
        torch.save(
            {
                "kind": "checkpoint",
                "format": CHECKPOINT_FORMAT,
                "algorithm": learner.algorithm.state_dict(),
                "buffer": learner.buffer.state_dict(),
                "interaction": None if learner.interaction is None else learner.interaction.state_dict(),
                "recorder": None if learner.recorder is None else learner.recorder.state_dict(),
                "loop": learner.loop.state_dict(),
                "global_generators": global_generators(),
                "config": config,
                "num_epochs": num_epochs,
                "threads": torch.get_num_threads(),
                "device": learner.algorithm.device.type,
            },
            opened,
        )


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote; nothing in it is executed."""
    return read_tensors(file, "checkpoint", CHECKPOINT_FORMAT)


def check_unchanged(before: str, now: str) -> None:
    """Refuse to resume with other bindings than `train.num_epochs`.

    Raises:
        UserError: naming the first binding that differs.
    """
    old, new = values(before), values(now)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name) or name.endswith("train.num_epochs") or "." not in name:
            continue  # a macro counts by what it is bound to
        short = ".".join(name.split(".")[-2:])
        raise UserError(
            f"{short} is {new.get(name, 'not set')}, but the run was made with {old.get(name, 'no value')}: a "
            f"resumed run keeps its bindings (train.num_epochs may be raised); start another id for a change"
        )


def is_over(content: dict[str, Any], num_epochs: int) -> bool:
    """Whether a checkpoint's run has nothing left to do."""
    return bool(content["loop"]["stopped"]) or content["loop"]["epoch"] >= num_epochs


def resume(content: dict[str, Any], learner: Learner) -> list[str]:
    """Put the parts where a checkpoint left them; messages about what is not exact."""
    loop = learner.loop
    learner.algorithm.load_state_dict(content["algorithm"])
    learner.buffer.load_state_dict(content["buffer"])
    loop.load_state_dict(content["loop"])
    messages = []
    if content["threads"] != torch.get_num_threads():
        messages.append(
            f"this resume is not exact: the run used {content['threads']} threads, this process uses "
            f"{torch.get_num_threads()}; --threads {content['threads']} makes it so"
        )
    if content["device"] != learner.algorithm.device.type:
        messages.append(
            f"this resume is not exact: the run used {content['device']}, this process uses "
            f"{learner.algorithm.device.type}"
        )
    if learner.interaction and (message := learner.interaction.load_state_dict(content["interaction"])):
        messages.append(message)
    if learner.recorder is not None:
        learner.recorder.load_state_dict(content["recorder"])
    set_global_generators(content["global_generators"])
    return messages


def global_generators() -> dict[str, Any]:
    """The states of the generators that are everybody's: offpcc's own parts use none, a user's may."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # a tuple, for the legacy generator
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, gauss],
        "python": repr(random.getstate()),
    }


def set_global_generators(states: dict[str, Any]) -> None:
    """Put them where `global_generators` found them."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate(ast.literal_eval(states["python"]))


def facts(env: str | None, algo: str, run_id: int, config: str, learner: Learner) -> dict[str, Any]:
    """What run.json tells of a run's origin."""
    device = learner.algorithm.device
    simulators = ("pygame", "mujoco", "dm-control", "pybullet", "pybullet_envs_gymnasium")
    versions = {"offpcc": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "gymnasium", "gin-config", *simulators):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
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
        "versions": versions,
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
