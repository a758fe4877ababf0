"""Training of a `DynamicsModel` on recorded data."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from offpcc.algorithms.cuda_graphs import check_compiler
from offpcc.algorithms.dynamics import LEARNED, NEVER, DynamicsModel, Uncertainty, without_zeros
from offpcc.algorithms.optim import Optimizer
from offpcc.config.registry import specification
from offpcc.config.settings import Settings, settings
from offpcc.config.validation import (
    Flag,
    NonnegativeNumber,
    PositiveFraction,
    PositiveInteger,
    PositiveNumber,
    Size,
    one_of,
)
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.datasets.columns import Array
from offpcc.utils import signals, torch_private
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator

BLOCK = 65_536  # transitions that are held as float64 at a time
QUANTILES = (0.5, 0.9, 0.99, 1.0)
POOR = 0.5  # precision or recall of a classifier of terminations, below which there is a warning
MOST_MEASURED = 100_000  # transitions whose uncertainty is measured
PERMUTATION, BOOTSTRAP, SAME = "permutation", "bootstrap", "same"
Order = Annotated[str, one_of((PERMUTATION, BOOTSTRAP, SAME))]


class Transitions:
    """Transitions of recorded rows, in the order of their indices.

    With each come the last k = `history` observations and actions, which a model reads.
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
            is_before = (window < first)[..., None]
            window = np.maximum(window, first)
            acted = np.where(is_before, np.float32(0.0), actions[window])
        return rows.observations[window], acted, rows.observations[at + 1], rows.rewards[at], rows.terminations[at]

    def some(self, most: int) -> Array:
        """Return the indices of all transitions, or of `most` of them, evenly spread."""
        return np.linspace(0, len(self) - 1, min(len(self), most)).astype(np.int64)

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
    weight decay for all layers. A member's error is that of observations and rewards, as in that code, which has no
    classifier of terminations: the classifier's loss neither stops training nor chooses weights or elites.

    Args:
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        batch_size: transitions per update of each member.
        holdout: part of the transitions that is held out, to compare the members and to stop.
        most_held_out: largest number of transitions that are held out.
        order: "permutation" gives each member its own permutation of the data, "bootstrap" its own sample with
            replacement, which stays the same in all epochs, and "same" gives all members the same batches.
        patience: epochs without an improvement of any member after which training stops.
        improvement: a member's weights are kept if its error falls by more than this part of its least error.
        max_epochs: largest number of epochs; None for no limit.
        updates_per_epoch: largest number of updates per epoch; as many batches as all transitions fill are enough, and
            None makes these.
        compile: whether to compile the updates on a CPU with PyTorch's Inductor, which makes them faster. It needs a
            C++ compiler, and 5 to 20 seconds at the start. Only for a model that is trained once, not online.
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
    compile: Flag = False

    def of_model(self) -> dict[str, Any]:
        """Return the values that the trained model depends on, by name."""
        return {name: value for name, value in self.values().items() if name != "compile"}


class ModelFit:
    """A training of a model, which can stop and resume after any epoch.

    The seed chooses the holdout and the order of the data. With `may_lack_terminations`, a classifier of terminations
    may learn from data without any.
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
        if settings.compile:
            check_compiler("ModelTraining.compile", model.device)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = Optimizer([(parameters, settings.lr)], weight_decay=settings.weight_decay)
        self.program: tuple[Any, Any] | None = None  # inputs of a compiled update, and what makes it
        self.epoch = self.waited = 0
        self.best = np.full_like(self.errors(), np.inf)  # an earlier model has learned from a part of the holdout
        self.kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.progress: list[ModelEpoch] = []

    def _termination_weight(self) -> float:
        """Return the weight of a termination, which gives all of them together the weight of all other steps."""
        if self.model.termination != LEARNED:
            return 1.0
        rate = float(self.data.rows.terminations[self.data.starts].mean())
        if rate == 0.0 and not self.may_lack_terminations:
            raise UserError(
                f'DynamicsModel.termination is "{LEARNED}", but no recorded step terminates; choose "{NEVER}"'
            )
        return 1.0 if rate in (0.0, 1.0) else (1.0 - rate) / rate

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
        if settings.order == SAME:
            return np.broadcast_to(self.trained[draw.permutation(size)[:most]], (num, most))
        orders = np.empty((num, most), np.int32)  # filled in place, because the orders of large data are large
        for member, order in enumerate(orders):
            chosen: Array = draw.permutation(size)[:most]
            if settings.order == BOOTSTRAP:  # a new sample in each epoch would show every member all data
                sample = NumpyGenerator(self.seed, 7, 1 + member).generator.integers(size, size=size, dtype=np.int32)
                chosen = sample[chosen]
            order[:] = self.trained[chosen]
        return orders

    def update(self, indices: Array) -> torch.Tensor:
        """Make one update of all members by the transitions of `indices` (N, B), and return its loss, 0-d."""
        tensors = self.tensors(indices)
        if not self.settings.compile or indices.shape[1] < self.settings.batch_size:  # an epoch's last batch
            return self._step(*tensors)
        if self.program is None:
            inputs, before = [tensor.clone() for tensor in tensors], self.optimizer.num_updates
            self.program = inputs, torch_private.compile_operations(lambda: [self._step(*inputs)])
            self.optimizer.num_updates = before  # nothing was computed
        inputs, compiled_step = self.program
        torch_private.foreach_copy_(inputs, tensors)
        (loss,) = compiled_step()
        self.optimizer.num_updates += 1
        return loss  # type: ignore[no-any-return]

    def _step(self, x: torch.Tensor, y: torch.Tensor, ended: torch.Tensor) -> torch.Tensor:
        """Make one update of all members by inputs, targets and terminations (N, B, D); return its loss, 0-d."""
        loss, _ = self.model.loss(x, y, ended, self.termination_weight)
        self.optimizer.minimize(loss)
        return loss.detach()

    def run_epoch(self) -> ModelEpoch:
        """Read the data once, keep the members that improved, and return the progress."""
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
        """Give the model the kept weights, choose its elites, and measure its uncertainty if `is_measured`."""
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
            "settings": specification(self.settings.of_model()),
            "holdout_errors": self._joint(self.best),
            "elites": best.tolist(),
            **self._rewards(),
        }
        if is_measured:
            found = uncertainties(model, self.data, self.data.some(MOST_MEASURED))
            model.facts["uncertainty"] = {name: spread(values) for name, values in found._asdict().items()}
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
            "settings": specification(self.settings.of_model()),
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
        if "groups" not in state["optimizer"]:
            raise UserError("an older offpcc began the training of this model; train it again, into another file")
        self.model.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.randomness.load_state_dict(state["randomness"])
        self.kept = {name: value.to(self.model.device) for name, value in state["kept"].items()}
        self.best = state["best"].numpy()
        self.epoch, self.waited = state["counts"]
        self.progress = [ModelEpoch(*one) for one in state["progress"]]


def statistics(data: Transitions, margin: float) -> dict[str, Array]:
    """Return the statistics of `DynamicsModel.set_statistics`; read in blocks, in float64."""
    total: Any = 0.0
    squares: Any = 0.0
    low: Any = np.inf
    high: Any = -np.inf
    for indices in data.blocks():
        observations, actions, following, rewards, _ = data[indices]
        current = observations[:, -1].astype(np.float64)
        columns = np.concatenate([current, actions[:, -1], following - current, rewards], 1)
        total = total + columns.sum(0)
        squares = squares + np.square(columns).sum(0)
        low = np.minimum(low, np.minimum(current.min(0), following.min(0)))
        high = np.maximum(high, np.maximum(current.max(0), following.max(0)))
    mean, square = total / len(data), squares / len(data)
    variance = square - np.square(mean)
    is_constant = variance <= 1e-12 * np.maximum(square, 1e-12)  # rounding remains of constant columns
    std = np.where(is_constant, 0.0, np.sqrt(np.maximum(variance, 0.0)))
    num_observed, num_targets = len(low), len(low) + 1

    def of_inputs(values: Array) -> Array:
        """Return the values of all inputs: those of the observations `history` times, then those of the actions."""
        parts = values[:num_observed], values[num_observed:-num_targets]
        return np.concatenate([np.tile(part, data.history) for part in parts])

    return {
        "input_mean": of_inputs(mean),
        "input_std": of_inputs(without_zeros(std)),
        "target_mean": mean[-num_targets:],
        "target_std": std[-num_targets:],
        "low": low,
        "high": high,
        "spread": margin * std[:num_observed],
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


def describe_terminations(facts: Mapping[str, Any]) -> str:
    """Return the quality of a model's classifier of terminations, with a warning if it is poor; "" without one."""
    if "termination_precision" not in facts:
        return ""
    precision, recall = facts["termination_precision"], facts["termination_recall"]
    if math.isnan(recall):
        return "no episode terminated in the holdout, so the classifier of terminations is not judged"
    text = f"terminations on the holdout: precision {precision:.2f}, recall {recall:.2f}"
    if not min(precision, recall) >= POOR:
        text += (
            "; the classifier is poor, so imagined episodes end at wrong times: give more data, a larger "
            "ModelTraining.patience (training stops by the other errors), or a larger DynamicsModel.history"
        )
    return text
