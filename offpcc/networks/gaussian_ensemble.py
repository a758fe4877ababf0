"""`GaussianEnsemble`: networks that predict a mean and a variance, for models of an environment."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from offpcc.networks.layers import EnsembleLinear, HiddenLayers, is_plain, layers_of, run_ensemble
from offpcc.networks.mlp_kernels import evaluate_perceptrons, perceptrons, takes_kernels

ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU, "leaky_relu": nn.LeakyReLU}
LOG_VARIANCE_BOUNDS = -10.0, 0.5  # initial bounds (Chua et al. 2018, PETS)
MANY_ROWS = 128  # rows from which, on a CPU, one member after another is faster than one layer after another
BOUNDS_WEIGHT = 0.01  # of the bounds' distance in the loss


class Prediction(NamedTuple):
    """Predictions of N members for B inputs."""

    mean: Tensor  # (N, B, D)
    log_variance: Tensor  # (N, B, D)
    logit: Tensor  # (N, B, L): of probabilities; L is 0 or 1


class GaussianEnsemble(nn.Module):
    """Ensemble of N networks that predict a diagonal Gaussian (Chua et al. 2018, arXiv:1805.12114).

    One batched matrix product computes each layer of all members. On a CPU, many rows pass through member by member; on
    every device, so do rows that name their members.

    Args:
        num: number of members N.
        num_in: width of the input.
        num_out: number of predicted variables D.
        hidden_dims: widths of the hidden layers.
        activation: "relu", "silu" or "leaky_relu".
        layer_norm: whether a layer normalisation precedes each activation.
        learned_bounds: whether the bounds of the log variance are learned; else they are constant.
        num_logits: number of logits L that are predicted besides.
    """

    def __init__(
        self,
        num: int,
        num_in: int,
        num_out: int,
        hidden_dims: Sequence[int],
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        learned_bounds: bool = True,
        num_logits: int = 0,
    ) -> None:
        super().__init__()
        self.num, self.num_out, self.num_logits = num, num_out, num_logits
        layers = layers_of(num_in, HiddenLayers(hidden_dims, layer_norm=layer_norm), 2 * num_out + num_logits, num)
        activate = ACTIVATIONS[activation]
        self.net = nn.Sequential(*(activate() if isinstance(layer, nn.ReLU) else layer for layer in layers))
        low, high = (torch.full((num, 1, num_out), bound) for bound in LOG_VARIANCE_BOUNDS)
        self.low = nn.Parameter(low, requires_grad=learned_bounds)
        self.high = nn.Parameter(high, requires_grad=learned_bounds)

    def forward(self, x: Tensor, members: Tensor | None = None) -> Prediction:
        """Predict for inputs (N, B, num_in), a batch for each of `members` (N,); default: all.

        With inputs (B, num_in), `members` (B,) names the network of each row, and predictions have no axis N.
        """
        if members is not None and x.dim() == 2:
            return self._bounded(self._run_rows(x, members), self.low[members, 0], self.high[members, 0])
        low, high = (bound if members is None else bound[members] for bound in (self.low, self.high))
        return self._bounded(self._run(x, members), low, high)

    def _run_rows(self, x: Tensor, members: Tensor) -> Tensor:
        """Run each row of x (B, num_in) through the network that `members` (B,) names for it; see `_run`."""
        if not len(x):
            return x.new_empty(0, 2 * self.num_out + self.num_logits)
        order, counts = members.argsort(stable=True), members.bincount().tolist()
        found = [member for member, count in enumerate(counts) if count]
        parts = x.index_select(0, order).split_with_sizes([counts[member] for member in found])
        weights = list(self.net.parameters())
        if self._has_kernels(x) and not torch.is_grad_enabled():
            made = evaluate_perceptrons(parts, weights, found)
        else:
            of_member = ([weight[member, None] for weight in weights] for member in found)
            each = (run_ensemble(self.net, part[None], iter(of)) for part, of in zip(parts, of_member, strict=True))
            made = torch.cat([rows[0] for rows in each])
        return torch.empty_like(made).index_copy_(0, order, made)

    def _run(self, x: Tensor, members: Tensor | None) -> Tensor:
        """Run inputs (N, B, num_in) through `members` (N,): means, log variances without their bounds, and logits."""
        weights: list[Tensor] = list(self.net.parameters())
        by_member = x.shape[1] >= MANY_ROWS and self._has_kernels(x)
        if by_member and not torch.is_grad_enabled():
            numbers = range(self.num) if members is None else members.tolist()
            return evaluate_perceptrons(x.unbind(), weights, numbers).view(*x.shape[:2], -1)
        weights = weights if members is None else [weight[members] for weight in weights]
        return perceptrons(x, weights) if by_member else run_ensemble(self.net, x, iter(weights))

    def _has_kernels(self, x: Tensor) -> bool:
        return takes_kernels(x) and is_plain(self.net, EnsembleLinear)

    def _bounded(self, y: Tensor, low: Tensor, high: Tensor) -> Prediction:
        mean, log_variance, logit = y.split_with_sizes((self.num_out, self.num_out, self.num_logits), -1)
        log_variance = high - functional.softplus(high - log_variance)
        return Prediction(mean, low + functional.softplus(log_variance - low), logit)

    def loss(self, predicted: Prediction, target: Tensor) -> Tensor:
        """Return the negative log likelihood of `target` (N, B, D) without its constant, summed over members, 0-d.

        It is the mean over rows and variables of error^2 / variance + log variance. Learned bounds are drawn together.
        """
        error = (predicted.mean - target).square()
        likelihood = (error * (-predicted.log_variance).exp() + predicted.log_variance).mean((1, 2)).sum()
        if not self.high.requires_grad:
            return likelihood
        return likelihood + BOUNDS_WEIGHT * (self.high.sum() - self.low.sum())
