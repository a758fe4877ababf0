"""minGRU, Feng et al. 2024 (arXiv:2410.01201), section 3.1 with the candidates of appendix B.

Of each input x_t a gate z_t = sigmoid(W_z x_t) and a candidate g(W_h x_t), which is above 0 at any input; then
h_t = (1 - z_t) h_{t-1} + z_t g(W_h x_t). Neither reads h_{t-1}, so that all products are taken at once.

Differs from the paper: the recurrence is the one of its logarithmic form, but is computed without logarithms, which its
scan needs and ours does not; h_0 is 0. Gates start with biases that spread the time over which units forget from 1 to
`horizon` steps (Tallec & Ollivier 2018, arXiv:1804.11188). Layers stand in residual blocks, without the convolutions
and MLPs of the paper's language models: what reads a summary is an MLP already.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from offpcc.checks import PositiveInteger
from offpcc.networks.cells.blocks import Blocks, Layer
from offpcc.networks.cells.scans import scan, scan_back, start
from offpcc.networks.mirrors import Array, Mirror, mirror_of, sigmoid
from offpcc.registry import configurable


@configurable
class MinGRU(Blocks):
    """Minimal gated recurrent units: `num_layers` of `hidden_dim`.

    Args:
        num_in: see `Cell`.
        hidden_dim: see `Cell`.
        num_layers: see `Cell`.
        expansion: numbers in a layer's state for each of `hidden_dim`; with more than 1 a product leads back.
        horizon: steps over which the slowest units forget before they have learned; with 1 all gates are half open.
    """

    def __init__(
        self,
        num_in: int,
        hidden_dim: int,
        num_layers: int,
        *,
        expansion: PositiveInteger = 1,
        horizon: PositiveInteger = 100,
    ) -> None:
        widths = [num_in, *[hidden_dim] * (num_layers - 1)]
        super().__init__(num_in, hidden_dim, [MinGRULayer(width, hidden_dim, expansion, horizon) for width in widths])


class MinGRULayer(Layer):
    """One layer, see the module."""

    def __init__(self, num_in: int, hidden_dim: int, expansion: int, horizon: int) -> None:
        super().__init__()
        self.state_dim = expansion * hidden_dim
        self.gates = nn.Linear(num_in, 2 * self.state_dim)  # W_z above W_h: one product
        self.out = nn.Linear(self.state_dim, hidden_dim) if expansion > 1 else nn.Sequential()
        with torch.no_grad():
            self.gates.bias[: self.state_dim].uniform_(-math.log(horizon), 0.0)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `Layer`."""
        gates = self.gates(x)
        # Where products are of bfloat16: 1 - z in 8 bits would forget what is to be kept for hundreds of steps.
        h = gated_scan(gates.float() if gates.dtype == torch.bfloat16 else gates, state)
        return self.out(h), h[:, -1]

    def mirror(self) -> Mirror | None:
        """See `offpcc.networks.mirrors`."""
        gates, out, size = mirror_of(self.gates), mirror_of(self.out), self.state_dim
        if gates is None or out is None:
            return None

        def step(x: Array, state: Array) -> tuple[Array, Array]:
            read = gates(x)
            opened = sigmoid(read)
            read += 0.5
            h = np.maximum(read[:, size:], opened[:, size:])
            h -= state
            h *= opened[:, :size]
            h += state
            return out(h), h

        return step


def gated_scan(gates: Tensor, h0: Tensor | None = None, chunk: int | None = None) -> Tensor:
    """h_t = (1 - z_t) h_{t-1} + z_t g(v_t), where z_t = sigmoid(k_t).

    Args:
        gates: k and v, (B, T, 2N).
        h0: the state before, (B, N); zeros if there is none.
        chunk: see `scan`.
    """
    h0 = start(gates.chunk(2, -1)[0]) if h0 is None else h0
    h: Tensor = _GatedScan.apply(gates, h0, chunk)  # type: ignore[no-untyped-call]
    return h


class _GatedScan(Function):
    """In the place of what is there where it can be: fresh memory costs more than what is computed."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h0: Tensor, chunk: int | None) -> Tensor:
        opened = torch.sigmoid(gates)
        z, c = opened.chunk(2, -1)
        # g(v) is v + 1/2 from 0 on, and sigmoid(v) below: the larger of both.
        kept = gates.chunk(2, -1)[1] + 0.5
        torch.maximum(c, kept, out=c)
        h = scan(torch.sub(1.0, z, out=kept), z * c, h0, chunk)
        ctx.save_for_backward(opened, h, h0)
        ctx.chunk = chunk
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        opened, h, h0 = ctx.saved_tensors
        z, c = opened.chunk(2, -1)
        kept = 1.0 - z
        g = scan_back(kept, gradient.clone(), ctx.chunk)
        of_h0 = kept[:, 0] * g[:, 0]
        g *= z
        of_gates = torch.empty_like(opened)
        of_k, of_v = of_gates.chunk(2, -1)
        torch.sub(c[:, 0], h0, out=of_k[:, 0])
        torch.sub(c[:, 1:], h[:, :-1], out=of_k[:, 1:])
        of_k.mul_(kept).mul_(g)
        # g' is c (1 - c) where c is at most 1/2, and 1 above; a choice by a mask would cost more than all the rest.
        low = torch.clamp(c, max=0.5, out=kept)
        torch.mul(g, low.addcmul_(low, low, value=-1.0), out=of_v)
        of_v.add_(torch.ops.aten.threshold_backward(g, c, 0.5), alpha=0.75)
        return of_gates, of_h0, None
