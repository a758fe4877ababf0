"""Training of a `DynamicsModel` on recorded data, and its files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from offpcc.algorithms.dynamics import AUTO, KNOWN, LEARNED, NEVER, DynamicsModel, Uncertainty, without_zeros
from offpcc.config import loading
from offpcc.config.registry import from_specification, specification
from offpcc.config.settings import Settings, settings
from offpcc.config.validation import (
    NonnegativeNumber,
    PositiveFraction,
    PositiveInteger,
    PositiveNumber,
    Size,
    format_value,
    one_of,
)
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.checks.recommend import seems_hidden
from offpcc.data.datasets.columns import Array
from offpcc.data.offline import OfflineDataset, comparable
from offpcc.envs.termination import find_rule
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line, print_to_stderr
from offpcc.utils.files import explain_write_errors
from offpcc.utils.locks import FolderInUseError, FolderLock
from offpcc.utils.paths import as_path
from offpcc.utils.rng import NumpyGenerator
from offpcc.utils.tensor_files import FileError, read_tensors, write_tensors

FORMAT = 2
MOSTLY_EQUAL = 0.9  # share of equal rewards from which the others are rare
BLOCK = 65_536  # transitions that are held as float64 at a time
QUANTILES = (0.5, 0.9, 0.99, 1.0)
SECONDS_BETWEEN_LOOKS = 1.0  # at a lock that another process holds
MOST_MEASURED = 100_000  # transitions whose uncertainty is measured
PERMUTATION, BOOTSTRAP, SAME = "permutation", "bootstrap", "same"
Order = Annotated[str, one_of((PERMUTATION, BOOTSTRAP, SAME))]


class Transitions:
    """Transitions of recorded rows, in the order of their indices, as a model reads them.

    Args:
        rows: episodes with vectors for observations.
        history: number k of observations and actions that the model reads.
    """

    def __init__(self, rows: TransitionTable, history: int) -> None:
        self.rows, self.history = rows, history
        self.starts = np.flatnonzero(rows.is_start)

    @functools.cached_property
    def first(self) -> Array:
        """The first row of each row's episode, (rows,)."""
        return np.repeat(self.rows.starts, self.rows.stops - self.rows.starts)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, indices: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Return observations (B, k, O), actions (B, k, A), next observations, rewards and terminations of indices."""
        rows, at = self.rows, self.starts[indices]
        window = at[:, None] - np.arange(self.history)[::-1]
        actions = rows.actions
        if self.history == 1:
            acted = actions[window]
        else:
            first = self.first[at][:, None]
            acted = np.where((window >= first)[..., None], actions[window], np.float32(0.0))
            window = np.maximum(window, first)
        return rows.observations[window], acted, rows.observations[at + 1], rows.rewards[at], rows.terminations[at]

    def blocks(self) -> Iterator[Array]:
        """Yield the indices of all transitions, block by block."""
        for start in range(0, len(self), BLOCK):
            yield np.arange(start, min(start + BLOCK, len(self)))


class ModelEpoch(NamedTuple):
    """What is known after an epoch of training."""

    epoch: int
    loss: float
    errors: list[float]  # of each member on the holdout: mean squared error of the normalised means
    patience: int  # epochs since a member improved

    def line(self, settings: ModelTraining) -> str:
        """Return the epoch as one line."""
        errors = " ".join(f"{error:.2e}" for error in self.errors)
        waited = f", {self.patience} of {settings.patience} epochs without improvement" if self.patience else ""
        return f"epoch {self.epoch}: loss {self.loss:.3f}, error on the holdout {errors}{waited}"


@settings("ModelTraining")
class ModelTraining(Settings):
    """Settings of the training of a `DynamicsModel`.

    The defaults are those of MBPO (arXiv:1906.08253) and its authors' code, but for the optimizer: AdamW, with one
    weight decay for all layers.

    Args:
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        batch_size: transitions per update of each member.
        holdout: part of the transitions that is held out, to compare the members and to stop.
        most_held_out: largest number of transitions that are held out.
        order: "permutation" gives each member its own permutation of the data, "bootstrap" its own sample with
            replacement, and "same" gives all members the same batches.
        patience: epochs without an improvement of any member after which training stops.
        improvement: a member's weights are kept if its error falls by more than this part of its least error.
        max_epochs: largest number of epochs; None for no limit.
        updates_per_epoch: largest number of updates per epoch; as many batches as all transitions fill are enough, and
            None makes these.
    """

    lr: PositiveNumber = 1e-3
    weight_decay: NonnegativeNumber = 1e-4
    batch_size: Size = 256
    holdout: PositiveFraction = 0.2
    most_held_out: PositiveInteger = 5_000
    order: Order = PERMUTATION
    patience: PositiveInteger = 5
    improvement: NonnegativeNumber = 0.01
    max_epochs: PositiveInteger | None = None
    updates_per_epoch: PositiveInteger | None = None


class ModelFit:
    """A training of a model, which can stop and resume after any epoch.

    Args:
        model: the model to train.
        rows: the data.
        settings: the settings.
        seed: seed of the holdout and of the order of the data.
        may_lack_terminations: whether a classifier of terminations may learn from data without any.

    Raises:
        UserError: there are too few transitions to hold some of them out.
    """

    def __init__(
        self,
        model: DynamicsModel,
        rows: TransitionTable,
        settings: ModelTraining,
        seed: int,
        may_lack_terminations: bool = False,
    ) -> None:
        self.model, self.settings, self.seed = model, settings, seed
        self.may_lack_terminations = may_lack_terminations
        self.data = Transitions(rows, model.history)
        self.randomness = NumpyGenerator(seed, 7)
        num_held_out = min(math.floor(settings.holdout * len(self.data)), settings.most_held_out)
        if num_held_out < 1 or num_held_out == len(self.data):
            raise UserError(
                f"there are {len(self.data)} transitions, too few to hold out a part of {settings.holdout:g}; "
                f"{'raise train.update_after' if may_lack_terminations else 'record more'}, or change "
                f"ModelTraining.holdout"
            )
        order = self.randomness.generator.permutation(len(self.data)).astype(np.int32)
        self.held_out, self.trained = order[:num_held_out], order[num_held_out:]
        model.set_statistics(**statistics(self.data, model.margin))
        self.termination_weight = self._termination_weight()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            parameters, settings.lr, weight_decay=settings.weight_decay, fused=model.device.type in ("cpu", "cuda")
        )
        self.epoch = self.waited = 0
        self.best = np.full_like(self.errors(), np.inf)  # an earlier model has learned from a part of the holdout
        self.kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.progress: list[ModelEpoch] = []

    def _termination_weight(self) -> float:
        """Return the weight of a termination, which gives all of them together the weight of all other steps."""
        if self.model.termination != LEARNED:
            return 1.0
        rate = float(self.data.rows.terminations[self.data.starts].mean())
        if rate == 0.0 and self.may_lack_terminations:
            return 1.0
        if rate == 0.0:
            raise UserError(
                f'DynamicsModel.termination is "{LEARNED}", but no recorded step terminates; choose "{NEVER}"'
            )
        return (1.0 - rate) / rate

    @property
    def is_over(self) -> bool:
        """Whether training has stopped."""
        return self.waited >= self.settings.patience or self.epoch == self.settings.max_epochs

    def tensors(self, indices: Array) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return inputs, targets and terminations of transitions (...) as tensors (..., D)."""
        parts = self.data[indices.ravel()]
        observations, actions, following, rewards, ended = (as_tensor(part, self.model) for part in parts)
        x = self.model.inputs(observations, actions)
        y = self.model.targets(observations[:, -1], following, rewards)
        return tuple(part.view(*indices.shape, -1) for part in (x, y, ended))  # type: ignore[return-value]

    def errors(self) -> Array:
        """Return the mean squared errors of the members on the holdout, in normalised units.

        Returns:
            (1, N); (2, N) if rewards have networks of their own: of observations, then of rewards.
        """
        parts = [slice(None)] if self.model.reward is None else [slice(-1), slice(-1, None)]
        total = np.zeros((len(parts), self.model.num_members))
        with torch.no_grad():
            for start in range(0, len(self.held_out), BLOCK):
                x, y, _ = self.tensors(self.held_out[start : start + BLOCK])
                mean = self.model.predict(x.expand(self.model.num_members, *x.shape)).mean
                error = (mean - y).square()
                total += [error[..., part].mean(-1).sum(1).double().cpu().numpy() for part in parts]
        return total / len(self.held_out)

    def orders(self) -> Array:
        """Return the indices (N, M) that the members read in this epoch."""
        draw, num, settings = self.randomness.generator, self.model.num_members, self.settings
        size = len(self.trained)
        most = (
            size if settings.updates_per_epoch is None else min(settings.updates_per_epoch * settings.batch_size, size)
        )
        if settings.order == BOOTSTRAP:
            return self.trained[draw.integers(size, size=(num, most), dtype=np.int32)]
        if settings.order == SAME:
            return np.broadcast_to(self.trained[draw.permutation(size)[:most]], (num, most))
        orders = np.empty((num, most), np.int32)  # filled in place, because the orders of large data are large
        for order in orders:
            order[:] = self.trained[draw.permutation(size)[:most]]
        return orders

    def update(self, indices: Array) -> torch.Tensor:
        """Make one update of all members by the transitions of `indices` (N, B), and return its loss, 0-d."""
        x, y, ended = self.tensors(indices)
        loss, _ = self.model.loss(x, y, ended, self.termination_weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def run_epoch(self) -> ModelEpoch:
        """Read the data once, keep the members that improved, and return the progress.

        Raises:
            UserError: the loss became NaN or infinite.
        """
        orders, size = self.orders(), self.settings.batch_size
        losses, num_updates = torch.zeros((), dtype=torch.float64, device=self.model.device), 0
        for start in range(0, orders.shape[1], size):
            signals.poll()
            losses += self.update(orders[:, start : start + size])  # a GPU is not waited for
            num_updates += 1
        total = float(losses)
        if not math.isfinite(total):
            raise UserError("the model's loss is not finite; lower ModelTraining.lr, or look for outliers in the data")
        errors = self.errors()
        is_better = errors < self.best * (1.0 - self.settings.improvement)
        self.best = np.where(is_better, errors, self.best)
        members = torch.from_numpy(is_better).to(self.model.device)
        for name, parameter in self.model.named_parameters():
            better = members[-1 if name.startswith("reward.") else 0]
            self.kept[name][better] = parameter.detach()[better]
        self.waited = 0 if is_better.any() else self.waited + 1
        self.epoch += 1
        progress = ModelEpoch(self.epoch, total / num_updates, self._joint(errors), self.waited)
        self.progress.append(progress)
        return progress

    def finish(self, is_measured: bool = True) -> None:
        """Give the model the kept weights, and choose its elites.

        Args:
            is_measured: whether its uncertainty over the data is measured.
        """
        model = self.model
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.kept[name])
        best = np.sort(np.argsort(self.best[0], kind="stable")[: model.num_elites])
        model.elites.copy_(torch.from_numpy(best))
        model.facts |= {
            "num_epochs": self.epoch,
            "num_transitions": len(self.data),
            "num_held_out": len(self.held_out),
            "settings": specification(self.settings.values()),
            "holdout_errors": self._joint(self.best),
            "elites": best.tolist(),
            **self._rewards(),
            **(measure_uncertainty(model, self.data) if is_measured else {}),
        }
        if model.termination == LEARNED:
            model.facts["termination_weight"] = self.termination_weight
            model.facts |= self._classified()

    def _joint(self, errors: Array) -> list[float]:
        """Return errors (1, N) or (2, N) as means over observations and the reward, (N,)."""
        weights = None if len(errors) == 1 else [self.model.observation_dim, 1]
        joint: list[float] = np.average(errors, 0, weights).tolist()
        return joint

    def _rewards(self) -> dict[str, float]:
        """Return the largest, the smallest and the mean reward."""
        rewards = self.data.rows.rewards[self.data.starts]
        found = {"largest": rewards.max(), "smallest": rewards.min(), "mean": rewards.mean(dtype=np.float64)}
        return {f"{name}_reward": float(value) for name, value in found.items()}

    def _classified(self) -> dict[str, float]:
        """Return precision and recall of the classifier of terminations on the holdout."""
        hits = found = actual = 0.0
        for start in range(0, len(self.held_out), BLOCK):
            x, _, ended = self.tensors(self.held_out[start : start + BLOCK])
            with torch.no_grad():
                logits = self.model.predict(x.expand(self.model.num_elites, *x.shape), self.model.elites).logit
            predicted = self.model.termination_probabilities(logits).mean(0)  # the share that is drawn
            hits += float((predicted * ended).sum())
            found, actual = found + float(predicted.sum()), actual + float(ended.sum())
        precision, recall = (hits / total if total else math.nan for total in (found, actual))
        return {"termination_precision": precision, "termination_recall": recall}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs."""
        return {
            "settings": specification(self.settings.values()),
            "seed": self.seed,
            "weights": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "randomness": self.randomness.state_dict(),
            "kept": self.kept,
            "best": torch.from_numpy(self.best),
            "counts": [self.epoch, self.waited],
            "progress": [list(one) for one in self.progress],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`."""
        self.model.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.randomness.load_state_dict(state["randomness"])
        self.kept = {name: value.to(self.model.device) for name, value in state["kept"].items()}
        self.best = state["best"].numpy()
        self.epoch, self.waited = state["counts"]
        self.progress = [ModelEpoch(*one) for one in state["progress"]]


def statistics(data: Transitions, margin: float) -> dict[str, Array]:
    """Return the statistics of `DynamicsModel.set_statistics`; read in blocks, in float64."""
    sums: list[Any] = [0.0, 0.0]
    squares: list[Any] = [0.0, 0.0]
    low: Any = np.inf
    high: Any = -np.inf
    for indices in data.blocks():
        observations, actions, following, rewards, _ = data[indices]
        current = observations[:, -1].astype(np.float64)
        x = np.concatenate([current, actions[:, -1]], 1)
        y = np.concatenate([following - current, rewards], 1)
        for number, values in enumerate((x, y)):
            sums[number] = sums[number] + values.sum(0)
            squares[number] = squares[number] + np.square(values).sum(0)
        low = np.minimum(low, np.minimum(current.min(0), following.min(0)))
        high = np.maximum(high, np.maximum(current.max(0), following.max(0)))
    means = [total / len(data) for total in sums]
    deviations = []
    for mean, square in zip(means, squares, strict=True):
        variance = square / len(data) - np.square(mean)
        is_constant = variance <= 1e-12 * np.maximum(square / len(data), 1e-12)  # rounding remains of constant columns
        deviations.append(np.where(is_constant, 0.0, np.sqrt(np.maximum(variance, 0.0))))
    num_observed = len(low)
    k = data.history
    parts = slice(num_observed), slice(num_observed, None)
    inputs = [
        np.concatenate([np.tile(values[part], k) for part in parts])
        for values in (means[0], without_zeros(deviations[0]))
    ]
    return {
        "input_mean": inputs[0],
        "input_std": inputs[1],
        "target_mean": means[1],
        "target_std": deviations[1],
        "low": low,
        "high": high,
        "spread": margin * deviations[0][:num_observed],
    }


def reward_scale(facts: Mapping[str, Any]) -> float:
    """Return the size of the largest recorded reward; of the smallest, where rewards are negative on average."""
    is_cost = facts.get("mean_reward", 0.0) < 0.0
    return abs(float(facts["smallest_reward" if is_cost else "largest_reward"]))


def as_tensor(array: Array, model: DynamicsModel) -> torch.Tensor:
    """Return a tensor on the model's device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(model.device)


def uncertainties(model: DynamicsModel, data: Transitions, indices: Array) -> Uncertainty:
    """Return the uncertainties of the model at these transitions, (B,) each."""
    found = []
    for start in range(0, len(indices), 1024):
        observations, actions, *_ = data[indices[start : start + 1024]]
        found.append(model.imagine(as_tensor(observations, model), as_tensor(actions, model), None).uncertainty)
    return Uncertainty(*(torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True)))


def measure_uncertainty(model: DynamicsModel, data: Transitions) -> dict[str, Any]:
    """Return mean, standard deviation and quantiles of each uncertainty over the data, or over a part of large data."""
    indices = np.arange(len(data)) if len(data) <= MOST_MEASURED else np.linspace(
        0, len(data) - 1, MOST_MEASURED).astype(np.int64)  # fmt: skip
    found = uncertainties(model, data, indices)
    return {"uncertainty": {name: spread(values) for name, values in found._asdict().items()}}


def spread(values: Array) -> dict[str, float]:
    """Return mean, standard deviation and quantiles of values (M,)."""
    quantiles = {f"{quantile:g}": float(np.quantile(values, quantile)) for quantile in QUANTILES}
    return {"mean": float(values.mean()), "std": float(values.std()), **quantiles}


def describe_spread(values: Mapping[str, float]) -> str:
    """Return the result of `spread` as text."""
    return (
        f"mean {values['mean']:.4g}, std {values['std']:.4g}, median {values['0.5']:.4g}, 90 % {values['0.9']:.4g}, "
        f"99 % {values['0.99']:.4g}, largest {values['1']:.4g}"
    )


def hash_data(data: OfflineDataset) -> str:
    """Return a short digest of recorded data as an agent sees them, by which a run finds the model of its data."""
    return hashlib.sha256(comparable(data.identity).encode()).hexdigest()[:16]


def announce(model: DynamicsModel, fit: ModelFit, data: OfflineDataset, show: Callable[[str], None]) -> None:
    """Tell what is trained on what, how imagined episodes end, and which settings the data ask for."""
    reads = f"\nthe networks read the last {model.history} observations and actions" if model.history > 1 else ""
    show(
        f"{model.num_members} networks, {model.num_elites} of them elites; {data.name}: {len(fit.data):,} transitions, "
        f"{len(fit.held_out):,} of them held out\nimagined episodes end: {model.tell_termination()}{reads}"
    )
    starts = fit.data.starts
    if model.rule is not None:
        ended = data.rows.terminations[starts, 0] > 0.0
        num_others = int((ended & model.rule.is_within(data.rows.observations[starts + 1])).sum())
        if num_others:
            show(
                f"note: {num_others:,} of the {int(ended.sum()):,} recorded terminations contradict this rule; to "
                f"learn one from the data: --gin \"DynamicsModel.termination='{LEARNED}'\""
            )
    rewards = data.rows.rewards[starts, 0]
    usual = np.median(rewards)
    share = float((rewards == usual).mean())
    if MOSTLY_EQUAL <= share < 1.0 and model.reward is None:
        show(
            f"note: {share:.1%} of the rewards are {usual:g}; the others can disturb the predictions of observations. "
            f'Predict rewards separately: --gin "DynamicsModel.reward_hidden_dims=(64, 64)"'
        )
    rows = data.rows
    if model.history == 1 and seems_hidden(rows.observations, rows.actions, rows.starts, rows.stops):
        show(
            "note: velocities seem hidden, so a model of single steps cannot predict well. Let it read several: "
            '--gin "DynamicsModel.history=4"'
        )


def train_to_file(fit: ModelFit, file: Path, show: Callable[[str], None]) -> None:
    """Train to the end, write the state after each epoch, and then the model.

    Raises:
        UserError: the file cannot be written, or the loss is not finite.
        Interrupted: the user asked the command to stop.
    """
    with explain_write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        save_model(fit.model, file, fit)  # fails before the training, if it does
        while not fit.is_over:
            progress = fit.run_epoch()
            with signals.deferred():
                save_model(fit.model, file, fit)
            show(progress.line(fit.settings))
        with signals.deferred():
            fit.finish()
            save_model(fit.model, file)


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
) -> DynamicsModel:
    """Return a trained model of recorded data from `models_folder`; train it there if there is none.

    Only a model with the same settings of `DynamicsModel` and `ModelTraining` is taken. A training that was stopped
    goes on.

    Raises:
        UserError: the data are not suited to a model, or the folder cannot be written.
    """
    folder, wanted = models_folder(), hash_data(data)
    new = build_model(data, DynamicsModel, names, device, seed, settings)
    asked = specification(new)["arguments"]
    own = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', data.name)}-{wanted[:8]}.pt"

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
            if content["facts"].get("digest") != wanted or not is_same:
                continue
            if content["training"] is None:
                if content["facts"].get("settings") != specification(training.values()):
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
        if begun is not None and (begun["seed"], begun["settings"]) == (seed, specification(training.values())):
            fit.load_state_dict(begun)
        announce(new, fit, data, print_to_stderr)
        train_to_file(fit, file, print_to_stderr)
    return new


@contextlib.contextmanager
def lock_of_training(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of the training of a model; wait while another process holds it.

    Raises:
        UserError: the folder cannot be written.
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


def check_model_of(model: DynamicsModel, file: Path, data: OfflineDataset) -> DynamicsModel:
    """Return a model; raise if it was trained on other data.

    Raises:
        UserError: it was.
    """
    facts = model.facts
    if facts.get("digest") == hash_data(data):
        return model
    theirs, ours = str(facts.get("identity", "other data")), data.identity
    size = data.rows.observations.shape[1:]
    if theirs.split(", SHA-256 ")[:2] == ours.split(", SHA-256 ")[:2]:  # the same recording, in another view
        named = f"the environment {facts['env']}" if facts.get("env") else "no environment"
        raise UserError(
            f"{file} was trained on the same recording in another view: with {named}, on observations of "
            f"{model.observation_dim} numbers; here they have {' x '.join(map(str, size))}. Give the environment, the "
            f"wrappers and the dataset settings of that model, or train another model"
        )
    raise UserError(
        f"{file} is a model of {theirs}, but the data here are {ours}; give the data, the environment and the dataset "
        f"settings of that model"
    )


def check_same_settings(
    content: Mapping[str, Any], settings: Mapping[str, Any], training: Mapping[str, Any], file: Path, remedy: str
) -> None:
    """Raise if a model was trained with other settings.

    Args:
        content: that of its file, as `read_model` returns it.
        settings: arguments of `DynamicsModel`.
        training: arguments of `ModelTraining`, and a ``--seed``.
        file: the file.
        remedy: the advice in the message.

    Raises:
        UserError: it was; the message names the first.
    """
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


def untrained_model(
    settings: Mapping[str, Any],
    names: list[str],
    observations: spaces.Box,
    actions: spaces.Box,
    device: torch.device,
    seed: int,
    is_altered: bool = False,
) -> DynamicsModel:
    """Return a model for an environment, which a run will train.

    Args:
        settings: arguments of `DynamicsModel`.
        names: names of the environment.
        observations: its space of observations.
        actions: its space of actions.
        device: the device.
        seed: seed of the initial weights.
        is_altered: whether the environment may differ from that of its name; its rule is then not taken by default.

    Raises:
        UserError: observations are no vectors, or no termination rule is known where one is wanted.
    """
    shape = observations.shape
    check_vectors(shape, observations.dtype, names[0])
    known = next((name for name in names if name and find_rule(name, shape) is not None), "")
    termination = settings.get("termination", AUTO)
    if termination == AUTO:
        termination = KNOWN if known and not is_altered else LEARNED
    size = int(np.prod(actions.shape))
    given = {**settings, "termination": termination, "device": device, "seed": seed}
    model = DynamicsModel(shape[0], size, **given)
    if termination == KNOWN:
        model.set_rule(known or names[0])
    model.facts = {"name": names[0], "rule": known if termination == KNOWN else ""}
    return model


def check_vectors(shape: tuple[int, ...], dtype: Any, name: str) -> None:
    """Raise if observations are no vectors of numbers.

    Raises:
        UserError: they are not.
    """
    if len(shape) != 1 or np.dtype(dtype) == np.uint8:
        raise UserError(
            f"{name}: observations of shape {shape} ({np.dtype(dtype)}); a model needs vectors; choose other data, or "
            f"an algorithm without a model"
        )


def build_model(data: OfflineDataset, model_class: Callable[..., DynamicsModel], names: list[str],
                device: torch.device, seed: int, settings: Mapping[str, Any]) -> DynamicsModel:  # fmt: skip
    """Build an untrained model for recorded data, and decide how imagined episodes terminate.

    Args:
        data: the recorded data.
        model_class: the class.
        names: names by which a termination rule may be known: of the environment and of the data.
        device: the device.
        seed: seed of the initial weights.
        settings: arguments of the class.

    Raises:
        UserError: observations are no vectors, or no termination rule is known where one is wanted.
    """
    rows = data.rows
    if data.discrete is not None:
        raise UserError(
            f"{data.name}: its actions are {data.discrete}, but models are for continuous ones; choose an algorithm "
            f"without a model, such as dcql"
        )
    check_vectors(rows.observations.shape[1:], rows.observations.dtype, data.name)
    shape = rows.observations.shape[1:]
    known = next((name for name in names if name and find_rule(name, shape) is not None), "")
    termination = settings.get("termination", AUTO)
    if termination == AUTO:
        termination = KNOWN if known else LEARNED if rows.terminations.any() else NEVER
    model = model_class(
        shape[0], rows.actions.shape[1], **{**settings, "termination": termination, "device": device, "seed": seed}
    )
    if termination == KNOWN:
        model.set_rule(known or next(filter(None, names), ""))
    model.action_range = data.action_range
    model.facts = {
        "name": data.name,
        "digest": hash_data(data),
        "identity": data.identity,
        "rule": known if termination == KNOWN else "",
        "env": next(iter(names), ""),
    }
    return model


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
    content = read_model(as_path(file, "file", is_file=True))
    if content["training"] is not None:
        raise UserError(f"the training of {file} is not finished; finish it with `offpcc train-model --resume`")
    return model_of(content, file, device)


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
