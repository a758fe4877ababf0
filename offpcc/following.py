"""All by which a run can be followed while it trains: its table, TensorBoard, the terminal, Weights & Biases."""

from __future__ import annotations

import argparse

from offpcc import configuration
from offpcc.assembly import Learner, run_name, what_is_named
from offpcc.bookkeeping import SKIPPED
from offpcc.loggers import ConsoleLogger, CSVLogger, Logger, Loggers, TensorBoardLogger, WandbLogger, tracking_wanted
from offpcc.run_fns import columns_of
from offpcc.runs import RunFolder
from offpcc.settings import digest


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
            # Weights & Biases averages over a group, so runs of other settings are of another one.
            config_name=f"{details['config_name']} {digest(configuration.plain_values(configuration.operative()))}",
            run_id=folder.run_id,
            wandb_id=details["wandb_id"],
            config=configuration.values(configuration.operative()),
            announce=console.print,
        )
        logs.append(weights_and_biases)
    return Loggers(logs)
