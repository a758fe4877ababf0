"""Layers that several networks share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU between them, none after the last."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def beside(summary: Tensor, x: Tensor) -> Tensor:
    """`summary` (..., H) and `x` (..., D) joined; several x (..., S, D) for one summary each have it: (..., S, H+D)."""
    summary = summary if x.dim() == summary.dim() else summary.unsqueeze(-2)
    return torch.cat([summary.expand(*x.shape[:-1], summary.shape[-1]), x], -1)


class EnsembleLinear(nn.Module):
    """N linear layers side by side, one batched product; each is initialised as `nn.Linear` would be."""

    def __init__(self, num: int, num_in: int, num_out: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_in)
        self.weight = nn.Parameter(torch.empty(num, num_in, num_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num, 1, num_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(N, M, num_in) -> (N, M, num_out)."""
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation with N sets of scales and shifts."""

    def __init__(self, num: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num, 1, dim))
        self.bias = nn.Parameter(torch.zeros(num, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(N, M, dim) -> (N, M, dim)."""
        normalised = nn.functional.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.bias, normalised, self.weight)
