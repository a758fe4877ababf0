"""What learning needs beside networks: optimizers, schedules, Polyak averages, multipliers, noise, statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.checks import NonnegativeNumber, PositiveInteger, Rule, is_number, with_parentheses
from offpcc.registry import configurable

EPSILON = 1e-8  # added to variances
CLIP_EPSILON = 1e-6  # added to norms, as PyTorch does
LARGEST_MULTIPLIER = 1e6
Schedule = Callable[[int], float]  # learning rate as a function of the number of updates made


def _is_rate(value: Any) -> bool:
    return is_number(value, 0.0) or (callable(value) and not isinstance(value, type))


Rate = Annotated[
    float | Schedule,
    Rule("a number, 0 or more, or a schedule such as @LinearDecay()", _is_rate, with_parentheses),
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
        max_gradient_norm: if given, gradients of all groups together are clipped to this norm.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Iterable[Tensor], float | Schedule]],
        max_gradient_norm: float | None = None,
    ) -> None:
        filled = [(list(parameters), rate) for parameters, rate in groups]
        self.groups = [Group(parameters, rate) for parameters, rate in filled if parameters]
        self.parameters = [parameter for group in self.groups for parameter in group.parameters]
        self.max_gradient_norm = max_gradient_norm
        self.num_updates = 0

    def minimize(self, loss: Tensor, made: int | None = None) -> None:
        """One step down the gradient of `loss` with respect to the own parameters; without any, nothing.

        Args:
            loss: 0-d.
            made: updates that the algorithm has made, for schedules; by default the own steps.
        """
        if not self.parameters:
            return
        with torch.autocast(loss.device.type, enabled=False):  # each product's gradient is of its own precision
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = laid_out(gradient, parameter)
        if self.max_gradient_norm is not None:
            clip(self.parameters, self.max_gradient_norm)
        for group in self.groups:
            group.step(self.num_updates if made is None else made)
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

    @torch.no_grad()
    def step(self, made: int) -> None:
        """Move the parameters that have a gradient, once `made` updates have been made."""
        reached = [number for number, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if not reached:
            return
        parts = self.parameters, self.means, self.squares, self.steps
        parameters, means, squares, steps = ([part[number] for number in reached] for part in parts)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.latest_rate = self.rate(made) if callable(self.rate) else self.rate
        torch._foreach_add_(steps, 1.0)
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


class PolyakAverage:
    """Targets that follow their sources: target <- polyak * target + (1 - polyak) * source, in one fused step."""

    def __init__(self, pairs: Sequence[tuple[nn.Module, nn.Module]], polyak: float) -> None:
        self.targets: list[Tensor] = [parameter for target, _ in pairs for parameter in target.parameters()]
        self.sources: list[Tensor] = [parameter for _, source in pairs for parameter in source.parameters()]
        self.polyak = polyak
        for parameter in self.targets:
            parameter.requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        """Move all targets once."""
        if self.targets:
            torch._foreach_lerp_(self.targets, self.sources, 1.0 - self.polyak)


class Temperature(nn.Module):
    """SAC's temperature alpha, fixed or learned (Haarnoja et al. 2018b, eq. 18, on log alpha).

    Args:
        initial: alpha at the start, or for good when it is not learned.
        learned: whether alpha follows the target entropy.
        target_entropy: in nats.
    """

    def __init__(self, initial: float, learned: bool, target_entropy: float) -> None:
        super().__init__()
        log_alpha = torch.tensor(float(initial)).log()
        self.log_alpha = nn.Parameter(log_alpha, requires_grad=learned)
        self.target_entropy = target_entropy

    def forward(self) -> Tensor:
        """Alpha, 0-d, without gradient: only `loss` moves it."""
        return self.log_alpha.detach().exp()

    def learned_parameters(self) -> list[Tensor]:
        """What an optimizer may move."""
        return [self.log_alpha] if self.log_alpha.requires_grad else []

    def loss(self, entropy: Tensor) -> Tensor:
        """Rises with alpha while the policy's `entropy` (0-d, over counted steps) is above the target."""
        return self.log_alpha * (entropy.detach() - self.target_entropy)


class Multiplier(nn.Module):
    """CQL's Lagrange multiplier alpha', learned if there is a threshold, else 1 (Kumar et al. 2020, arXiv:2006.04779).

    Args:
        threshold: what a constrained quantity may come to; None for no constraint.
    """

    def __init__(self, threshold: float | None) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(()), requires_grad=threshold is not None)
        self.threshold = 0.0 if threshold is None else threshold

    def forward(self) -> Tensor:
        """alpha', 0-d, without gradient: only `loss` moves it."""
        return self._alpha().detach()

    def learned_parameters(self) -> list[Tensor]:
        """What an optimizer may move."""
        return [self.log_alpha] if self.log_alpha.requires_grad else []

    def loss(self, excess: Tensor) -> Tensor:
        """Rises with alpha' while `excess` (0-d) is below 0; it is what is above the threshold."""
        return -self._alpha() * excess.detach()

    def _alpha(self) -> Tensor:
        return self.log_alpha.exp().clamp(max=LARGEST_MULTIPLIER)


class Noise:
    """A torch generator that can be saved, on the device where its numbers are used."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        # Not the seed itself: initial weights were drawn from it, and noise is not to repeat their numbers.
        own = np.random.SeedSequence((seed, 1)).generate_state(1, np.uint64) >> np.uint64(1)
        self.generator = torch.Generator(device).manual_seed(int(own[0]))

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers of `like`'s shape and dtype."""
        return torch.randn(like.shape, generator=self.generator, device=self.device, dtype=like.dtype)

    def array(self, *shape: int) -> np.ndarray:
        """What `normal` gives for a float32 tensor of this shape on the CPU, as an array."""
        numbers: np.ndarray = torch.randn(shape, generator=self.generator).numpy()
        return numbers

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers between -1 and 1, each as likely, of `like`'s shape and dtype."""
        numbers = torch.rand(like.shape, generator=self.generator, device=self.device, dtype=like.dtype)
        return 2.0 * numbers - 1.0

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Integers in [low, high), int64."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state."""
        return {"state": self.generator.get_state(), "device": self.device.type}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`; a generator of another kind of device cannot, and keeps its own."""
        if state["device"] == self.device.type:
            self.generator.set_state(state["state"].cpu())


class RunningNormalization(nn.Module):
    """Observations shifted and scaled by the running mean and standard deviation of those learned from.

    `forward` only applies; `update` learns, and is called while learning alone, so tests see frozen statistics.
    Statistics of a whole data set, once given to `set_statistics`, stay as they are.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], limit: float = 10.0) -> None:
        super().__init__()
        self.limit = limit
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, observations: Tensor) -> Tensor:
        """Normalised `observations` (..., *shape), within +/- `limit` standard deviations."""
        scaled = (observations - self.mean) * (self.variance + EPSILON).rsqrt()
        return scaled.clamp(-self.limit, self.limit)

    def mirror(self) -> Callable[[Any], Any]:
        """`forward` in NumPy, see `offpcc.networks.mirrors`."""
        mean, variance, limit = self.mean.numpy(), self.variance.numpy(), self.limit
        return lambda observations: ((observations - mean) / np.sqrt(variance + EPSILON)).clip(-limit, limit)

    @torch.no_grad()
    def set_statistics(self, mean: Any, std: Any, margin: float = 1e-3) -> None:
        """From now on, `forward` gives (o - mean) / (std + margin) (Fujimoto & Gu 2021, arXiv:2106.06860), for good.

        Args:
            mean: of all observations of a data set, an array of their shape.
            std: their standard deviation.
            margin: keeps observations finite that never change in the data.
        """
        mean, std = (torch.as_tensor(x, dtype=torch.float64, device=self.mean.device) for x in (mean, std))
        self.mean.copy_(mean)
        self.variance.copy_((std + margin).square() - EPSILON)
        self.count.fill_(math.inf)  # beside so many, whatever `update` brings has no weight

    @torch.no_grad()
    def update(self, observations: Tensor, weights: Tensor) -> None:
        """Learn from `observations` (M, *shape) whose `weights` (M,) are 1 where they count (Chan et al. 1979)."""
        weights = weights.reshape(-1, *(1,) * self.mean.dim())
        added = weights.sum()
        mean = (observations * weights).sum(0) / added.clamp(min=1.0)
        variance = ((observations - mean).square() * weights).sum(0) / added.clamp(min=1.0)
        total = self.count + added
        delta = mean - self.mean
        share = added / total.clamp(min=1.0)
        self.variance.lerp_(variance, share).add_(delta.square() * share * (1.0 - share))
        self.mean.add_(delta * share)
        self.count.copy_(total)
