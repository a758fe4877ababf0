"""Adam, and schedules of its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from offpcc.algorithms.nonfinite import GradientCheck, NonFiniteGuard, current
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

CLIP_EPSILON = 1e-6  # added to norms, as PyTorch does
Schedule = Callable[[int], float]  # learning rate as a function of the number of updates made


def _is_schedule(value: Any) -> bool:
    """Whether `value` gives a learning rate for the first update."""
    if not callable(value) or isinstance(value, type):
        return False
    try:
        return is_number(value(0), 0.0)
    except Exception:  # it is no schedule, or one that fails
        return False


Rate = Annotated[
    float | Schedule,
    either(NONNEGATIVE, Rule("a schedule such as @LinearDecay()", _is_schedule, with_parentheses)),
]


@configurable
class LinearDecay:
    """Learning rate falling linearly from `initial` to `final` over `num_updates` updates, constant afterwards."""

    def __init__(
        self,
        initial: NonnegativeNumber = 3e-4,
        final: NonnegativeNumber = 0.0,
        num_updates: PositiveInteger = 100_000,
    ) -> None:
        self.initial, self.final, self.num_updates = initial, final, num_updates

    def __call__(self, update: int) -> float:
        """The rate for the update after `update` of them."""
        return self.initial + (self.final - self.initial) * min(update / self.num_updates, 1.0)


@configurable
class CosineDecay:
    """Learning rate falling from `initial` to `final` along half a cosine in `num_updates` updates, constant after."""

    def __init__(
        self,
        initial: NonnegativeNumber = 3e-4,
        final: NonnegativeNumber = 0.0,
        num_updates: PositiveInteger = 1_000_000,
    ) -> None:
        self.initial, self.final, self.num_updates = initial, final, num_updates

    def __call__(self, update: int) -> float:
        """The rate for the update after `update` of them."""
        share = 0.5 * (1.0 + math.cos(math.pi * min(update / self.num_updates, 1.0)))
        return self.final + (self.initial - self.final) * share


class Optimizer:
    """Adam over groups of parameters; `minimize` touches no other parameter's gradient.

    PyTorch's fused step is called directly: `torch.optim.Adam` costs more around it than the step itself takes for
    networks of this size. The tests hold one against the other.

    Args:
        groups: pairs of parameters and their learning rate, a number or a schedule.
        max_grad_norm: if given, gradients of all groups together are clipped to this norm.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Iterable[Tensor], float | Schedule]],
        max_grad_norm: float | None = None,
    ) -> None:
        filled = [(list(parameters), rate) for parameters, rate in groups]
        self.groups = [Group(parameters, rate) for parameters, rate in filled if parameters]
        self.parameters = [parameter for group in self.groups for parameter in group.parameters]
        self.max_grad_norm = max_grad_norm
        self.num_updates = 0

    def minimize(self, loss: Tensor, num_updates: int | None = None) -> None:
        """One step down the gradient of `loss` with respect to the own parameters; without any, nothing.

        Args:
            loss: 0-d.
            num_updates: updates that the algorithm has made, for schedules; by default the own steps.
        """
        if not self.parameters:
            return
        with torch.autocast(loss.device.type, enabled=False):  # each product's gradient is of its own precision
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        self.step(gradients, num_updates, loss)

    def step(
        self,
        gradients: Sequence[Tensor | None],
        num_updates: int | None = None,
        loss: Tensor | None = None,
        flat_gradients: Sequence[Tensor] | None = None,
    ) -> None:
        """One step down these gradients of the own parameters, None where there is none; see `minimize`.

        In an agent's update, nothing is changed if they, or the loss, or anything before has bad numbers; see `watch`.
        That is seen in less time of fewer tensors, `flat_gradients`, if these hold all gradients and else only zeros.
        """
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = laid_out(gradient, parameter)
        if self.max_grad_norm is not None:
            clip(self.parameters, self.max_grad_norm)
        watch = current()
        if watch is not None:
            if flat_gradients is None:
                flat_gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            watch.check_gradients(GradientCheck(loss, self.parameters, gradients), flat_gradients)
        for group in self.groups:
            group.step(self.num_updates if num_updates is None else num_updates, watch)
        self.num_updates += 1

    @property
    def rates(self) -> list[float | Schedule]:
        """The learning rate of each group."""
        return [group.rate for group in self.groups]

    def state_dict(self) -> dict[str, Any]:
        """Moments and the number of updates."""
        return {"groups": [group.state_dict() for group in self.groups], "num_updates": self.num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.load_state_dict(saved)
        self.num_updates = state["num_updates"]


class Group:
    """Parameters that Adam (Kingma & Ba 2014, arXiv:1412.6980, algorithm 1) moves at one learning rate.

    Args:
        parameters: at least one.
        rate: a number or a schedule.
    """

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Sequence[Tensor], rate: float | Schedule) -> None:
        self.parameters, self.rate = list(parameters), rate
        self.latest_rate = rate(0) if callable(rate) else rate
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]
        self._count_together()

    def _count_together(self) -> None:
        """Have all steps in one tensor, as one operation takes less time than many."""
        self._counts = torch.stack(self.steps)
        self.steps = [*self._counts]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, which may have lost what shares memory."""
        vars(self).update(state)
        self._count_together()

    @torch.no_grad()
    def step(self, num_updates: int, watch: NonFiniteGuard | None = None) -> None:
        """Move the parameters that have a gradient, at update `num_updates`, unless `watch` found a fault."""
        reached = [number for number, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if not reached:
            return
        parts = self.parameters, self.means, self.squares, self.steps
        parameters, means, squares, steps = ([part[number] for number in reached] for part in parts)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.latest_rate = self.rate(num_updates) if callable(self.rate) else self.rate
        if watch is not None and watch.blocks_update:
            return
        found_inf = None if watch is None else watch.found_inf
        counts = [self._counts] if len(reached) == len(self.parameters) else steps
        torch._foreach_add_(counts, 1.0)
        if found_inf is not None:
            torch._foreach_add_(counts, found_inf, alpha=-1.0)
        torch._fused_adam_(
            parameters,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=self.latest_rate,
            beta1=self.BETAS[0],
            beta2=self.BETAS[1],
            weight_decay=0.0,
            eps=self.EPSILON,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )

    def state_dict(self) -> dict[str, Any]:
        """Moments, and steps made of each parameter."""
        return {"means": self.means, "squares": self.squares, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        with torch.no_grad():
            for name, saved in state.items():
                for own, given in zip(getattr(self, name), saved, strict=True):
                    own.copy_(given)


def laid_out(gradient: Tensor | None, parameter: Tensor) -> Tensor | None:
    """`gradient`, in memory as its parameter is: the fused step walks through both."""
    if gradient is None or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def clip(parameters: list[Tensor], largest: float) -> None:
    """Scale gradients down to the norm `largest` of all of them together, if theirs is more."""
    reached = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in reached if parameter.grad is not None]
    if not gradients:
        return
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    # Not in place: two parameters may have one and the same tensor as their gradient.
    scaled = torch._foreach_mul(gradients, (largest / (norm + CLIP_EPSILON)).clamp(max=1.0))
    for parameter, gradient in zip(reached, scaled, strict=True):
        parameter.grad = gradient
