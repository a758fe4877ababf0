"""Decides how a run begins: new, resumed or refused; makes nothing."""

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
    """What a run begins from."""

    learner: Experiment  # as it was put together; nothing of the checkpoint is in it yet
    file: str | Path  # the config
    config: str  # the bindings in use
    settings: dict[str, Any]  # of `train`
    status: str | None  # what its folder held: None, "finished" or "unfinished"
    checkpoint: checkpoints.Checkpoint | None  # to go on from
    messages: list[str]


def plan_run(options: argparse.Namespace, folder: RunFolder) -> RunPlan | None:
    """Decide what a run begins from; nothing is made.

    Returns:
        None if the run is finished, and was told to be.

    Raises:
        UserError: the first thing that stands against it.
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
    """Refuse a folder beside runs that learned from something else, and one with a run that is not to be gone on with.

    Of recorded data only the name is known at first. A run that exists is then not refused yet: that its data is
    another's is the better reason, and known once the data was read.

    Args:
        options: of the command.
        folder: of the run.
        status: what the folder holds.
        origin: what the run would learn from.
        config: the bindings that the run would have, if they are known.

    Raises:
        UserError: naming the run that is there, and what to do.
    """
    check_origin(folder, origin)
    is_known = origin.source is None or origin.fingerprint is not None
    if status and is_known and not options.resume:
        if config is None:
            with contextlib.suppress(Exception):  # the run that is there is the better reason
                learner, config, _ = assemble(options, folder.run_id, find_config(options, folder, status))
                learner.close()
        raise UserError(refusal(options, folder, status, config))


def find_config(options: argparse.Namespace, folder: RunFolder, status: str | None) -> str | Path:
    """The config that was given, else the one that the run was begun with.

    Raises:
        UserError: there is neither, or no run to go on with.
    """
    if options.config:
        return str(options.config)
    if folder.config.exists():
        return folder.config
    if options.resume and not status:
        raise UserError(nothing_there(options, folder))
    raise UserError("training needs --config FILE.gin, such as --config configs/quickstart.gin; see configs/")


def assemble(options: argparse.Namespace, run_id: int, file: str | Path) -> tuple[Experiment, str, dict[str, Any]]:
    """The parts of a run, the bindings in use, and the settings of `train`.

    Raises:
        UserError: something given is at fault.
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
        seed(run_id)  # for users' environments and networks; offpcc's own parts have generators of their own
    data = {"dataset": dataset, "dataset_fraction": options.dataset_fraction}
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # printed by `plan_run`
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
    algorithm.actor_file()  # what could not be saved is refused now, not after an epoch
    return learner, loading.operative(), settings


def find_checkpoint(
    folder: RunFolder, status: str | None, config: str
) -> tuple[checkpoints.Checkpoint | None, list[str]]:
    """The checkpoint to go on from, if there is one, and what to tell of it and of bindings that differ from its own.

    Raises:
        UserError: it cannot be read, or bindings differ that may not.
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
    """Refuse to go on to another end, or with other recording, than the run can.

    Raises:
        UserError: naming what differs.
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
