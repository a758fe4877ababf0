"""The command that trains: a run's folder is made, filled or gone on with, and its result told."""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpcc import checkpoints, configuration, offline, runs, signals
from offpcc.agent import load_actor
from offpcc.assembly import Learner, build, run_name, what_is_named
from offpcc.bad_numbers import BadNumberError
from offpcc.bindings import check_effects
from offpcc.bookkeeping import SKIPPED
from offpcc.callbacks import Checkpoints
from offpcc.checks import check, rules_of
from offpcc.commands import choose_device, refuse_idle, show
from offpcc.disks import telling_of_faults
from offpcc.domains.faults import EnvironmentFault
from offpcc.errors import DataWarning, UserError
from offpcc.locks import FolderLock
from offpcc.loggers import ConsoleLogger, CSVLogger, Logger, Loggers, TensorBoardLogger, WandbLogger, tracking_wanted
from offpcc.origins import Origin, check_origin
from offpcc.places import check_folder
from offpcc.plotting import plot_run
from offpcc.run_fns import check_num_envs, check_settings, columns_of, train, without_effect
from offpcc.runs import RunFolder
from offpcc.showing import record_episodes
from offpcc.telling import about_config, about_data, command, nothing_there, refusal, tell_finished, tell_result


def train_all(options: argparse.Namespace) -> int:
    """Train or show every run id; one failure does not stop the others, the exit code tells of the first."""
    if len(set(options.run_id)) < len(options.run_id):
        raise UserError(f"--run_id {' '.join(map(str, options.run_id))} names a run twice; give each id once")
    if options.save_dataset and len(options.run_id) > 1:
        raise UserError(f"--save_dataset {options.save_dataset} is one file, but there are several run ids; give one")
    if not options.env and not options.dataset:
        raise UserError(
            "there is nothing to learn from; name an environment with --env, or recorded data with --dataset"
        )
    if options.config:
        configuration.find(options.config)  # whatever is wrong with a run, a name that is misspelt comes first
    is_shown = options.render or options.record
    if not is_shown:
        refuse_idle(options, "--render", episodes=None)
        check_folder(configuration.results_folder(options.results), "the folder of results")
    run = show if is_shown else train_one
    codes: list[int] = []
    told: set[str] = set()  # what is wrong with all runs alike is told once
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
        UserError: the run exists and is not to be resumed, another process trains it, something given is at fault, or
            its folder cannot be written.
        Interrupted: the command line was asked to stop.
    """
    name = run_name(*what_is_named(options.env, options.dataset), options.dataset_fraction)
    folder = RunFolder(configuration.results_folder(options.results), name, options.algo, run_id)
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
    """Train one run in a folder that no other process trains in; see `train_one`."""
    env, data = what_is_named(options.env, options.dataset)
    origin = Origin(env, None if data is None else str(data))
    check_origin(folder, origin)
    if (status := folder.status()) and not options.resume and data is None:
        raise UserError(refusal(options, folder, status))
    file = options.config or (folder.config if folder.config.exists() else None)
    if file is None and options.resume and not status:
        raise UserError(nothing_there(options, folder))
    if file is None:
        raise UserError("training needs --config FILE.gin, such as --config configs/quickstart.gin; see configs/")
    learner, config, settings = assemble(options, folder.run_id, file)
    if learner.recording is not None:
        check_origin(folder, origin._replace(fingerprint=learner.recording.fingerprint))
        if status and not options.resume:
            raise UserError(refusal(options, folder, status))
    messages = about_data(options, learner, settings["num_epochs"] * settings["num_steps_per_epoch"])
    content = None
    if status and folder.has_checkpoint():
        content, faults = checkpoints.read_latest(folder.checkpoint)
        messages += faults
        messages += checkpoints.check_unchanged(content["config"], config)
        if status == "finished" and checkpoints.is_over(content, settings["num_epochs"]):
            tell_finished(options, folder)
            return
        check_resumable(options, content, settings["num_epochs"])
    elif status == "finished":
        if folder.config.is_file():
            checkpoints.check_unchanged(configuration.text_of(folder.config), config)
        tell_finished(options, folder)
        print(f"it cannot be gone on with, as {folder.checkpoint} is gone")
        return
    if options.save_dataset is not None:
        learner.check_recording(options.save_dataset, options.resume)
    with telling_of_faults(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        lock.take()
        if (now := folder.status()) != status:  # made since by another process
            raise UserError(refusal(options, folder, now or "unfinished"))
    if options.save_dataset is not None:  # from here on, files are made beside the one that is to be
        learner = learner.record(options.save_dataset, options.env, folder.run_id, options.resume)
    if learner.recorder is not None and learner.recorder.message:
        messages.append(learner.recorder.message)
    if content is not None:
        messages += checkpoints.resume(content, learner)
        messages.append(f"going on in {folder.path} after epoch {learner.loop.epoch}, step {learner.loop.step:,}")
    elif learner.recorder is not None:  # what was recorded before the first checkpoint is played again
        learner.recorder.keep(0)
    if options.resume and not status:
        messages.append(f"there is no run in {folder.path} to go on with, so one is begun")
    if lock.message:
        messages.append(lock.message)
    with signals.deferred(), telling_of_faults(folder.path):
        if status and content is None:
            messages.append(f"there is no checkpoint in {folder.path}, so the run begins anew{folder.keep_table()}")
        print(*about_config(options, config, folder.config), *messages, sep="\n", flush=True)
        folder.create(config, runs.facts(env, options.algo, folder.run_id, Path(file).stem, learner))
        train_in(folder, options, learner, config, settings)


def assemble(options: argparse.Namespace, run_id: int, file: str | Path) -> tuple[Learner, str, dict[str, Any]]:
    """The parts of a run, the bindings in use, and the settings of `train`.

    Raises:
        UserError: something given is at fault.
    """
    env, dataset = what_is_named(options.env, options.dataset)
    if dataset is None and options.dataset_fraction != 1.0:
        raise UserError(f"--dataset_fraction {options.dataset_fraction} has no effect without a data set; leave it out")
    if tracking_wanted(options.track) and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "following a run in Weights & Biases needs its package: pip install wandb, or leave --track out"
        )
    bound = configuration.load(file, options.gin, imports_beside=options.config is not None)
    device = choose_device(options)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(run_id)  # for users' environments and networks; offpcc's own parts have generators of their own
    data = {"dataset": dataset, "dataset_fraction": options.dataset_fraction}
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # printed by `about_data`
        learner = build(env, options.algo, seed=run_id, device=device, threads=None, **data)
    settings = configuration.anticipate(train)
    check("Checkpoints", rules_of(Checkpoints), configuration.anticipate(Checkpoints))
    check_settings(**settings)
    check_num_envs(learner.interaction, settings["num_steps_per_epoch"])
    algorithm, buffer = learner.algorithm, learner.buffer
    idle = {
        type(algorithm): algorithm.without_effect(),
        **{type(part): part.without_effect() for part in (algorithm.shared_encoder, algorithm.actor_encoder)},
        type(buffer): buffer.without_effect(),
        train: without_effect(algorithm, learner.interaction, learner.tests, settings),
        offline.by_gin: offline.without_effect(algorithm),
    }
    check_effects(bound, idle)
    algorithm.actor_file()  # what could not be saved is refused now, not after an epoch
    return learner, configuration.operative(), settings


def check_resumable(options: argparse.Namespace, content: dict[str, Any], num_epochs: int) -> None:
    """Refuse to go on to another end, or with other recording, than the run can.

    Raises:
        UserError: naming what differs.
    """
    if num_epochs < content["num_epochs"]:
        raise UserError(
            f"train.num_epochs is {num_epochs}, but the run was made with {content['num_epochs']}: resuming may only "
            f"raise it"
        )
    if content["recorder"] is None and options.save_dataset:
        raise UserError(f"--save_dataset {options.save_dataset}: the run did not record its first steps; leave it out")
    if content["recorder"] is not None and not options.save_dataset:
        raise UserError("the run recorded itself so far; to go on with it, add --save_dataset with the same file")


def train_in(
    folder: RunFolder, options: argparse.Namespace, learner: Learner, config: str, settings: dict[str, Any]
) -> None:
    """Train to the end, and tell the result; or save all and stop, if that is asked for."""
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
                learner.train(logger, [saving])
                if learner.recorder is not None:
                    learner.recorder.cut()
                    learner.recorder.merge()
                env, _ = what_is_named(options.env, options.dataset)
                picture(env, folder, learner.algorithm.device, logger, console.print)
                folder.note(status="finished", epochs=loop.epoch, best_test_return=loop.best_return)
            except signals.Interrupted as stop:
                if loop.epoch >= num_epochs or loop.stopped:
                    stop.message = f"stopped after its last step, {loop.step:,}, and saved"
                else:
                    num_steps = num_epochs * settings["num_steps_per_epoch"]
                    stop.message = f"stopped at step {loop.step:,} of {num_steps:,}, and saved"
                    saving.save()  # which may be the first to meet a bad number
                folder.note(status="stopped")
                raise
        except BadNumberError as error:
            told = error.at(loop.step)
            told.save(folder.bad_batch)
            raise told from None
        except EnvironmentFault as fault:
            raise fault.kept_in(folder.path) from fault.cause
    seconds = time.monotonic() - started
    print(f"trained in {seconds / 60.0:.1f} minutes" if seconds >= 60.0 else f"trained in {seconds:.1f} seconds")
    if learner.recorder is not None:
        print(f"data set        {options.save_dataset}")
    tell_result(folder)
    try:
        signals.poll()
    except signals.Interrupted as stop:
        stop.message, stop.is_late = "is finished", True
        raise


def open_loggers(options: argparse.Namespace, folder: RunFolder, learner: Learner, console: ConsoleLogger) -> Loggers:
    """All that is told of the run's progress."""
    loop = learner.loop
    logs: list[Logger] = [
        CSVLogger(
            folder.progress,
            columns_of(learner.algorithm, learner.tests, learner.interaction),
            keep_epochs=loop.epoch or None,
            may_come=f"update/{SKIPPED}",
        ),
        TensorBoardLogger(folder.path, purge_step=loop.epoch_start + 1),
        console,
    ]
    if tracking_wanted(options.track):
        details = folder.details()
        weights_and_biases = WandbLogger(
            folder.path,
            environment=run_name(*what_is_named(options.env, options.dataset), options.dataset_fraction),
            algorithm=options.algo,
            config_name=details["config_name"],
            run_id=folder.run_id,
            wandb_id=details["wandb_id"],
            config=configuration.values(configuration.operative()),
            announce=console.print,
        )
        logs.append(weights_and_biases)
    return Loggers(logs)


def picture(
    env: str | None, folder: RunFolder, device: torch.device, logger: Logger, announce: Callable[[str], None]
) -> None:
    """The learning curve, and a film of the best actor if there is an environment that can be drawn."""
    plot_run(folder.path, folder.curve)
    logger.artifact("curve", folder.curve)
    logger.artifact("actor", folder.actor())
    if env is None:
        return
    try:
        _, videos = record_episodes(load_actor(folder.actor(), device), env, 1, folder.videos, "best_actor")
    except signals.ANYTHING as error:  # a picture is not worth a run
        signals.pass_on(error)
        announce(f"there is no video: {error}")
    else:
        logger.artifact("video", videos[0])
