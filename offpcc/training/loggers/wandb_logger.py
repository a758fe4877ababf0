"""Logger for Weights & Biases, and the upload of a report."""

import glob
import importlib.util
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from offpcc.algorithms.agent import BEST
from offpcc.training.loggers.base import Logger, Row
from offpcc.utils.errors import UserError

OF_MODEL = ("update/imagined_", "update/model_")  # how names of statistics of a learned model begin
OF_PHASE = ("train/", "test/")  # how names of returns and lengths of episodes begin


def tracking_wanted(track: bool) -> bool:
    """Check whether to log to Weights & Biases: with `--track`, or if OFFPCC_WANDB_PROJECT is set."""
    return track or bool(os.environ.get("OFFPCC_WANDB_PROJECT"))


def check_installed() -> None:
    """Raise a `UserError` if the package of Weights & Biases is missing."""
    if importlib.util.find_spec("wandb") is None:
        raise UserError(
            "following a run in Weights & Biases needs its package: pip install wandb, or leave --track out"
        )


def start_run(folder: Path, announce: Callable[[str], None], **names: Any) -> Any:
    """Start a run of Weights & Biases, or an offline run if the user is not logged in or the server does not answer.

    It writes into `folder`, and `names` are more arguments of `wandb.init`.
    """
    # For output outside of a run; `wandb.Settings` below silences the run itself.
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    start = partial(
        wandb.init,
        entity=os.environ.get("OFFPCC_WANDB_ENTITY"),
        project=os.environ.get("OFFPCC_WANDB_PROJECT") or os.environ.get("WANDB_PROJECT") or "offpcc",
        dir=folder,
        # No links: their absolute paths would break if the folder is moved before the upload.
        settings=wandb.Settings(silent=True, console="off", symlink=False, init_timeout=30),
        **names,
    )
    try:
        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise wandb.errors.AuthenticationError("not logged in")
        run = start()
        reason = "offline" if run.settings.mode == "offline" else None
    except wandb.errors.CommError as error:
        wandb.teardown()  # otherwise the failed start would still hold the run's id
        run, reason = start(mode="offline"), str(error).partition("\n")[0]
    if reason is not None:
        folder_to_sync = shlex.quote(run.settings.sync_dir)
        announce(f"Weights & Biases: {reason}; upload this run later with wandb sync {folder_to_sync}")
    return run


def upload_report(values: Mapping[str, Any], files: Mapping[str, Path], announce: Callable[[str], None]) -> None:
    """Log the table, the figure and the JSON file of a report as one run of the type "report".

    `values` are those that `offpcc.report` returns, and `files` the written files by suffix.
    """
    name = files[".json"].stem
    run = start_run(files[".json"].parent, announce, job_type="report", group="reports", name=name)
    import wandb

    estimates = ("iqm", "mean", "median", "optimality_gap", "probability_of_improvement")
    columns = [column for name in estimates for column in (name, f"{name}_low", f"{name}_high")]
    table = wandb.Table(columns=["task", "algorithm", "num_seeds", *columns])
    for row in values["rows"]:
        numbers = [(row[name] or {}).get(part) for name in estimates for part in ("value", "low", "high")]
        table.add_data(row["task"] or "all tasks", row["algorithm"], " ".join(map(str, row["num_seeds"])), *numbers)
    run.log({"report/table": table, "report/figure": wandb.Image(str(files[".png"]))})
    artifact = wandb.Artifact(f"report-{run.id}", type="report")
    for file in files.values():
        artifact.add_file(str(file), name=file.name)
    run.log_artifact(artifact)
    run.finish()


class WandbLogger(Logger):
    """Logs to Weights & Biases, or into the run's folder for a later upload.

    The entity is OFFPCC_WANDB_ENTITY, WANDB_ENTITY, or the user's default entity. The project is OFFPCC_WANDB_PROJECT,
    WANDB_PROJECT, or "offpcc".
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
        config: What tells the run from others, such as its gin bindings.
        goes_online: Whether learning goes on in an environment after recorded data. Then the sections `offline` and
            `online` get the returns of each phase, those of the second over the environment steps since the switch.
        model_errors: Errors of the networks of a model on held-out transitions, for the section `model`.
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
        goes_online: bool = False,
        model_errors: Sequence[float] = (),
        announce: Callable[[str], None] = print,
    ) -> None:
        self._run = start_run(
            folder,
            announce,
            group=os.environ.get("WANDB_RUN_GROUP") or f"{environment} {algorithm} {config_name}",
            name=f"{environment} {algorithm} run_id={run_id}",
            id=wandb_id,
            resume="allow",
            config=dict(config),
        )
        import wandb

        self._wandb = wandb
        self._names = {"environment": environment, "algorithm": algorithm, "config_name": config_name, "run_id": run_id}
        self._goes_online, self._online = goes_online, set[str]()
        self._step: float | int | None = 0
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if goes_online:
            self._run.define_metric("env_step")
        if model_errors:
            self._run.log({"step": 0, **{f"model/holdout_error_{n}": error for n, error in enumerate(model_errors)}})

    def epoch(self, row: Row) -> None:
        """Log the row's numbers at `row["step"]` environment steps, and those with sections of their own there, too."""
        self._step = row["step"]
        numbers = {name: value for name, value in row.items() if value is not None}
        panels = {f"model/{name.removeprefix('update/')}": name for name in numbers if name.startswith(OF_MODEL)}
        if self._goes_online:
            phase = "online" if "env_step" in numbers else "offline"
            panels |= {f"{phase}/{name.replace('/', '_')}": name for name in numbers if name.startswith(OF_PHASE)}
        for panel in panels:
            if panel.startswith("online/") and panel not in self._online:  # a pattern would compete with "*"
                self._run.define_metric(panel, step_metric="env_step")
                self._online.add(panel)
        self._run.log(numbers | {panel: numbers[name] for panel, name in panels.items()})

    def artifact(self, kind: str, file: Path) -> None:
        """Upload an actor as a file of the run and as an artifact of the type "model".

        `actor_best.pt` has the alias "best", another file "last". Upload a curve or video as media at the step of the
        latest epoch.
        """
        if kind == "curve":
            self._run.log({kind: self._wandb.Image(str(file)), "step": self._step})
        elif kind == "video":
            self._run.log({kind: self._wandb.Video(str(file), format="mp4"), "step": self._step})
        else:
            # Both arguments are glob patterns, so escape brackets in the folder's name.
            file_pattern, folder_pattern = glob.escape(str(file)), glob.escape(str(file.parent))
            saved = self._run.save(file_pattern, base_path=folder_pattern, policy="now")
            if not isinstance(saved, list):  # WANDB_MODE=disabled
                return
            actor = self._wandb.Artifact(f"actor-{self._run.id}", type="model", metadata=dict(self._names))
            actor.add_file(saved[0], name=file.name, policy="immutable")  # a file of the run does not change
            self._run.log_artifact(actor, aliases=["best" if file.name == BEST else "last"])

    def close(self) -> None:
        """Finish the run and wait for uploads."""
        self._run.finish()
