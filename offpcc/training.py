"""The command that trains: a run's folder is made, filled or gone on with, and its result told."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from offpcc import checkpoints, config_files, configuration, runs, signals
from offpcc.agent import load_actor
from offpcc.algorithm_names import short_name
from offpcc.assembly import Learner, run_name, what_is_named
from offpcc.bad_numbers import BadNumberError
from offpcc.beginning import Beginning, decide
from offpcc.callbacks import Checkpoints
from offpcc.commands import refuse_idle, show
from offpcc.disks import telling_of_faults
from offpcc.domains.faults import EnvironmentFault
from offpcc.errors import UserError
from offpcc.following import open_loggers
from offpcc.locks import FolderLock
from offpcc.loggers import ConsoleLogger, Logger, going_on_without
from offpcc.places import check_folder
from offpcc.plotting import plot_run
from offpcc.runs import RunFolder
from offpcc.showing import record_episodes
from offpcc.telling import about_config, command, refusal, tell_result


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
        config_files.find(options.config)  # whatever is wrong with a run, a name that is misspelt comes first
    is_shown = options.render or options.record
    if not is_shown:
        refuse_idle(options, "--render", episodes=None)
        check_folder(configuration.results_folder(options.results), "the folder of results")
    options.algo = short_name(options.algo)  # a run's folder is the same, whichever name is given
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
    folder.refuse_links()
    beginning = decide(options, folder)
    if beginning is None:
        return
    take(options, folder, lock, beginning)
    learner, messages = begin(options, folder, beginning)
    if lock.message:
        messages.append(lock.message)
    with signals.deferred(), telling_of_faults(folder.path):
        if beginning.status and beginning.checkpoint is None:
            messages.append(f"there is no checkpoint in {folder.path}, so the run begins anew{folder.keep_table()}")
        print(*about_config(options, beginning.config, folder.config), *messages, sep="\n", flush=True)
        env, _ = what_is_named(options.env, options.dataset)
        facts = runs.facts(env, options.algo, folder.run_id, Path(beginning.file).stem, learner)
        folder.create(beginning.config, facts)
        train_in(folder, options, learner, beginning.config, beginning.settings)


def take(options: argparse.Namespace, folder: RunFolder, lock: FolderLock, beginning: Beginning) -> None:
    """Make a run's folder, if need be, and lock it.

    Raises:
        UserError: another process trains the run, or has since its status was looked at, or the folder
            cannot be made.
    """
    with telling_of_faults(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        lock.take()
        if (now := folder.status()) != beginning.status:
            raise UserError(refusal(options, folder, now or "unfinished", beginning.config))


def begin(options: argparse.Namespace, folder: RunFolder, beginning: Beginning) -> tuple[Learner, list[str]]:
    """The learner where the run begins, recording if it is to; and what there is to tell of it.

    Raises:
        UserError: the checkpoint is of another run, or the recording cannot be begun.
    """
    learner, messages = beginning.learner, [*beginning.messages]
    if options.save_dataset is not None:  # from here on, files are made beside the one that is to be
        learner = learner.record(options.save_dataset, options.env, folder.run_id, options.resume)
    if learner.recorder is not None and learner.recorder.message:
        messages.append(learner.recorder.message)
    if beginning.checkpoint is not None:
        messages += checkpoints.resume(beginning.checkpoint, learner)
        if learner.loop.best_return is not None and not folder.actor_best.is_file():
            learner.loop.best_return = None
            messages.append(f"{folder.actor_best} is missing; the best actor is chosen from the tests to come")
        messages.append(f"going on in {folder.path} after epoch {learner.loop.epoch}, step {learner.loop.step:,}")
    elif learner.recorder is not None:  # what was recorded before the first checkpoint is played again
        learner.recorder.keep(0)
    if options.resume and not beginning.status:
        messages.append(f"there is no run in {folder.path} to go on with, so one is begun")
    return learner, messages


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
                if learner.tests is not None and learner.tests.shared is not None:
                    env = None  # a video would need a second environment
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
    """The learning curve, and a film of the best actor if there is an environment that can be drawn."""
    with going_on_without("the learning curve"):
        plot_run(folder.path, folder.curve)
        logger.artifact("curve", folder.curve)
    logger.artifact("actor", folder.actor())
    if env is None:
        return
    with going_on_without("the video"):
        try:
            _, videos = record_episodes(load_actor(folder.actor(), device), env, 1, folder.videos, "best_actor")
        except UserError as error:  # such as an environment that cannot be drawn
            announce(f"there is no video: {error}")
        else:
            logger.artifact("video", videos[0])
