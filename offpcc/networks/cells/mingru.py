"""minGRU, Feng et al. 2024 (arXiv:2410.01201), section 3.1 with the candidates of appendix B.

h_t = (1 - z_t) h_{t-1} + z_t g(W_h x_t), with the gate z_t = sigmoid(W_z x_t) and the candidate g(W_h x_t), which is
positive for any input. Neither reads h_{t-1}, so the products of all steps are computed at once.

Differs from the paper:

* The recurrence is the paper's log-space form, but it is computed without logarithms. The paper's scan needs them; the
  scan here does not.
* h_0 is 0.
* Initial gate biases spread the forgetting time 1 / z of the units from 2 to `horizon` + 1 steps, as Tallec &
  Ollivier 2018 (arXiv:1804.11188) advise. Here log(1 / z - 1) is uniform.
* Layers are in residual blocks. The first layer reads inputs that are not normalised. There are none of the
  convolutions and MLPs of the paper's language models, because the heads that read a summary are MLPs already.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from offpcc.config.registry import configurable
from offpcc.config.validation import PositiveInteger, Size
from offpcc.networks.cells.linear import as_float32, gradient_of_weight
from offpcc.networks.cells.residual import Blocks
from offpcc.networks.cells.scan import scan, scan_back
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of, sigmoid

BLOCK = 2**16  # numbers of h in a block: 256 KB


@configurable
class MinGRU(Blocks):
    """Minimal gated recurrent units: `num_layers` layers of width `hidden_dim`.

    Args:
        expansion: size of a layer's state as a multiple of `hidden_dim`. Above 1, a linear layer maps the state back to
            `hidden_dim`.
        horizon: initially, the slowest units forget over `horizon` + 1 steps. With 1, all gates start half open.
    """

    def __init__(
        self, num_in: int, hidden_dim: int, num_layers: int, *, expansion: Size = 1, horizon: PositiveInteger = 100
    ) -> None:
        super().__init__(
            num_in, hidden_dim, num_layers, lambda width: MinGRULayer(width, hidden_dim, expansion, horizon)
        )


class MinGRULayer(nn.Module):
    """One minGRU layer; see the module docstring."""

    def __init__(self, num_in: int, hidden_dim: int, expansion: int, horizon: int) -> None:
        super().__init__()
        self.state_dim = expansion * hidden_dim
        self.gates = nn.Linear(num_in, 2 * self.state_dim)  # W_z and W_h stacked, for one product
        self.out = nn.Linear(self.state_dim, hidden_dim) if expansion > 1 else nn.Sequential()
        with torch.no_grad():
            self.gates.bias[: self.state_dim].uniform_(-math.log(horizon), 0.0)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `Blocks`."""
        if torch.compiler.is_exporting() and state is not None:
            z, c = torch.sigmoid(gates := self.gates(x[:, 0])).chunk(2, -1)
            after = state + z * (torch.maximum(c, gates.chunk(2, -1)[1] + 0.5) - state)
            return self.out(after).unsqueeze(1), after
        if x.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
            h = gated_scan(x, state, weight=self.gates.weight, bias=self.gates.bias)
        else:
            # Under bfloat16 autocast, 1 - z in 8 bits could not keep a state for hundreds of steps.
            h = gated_scan(as_float32(self.gates(x)), state)
        return self.out(h), h[:, -1]

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (mirrors := mirrors_of(self.gates, self.out)) is None:
            return None
        (gates, out), size = mirrors, self.state_dim

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


def gated_scan(
    x: Tensor, h0: Tensor | None = None, *, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return h (B, T, N), where h_t = (1 - z_t) h_{t-1} + z_t g(v_t) and z_t = sigmoid(k_t).

    `x` is k and v, (B, T, 2N). If `weight` (2N, num_in) and `bias` (2N,) are given, it is the input (B, T, num_in) of
    the linear layer that gives k and v. `h0` (B, N) is the state before the first step; default: zeros.
    """
    if h0 is None:
        h0 = x.new_zeros(len(x), (x.shape[2] if weight is None else len(weight)) // 2)
    h: Tensor = _GatedScan.apply(x, h0, weight, bias, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return h


class _GatedScan(Function):
    """Gated scan with a hand-written gradient, computed in blocks of steps.

    Memory traffic costs more than arithmetic, unless the data stays in the CPU cache. So each block does all its work,
    from the product to the derivatives, before the next. The forward pass also computes the derivatives of h_t by k_t
    and v_t. The backward pass only multiplies by them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, h0: Tensor, weight: Tensor | None, bias: Tensor | None, learns: bool) -> Tensor:
        h = x.new_empty(*x.shape[:2], h0.shape[1])
        kept, by_gates = (h.new_empty(*h.shape[:2], learns * count * h.shape[2]) for count in (1, 2))
        last = h0
        for part in blocks_of(h):
            gates = x[:, part] if weight is None else nn.functional.linear(x[:, part], weight, bias)
            z, c = torch.sigmoid(gates).chunk(2, -1)
            # g(v) is v + 1/2 for v >= 0, else sigmoid(v). It is the larger of the two.
            torch.maximum(c, gates.chunk(2, -1)[1] + 0.5, out=c)
            left = torch.sub(1.0, z, out=kept[:, part]) if learns else 1.0 - z
            h_part = scan(left, torch.mul(z, c, out=h[:, part]), last)
            if learns:
                by_k, by_v = by_gates[:, part].chunk(2, -1)
                torch.sub(c[:, 0], last, out=by_k[:, 0])
                torch.sub(c[:, 1:], h_part[:, :-1], out=by_k[:, 1:])
                by_k.mul_(z).mul_(left)
                # g' is c (1 - c) if c <= 1/2, else 1. A mask would cost more than all the rest.
                torch.clamp(c, max=0.5, out=by_v)
                by_v.addcmul_(by_v, by_v, value=-1.0)
                by_v.add_(torch.ops.aten.threshold_backward(torch.ones_like(c), c, 0.5), alpha=0.75).mul_(z)
            last = h_part[:, -1]
        ctx.save_for_backward(x, weight, by_gates, kept)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, by_gates, kept = ctx.saved_tensors
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        of_parameters = [] if weight is None else [torch.zeros_like(weight), weight.new_zeros(len(weight))]
        of_last = torch.zeros_like(kept[:, 0])
        for part in reversed(blocks_of(kept)):
            g = gradient[:, part].clone()
            g[:, -1] += of_last
            g = scan_back(kept[:, part], g)
            of_last = kept[:, part.start] * g[:, 0]
            of_gates = (by_gates[:, part].unflatten(2, (2, -1)) * g.unsqueeze(2)).flatten(2)
            if of_parameters:
                flat = of_gates.flatten(0, 1)
                of_parameters[0] += gradient_of_weight(flat, x[:, part].flatten(0, 1))
                of_parameters[1] += flat.sum(0)
            if of_x is not None:
                of_x[:, part] = of_gates if weight is None else of_gates @ weight
        return of_x, of_last, *(of_parameters or (None, None)), None


def blocks_of(h: Tensor) -> list[slice]:
    """Split the steps of `h` (B, T, N) into blocks: on the CPU such that a block stays in the cache, else one block."""
    length = h.shape[1]
    size = max(BLOCK // h[:, 0].numel(), 1) if h.device.type == "cpu" else length
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
