"""Weights & Biases."""

import glob
import os
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from offpcc.training.loggers.base import Progress, Row


def tracking_wanted(track: bool) -> bool:
    """Whether to log to Weights & Biases: asked for by `--track`, or by a project in OFFPCC_WANDB_PROJECT."""
    return track or bool(os.environ.get("OFFPCC_WANDB_PROJECT"))


class WandbLogger:
    """Logs to Weights & Biases, or into the run's folder for a later upload.

    The entity is OFFPCC_WANDB_ENTITY, or the user's default one; the project is OFFPCC_WANDB_PROJECT, or "offpcc". Runs
    of one environment, algorithm and config name form a group. WANDB_MODE has its usual meaning. If nobody is logged
    in, or the server does not answer, one line says so, and the run is kept for a later upload: the user is never asked
    for anything.

    Args:
        folder: The run's folder, into which Weights & Biases writes, too.
        environment: The environment's name.
        algorithm: The algorithm's name.
        config_name: The name of the run's config, the same for runs of the same settings alone.
        run_id: Tells apart the runs of a group.
        wandb_id: A name for this run, unique in the project: a resumed run goes on as the same run there.
        config: The gin bindings.
        announce: Prints a line for the user.

    Raises:
        ImportError: If Weights & Biases is not installed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        environment: str,
        algorithm: str,
        config_name: str,
        run_id: int | str,
        wandb_id: str,
        config: Mapping[str, Any],
        announce: Callable[[str], None] = print,
    ) -> None:
        # Besides the run's own setting below, for what is printed outside of a run.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        start = partial(
            wandb.init,
            entity=os.environ.get("OFFPCC_WANDB_ENTITY"),
            project=os.environ.get("OFFPCC_WANDB_PROJECT") or "offpcc",
            group=f"{environment} {algorithm} {config_name}",
            name=f"run_id={run_id}",
            id=wandb_id,
            resume="allow",
            config=dict(config),
            dir=folder,
            # Links by absolute path would break when the folder is moved before its upload.
            settings=wandb.Settings(silent=True, console="off", symlink=False, init_timeout=30),
        )
        try:
            if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
                raise wandb.errors.AuthenticationError("not logged in")
            self._run = start()
        except wandb.errors.CommError as error:
            wandb.teardown()  # a failed start keeps hold of the run's id
            self._run = start(mode="offline")
            reason, folder_to_sync = str(error).partition("\n")[0], shlex.quote(self._run.settings.sync_dir)
            announce(f"Weights & Biases: {reason}; upload this run later with wandb sync {folder_to_sync}")
        self._wandb = wandb
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._step: float | int | None = 0

    def progress(self, progress: Progress) -> None:
        """Nothing to do."""

    def epoch(self, row: Row) -> None:
        """Log the row's numbers at `row["step"]` environment steps."""
        self._step = row["step"]
        self._run.log({name: value for name, value in row.items() if value is not None})

    def artifact(self, kind: str, file: Path) -> None:
        """Upload an actor as a file of the run, a curve and a video as media at the latest epoch's step."""
        if kind == "curve":
            self._run.log({kind: self._wandb.Image(str(file)), "step": self._step})
        elif kind == "video":
            self._run.log({kind: self._wandb.Video(str(file), format="mp4"), "step": self._step})
        else:
            # Both are patterns; brackets in a folder's name are meant as they are.
            file_pattern, folder_pattern = glob.escape(str(file)), glob.escape(str(file.parent))
            self._run.save(file_pattern, base_path=folder_pattern, policy="now")

    def close(self) -> None:
        """Finish the run, waiting for uploads."""
        self._run.finish()
