"""Components of algorithms: temperature, Lagrange multiplier, observation normalisation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

EPSILON = 1e-8  # added to variances
LARGEST_ROUNDING = 1e-6  # relative standard deviation of a column of float32 that is constant
HIDING_VARIANCE = 1e30  # so large that a normalised column is 0
LARGEST_MULTIPLIER = 1e6


class Temperature(nn.Module):
    """SAC's temperature alpha, fixed or learned (Haarnoja et al. 2018b, eq. 18, on log alpha)."""

    def __init__(self, initial: float, learned: bool, target_entropy: float = 0.0) -> None:
        super().__init__()
        log_alpha = torch.tensor(float(initial)).log()
        self.log_alpha = nn.Parameter(log_alpha, requires_grad=learned)
        self.target_entropy = target_entropy

    def forward(self) -> Tensor:
        """Return alpha, 0-d, without gradient: only `loss` trains it."""
        return self.log_alpha.detach().exp()

    def learned_parameters(self) -> list[Tensor]:
        """Return the parameters for an optimizer; none if alpha is fixed."""
        return [self.log_alpha] if self.log_alpha.requires_grad else []

    def loss(self, entropy: Tensor) -> Tensor:
        """Return the loss; minimising it lowers alpha while `entropy` (0-d, over counted steps) is above the target."""
        return self.log_alpha * (entropy.detach() - self.target_entropy)


class LagrangeMultiplier(Temperature):
    """CQL's multiplier alpha', learned if there is a threshold, else 1 (Kumar et al. 2020, arXiv:2006.04779)."""

    def __init__(self, threshold: float | None) -> None:
        super().__init__(1.0, threshold is not None)
        self.threshold = 0.0 if threshold is None else threshold

    def forward(self) -> Tensor:
        """Return alpha', 0-d, without gradient: only `loss` trains it."""
        return super().forward().clamp(max=LARGEST_MULTIPLIER)

    def loss(self, excess: Tensor) -> Tensor:
        """Return the loss; minimising it raises alpha' while `excess` over the threshold, 0-d, is above 0."""
        return -self.log_alpha.exp() * excess.detach()

    @torch.no_grad()
    def bound(self) -> None:
        """Limit alpha'. A limit inside of the loss would have no gradient above it, so alpha' could not fall again."""
        self.log_alpha.clamp_(max=math.log(LARGEST_MULTIPLIER))


def find_constant(mean: Any, std: Any) -> Any:
    """Return which columns of data do not change, by their mean and standard deviation in float64."""
    return std <= LARGEST_ROUNDING * abs(mean)


class RunningNormalization(nn.Module):
    """Normalises observations by the running mean and standard deviation of the observations in updates.

    If `shifts` is False, it divides by the standard deviation and does not subtract the mean. Then the mean and the
    deviation from it are clipped, each to +/- `limit`, so that no dimension with a large mean becomes constant.

    In unpacked Dict observations, it normalises the vectors, which come first, and leaves the pixels as they are.
    `forward` applies the statistics and `update` changes them. Only training calls `update`, so statistics are constant
    in tests. `set_statistics` sets the statistics of a whole dataset; then they stay constant.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], limit: float = 10.0, shifts: bool = True) -> None:
        super().__init__()
        self.limit, self.shifts = limit, shifts
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros(()))

    @property
    def kind(self) -> bool | str:
        """The value of `normalize_observations` that this is: True, or "scale" without subtracting the mean."""
        return self.shifts or "scale"

    def forward(self, observations: Tensor) -> Tensor:
        """Return normalised `observations` (..., *shape), clipped to +/- `limit` standard deviations from the mean."""
        num = self.mean.shape[-1] if self.mean.dim() == 1 else observations.shape[-1]
        rate = (self.variance + EPSILON).rsqrt()
        scaled = ((observations[..., :num] - self.mean) * rate).clamp(-self.limit, self.limit)
        if not self.shifts:
            scaled = scaled + (self.mean * rate).clamp(-self.limit, self.limit)
        return scaled if num == observations.shape[-1] else torch.cat([scaled, observations[..., num:]], -1)

    def mirror(self) -> Callable[[Any], Any]:
        """Return `forward` in NumPy, see `offpcc.networks.numpy_inference`."""
        mean, variance, limit, shifts = self.mean.numpy(), self.variance.numpy(), self.limit, self.shifts

        def normalize(observations: Any) -> Any:
            num = mean.shape[-1]
            std = np.sqrt(variance + EPSILON)
            scaled = ((observations[..., :num] - mean) / std).clip(-limit, limit)
            if not shifts:
                scaled = scaled + (mean / std).clip(-limit, limit)
            return scaled if num == observations.shape[-1] else np.concatenate([scaled, observations[..., num:]], -1)

        return normalize

    @torch.no_grad()
    def set_statistics(self, mean: Any, std: Any, margin: float = 1e-3) -> None:
        """Fix the statistics: `forward` gives (o - mean) / (std + margin) (Fujimoto & Gu 2021, arXiv:2106.06860).

        Dimensions that are constant in the data become 0, whatever is observed later: networks have learned nothing of
        them, and a small difference, divided by the margin, would be a large input. Later calls of `update` have no
        effect.

        Args:
            mean: mean of a dataset's observations, an array of their shape.
            std: their standard deviation, of the same shape.
            margin: added to `std`.
        """
        mean, std = (torch.as_tensor(x, dtype=torch.float64, device=self.mean.device) for x in (mean, std))
        self.mean.copy_(mean)
        variance = (std + margin).square() - EPSILON
        self.variance.copy_(torch.where(find_constant(mean, std), HIDING_VARIANCE, variance))
        self.count.fill_(math.inf)  # with an infinite count, `update` has no effect

    @torch.no_grad()
    def update(self, observations: Tensor, weights: Tensor) -> None:
        """Update the statistics by `observations` (M, *shape) (Chan et al. 1979).

        `weights` (M,) are 1 for observations that count, and 0 for padding.
        """
        observations = observations[..., : self.mean.shape[-1]]
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
