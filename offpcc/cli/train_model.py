"""`offpcc train-model`: trains a model of an environment on recorded data."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.config import loading
from offpcc.config.bindings import check_unused_bindings
from offpcc.data.offline import DatasetOptions, read
from offpcc.envs.guard import opened
from offpcc.training import build  # noqa: F401 (registers all that gin configures)
from offpcc.training.loggers.console import download_bar
from offpcc.training.models.files import fit_model, unfinished_model
from offpcc.training.models.training import ModelTraining, describe_spread, describe_terminations
from offpcc.training.spec import check_part, choose_device, configured_make, torch_settings
from offpcc.utils.words import counted

print_line = functools.partial(print, flush=True)


def run_train_model(
    dataset: str,
    out: Path,
    dataset_fraction: float = 1.0,
    dataset_steps: int | None = None,
    env: str | None = None,
    seed: int = 0,
    resume: bool = False,
    config: str | None = None,
    gin: Sequence[str] = (),
    modules: Sequence[str] = (),
    device: str | None = None,
    threads: int = 1,
) -> int:
    """Train a model on recorded data, and write it to `out`; return the exit code."""
    check_part(dataset, dataset_fraction, dataset_steps)
    content = unfinished_model(out, resume)
    bindings = loading.load_gin_config(config, gin, modules=modules)
    console, options = Console(), DatasetOptions.from_gin()
    with opened(configured_make(env)() if env else None) as made, download_bar(console) as bar:
        part: dict[str, Any] = {"fraction": dataset_fraction, "steps": dataset_steps, "seed": seed}
        data = read(dataset, made, options, **part, progress=bar)
    settings = loading.resolve_bindings(DynamicsModel)
    training = ModelTraining.from_gin()
    check_unused_bindings(bindings)
    used = choose_device(device, threads)
    with torch_settings(used, threads):
        model = fit_model(data, out, env or "", settings, training, used, seed, content, print_line)
    if content is not None and content["training"] is None:
        return 0
    print_training_result(model)
    print(f"model {out}")
    return 0


def print_training_result(model: DynamicsModel) -> None:
    """Print the errors of the elites, the classifier's quality and the uncertainty over the data."""
    facts = model.facts
    errors = ", ".join(f"{facts['holdout_errors'][member]:.2e}" for member in facts["elites"])
    epochs = counted(facts["num_epochs"], "epoch")
    print(f"after {epochs}: squared error of the elites on the holdout, normalised: {errors}")
    if quality := describe_terminations(facts):
        print(quality)
    for name, values in facts["uncertainty"].items():
        print(f"{name} uncertainty over the data: {describe_spread(values)}")
