"""`offpcc check --dataset`: prints the faults of a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offpcc.algorithms import find_algorithm
from offpcc.algorithms.construction import check_actions
from offpcc.config import loading
from offpcc.config.bindings import check_unused_bindings
from offpcc.data.checks.check import examine_dataset, images_in_memory, refused
from offpcc.data.checks.summary_stats import Spread
from offpcc.data.datasets.columns import SpoiledData
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.offline import DatasetOptions, load_unchanged, space_of
from offpcc.envs.guard import opened
from offpcc.training import build  # it also registers all that gin configures, before configs are read
from offpcc.training.loggers.console import download_bar
from offpcc.training.spec import check_part, configured_make
from offpcc.utils.errors import UserError
from offpcc.utils.figures import COLORS, check_picture, explain_picture_errors, new_figure, save_figure
from offpcc.utils.findings import FAULT, OK, WARNING, Finding
from offpcc.utils.spaces import observed_shape
from offpcc.utils.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = 30  # bars of a histogram: enough to show two levels of skill, few enough for 100 episodes


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print the findings of a check."""
    for finding in findings:
        style = {FAULT: "bold red", WARNING: "yellow"}.get(finding.level, "green")
        line = Text.assemble((f"{finding.level:9}", style), (f"{finding.check:11}", "bold"), finding.found)
        console.print(line, soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':20}-> {finding.remedy}"), soft_wrap=True)


def examine_algorithm(
    algo: str, observations: Space[Any], actions: Space[Any], name: str, are_recorded: bool = False
) -> Finding:
    """Check whether an algorithm, with gin's bindings, is for the observations and actions of `name`."""
    algorithm_class: Any = find_algorithm(algo)
    try:
        if hasattr(algorithm_class, "is_discrete"):  # an algorithm without a base class checks by itself
            check_actions(algorithm_class, actions, name, are_recorded, observed_shape(observations))
        # Its encoders say whether they read the observations.
        with build.explain_failure(algorithm_class.__name__, "hidden_dims"):
            algorithm_class(observations, actions, device=torch.device("cpu"), seed=0)
    except UserError as error:
        return Finding("algorithm", FAULT, error.message)
    return Finding("algorithm", OK, f"{algo} is for actions such as those of {name}: {actions}")


def actions_of(data: Dataset) -> Space[Any]:
    """Return the space of recorded actions; that of numbers has no bounds if they are not known."""
    if data.discrete_actions:
        first, number = data.choices()
        return Discrete(number, start=first)
    shape = data.actions.shape[1:]
    low, high = (np.broadcast_to(bound, shape).astype(np.float32) for bound in data.action_range or (-np.inf, np.inf))
    return Box(low, high, dtype=np.float32)


def check_dataset(
    dataset: str,
    env: str | None = None,
    dataset_fraction: float = 1.0,
    output: Path | None = None,
    config: str | None = None,
    modules: Sequence[str] = (),
    gin: Sequence[str] = (),
    dataset_steps: int | None = None,
    algo: str | None = None,
) -> int:
    """Print the findings about a dataset; return 1 if a fault would spoil training, else 0."""
    if output:
        check_picture(output, "--output", "returns.png")
    check_part(dataset, dataset_fraction, dataset_steps)
    bindings = loading.load_gin_config(config, gin, modules=modules)
    console, data = Console(), None
    with opened(configured_make(env)() if env else None) as made:
        try:
            with download_bar(console) as bar:
                data = load_unchanged(dataset, DatasetOptions.from_gin(), bar, images_in_memory())
        except SpoiledData as error:
            diagnosis = refused(dataset, error)
        else:
            if dataset_steps is not None:
                data = data.first_steps(dataset_steps)
            data = data.fraction(dataset_fraction)
            diagnosis = examine_dataset(data, env=made)
            if algo is not None:
                recorded = data.observation_space or space_of(data.observations)
                seen = recorded if made is None else made.observation_space
                found = examine_algorithm(algo, seen, actions_of(data), data.name, are_recorded=True)
                diagnosis = replace(diagnosis, findings=(*diagnosis.findings, found))
            check_unused_bindings(bindings)
    print_findings(console, [*diagnosis.findings, *diagnosis.advice])
    if diagnosis.spreads:
        # Outside a terminal, do not cut the numbers.
        wide = console if console.is_terminal else Console(width=max(console.width, 120))
        wide.print(_table(diagnosis.spreads))
    closing_words = "--output FILE.png draws returns and lengths"
    if data is None:
        closing_words = ""
    elif output:
        with explain_picture_errors(output, "--output", "returns.png"):
            save_figure(_histograms(data), output)
        closing_words = str(output)
    console.print(Text("; ".join(filter(None, (diagnosis.verdict, closing_words))), "bold"), soft_wrap=True)
    return 1 if diagnosis.of(FAULT) else 0


def _table(spreads: tuple[Spread, ...]) -> Table:
    table = Table(box=None)
    table.add_column("")
    for title in ("min", "25%", "median", "75%", "max", "mean", "std"):
        table.add_column(title, justify="right")
    for _, alike in itertools.groupby(spreads, _row_of_its_own):
        first, *others = alike
        name = f"{first.what} to {others[-1].what.split()[-1]}" if others else first.what
        table.add_row(name, *(f"{number:.4g}" for number in first[1:]))
    return table


def _row_of_its_own(spread: Spread) -> object:
    """Return a key that is equal for neighbouring columns with the same constant; they share a row of the table."""
    kind, *_ = spread.what.split()
    return (kind, spread[1:]) if spread.is_constant else spread


def _histograms(data: Dataset) -> Figure:
    """Return histograms of the returns and lengths of the episodes."""
    titles = ("return of an episode", "length of an episode (environment steps)")
    with new_figure(9.6, 3.4) as figure:
        figure.suptitle(f"{data.name}, {counted(data.num_episodes, 'episode')}")
        panels = figure.subplots(1, 2)
        for axes, values, title, color in zip(panels, (data.returns, data.lengths), titles, COLORS, strict=False):
            axes.hist(values, bins=BARS, color=color)
            axes.set(xlabel=title, ylabel="episodes")
            axes.yaxis.get_major_locator().set_params(integer=True)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # for lengths, which may all be 1
    return figure
