"""The training command: run folder, loggers, training, result."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from offpcc.algorithms import short_name
from offpcc.algorithms.agent import load_actor
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.cli.commands import reject_unused_options, show
from offpcc.cli.messages import command, describe_config, refusal, tell_result
from offpcc.cli.plan import RunPlan, plan_run
from offpcc.config import gin_files, loading
from offpcc.envs.faults import EnvironmentFault
from offpcc.training import checkpoint, run_dir
from offpcc.training.checkpoint import Checkpoints
from offpcc.training.evaluation import record_episodes
from offpcc.training.experiment import Experiment, resolve_env_and_dataset, run_label
from offpcc.training.loggers import (
    ConsoleLogger,
    CSVLogger,
    Logger,
    Loggers,
    Row,
    TensorBoardLogger,
    WandbLogger,
    going_on_without,
    tracking_wanted,
)
from offpcc.training.loggers.csv_logger import joined_columns, table_text
from offpcc.training.plotting import plot_run
from offpcc.training.run_dir import RunFolder
from offpcc.training.run_fns import columns_of
from offpcc.training.settings import digest
from offpcc.utils import signals
from offpcc.utils.errors import DataWarning, UserError
from offpcc.utils.files import open_regular, telling_of_faults
from offpcc.utils.locks import FolderLock
from offpcc.utils.paths import check_folder


def open_loggers(
    options: argparse.Namespace, folder: RunFolder, learner: Experiment, console: ConsoleLogger
) -> Loggers:
    """Open all loggers of a run; in a resumed run, they also get the rows of earlier epochs."""
    loop = learner.loop
    columns = columns_of(learner.algorithm, learner.tests, learner.interaction)
    if told := _check_table(folder, columns, loop.rows):
        console.print(told)
    logs: list[Logger] = [CSVLogger(folder.progress, columns, loop.rows), console]
    with going_on_without("TensorBoard"):
        has_events = any((folder.path / "tensorboard").glob("*tfevents*"))
        events = TensorBoardLogger(folder.path, purge_step=loop.epoch_start + 1)
        for row in () if has_events else loop.rows:
            events.epoch(row)
        logs.append(events)
    for make_logger in learner.loggers:
        with going_on_without(getattr(make_logger, "__name__", "a logger")):
            logs.append(make_logger(folder.path))
    if tracking_wanted(options.track):
        with going_on_without("Weights & Biases"):
            logs.append(open_weights_and_biases(options, folder, console))
    return Loggers(logs)


def open_weights_and_biases(options: argparse.Namespace, folder: RunFolder, console: ConsoleLogger) -> WandbLogger:
    """Open the run at Weights & Biases, or its folder for a later upload."""
    details = folder.details()
    return WandbLogger(
        folder.path,
        environment=run_label(*resolve_env_and_dataset(options.env, options.dataset), options.dataset_fraction),
        algorithm=options.algo,
        # Weights & Biases averages over a group, so runs with other settings need another group.
        config_name=f"{details['config_name']} {digest(loading.plain_values(loading.operative()))}",
        run_id=folder.run_id,
        wandb_id=details["wandb_id"],
        config=loading.values(loading.operative()),
        announce=console.print,
    )


def _check_table(folder: RunFolder, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Rename progress.csv if it was changed or damaged; return a message, or "" if the file is correct.

    The checkpoint stores the rows of all epochs, so the file can be written again.
    """
    if not rows:
        return ""
    table, number = folder.progress, f"{len(rows):,} epoch{'s' * (len(rows) > 1)}"
    if not os.path.lexists(table):
        return f"{table} is missing; its rows of {number} are written again, from the checkpoint"
    own = joined_columns((), rows)  # the columns before this process
    expected = [table_text(names, rows).encode() for names in (own, joined_columns(columns, rows))]
    if table.is_file():
        with open_regular(table) as stream:
            beginning = stream.read(max(map(len, expected)))
        if any(beginning.startswith(text) for text in expected):
            return ""
    table.replace(folder.progress_before)
    return (
        f"{table} is not what the run wrote; it is kept as {folder.progress_before.name}, and the rows of {number} are "
        f"written again, from the checkpoint"
    )


def train_all(options: argparse.Namespace) -> int:
    """Train or show every run id; return the exit code of the first failure, or 0.

    A failed run does not stop the others.
    """
    if len(set(options.run_id)) < len(options.run_id):
        raise UserError(f"--run_id {' '.join(map(str, options.run_id))} names a run twice; give each id once")
    if options.save_dataset and len(options.run_id) > 1:
        raise UserError(f"--save_dataset {options.save_dataset} is one file, but there are several run ids; give one")
    if not options.env and not options.dataset:
        raise UserError(
            "there is nothing to learn from; name an environment with --env, or recorded data with --dataset"
        )
    if options.config:
        gin_files.find(options.config)  # report a misspelt config name before any error of a run
    is_shown = options.render or options.record
    if not is_shown:
        reject_unused_options(options, "--render", episodes=None)
        check_folder(loading.results_folder(options.results), "the folder of results")
    options.algo = short_name(options.algo)  # all names of an algorithm use the same folder
    run = show if is_shown else train_one
    codes: list[int] = []
    told: set[str] = set()  # print an error that all runs share only once
    for run_id in options.run_id:
        try:
            run(options, run_id)
            codes.append(0)
        except UserError as error:
            codes.append(2 if error.message in told else error.report())
            told.add(error.message)
        except Exception:
            traceback.print_exc()
            hint = "" if run is show else "; once it is mended, the same command with --resume goes on"
            print(f"offpcc: run {run_id} failed{hint}", file=sys.stderr)
            codes.append(1)
        signals.poll()
    return next((code for code in codes if code), 0)


def train_one(options: argparse.Namespace, run_id: int) -> None:
    """Train one run in its folder, from the start or from its checkpoint.

    Raises:
        UserError: the run exists and must not be resumed, another process trains it, an argument is invalid, or its
            folder cannot be written.
        Interrupted: the user asked the command to stop.
    """
    name = run_label(*resolve_env_and_dataset(options.env, options.dataset), options.dataset_fraction)
    folder = RunFolder(loading.results_folder(options.results), name, options.algo, run_id)
    try:
        with closing(FolderLock(folder.path)) as lock:
            lock.take_if_there()
            train_locked(options, folder, lock)
    except signals.Interrupted as stop:
        stop.message = f"run {run_id} {stop.message}"
        unfinished = options.run_id[options.run_id.index(run_id) + stop.is_late :]
        if unfinished and (options.config or folder.config.exists()):
            stop.message += f"; to go on: {command(options, folder, unfinished, '--resume')}"
        raise


def train_locked(options: argparse.Namespace, folder: RunFolder, lock: FolderLock) -> None:
    """Train one run in a folder that no other process uses; see `train_one`."""
    folder.refuse_links()
    plan = plan_run(options, folder)
    if plan is None:
        return
    lock_run(options, folder, lock, plan)
    learner, messages = create_experiment(options, folder, plan)
    if lock.message:
        messages.append(lock.message)
    with signals.deferred(), telling_of_faults(folder.path):
        if plan.status and plan.checkpoint is None:
            messages.append(f"there is no checkpoint in {folder.path}, so the run begins anew{folder.keep_table()}")
        print(*describe_config(options, plan.config, folder.config), *messages, sep="\n", flush=True)
        env, _ = resolve_env_and_dataset(options.env, options.dataset)
        facts = run_dir.facts(env, options.algo, folder.run_id, Path(plan.file).stem, learner)
        folder.create(plan.config, facts)
        run_training(folder, options, learner, plan.config, plan.settings)


def lock_run(options: argparse.Namespace, folder: RunFolder, lock: FolderLock, plan: RunPlan) -> None:
    """Create a run's folder if it is missing, and lock it.

    Raises:
        UserError: another process trains the run, or has trained it since its status was read, or the folder cannot be
            created.
    """
    with telling_of_faults(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        lock.take()
        if (now := folder.status()) != plan.status:
            raise UserError(refusal(options, folder, now or "unfinished", plan.config))


def create_experiment(options: argparse.Namespace, folder: RunFolder, plan: RunPlan) -> tuple[Experiment, list[str]]:
    """Return the experiment, ready to train and with a recorder if one is wanted, and messages about it.

    Raises:
        UserError: the checkpoint belongs to another run, or the recording cannot start.
    """
    learner, messages = plan.learner, [*plan.messages]
    if options.save_dataset is not None:  # this creates files next to the output file
        learner = learner.record(options.save_dataset, options.env, folder.run_id, options.resume)
    if learner.recorder is not None and learner.recorder.message:
        messages.append(learner.recorder.message)
    if plan.checkpoint is not None:
        messages += checkpoint.resume(plan.checkpoint, learner)
        if learner.loop.best_return is not None and not folder.actor_best.is_file():
            learner.loop.best_return = None
            messages.append(f"{folder.actor_best} is missing; the best actor is chosen from the tests to come")
        messages.append(f"going on in {folder.path} after epoch {learner.loop.epoch}, step {learner.loop.step:,}")
    elif learner.recorder is not None:  # without a checkpoint, record again from the first step
        learner.recorder.keep(0)
    if options.resume and not plan.status:
        messages.append(f"there is no run in {folder.path} to go on with, so one is begun")
    return learner, messages


def run_training(
    folder: RunFolder, options: argparse.Namespace, learner: Experiment, config: str, settings: dict[str, Any]
) -> None:
    """Train to the end and print the result; if the user stops the run, save a checkpoint and stop."""
    num_epochs, loop = settings["num_epochs"], learner.loop
    console = ConsoleLogger(f"{learner.title} run {folder.run_id}")
    saving = Checkpoints(folder, learner, config, num_epochs)
    started = time.monotonic()
    with ExitStack() as stack:
        stack.callback(learner.close)
        logger = open_loggers(options, folder, learner, console)
        stack.callback(logger.close)
        try:
            try:
                with warnings.catch_warnings(action="ignore", category=DataWarning):  # printed by `plan_run`
                    learner.train(logger, [saving])
                if learner.recorder is not None:
                    learner.recorder.cut()
                    learner.recorder.merge()
                env, _ = resolve_env_and_dataset(options.env, options.dataset)
                if learner.tests is not None and learner.tests.shared is not None:
                    env = None  # a video needs a second environment
                picture(env, folder, learner.algorithm.device, logger, console.print)
                folder.note(status="finished", epochs=loop.epoch, best_test_return=loop.best_return)
            except signals.Interrupted as stop:
                if loop.epoch >= num_epochs or loop.stopped:
                    stop.message = f"stopped after its last step, {loop.step:,}, and saved"
                else:
                    num_steps = num_epochs * settings["num_steps_per_epoch"]
                    stop.message = f"stopped at step {loop.step:,} of {num_steps:,}, and saved"
                    saving.save()  # may be the first to find a NaN or infinity
                folder.note(status="stopped")
                raise
        except NonFiniteError as error:
            told = error.at(loop.step)
            told.save(folder.bad_batch)
            raise told from None
        except EnvironmentFault as fault:
            raise fault.kept_in(folder.path) from fault.cause
    seconds = time.monotonic() - started
    with going_on_without("the summary of the run"):
        print(f"trained in {seconds / 60.0:.1f} minutes" if seconds >= 60.0 else f"trained in {seconds:.1f} seconds")
        if learner.recorder is not None:
            print(f"data set        {options.save_dataset}")
        tell_result(folder)
    try:
        signals.poll()
    except signals.Interrupted as stop:
        stop.message, stop.is_late = "is finished", True
        raise


def picture(
    env: str | None, folder: RunFolder, device: torch.device, logger: Logger, announce: Callable[[str], None]
) -> None:
    """Draw the learning curve, and record a video of the best actor if its environment can be rendered."""
    with going_on_without("the learning curve"):
        plot_run(folder.path, folder.curve)
        logger.artifact("curve", folder.curve)
    logger.artifact("actor", folder.actor())
    if env is None:
        return
    with going_on_without("the video"):
        try:
            _, videos = record_episodes(load_actor(folder.actor(), device), env, 1, folder.videos, "best_actor")
        except UserError as error:  # such as an environment that cannot be rendered
            announce(f"there is no video: {error}")
        else:
            logger.artifact("video", videos[0])
