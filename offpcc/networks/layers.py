"""MLPs and ensemble layers that several networks share."""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from offpcc.networks.mlp_kernels import perceptrons, rows_of_block, takes_kernels
from offpcc.networks.noise import Noise
from offpcc.utils.torch_private import HOOKS

EXPANSION = 4  # inner width of a residual block, by its width


class MLP(nn.Sequential):
    """Linear layers with ReLU between them. There is no ReLU after the last layer."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.rows_at_once = rows_of_block(layer.out_features for layer in layers if isinstance(layer, nn.Linear))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        rows = x.shape[:-1]
        if torch.is_autocast_enabled(x.device.type):  # the last layer runs in float32
            *hidden, last = self
            for layer in hidden:
                x = layer(x)
            with torch.autocast(x.device.type, enabled=False):
                y: Tensor = last(x.float())
                return y
        if takes_kernels(x) and rows.numel() >= self.rows_at_once and is_plain(self, nn.Linear):
            return perceptrons(x.reshape(1, -1, x.shape[-1]), self._as_one()).view(*rows, -1)
        y = super().forward(x)  # type: ignore[no-untyped-call]
        return y

    def _as_one(self) -> list[Tensor]:
        """Return the parameters as an ensemble of one: weights (1, in, out) and biases (1, 1, out)."""
        return [p.t().unsqueeze(0) if p.dim() == 2 else p.view(1, 1, -1) for p in self.parameters()]


class HiddenLayers(tuple[int, ...]):
    """Widths of a network's hidden layers, and what else these layers have. A plain tuple of widths is a plain MLP.

    Attributes:
        layer_norm: whether layer norm comes before each ReLU.
        dropout: probability of dropout after each ReLU.
        residual: whether each width is one of a `ResidualBlock`, after a linear layer and before a layer norm.
    """

    layer_norm: bool = False
    dropout: float = 0.0
    residual: bool = False

    def __new__(cls, widths: Sequence[int], **kinds: Any) -> Self:
        """Return the widths with these attributes."""
        layers = super().__new__(cls, widths)
        vars(layers).update(kinds)
        return layers


def head(num_in: int, hidden_dims: Sequence[int], num_out: int) -> MLP:
    """Build a network with these hidden layers; see `HiddenLayers`."""
    return MLP(*layers_of(num_in, hidden_dims, num_out))


def mlp(sizes: Sequence[int]) -> MLP:
    """Build an MLP with these layer widths; the first is the width of the input."""
    return head(sizes[0], sizes[1:-1], sizes[-1])


def layers_of(num_in: int, hidden_dims: Sequence[int], num_out: int, num: int | None = None) -> list[nn.Module]:
    """Return the layers of a network, or of an ensemble of `num` networks. The last layer is linear."""
    linear: Any = nn.Linear if num is None else functools.partial(EnsembleLinear, num)
    norm: Any = nn.LayerNorm if num is None else functools.partial(EnsembleLayerNorm, num)
    hidden = hidden_dims if isinstance(hidden_dims, HiddenLayers) else HiddenLayers(hidden_dims)
    widths, layers = [num_in, *hidden], []
    if hidden.residual:
        layers.append(linear(num_in, hidden[0]))
        for width in hidden:
            inner = linear(width, EXPANSION * width), nn.ReLU(inplace=True), linear(EXPANSION * width, width)
            layers.append(ResidualBlock(norm(width), *inner))
        layers.append(norm(hidden[-1]))
    else:
        for before, width in itertools.pairwise(widths):
            layers += [linear(before, width), *([norm(width)] if hidden.layer_norm else []), nn.ReLU(inplace=True)]
            layers += [Dropout(hidden.dropout)] if hidden.dropout else []
    return [*layers, linear(widths[-1], num_out)]


class Dropout(nn.Dropout):
    """Dropout that draws from `noise`, which the agent sets, so that the agent's seed fixes an update."""

    noise: Noise | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...)."""
        if not self.training:
            return x
        drawn = torch.rand(x.shape, device=x.device) if self.noise is None else self.noise.fractions(x.shape)
        return x * (drawn >= self.p) / (1.0 - self.p)


class ResidualBlock(nn.Sequential):
    """Residual block of SimBa (Lee et al. 2024, arXiv:2410.09754): x + W_2 relu(W_1 norm(x))."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + y


def is_plain(layers: nn.Sequential, linear: type[nn.Module], norm: type[nn.Module] | None = None) -> bool:
    """Check whether `layers` are of the class `linear` with ReLU between them, have biases and have no hooks.

    With `norm`, a layer of this class has to be before each ReLU.
    """
    repeated = itertools.cycle([linear, nn.ReLU] if norm is None else [linear, norm, nn.ReLU])
    kinds = list(itertools.islice(repeated, len(layers)))
    of_kind = [type(layer) is kind for layer, kind in zip(layers, kinds, strict=True)]
    hooked = [len(getattr(layer, kind)) > 0 for layer in layers for kind in HOOKS]
    return all(of_kind) and not any(hooked) and all(getattr(layer, "bias", True) is not None for layer in layers)


def concat_inputs(summary: Tensor, x: Tensor) -> Tensor:
    """Concatenate `summary` (..., H) and `x` (..., D) along the last axis.

    If `x` is (..., S, D), with S vectors per summary, each vector gets the same summary: (..., S, H+D).
    """
    summary = summary if x.dim() == summary.dim() else summary.unsqueeze(-2)
    return torch.cat([summary.expand(*x.shape[:-1], summary.shape[-1]), x], -1)


class EnsembleLinear(nn.Module):
    """N linear layers in parallel, computed as one batched product. Each is initialised like `nn.Linear`."""

    def __init__(self, num: int, num_in: int, num_out: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_in)
        self.weight = nn.Parameter(torch.empty(num, num_in, num_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num, 1, num_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(N, M, num_in) -> (N, M, num_out)."""
        return self.compute(x, self.weight, self.bias)

    @staticmethod
    def compute(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute `forward` with the given weights."""
        if weight.shape[2] == 1:  # a batched product with a single column is several times slower
            return (x * weight.transpose(1, 2)).sum(-1, keepdim=True) + bias
        return torch.baddbmm(bias, x, weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation with N sets of scales and shifts."""

    def __init__(self, num: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num, 1, dim))
        self.bias = nn.Parameter(torch.zeros(num, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(N, M, dim) -> (N, M, dim)."""
        return self.compute(x, self.weight, self.bias)

    @staticmethod
    def compute(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute `forward` with the given weights."""
        normalised = nn.functional.layer_norm(x, x.shape[-1:])
        return torch.addcmul(bias, normalised, weight)


def run_ensemble(layers: Iterable[nn.Module], x: Tensor, weights: Iterator[Tensor]) -> Tensor:
    """Compute the layers of an ensemble with the next of these weights in place of their own."""
    for layer in layers:
        if isinstance(layer, EnsembleLinear | EnsembleLayerNorm):
            x = layer.compute(x, next(weights), next(weights))
        elif isinstance(layer, ResidualBlock):
            x = x + run_ensemble(layer, x, weights)
        else:
            x = layer(x)
    return x
