"""Logger for Weights & Biases."""

import glob
import os
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from offpcc.training.loggers.base import Logger, Row


def tracking_wanted(track: bool) -> bool:
    """Check whether to log to Weights & Biases: with `--track`, or if OFFPCC_WANDB_PROJECT is set."""
    return track or bool(os.environ.get("OFFPCC_WANDB_PROJECT"))


class WandbLogger(Logger):
    """Logs to Weights & Biases, or into the run's folder for a later upload.

    The entity is OFFPCC_WANDB_ENTITY, or the user's default entity. The project is OFFPCC_WANDB_PROJECT, or "offpcc".
    Runs with the same environment, algorithm and config name form a group, unless WANDB_RUN_GROUP names one; that of a
    sweep is its name. WANDB_MODE has its usual meaning. If the user is not logged in, or the server does not answer,
    one line says so, and the run is stored for a later upload. There are no prompts.

    Args:
        folder: The run's folder; Weights & Biases writes into it, too.
        environment: The environment's name.
        algorithm: The algorithm's name.
        config_name: The name of the run's config; runs with different settings need different names.
        run_id: The number of the run within its group.
        wandb_id: The id of this run, unique in the project. A resumed run continues the run with this id.
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
        # For output outside of a run; `wandb.Settings` below silences the run itself.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        start = partial(
            wandb.init,
            entity=os.environ.get("OFFPCC_WANDB_ENTITY"),
            project=os.environ.get("OFFPCC_WANDB_PROJECT") or "offpcc",
            group=os.environ.get("WANDB_RUN_GROUP") or f"{environment} {algorithm} {config_name}",
            name=f"run_id={run_id}",
            id=wandb_id,
            resume="allow",
            config=dict(config),
            dir=folder,
            # No links: their absolute paths would break if the folder is moved before the upload.
            settings=wandb.Settings(silent=True, console="off", symlink=False, init_timeout=30),
        )
        try:
            if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
                raise wandb.errors.AuthenticationError("not logged in")
            self._run = start()
        except wandb.errors.CommError as error:
            wandb.teardown()  # otherwise the failed start would still hold the run's id
            self._run = start(mode="offline")
            reason, folder_to_sync = str(error).partition("\n")[0], shlex.quote(self._run.settings.sync_dir)
            announce(f"Weights & Biases: {reason}; upload this run later with wandb sync {folder_to_sync}")
        self._wandb = wandb
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._step: float | int | None = 0

    def epoch(self, row: Row) -> None:
        """Log the row's numbers at `row["step"]` environment steps."""
        self._step = row["step"]
        self._run.log({name: value for name, value in row.items() if value is not None})

    def artifact(self, kind: str, file: Path) -> None:
        """Upload an actor as a file of the run. Upload a curve or video as media at the step of the latest epoch."""
        if kind == "curve":
            self._run.log({kind: self._wandb.Image(str(file)), "step": self._step})
        elif kind == "video":
            self._run.log({kind: self._wandb.Video(str(file), format="mp4"), "step": self._step})
        else:
            # Both arguments are glob patterns, so escape brackets in the folder's name.
            file_pattern, folder_pattern = glob.escape(str(file)), glob.escape(str(file.parent))
            self._run.save(file_pattern, base_path=folder_pattern, policy="now")

    def close(self) -> None:
        """Finish the run and wait for uploads."""
        self._run.finish()
