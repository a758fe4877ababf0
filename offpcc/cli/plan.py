"""Decides how a run starts: new, resumed or refused; creates no files."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import random
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from offpcc.cli.arguments import imported
from offpcc.cli.commands import choose_device
from offpcc.cli.messages import describe_data, nothing_there, refusal, tell_finished
from offpcc.config import loading
from offpcc.config.bindings import check_unused_bindings
from offpcc.config.gin_files import text_of
from offpcc.config.validation import check, rules_of
from offpcc.data import offline
from offpcc.training import checkpoint as checkpoints
from offpcc.training.checkpoint import Checkpoints
from offpcc.training.experiment import Experiment, build, check_context_length, resolve_env_and_dataset
from offpcc.training.loggers import tracking_wanted
from offpcc.training.run_dir import Origin, RunFolder, check_origin
from offpcc.training.run_fns import (
    check_num_envs,
    check_settings,
    explain_no_updates,
    planned_updates,
    train,
    unused_parameters,
)
from offpcc.utils.errors import DataWarning, UserError
from offpcc.utils.version import tell_changed


class RunPlan(NamedTuple):
    """The start of a run."""

    learner: Experiment  # as it was built; the checkpoint is not loaded yet
    file: str | Path  # the config
    config: str  # the bindings in use
    settings: dict[str, Any]  # the arguments of `train`
    status: str | None  # status of the run in its folder: None, "finished" or "unfinished"
    checkpoint: checkpoints.Checkpoint | None  # the checkpoint to resume from
    messages: list[str]


def plan_run(options: argparse.Namespace, folder: RunFolder) -> RunPlan | None:
    """Decide how a run starts; create no files.

    Returns:
        The plan; None if the run is already finished. A message then says so.

    Raises:
        UserError: the run cannot start; the message gives the first reason.
    """
    env, data = resolve_env_and_dataset(options.env, options.dataset)
    origin, status = Origin(env, None if data is None else str(data)), folder.status()
    refuse_place(options, folder, status, origin)
    file = find_config(options, folder, status)
    learner, config, settings = assemble(options, folder.run_id, file)
    if learner.recording is not None:
        refuse_place(options, folder, status, origin._replace(fingerprint=learner.recording.fingerprint), config)
    num_steps = settings["num_epochs"] * settings["num_steps_per_epoch"]
    messages = describe_data(options, learner, num_steps)
    plan = (learner.interaction, num_steps, settings["update_after"], settings["updates_per_step"])
    warned = (
        check_context_length(learner.algorithm, learner.buffer),
        explain_no_updates(*plan),
        learner.algorithm.about_updates(planned_updates(*plan)),
    )
    messages += filter(None, warned)
    checkpoint, changes = find_checkpoint(folder, status, config)
    if status == "finished" and (checkpoint is None or checkpoints.is_over(checkpoint, settings["num_epochs"])):
        tell_finished(options, folder)
        if checkpoint is None:
            print(f"it cannot be gone on with, as {folder.checkpoint} is gone")
        return None
    if checkpoint is not None:
        check_resumable(options, checkpoint, settings["num_epochs"])
    if options.save_dataset is not None:
        learner.check_recording(options.save_dataset, options.resume)
    return RunPlan(learner, file, config, settings, status, checkpoint, [*messages, *changes])


def refuse_place(
    options: argparse.Namespace, folder: RunFolder, status: str | None, origin: Origin, config: str | None = None
) -> None:
    """Refuse a folder next to runs with another data source, and a folder with a run that must not be resumed.

    At first, only the name of a dataset is known. An existing run is then not refused yet: that it learned from another
    dataset is the better reason, and this is known after the dataset is read.

    Args:
        options: options of the command.
        folder: folder of the run.
        status: status of the run in the folder.
        origin: data source of the new run.
        config: the bindings of the new run, if known.

    Raises:
        UserError: the message names the existing run and what the user can do.
    """
    check_origin(folder, origin)
    is_known = origin.source is None or origin.fingerprint is not None
    if status and is_known and not options.resume:
        if config is None:
            with contextlib.suppress(Exception):  # the existing run is the better reason
                learner, config, _ = assemble(options, folder.run_id, find_config(options, folder, status))
                learner.close()
        raise UserError(refusal(options, folder, status, config))


def find_config(options: argparse.Namespace, folder: RunFolder, status: str | None) -> str | Path:
    """Return the given config, else the config that the run was started with.

    Raises:
        UserError: there is no config, or no run to resume.
    """
    if options.config:
        return str(options.config)
    if folder.config.exists():
        return folder.config
    if options.resume and not status:
        raise UserError(nothing_there(options, folder))
    raise UserError("training needs --config FILE.gin, such as --config configs/quickstart.gin; see configs/")


def assemble(options: argparse.Namespace, run_id: int, file: str | Path) -> tuple[Experiment, str, dict[str, Any]]:
    """Return the parts of a run, the bindings in use, and the arguments of `train`.

    Raises:
        UserError: an option or a binding is invalid.
    """
    env, dataset = resolve_env_and_dataset(options.env, options.dataset)
    if dataset is None and options.dataset_fraction != 1.0:
        raise UserError(f"--dataset_fraction {options.dataset_fraction} has no effect without a data set; leave it out")
    if tracking_wanted(options.track) and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "following a run in Weights & Biases needs its package: pip install wandb, or leave --track out"
        )
    bound = loading.load(file, options.gin, modules=imported(options), is_trusted=options.config is not None)
    device = choose_device(options)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(run_id)  # for environments and networks of users; the parts of offpcc have their own generators
    data = {"dataset": dataset, "dataset_fraction": options.dataset_fraction}
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # `plan_run` prints them
        learner = build(env, options.algo, seed=run_id, device=device, threads=None, **data)
    settings = loading.resolve_bindings(train)
    check("Checkpoints", rules_of(Checkpoints), loading.resolve_bindings(Checkpoints))
    check_settings(**settings)
    check_num_envs(learner.interaction, settings["num_steps_per_epoch"])
    algorithm, buffer = learner.algorithm, learner.buffer
    idle = {
        type(algorithm): algorithm.unused_parameters(),
        **{type(part): part.unused_parameters() for part in (algorithm.shared_encoder, algorithm.actor_encoder)},
        type(buffer): buffer.unused_parameters(),
        train: unused_parameters(algorithm, learner.interaction, learner.tests, settings),
        offline.dataset_options: offline.unused_parameters(algorithm),
    }
    check_unused_bindings(bound, idle)
    algorithm.actor_file()  # raise now, not after an epoch, if the actor cannot be saved
    return learner, loading.operative(), settings


def find_checkpoint(
    folder: RunFolder, status: str | None, config: str
) -> tuple[checkpoints.Checkpoint | None, list[str]]:
    """Return the checkpoint to resume from, or None, and messages about it and about bindings that differ.

    Raises:
        UserError: the checkpoint cannot be read, or a binding that must not change differs.
    """
    if status and folder.has_checkpoint():
        checkpoint, faults = checkpoints.read_latest(folder.checkpoint)
        try:
            return checkpoint, faults + checkpoints.check_unchanged(checkpoint["config"], config)
        except UserError as error:
            if (changed := tell_changed(checkpoint.get("versions"))) is None:
                raise
            raise UserError(f"{error.message} ({changed})") from error
    if status == "finished" and folder.config.is_file():
        checkpoints.check_unchanged(text_of(folder.config), config)
    return None, []


def check_resumable(options: argparse.Namespace, checkpoint: checkpoints.Checkpoint, num_epochs: int) -> None:
    """Refuse to resume with fewer epochs, or with a different recording option.

    Raises:
        UserError: the message names the difference.
    """
    if num_epochs < checkpoint["num_epochs"]:
        raise UserError(
            f"train.num_epochs is {num_epochs}, but the run was made with {checkpoint['num_epochs']}: resuming may "
            f"only raise it"
        )
    if checkpoint["recorder"] is None and options.save_dataset:
        raise UserError(f"--save_dataset {options.save_dataset}: the run did not record its first steps; leave it out")
    if checkpoint["recorder"] is not None and not options.save_dataset:
        raise UserError("the run recorded itself so far; to go on with it, add --save_dataset with the same file")
