"""All by which a run can be followed while it trains: its table, TensorBoard, the terminal, Weights & Biases."""

from __future__ import annotations

import argparse

from offpcc import configuration
from offpcc.assembly import Learner, run_name, what_is_named
from offpcc.bookkeeping import SKIPPED
from offpcc.loggers import (
    ConsoleLogger,
    CSVLogger,
    Logger,
    Loggers,
    TensorBoardLogger,
    WandbLogger,
    going_on_without,
    tracking_wanted,
)
from offpcc.run_fns import columns_of
from offpcc.runs import RunFolder


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
        console,
    ]
    with going_on_without("TensorBoard"):
        logs.append(TensorBoardLogger(folder.path, purge_step=loop.epoch_start + 1))
    if tracking_wanted(options.track):
        with going_on_without("Weights & Biases"):
            logs.append(open_weights_and_biases(options, folder, console))
    return Loggers(logs)


def open_weights_and_biases(options: argparse.Namespace, folder: RunFolder, console: ConsoleLogger) -> WandbLogger:
    """The run at Weights & Biases, or its folder for a later upload."""
    details = folder.details()
    return WandbLogger(
        folder.path,
        environment=run_name(*what_is_named(options.env, options.dataset), options.dataset_fraction),
        algorithm=options.algo,
        config_name=details["config_name"],
        run_id=folder.run_id,
        wandb_id=details["wandb_id"],
        config=configuration.values(configuration.operative()),
        announce=console.print,
    )
