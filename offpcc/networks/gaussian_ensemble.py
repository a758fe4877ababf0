"""`GaussianEnsemble`: networks that predict a mean and a variance, for models of an environment."""

from __future__ import annotations

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

    One batched matrix product computes each layer of all members; on a CPU, many rows pass through member by member.

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
        """Predict for inputs (N, B, num_in), a batch for each of `members` (N,); default: all."""
        weights: list[Tensor] = list(self.net.parameters())
        low, high = (bound if members is None else bound[members] for bound in (self.low, self.high))
        by_member = takes_kernels(x) and x.shape[1] >= MANY_ROWS and is_plain(self.net, EnsembleLinear)
        if by_member and not torch.is_grad_enabled():
            y = evaluate_perceptrons(x, weights, members)
        else:
            weights = weights if members is None else [weight[members] for weight in weights]
            y = perceptrons(x, weights) if by_member else run_ensemble(self.net, x, iter(weights))
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
