"""Parts of losses and targets: Polyak averages, temperature, Lagrange multiplier, observation statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.algorithms.nonfinite import current

EPSILON = 1e-8  # added to variances
LARGEST_MULTIPLIER = 1e6


class PolyakAverage:
    """Targets that follow their sources: target <- polyak * target + (1 - polyak) * source, in few operations."""

    def __init__(self, pairs: Sequence[tuple[nn.Module, nn.Module]], polyak: float) -> None:
        self.targets: list[Tensor] = [parameter for target, _ in pairs for parameter in target.parameters()]
        self.sources: list[Tensor] = [parameter for _, source in pairs for parameter in source.parameters()]
        self.polyak = polyak
        for parameter in self.targets:
            parameter.requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        """Move all targets once; in an agent's update, only if no bad number was found in it."""
        if not self.targets:
            return
        watch, whole = current(), 1.0 - self.polyak
        if watch is not None and watch.blocks_update:
            return
        found_inf = None if watch is None else watch.found_inf
        if found_inf is None:
            torch._foreach_lerp_(self.targets, self.sources, whole)
            return
        # A lerp by tensors would be an operation for each target.
        ways = torch._foreach_sub(self.sources, self.targets)
        torch._foreach_mul_(ways, (found_inf * -whole).add_(whole))
        torch._foreach_add_(self.targets, ways)


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


class LagrangeMultiplier(nn.Module):
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
        """`forward` in NumPy, see `offpcc.networks.numpy_inference`."""
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
