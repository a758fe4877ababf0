"""All by which a run can be followed while it trains: its table, TensorBoard, the terminal, Weights & Biases."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from offpcc import configuration
from offpcc.assembly import Learner, run_name, what_is_named
from offpcc.files import open_regular
from offpcc.loggers import (
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
from offpcc.loggers.csv_file import joined_columns, table_text
from offpcc.run_fns import columns_of
from offpcc.runs import RunFolder
from offpcc.settings import digest


def open_loggers(options: argparse.Namespace, folder: RunFolder, learner: Learner, console: ConsoleLogger) -> Loggers:
    """All that is told of the run's progress; of a run that goes on, what was told before is there, too."""
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
        # Weights & Biases averages over a group, so runs of other settings are of another one.
        config_name=f"{details['config_name']} {digest(configuration.plain_values(configuration.operative()))}",
        run_id=folder.run_id,
        wandb_id=details["wandb_id"],
        config=configuration.values(configuration.operative()),
        announce=console.print,
    )


def _check_table(folder: RunFolder, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Put a table aside that is not the run's, as it was changed or damaged; what there is to tell of that.

    The checkpoint has the rows of all epochs, so that the table can be written anew.
    """
    if not rows:
        return ""
    table, number = folder.progress, f"{len(rows):,} epoch{'s' * (len(rows) > 1)}"
    if not os.path.lexists(table):
        return f"{table} is missing; its rows of {number} are written again, from the checkpoint"
    own = joined_columns((), rows)  # what the columns were before this process
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
