"""`Optimizer` (Adam and AdamW), `PolyakAverage`, and learning rate schedules."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.algorithms.nonfinite import current_guard
from offpcc.config.registry import configurable
from offpcc.config.validation import (
    NONNEGATIVE,
    NonnegativeNumber,
    PositiveInteger,
    Rule,
    either,
    is_number,
    with_parentheses,
)
from offpcc.core import Stats
from offpcc.utils import torch_private
from offpcc.utils.errors import UserError

ADAM = {"beta1": 0.9, "beta2": 0.999, "amsgrad": False, "maximize": False}
CLIP_EPSILON = 1e-6  # added to norms, as PyTorch does
MANY_UPDATES, LARGEST_RATE = 1_000_000, 1.0  # no schedule has such a rate after so many updates
Schedule = Callable[[int], float]  # learning rate as a function of the number of updates made


def _is_schedule(value: Any) -> bool:
    """Check whether `value` is a callable that returns a learning rate for the first update, and no huge one later."""
    return is_number(_rate_after(value, 0), 0.0) and _explodes_to(value) is None


def _rate_after(value: Any, num_updates: int) -> Any:
    """Return what a copy of a schedule gives after this number of updates; None if it is none, or a broken one."""
    try:
        return copy.deepcopy(value)(num_updates) if callable(value) and not isinstance(value, type) else None
    except OverflowError:
        return math.inf
    except Exception:  # such as a table of rates that ends before
        return None


def _explodes_to(value: Any) -> Any:
    """Return the rate of a schedule after many updates if it has grown above `LARGEST_RATE`; else None."""
    rate = _rate_after(value, MANY_UPDATES)
    is_large = isinstance(rate, Real) and not isinstance(rate, bool) and not rate <= LARGEST_RATE
    return rate if is_large and rate != _rate_after(value, 0) else None


def _advice(value: Any) -> str:
    """Return advice for a class in place of an object, and for a schedule of stable-baselines3."""
    if (rate := _explodes_to(value)) is not None:
        return (
            f"its rate after {MANY_UPDATES:,} updates would be {rate:g}: a schedule gets the number of updates, not "
            f"the remaining share of training; LinearDecay() of offpcc.algorithms.optim falls to 0"
        )
    return with_parentheses(value)


Rate = Annotated[
    float | Schedule, either(NONNEGATIVE, Rule("a schedule such as @LinearDecay()", _is_schedule, _advice))
]


@configurable
class LinearDecay:
    """Learning rate that falls linearly from `initial` to `final` in `num_updates` updates and then stays constant.

    Args:
        initial: rate at the first update.
        final: rate after `num_updates` updates.
        num_updates: number of updates of the decay.
    """

    def __init__(
        self, initial: NonnegativeNumber = 3e-4, final: NonnegativeNumber = 0.0, num_updates: PositiveInteger = 100_000
    ) -> None:
        self.initial, self.final, self.num_updates = initial, final, num_updates

    def __call__(self, update: int) -> float:
        """Return the learning rate after `update` updates."""
        return self.initial + (self.final - self.initial) * min(update / self.num_updates, 1.0)


@configurable
class CosineDecay:
    """Learning rate that falls along half a cosine from `initial` to `final` in `num_updates` updates; then constant.

    Args:
        initial: rate at the first update.
        final: rate after `num_updates` updates.
        num_updates: number of updates of the decay.
    """

    def __init__(
        self,
        initial: NonnegativeNumber = 3e-4,
        final: NonnegativeNumber = 0.0,
        num_updates: PositiveInteger = 1_000_000,
    ) -> None:
        self.initial, self.final, self.num_updates = initial, final, num_updates

    def __call__(self, update: int) -> float:
        """Return the learning rate after `update` updates."""
        share = 0.5 * (1.0 + math.cos(math.pi * min(update / self.num_updates, 1.0)))
        return self.final + (self.initial - self.final) * share


class Optimizer:
    """Adam, or AdamW, over groups of parameters; `minimize` does not change the gradients of other parameters.

    It calls PyTorch's fused step directly. For networks of this size, the overhead of `torch.optim.Adam` takes longer
    than the step itself. The tests compare the two.

    Args:
        groups: pairs of parameters and their learning rate, a number or a schedule.
        max_grad_norm: if given, the gradients of all groups together are clipped to this norm.
        weight_decay: decoupled weight decay (AdamW, Loshchilov & Hutter 2019, arXiv:1711.05101): a step also subtracts
            the learning rate times this share of a parameter. Parameters with an attribute ``no_decay = True`` have
            none: towards 0, the eigenvalues of an LRU forget, and a log standard deviation grows.
        eps: Adam's epsilon, which is added to the root of the second moment.

    Attributes:
        num_updates: number of steps, without skipped ones, since the last `restart`.
        num_before: number of steps before it that Adam's moments contain.
        given_count: the argument `num_updates` of the latest step.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Iterable[Tensor], float | Schedule]],
        max_grad_norm: float | None = None,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        filled = [(list(parameters), rate) for parameters, rate in groups]
        self.groups = [ParameterGroup(parameters, rate, weight_decay, eps) for parameters, rate in filled if parameters]
        self.parameters = [parameter for group in self.groups for parameter in group.parameters]
        self.max_grad_norm = max_grad_norm
        self.num_updates = self.num_before = 0
        self.given_count: int | None = None

    def minimize(self, loss: Tensor, num_updates: int | None = None) -> None:
        """Compute the gradient of `loss` and make one step. Without parameters, do nothing.

        Args:
            loss: 0-d tensor.
            num_updates: number of the algorithm's updates so far, for schedules; default: this optimizer's steps.

        Raises:
            ValueError: the loss has elements for items of the batch.
        """
        if not self.parameters:
            return
        if loss.dim():
            raise ValueError(f"the loss has the shape {tuple(loss.shape)}; return one number, such as batch.mean(x)")
        with torch.autocast(loss.device.type, enabled=False):  # backward uses each operation's own precision
            gradients: tuple[Tensor | None, ...]
            if all(parameter.requires_grad for parameter in self.parameters):
                gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            else:  # a user has frozen some
                trained = [parameter for parameter in self.parameters if parameter.requires_grad]
                found = iter(torch.autograd.grad(loss, trained, allow_unused=True) if trained else ())
                gradients = tuple(next(found) if one.requires_grad else None for one in self.parameters)
        self.step(gradients, num_updates, loss)

    def step(
        self,
        gradients: Sequence[Tensor | None],
        num_updates: int | None = None,
        loss: Tensor | None = None,
        flat_gradients: Sequence[Tensor] | None = None,
    ) -> None:
        """Make one Adam step by these gradients.

        In an agent's update, nothing changes if the gradients, the loss or an earlier tensor of this update have NaN
        or infinity; see `NonFiniteGuard`.

        Args:
            gradients: gradient of each parameter, or None where there is none.
            num_updates: see `minimize`.
            loss: the loss, for the check.
            flat_gradients: a few tensors that hold all gradients, and zeros elsewhere; checking them is faster.
        """
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = laid_out(gradient, parameter)
        if self.max_grad_norm is not None:
            clip(self.parameters, self.max_grad_norm)
        found_inf, self.given_count = None, num_updates
        if (guard := current_guard()) is not None:
            if flat_gradients is None:
                flat_gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            found_inf = guard.check_step(self, loss, gradients, flat_gradients)
        for group in self.groups:
            group.step(self.num_updates if num_updates is None else num_updates, found_inf)
        self.num_updates += 1

    def restart(self, keep_moments: bool) -> None:
        """Start the schedules anew, as before the first step; without `keep_moments`, Adam's moments, too."""
        self.num_before = self.num_before + self.num_updates if keep_moments else 0
        self.num_updates = 0
        if not keep_moments:
            for group in self.groups:
                for tensor in (*group.means, *group.squares, *group.steps):
                    tensor.zero_()

    def num_made(self) -> Tensor:
        """Return the number of steps that changed parameters, with those of `num_before`, 0-d, on the device."""
        return torch.stack([torch.stack(group.steps).max() for group in self.groups]).max()

    @property
    def rates(self) -> list[float | Schedule]:
        """Return the learning rate of each group, a number or a schedule."""
        return [group.rate for group in self.groups]

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's moments and the number of updates."""
        return {"groups": [group.state_dict() for group in self.groups], "num_updates": self.num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.load_state_dict(saved)
        self.num_updates = state["num_updates"]
        self.num_before = int(self.num_made()) - self.num_updates if self.groups else 0


class ParameterGroup:
    """Parameters with one learning rate, and their Adam step (Kingma & Ba 2014, arXiv:1412.6980, algorithm 1)."""

    def __init__(
        self, parameters: Sequence[Tensor], rate: float | Schedule, weight_decay: float = 0.0, eps: float = 1e-8
    ) -> None:
        self.parameters, self.rate, self.weight_decay, self.eps = list(parameters), rate, weight_decay, eps
        self.latest_rate = rate(0) if callable(rate) else rate
        self.device_rate: Tensor | None = None  # 0-d: while a CUDA graph is recorded, the step reads the rate here
        self.decays = [bool(weight_decay) and not getattr(p, "no_decay", False) for p in self.parameters]
        self.kinds = sorted({*self.decays})  # nearly always one
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self._counts = torch.zeros(len(self.parameters), device=self.parameters[0].device)
        self.steps = [*self._counts]  # one operation on `_counts` increments them all

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy; copying may break the shared memory of the step counts."""
        vars(self).update(state, steps=[*state["_counts"]])

    @torch.no_grad()
    def step(self, num_updates: int, found_inf: Tensor | None = None) -> None:
        """Update the parameters that have a gradient.

        Args:
            num_updates: argument of the schedule.
            found_inf: 0-d tensor on the device; if it is 1, the step has no effect.
        """
        reached = [number for number, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if not reached:
            return
        parts = self.parameters, self.means, self.squares, self.steps
        parameters, means, squares, steps = ([part[number] for number in reached] for part in parts)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.set_rate(num_updates)
        rate = self.latest_rate if self.device_rate is None else self.device_rate
        if torch_private.is_traced():
            self._step_by_parts(reached, rate, found_inf)
            return
        counts = [self._counts] if len(reached) == len(self.parameters) else steps
        torch_private.foreach_add_(counts, 1.0)
        if found_inf is not None:
            torch_private.foreach_add_(counts, found_inf, alpha=-1.0)
        options = {"lr": rate, "eps": self.eps, **ADAM, "found_inf": found_inf}
        columns = parameters, gradients, means, squares, steps
        for decays in self.kinds:
            if len(self.kinds) == 1:
                *some, counted = columns
            elif own := [i for i, number in enumerate(reached) if self.decays[number] == decays]:
                *some, counted = ([part[i] for i in own] for part in columns)
            else:
                continue
            step = torch_private.fused_adamw_ if decays else torch_private.fused_adam_
            step(*some, [], counted, weight_decay=self.weight_decay if decays else 0.0, **options)

    def _step_by_parts(self, reached: Sequence[int], rate: float | Tensor, found_inf: Tensor | None) -> None:
        """Make the step in plain operations, which a compiler joins with others."""
        is_skipped = torch.zeros_like(self._counts[0]) if found_inf is None else found_inf
        beta1, beta2 = ADAM["beta1"], ADAM["beta2"]
        for number in reached:
            parameter, mean, square = self.parameters[number], self.means[number], self.squares[number]
            count, gradient = self._counts[number].add_(1.0 - is_skipped), parameter.grad
            assert gradient is not None
            new_mean = torch.lerp(mean, gradient, 1.0 - beta1)
            new_square = beta2 * square + (1.0 - beta2) * gradient.square()
            root = new_square.sqrt() / (1.0 - beta2**count).sqrt() + self.eps
            decay = 1.0 - rate * self.weight_decay if self.decays[number] else 1.0
            new = decay * parameter - rate / (1.0 - beta1**count) * new_mean / root
            for old, changed in ((parameter, new), (mean, new_mean), (square, new_square)):
                old.copy_(torch.where(is_skipped > 0.0, old, changed))

    def set_rate(self, num_updates: int) -> None:
        """Set the rate of the next step by the schedule, if there is one.

        On a GPU it is rounded to float32, as in a CUDA graph, so that updates with and without a graph are equal.
        """
        if not callable(self.rate):
            self.latest_rate = self.rate
        else:
            rate = self.rate(num_updates)
            self.latest_rate = float(np.float32(rate)) if self._counts.is_cuda else rate

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and the step count of each parameter."""
        return {"means": self.means, "squares": self.squares, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        with torch.no_grad():
            for name, saved in state.items():
                for own, given in zip(getattr(self, name), saved, strict=True):
                    own.copy_(given)


class PolyakAverage:
    """Polyak averages of parameters: target <- polyak * target + (1 - polyak) * source.

    Buffers, such as the statistics of a batch norm, are copied, as `torch.optim.swa_utils.AveragedModel` does with
    ``use_buffers=False``, its default. Targets are in eval mode. An update takes a few operations over all tensors.
    """

    def __init__(self, pairs: Sequence[tuple[nn.Module, nn.Module]], polyak: float) -> None:
        self.targets: list[Tensor] = [parameter for target, _ in pairs for parameter in target.parameters()]
        self.sources: list[Tensor] = [parameter for _, source in pairs for parameter in source.parameters()]
        self.target_buffers: list[Tensor] = [buffer for target, _ in pairs for buffer in target.buffers()]
        self.source_buffers: list[Tensor] = [buffer for _, source in pairs for buffer in source.buffers()]
        self.polyak = polyak
        for target, _ in pairs:
            target.eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, found_inf: Tensor | None = None) -> None:
        """Move all targets once. If `found_inf`, a 0-d tensor on the device, is 1, do nothing."""
        for target, source in zip(self.target_buffers, self.source_buffers, strict=True):
            target.copy_(source if found_inf is None else torch.where(found_inf > 0.0, target, source))
        if not self.targets:
            return
        share = 1.0 - self.polyak
        if found_inf is None:
            torch_private.foreach_lerp_(self.targets, self.sources, share)
            return
        # With a tensor as weight, a lerp would take one operation for each target.
        changes = torch_private.foreach_sub(self.sources, self.targets)
        torch_private.foreach_mul_(changes, (found_inf * -share).add_(share))
        torch_private.foreach_add_(self.targets, changes)


def laid_out(gradient: Tensor | None, parameter: Tensor) -> Tensor | None:
    """Return `gradient` with its parameter's strides, because the fused step reads both in memory order."""
    if gradient is None or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def clip(parameters: list[Tensor], largest: float) -> None:
    """Clip the joint norm of all gradients to `largest`."""
    reached = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in reached if parameter.grad is not None]
    if not gradients:
        return
    norm = torch.linalg.vector_norm(torch.stack(torch_private.foreach_norm(gradients)))
    # Not in place: two parameters may share one gradient tensor.
    scaled = torch_private.foreach_mul(gradients, (largest / (norm + CLIP_EPSILON)).clamp(max=1.0))
    for parameter, gradient in zip(reached, scaled, strict=True):
        parameter.grad = gradient


def loss_and_stats(algorithm: Any, name: str, returned: Any) -> tuple[Tensor, Stats]:
    """Return what the method `name` of an algorithm has returned, if it is a pair of a loss and statistics."""
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
        if name == "actor_loss" and "entropy" not in returned[1] and hasattr(algorithm, "alpha_optimizer"):
            raise UserError(
                f"{type(algorithm).__name__}.actor_loss returns no statistic 'entropy', from which the temperature "
                f'learns; return loss, {{"entropy": ...}}'
            )
        return returned
    what = f"a {type(returned).__name__}"
    if isinstance(returned, tuple):
        what += f" of {' and '.join(', '.join(type(one).__name__ for one in returned).rsplit(', ', 1))}"
    raise UserError(
        f"{type(algorithm).__name__}.{name} returns {what}; return the loss and a dictionary of statistics, as in "
        f"`return loss, {{}}`"
    )
