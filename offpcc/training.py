"""The command that trains: a run's folder is made, filled or gone on with, and its result told."""

from __future__ import annotations

import argparse
import random
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import gin
import gymnasium
import numpy as np
import torch

from offpcc import configuration, runs
from offpcc.algorithms import ActorCritic
from offpcc.assembly import Learner, build, load_actor
from offpcc.callbacks import Checkpoints
from offpcc.commands import choose_device, show
from offpcc.errors import UserError
from offpcc.loggers import ConsoleLogger, CSVLogger, Logger, Loggers, TensorBoardLogger, WandbLogger, tracking_wanted
from offpcc.plotting import plot_run, read_progress
from offpcc.run_fns import Loop, columns, train
from offpcc.runs import RunFolder
from offpcc.showing import record_episodes


def train_all(options: argparse.Namespace) -> int:
    """Train or show every run id; one failure does not stop the others, the exit code tells of the first."""
    if len(set(options.run_id)) < len(options.run_id):
        raise UserError(f"--run_id {' '.join(map(str, options.run_id))} names a run twice; give each id once")
    run = show if options.render or options.record else train_one
    codes = []
    for run_id in options.run_id:
        try:
            run(options, run_id)
            codes.append(0)
        except UserError as error:
            codes.append(error.report())
        except KeyboardInterrupt:
            print(f"offpcc: run {run_id} interrupted; the same command with --resume goes on", file=sys.stderr)
            return 130
        except Exception:
            traceback.print_exc()
            print(f"offpcc: run {run_id} failed; the same command with --resume goes on", file=sys.stderr)
            codes.append(1)
    return next((code for code in codes if code), 0)


def train_one(options: argparse.Namespace, run_id: int) -> None:
    """Train one run in its folder, from the start or from its checkpoint.

    Raises:
        UserError: the run exists and is not to be resumed, or something given is at fault.
    """
    folder = RunFolder(configuration.results_folder(options.results), options.env, options.algo, run_id)
    if (status := folder.status()) and not options.resume:
        raise UserError(refusal(options, folder, status))
    file = options.config or (folder.config if folder.config.exists() else None)
    if file is None:
        raise UserError("training needs --config FILE.gin, such as --config configs/quickstart.gin; see configs/")
    bindings = configuration.load(file, options.gin)
    device = choose_device(options)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(run_id)  # for users' environments and networks; offpcc's own parts have generators of their own
    learner = build(options.env, options.algo, seed=run_id, device=device)
    settings = configuration.anticipate(train)
    configuration.anticipate(Checkpoints)
    configuration.check_effects(bindings)
    config = configuration.operative()
    num_steps = settings["num_epochs"] * settings["num_steps_per_epoch"]
    loop, messages = Loop(), [memory_statement(options.env, learner, num_steps)]
    if folder.checkpoint.exists():
        content = runs.read_checkpoint(folder.checkpoint)
        runs.check_unchanged(content["config"], config)
        if folder.status() == "finished" and runs.is_over(content, settings["num_epochs"]):
            tell_finished(options, folder)
            return
        messages += runs.resume(content, learner, loop)
        messages.append(f"going on in {folder.path} after epoch {loop.epoch}, step {loop.step:,}")
    print(config, *messages, sep="\n", flush=True)
    folder.create(config, runs.facts(options.env, options.algo, run_id, Path(file).stem, device))
    console = ConsoleLogger(f"{options.env} {options.algo} run {run_id}")
    logger = open_loggers(options, folder, learner.algorithm, loop, console)
    started = time.monotonic()
    try:
        checkpoints = Checkpoints(folder, learner, config, settings["num_epochs"])
        train(*learner, logger=logger, callbacks=[checkpoints], loop=loop)
        picture(options.env, folder, device, logger, console.print)
    finally:
        logger.close()
    folder.note(status="finished", epochs=loop.epoch, best_test_return=loop.best_return)
    minutes = (time.monotonic() - started) / 60.0
    print(f"trained in {minutes:.1f} minutes")
    tell_result(folder)


def refusal(options: argparse.Namespace, folder: RunFolder, status: str) -> str:
    """Why an existing run is not started, and what to do instead."""
    here, other = folder.run_id, folder.next_free_id()
    resume = command(options, here, "--resume")
    ways = {
        "finished": [
            ("show what it learned", command(options, here, "--render")),
            ("train on, with a larger number of epochs", f"{resume} --gin train.num_epochs=N"),
        ],
        "unfinished": [("go on with it", resume)],
    }[status]
    ways.append(("start another", command(options, other)))
    told = "".join(f"\n  {what}:\n    {how}" for what, how in ways)
    return f"run {here} in {folder.path} is {status} and is not overwritten{told}"


def command(options: argparse.Namespace, run_id: int, *extra: str) -> str:
    """The command that starts run `run_id` with the same options."""
    words = ["offpcc", "--env", options.env, "--algo", options.algo]
    words += ["--config", options.config] if options.config else []
    words += ["--run_id", str(run_id)]
    words += ["--gin", *options.gin] if options.gin else []
    words += ["--results", options.results] if options.results else []
    return shlex.join([*words, *extra])


def open_loggers(
    options: argparse.Namespace, folder: RunFolder, algorithm: ActorCritic, loop: Loop, console: ConsoleLogger
) -> Loggers:
    """All that is told of the run's progress."""
    logs: list[Logger] = [
        CSVLogger(folder.progress, columns(algorithm.stat_names), keep_epochs=loop.epoch or None),
        TensorBoardLogger(folder.path, purge_step=loop.step + 1 if loop.step else None),
        console,
    ]
    if tracking_wanted(options.track):
        details = folder.details()
        try:
            weights_and_biases = WandbLogger(
                folder.path,
                environment=options.env,
                algorithm=options.algo,
                config_name=details["config_name"],
                run_id=folder.run_id,
                wandb_id=details["wandb_id"],
                config=configuration.values(gin.operative_config_str()),
                announce=console.print,
            )
        except ImportError as error:
            raise UserError("--track needs Weights & Biases: pip install wandb, or leave --track out") from error
        logs.append(weights_and_biases)
    return Loggers(logs)


def memory_statement(env: str, learner: Learner, num_steps: int) -> str:
    """What the buffer can come to.

    Raises:
        UserError: more than the machine has free.
    """
    planned = learner.buffer.planned_bytes(num_steps, gymnasium.spec(env).max_episode_steps)
    available = available_bytes()
    if available is not None and planned > available:
        raise UserError(
            f"the replay buffer can come to {planned:,} bytes, but {available:,} bytes of memory are free; lower "
            f"{type(learner.buffer).__name__}.capacity or train.num_epochs"
        )
    return f"the replay buffer can come to {planned:,} bytes in {num_steps:,} steps"


def available_bytes() -> int | None:
    """Memory that could be had, where the system tells."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def picture(env: str, folder: RunFolder, device: torch.device, logger: Logger, announce: Callable[[str], None]) -> None:
    """The learning curve, and a film of the best actor if the environment can be drawn."""
    plot_run(folder.path, folder.curve)
    logger.artifact("curve", folder.curve)
    logger.artifact("actor", folder.actor())
    try:
        _, videos = record_episodes(load_actor(folder.actor(), device), env, 1, folder.videos, "best_actor")
    except Exception as error:  # a picture is not worth a run
        announce(f"there is no video: {error}")
    else:
        logger.artifact("video", videos[0])


def tell_result(folder: RunFolder) -> None:
    """Name the figures and files a person wants."""
    rows = read_progress(folder.progress)
    if rows["step"]:
        steps, mean, spread = (rows[name][-1] for name in ("step", "test/return", "test/return_std"))
        print(f"test return after {steps:,.0f} steps: mean {mean:.1f}, s.d. {spread:.1f}")
    print(f"learning curve  {folder.curve}")
    for video in sorted(folder.videos.glob("*.mp4"))[:1]:
        print(f"video           {video}")
    print(f"folder          {folder.path}")


def tell_finished(options: argparse.Namespace, folder: RunFolder) -> None:
    """Show a finished run, and how to train another."""
    print(f"run {folder.run_id} is finished; there is nothing left to do")
    tell_result(folder)
    print(f"to train another:\n  {command(options, folder.next_free_id())}")
