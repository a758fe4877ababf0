"""Models of recorded data and their files: how they are built, trained, kept and found again."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from offpcc.algorithms.dynamics import AUTO, KNOWN, LEARNED, NEVER, DynamicsModel
from offpcc.config import loading
from offpcc.config.registry import from_specification, specification
from offpcc.config.validation import format_value
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.checks.recommend import seems_hidden
from offpcc.data.datasets.columns import blocks
from offpcc.data.offline import OfflineDataset, comparable
from offpcc.envs.termination import find_rule
from offpcc.training.models.training import ModelFit, ModelTraining
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line, print_to_stderr, warn_of_data
from offpcc.utils.files import writing_to
from offpcc.utils.locks import FolderInUseError, FolderLock
from offpcc.utils.paths import as_path
from offpcc.utils.tensor_files import FileError, read_tensors, write_tensors
from offpcc.utils.words import counted

FORMAT = 2
MOSTLY_EQUAL = 0.9  # share of equal rewards from which the others are rare
MOST_CONTRADICTING = 0.1  # share of a rule's ends at which recorded episodes may go on
HASHES = re.compile(r", SHA-256 \w+")  # in the identity of data; they tell a reader nothing
SECONDS_BETWEEN_LOOKS = 1.0  # at a lock that another process holds


def hash_data(data: OfflineDataset) -> str:
    """Return a short digest of recorded data as an agent sees them, without their name."""
    return hashlib.sha256(comparable(data.identity).encode()).hexdigest()[:16]


def is_model_of(facts: Mapping[str, Any], data: OfflineDataset) -> bool:
    """Check whether the facts in a model's file are those of this recorded data, under this or another name."""
    return comparable(facts.get("identity", "")) == comparable(data.identity)


def announce(model: DynamicsModel, fit: ModelFit, data: OfflineDataset, show: Callable[[str], None]) -> None:
    """Tell what is trained on what, how imagined episodes end, and which settings the data ask for."""
    reads = f"\nthe networks read the last {model.history} observations and actions" if model.history > 1 else ""
    show(
        f"{model.num_members} networks, {model.num_elites} of them elites; {data.name}: {len(fit.data):,} transitions, "
        f"{len(fit.held_out):,} of them held out\nimagined episodes end: {model.tell_termination()}{reads}"
    )
    starts = fit.data.starts
    rewards = data.rows.rewards[starts, 0]
    usual = np.median(rewards)
    share = float((rewards == usual).mean())
    if MOSTLY_EQUAL <= share < 1.0 and model.reward is None:
        show(
            f"note: {share:.1%} of the rewards are {usual:g}; the others can disturb the predictions of observations. "
            f'Predict rewards separately: --gin "DynamicsModel.reward_hidden_dims=(64, 64)"'
        )
    rows = data.rows
    if model.history > (longest := int((rows.stops - rows.starts).max())):
        show(
            f"note: the networks read {model.history} observations, but the longest episode has "
            f"{counted(longest, 'step')}, so every input begins with copies of the first observation; "
            f"DynamicsModel.history is a number of steps"
        )
    if model.history == 1 and seems_hidden(rows.observations, rows.actions, rows.starts, rows.stops):
        show(
            "note: velocities seem hidden, so a model of single steps cannot predict well. Let it read several: "
            '--gin "DynamicsModel.history=4"'
        )


def train_to_file(fit: ModelFit, file: Path, show: Callable[[str], None]) -> None:
    """Train to the end, write the state after each epoch, and then the model.

    Raises:
        Interrupted: the user asked the command to stop.
    """
    with writing_to(file):
        save_model(fit.model, file, fit)  # fails before the training, if it does
        while not fit.is_over:
            progress = fit.run_epoch()
            with signals.deferred():
                save_model(fit.model, file, fit)
            show(progress.line(fit.settings))
        with signals.deferred():
            fit.finish()
            save_model(fit.model, file)


def unfinished_model(file: Path, resume: bool) -> dict[str, Any] | None:
    """Return the content of the model's file that a training continues; None for a new training."""
    if not file.exists():
        return None
    if not zipfile.is_zipfile(file):
        raise UserError(f"{file} exists and is no model; name another file")
    if not resume:
        raise UserError(f"{file} exists; name another file, or give --resume to finish the training of its model")
    return read_model(file)


def fit_model(
    data: OfflineDataset,
    file: Path,
    env: str,
    settings: Mapping[str, Any],
    training: ModelTraining,
    device: torch.device,
    seed: int,
    content: Mapping[str, Any] | None,
    show: Callable[[str], None],
) -> DynamicsModel:
    """Train a model of recorded data to the end, and keep it in a file; return the model.

    It predicts the view of the data of the environment `env`, "" for none. `content` is that of the file, to continue
    its training; None for a new one.
    """
    if content is None:
        model = model_for_data(data, [env, data.recorded_in or "", data.name], device, seed, settings, env)
    else:
        model = model_of(content, file, device)
        check_model_of(model, file, data)
        asked = {"--seed": seed, **training.values()}
        check_same_settings(content, settings, asked, file, "give that value, or another file")
        if content["training"] is None:
            epochs = counted(model.facts["num_epochs"], "epoch")
            show(f"{file} is finished, after {epochs}; there is nothing left to train")
            return model
    fit = ModelFit(model, data.rows, training, seed)
    if content is not None:
        fit.load_state_dict(content["training"])
    announce(model, fit, data, show)
    try:
        train_to_file(fit, file, show)
    except signals.Interrupted as stop:
        kept = f"{file} keeps {counted(fit.epoch, 'epoch')}" if file.exists() else "nothing is kept"
        stop.message = f"stopped; {kept}; run the same command with --resume to continue"
        raise
    return model


def models_folder() -> Path:
    """Return the folder of models: $OFFPCC_MODELS_DIR, else models/ beside the folder of results."""
    if given := os.environ.get("OFFPCC_MODELS_DIR"):
        return as_path(given, "OFFPCC_MODELS_DIR")
    return loading.results_folder(None).parent / "models"


def find_or_train(
    data: OfflineDataset,
    names: list[str],
    settings: Mapping[str, Any],
    training: ModelTraining,
    device: torch.device,
    seed: int,
    env: str = "",
) -> DynamicsModel:
    """Return a trained model of recorded data from `models_folder`; train it there if there is none.

    Only a model with the same settings of `DynamicsModel` and `ModelTraining` is taken. A training that was stopped
    goes on.
    """
    folder = models_folder()
    new = model_for_data(data, names, device, seed, settings, env)
    asked = specification(new)["arguments"]
    own = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', data.name)}-{hash_data(data)[:8]}.pt"

    def look() -> DynamicsModel | tuple[Path, dict[str, Any]] | None:
        """Return the model, or else the file of a training of it that was stopped and the file's content."""
        unfinished = None
        for file in sorted(folder.glob("*.pt")):
            try:
                content = read_model(file)
            except FileError as error:
                print_to_stderr(f"{error}; this file is left out")
                continue
            found = content["class"].get("arguments", {})
            is_same = all(found.get(name) == value for name, value in asked.items() if name not in ("device", "seed"))
            if not (is_same and is_model_of(content["facts"], data)):
                continue
            if content["training"] is None:
                if content["facts"].get("settings") != specification(training.of_model()):
                    continue
                print_to_stderr(f"model {file}")
                return model_of(content, file, device)
            if file.name.startswith(own.stem):
                unfinished = file, content
        return unfinished

    if isinstance(found := look(), DynamicsModel):
        return found
    with lock_of_training(folder, own.stem):
        if isinstance(found := look(), DynamicsModel):  # another process trained it meanwhile
            return found
        number, file = 1, own if found is None else found[0]
        while found is None and file.exists():  # of other settings
            number += 1
            file = own.with_name(f"{own.stem}-{number}.pt")
        print_to_stderr(
            f"there is no model of {data.name} with these settings in {folder}, so it is trained first, into {file}"
        )
        fit = ModelFit(new, data.rows, training, seed)
        begun = None if found is None else found[1]["training"]
        if begun is not None and (begun["seed"], begun["settings"]) == (seed, specification(training.of_model())):
            fit.load_state_dict(begun)
        announce(new, fit, data, print_to_stderr)
        train_to_file(fit, file, print_to_stderr)
    return new


@contextlib.contextmanager
def lock_of_training(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of the training of a model; wait while another process holds it.

    Raises:
        Interrupted: the user asked the command to stop.
    """
    with contextlib.closing(FolderLock(folder, f".{name}.lock")) as lock:
        for attempt in itertools.count():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock.take()
                break
            except FolderInUseError:
                if not attempt:
                    print_to_stderr(f"another process trains this model in {folder}; waiting until it ends")
                signals.poll()
                time.sleep(SECONDS_BETWEEN_LOOKS)
            except OSError as error:
                raise UserError(
                    f"{folder} cannot be written ({first_line(error)}); name another folder by OFFPCC_MODELS_DIR"
                ) from error
        yield


def check_model_of(model: DynamicsModel, file: Path, data: OfflineDataset) -> None:
    """Raise if a model was trained on other data."""
    facts = model.facts
    if is_model_of(facts, data):
        return
    theirs, ours = str(facts.get("identity", "other data")), data.identity
    size = data.rows.observations.shape[1:]
    recordings = [comparable(identity).split(", SHA-256 ")[:2] for identity in (theirs, ours)]
    if recordings[0] == recordings[1]:  # the same recording, in another view
        named = f"the environment {facts['env']}" if facts.get("env") else "no environment"
        raise UserError(
            f"{file} was trained on the same recording in another view: with {named}, on observations of "
            f"{model.observation_dim} numbers; here they have {' x '.join(map(str, size))}. Give the environment, the "
            f"wrappers and the dataset settings of that model, or train another model"
        )
    of_model, here = (HASHES.sub("", identity) for identity in (theirs, ours))
    other = "have the same name and size, but other numbers" if of_model == here else f"are {here}"
    raise UserError(
        f"{file} is a model of {of_model}, but the data here {other}; give the data, the environment and the dataset "
        f"settings of that model"
    )


def check_same_settings(
    content: Mapping[str, Any], settings: Mapping[str, Any], training: Mapping[str, Any], file: Path, remedy: str
) -> None:
    """Raise if the model of a file with this content had other settings; `training` may have a ``--seed``."""
    before = dict(content["class"]["arguments"])
    known = content["training"] or content["facts"]
    before |= {"--seed": before["seed"], **known.get("settings", training)}
    for owner, given in (("DynamicsModel.", settings), ("ModelTraining.", training)):
        for name, value in specification(given).items():
            is_chosen = (name, value) == ("termination", AUTO) or name in ("device", "seed")
            if name in before and value != before[name] and not is_chosen:
                raise UserError(
                    f"{'' if name.startswith('-') else owner}{name} is {format_value(value)}, but {file} was trained "
                    f"with {format_value(before[name])}; {remedy}"
                )


def fingerprint(model: DynamicsModel) -> str:
    """Return a short digest of a model's weights and statistics."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def model_for_env(
    settings: Mapping[str, Any], env: str, observations: spaces.Box, actions: spaces.Box,
    device: torch.device, seed: int, is_altered: bool,
) -> DynamicsModel:  # fmt: skip
    """Return a model for the environment `env`, which a run will train.

    If the environment may differ from that of its name, `is_altered`, its rule is not taken by default.
    """
    shape = observations.shape
    check_vectors(shape, observations.dtype, env)
    known = _name_with_rule([env], shape)
    termination = settings.get("termination", AUTO)
    if termination == AUTO:
        termination = KNOWN if known and not is_altered else LEARNED
    given = {**settings, "termination": termination, "device": device, "seed": seed}
    model = DynamicsModel(shape[0], math.prod(actions.shape), **given)
    if termination == KNOWN:
        model.set_rule(env)
    model.facts = {"name": env, "rule": known if termination == KNOWN else ""}
    return model


def _name_with_rule(names: list[str], shape: tuple[int, ...]) -> str:
    """Return the first name that has a termination rule for such observations; "" if none has."""
    return next((name for name in names if name and find_rule(name, shape) is not None), "")


def check_vectors(shape: tuple[int, ...], dtype: Any, name: str) -> None:
    """Raise if observations are no vectors of numbers."""
    if len(shape) == 1 and np.dtype(dtype) == np.uint8:
        raise UserError(
            f"{name}: observations are a Dict (or bytes), but a model needs vectors; flatten them by "
            f"make.wrappers=[@gymnasium.FlattenObservation] and record through it, or choose an algorithm without a "
            f"model"
        )
    if len(shape) != 1:
        raise UserError(
            f"{name}: observations of shape {shape} ({np.dtype(dtype)}); a model needs vectors; choose other data, or "
            f"an algorithm without a model"
        )


def model_for_data(
    data: OfflineDataset, names: list[str], device: torch.device, seed: int, settings: Mapping[str, Any], env: str = ""
) -> DynamicsModel:
    """Build an untrained model for recorded data, and decide how imagined episodes terminate.

    `names`, of the environment and of the data, may have a known termination rule. The model predicts the view of the
    data of the environment `env`, "" for none.
    """
    rows = data.rows
    if data.discrete is not None:
        raise UserError(
            f"{data.name}: its actions are {data.discrete}, but models are for continuous ones; choose an algorithm "
            f"without a model, such as dcql"
        )
    check_vectors(rows.observations.shape[1:], rows.observations.dtype, data.name)
    shape = rows.observations.shape[1:]
    known = _name_with_rule(names, shape)
    termination = settings.get("termination", AUTO)
    if termination == AUTO:
        if known and (share := contradicting_share(known, rows)) > MOST_CONTRADICTING:
            warn_of_data(
                f"{data.name}: {share:.0%} of the steps at which the termination rule of {known} ends an episode are "
                f"no recorded terminations, so this rule is not used; DynamicsModel.termination = '{KNOWN}' uses it"
            )
            known = ""
        termination = KNOWN if known else LEARNED if rows.terminations.any() else NEVER
    given = {**settings, "termination": termination, "device": device, "seed": seed}
    model = DynamicsModel(shape[0], rows.actions.shape[1], **given)
    if termination == KNOWN:
        model.set_rule(named := known or next(filter(None, names), ""))
        _warn_of_ends_without_rule(model, named, data)
    model.action_range = data.action_range
    model.facts = {
        "name": data.name,
        "identity": data.identity,
        "rule": known if termination == KNOWN else "",
        "env": env,
    }
    return model


def _warn_of_ends_without_rule(model: DynamicsModel, named: str, data: OfflineDataset) -> None:
    """Warn of recorded terminations at which the model's known rule does not end the episode."""
    rows, starts = data.rows, np.flatnonzero(data.rows.is_start)
    ended = starts[rows.terminations[starts, 0] > 0.0]
    assert model.rule is not None
    if num_others := int(model.rule.is_within(rows.observations[ended + 1]).sum()):
        warn_of_data(
            f"{data.name}: {num_others:,} of the {len(ended):,} recorded terminations contradict the termination rule "
            f"of {named}, which the model takes; to learn a rule from the data: "
            f"--gin \"DynamicsModel.termination='{LEARNED}'\""
        )


def contradicting_share(name: str, rows: TransitionTable) -> float:
    """Return the share of the steps at which a rule ends an episode that are no recorded terminations."""
    rule = find_rule(name, rows.observations.shape[1:])
    starts = np.flatnonzero(rows.is_start)
    assert rule is not None
    ends = np.concatenate([rule.terminates(rows.observations[starts[some] + 1]) for some in blocks(starts)])
    return float((rows.terminations[starts[ends], 0] == 0.0).mean()) if ends.any() else 0.0


def save_model(model: DynamicsModel, file: Path, fit: ModelFit | None = None) -> None:
    """Write a model to a file, with the state of its training if that is not over.

    Raises:
        OSError: the file cannot be written.
    """
    bounds = model.action_range
    content = {
        "kind": "model",
        "format": FORMAT,
        "class": specification(model),
        "weights": {name: value.cpu() for name, value in model.state_dict().items()},
        "action_range": None if bounds is None else [np.asarray(bound, np.float64).tolist() for bound in bounds],
        "facts": model.facts,
        "training": None if fit is None else fit.state_dict(),
    }
    write_tensors(file, content)


def load_model(file: str | Path, device: str | torch.device = "cpu") -> DynamicsModel:
    """Read a trained model, which `offpcc train-model` wrote.

    ``step(observations, actions, generator)`` of the result predicts next observations, rewards and terminations.

    Args:
        file: the file.
        device: device of the networks.

    Raises:
        UserError: the file is missing or damaged, or its training is not over.
    """
    return load_with_content(as_path(file, "file", is_file=True), device)[0]


def load_with_content(file: Path, device: str | torch.device) -> tuple[DynamicsModel, dict[str, Any]]:
    """Return a trained model and the content of its file; see `load_model`."""
    content = read_model(file)
    if content["training"] is not None:
        raise UserError(f"the training of {file} is not finished; finish it with `offpcc train-model --resume`")
    return model_of(content, file, device), content


def read_model(file: Path) -> dict[str, Any]:
    """Return the content of a model's file.

    Raises:
        FileError: the file is missing, damaged, or not a model's.
    """
    content = read_tensors(file, "model", FORMAT, needs_seal=True)
    if not isinstance(content.get("class"), dict) or not isinstance(content.get("facts"), dict):
        raise FileError(f"{file} does not have the content of a model", "put it back from a copy")
    return content


def model_of(content: Mapping[str, Any], file: str | Path, device: str | torch.device) -> DynamicsModel:
    """Return the model that a file's content describes.

    Raises:
        FileError: it describes no model.
    """
    try:
        model = from_specification(content["class"], device=device)
        if not isinstance(model, DynamicsModel):
            raise TypeError
        model.load_state_dict(content["weights"])
        bounds = content["action_range"]
        model.action_range = None if bounds is None else (np.array(bounds[0]), np.array(bounds[1]))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FileError(f"{file} does not have the content of a model", "put it back from a copy") from error
    model.facts = content["facts"]
    if model.facts.get("rule"):
        model.set_rule(model.facts["rule"])
    return model
