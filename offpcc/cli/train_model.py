"""`offpcc train-model`: trains a model of an environment on recorded data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from offpcc.algorithms.dynamics import AUTO, LEARNED, DynamicsModel
from offpcc.config import loading
from offpcc.config.bindings import check_unused_bindings
from offpcc.config.registry import specification
from offpcc.config.validation import format_value
from offpcc.data.offline import OfflineDataset, dataset_options, read
from offpcc.envs.guard import opened
from offpcc.training import experiment  # noqa: F401 (registers all that gin configures)
from offpcc.training.dynamics import (
    ModelFit,
    ModelTraining,
    Progress,
    build_model,
    describe,
    digest,
    model_of,
    read_model,
    save_model,
)
from offpcc.training.loggers.console import download_bar
from offpcc.training.spec import choose_device, configured_make, torch_settings
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line


def train_model(
    dataset: str,
    out: Path,
    dataset_fraction: float = 1.0,
    env: str | None = None,
    seed: int = 0,
    resume: bool = False,
    config: str | None = None,
    gin: Sequence[str] = (),
    modules: Sequence[str] = (),
    device: str | None = None,
    threads: int = 1,
) -> int:
    """Train a model on recorded data, and write it to `out`; return the exit code.

    Raises:
        UserError: an argument is invalid, the data have no vectors for observations, or the file cannot be written.
    """
    content = read_model(out) if resume and out.exists() else None
    if out.exists() and content is None:
        raise UserError(f"{out} exists; name another file, or give --resume to finish the training of its model")
    bindings = loading.load(config, gin, modules=modules)
    console, options = Console(), dataset_options()
    with ExitStack() as stack:
        made = stack.enter_context(opened(configured_make(env)())) if env else None
        with download_bar(console) as bar:
            data = read(dataset, made, options, fraction=dataset_fraction, seed=seed, progress=bar)
    settings = loading.resolve_bindings(DynamicsModel)
    training = ModelTraining(**loading.resolve_bindings(ModelTraining))
    check_unused_bindings(bindings)
    used = choose_device(device, threads)
    with torch_settings(used, threads):
        names = [env or "", data.recorded_in or "", data.name]
        if content is None:
            model = build_model(data, DynamicsModel, names, used, seed, settings)
        else:
            model = model_of(content, out, used)
            check_same_data(model, data, out)
            if content["training"] is None:
                print(f"{out} is finished, after {model.facts['num_epochs']} epochs; there is nothing left to train")
                return 0
            check_same_settings(content, settings, training, seed, out)
        fit = ModelFit(model, data.rows, training, seed)
        if content is not None:
            fit.load_state_dict(content["training"])
        announce(model, fit, data)
        try:
            run(fit, out)
        except signals.Interrupted as stop:
            kept = f"{out} keeps {fit.epoch} epochs" if out.exists() else "nothing is kept"
            stop.message = f"stopped; {kept}; run the same command with --resume to continue"
            raise
    tell(model)
    print(f"model {out}")
    return 0


def check_same_data(model: DynamicsModel, data: OfflineDataset, file: Path) -> None:
    """Raise if a model was trained on other data.

    Raises:
        UserError: it was.
    """
    if model.facts.get("digest") != digest(data):
        raise UserError(
            f"{file} is a model of {model.facts.get('identity', 'other data')}, and these are {data.identity}; give "
            f"the data, the environment and the settings of the data that it was begun with"
        )


def check_same_settings(
    content: dict[str, Any], settings: dict[str, Any], training: ModelTraining, seed: int, file: Path
) -> None:
    """Raise if a training was begun with other settings.

    Raises:
        UserError: it was; the message names the first.
    """
    begun = content["class"]["arguments"]
    given = {f"DynamicsModel.{name}": (value, begun[name]) for name, value in specification(settings).items()}
    if settings["termination"] == AUTO:
        del given["DynamicsModel.termination"]
    known = content["training"]["settings"]
    given |= {f"ModelTraining.{name}": (getattr(training, name), value) for name, value in known.items()}
    given["--seed"] = seed, content["training"]["seed"]
    for name, (value, before) in given.items():
        if value != before and name not in ("DynamicsModel.device", "DynamicsModel.seed"):
            raise UserError(
                f"{name} is {format_value(value)}, but the model of {file} was begun with {format_value(before)}; "
                f"repeat that value, or name another file"
            )


def announce(model: DynamicsModel, fit: ModelFit, data: OfflineDataset) -> None:
    """Print what is trained on what, and how imagined episodes end."""
    if model.rule is not None:
        ends = f"the known rule of {model.facts['rule']}: {model.rule.text}"
    elif model.termination == LEARNED:
        ends = "a classifier that is learned from the data"
    else:
        ends = "never"
    print(
        f"{model.num_members} networks, {model.num_elites} of them elites; {data.name}: {len(fit.data):,} transitions, "
        f"{len(fit.held_out):,} of them held out\nimagined episodes end: {ends}",
        flush=True,
    )
    if model.history > 1:
        print(f"the networks read the last {model.history} observations and actions", flush=True)


def run(fit: ModelFit, file: Path) -> None:
    """Train to the end, write the state after each epoch, and then the model.

    Raises:
        UserError: the file cannot be written, or the loss is not finite.
        Interrupted: the user asked the command to stop.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_model(fit.model, file, fit)  # fails before the training, if it does
        while not fit.is_over:
            progress = fit.run_epoch()
            with signals.deferred():
                save_model(fit.model, file, fit)
            print(line(progress, fit.settings), flush=True)
        with signals.deferred():
            fit.finish()
            save_model(fit.model, file)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({first_line(error)}); name a file elsewhere") from error


def line(progress: Progress, settings: ModelTraining) -> str:
    """Return an epoch as one line."""
    errors = " ".join(f"{error:.2e}" for error in progress.errors)
    waited = f", {progress.patience} of {settings.patience} epochs without improvement" if progress.patience else ""
    return f"epoch {progress.epoch}: loss {progress.loss:.3f}, error on the holdout {errors}{waited}"


def tell(model: DynamicsModel) -> None:
    """Print the errors of the elites, the classifier's quality and the uncertainty over the data."""
    facts = model.facts
    errors = ", ".join(f"{facts['holdout_errors'][member]:.2e}" for member in facts["elites"])
    print(f"after {facts['num_epochs']} epochs: squared error of the elites on the holdout, normalised: {errors}")
    if "termination_precision" in facts:
        print(
            f"terminations on the holdout: precision {facts['termination_precision']:.2f}, recall "
            f"{facts['termination_recall']:.2f}"
        )
    for name, values in facts["uncertainty"].items():
        print(f"{name} uncertainty over the data: {describe(values)}")
