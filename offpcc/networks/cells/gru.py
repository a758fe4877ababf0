"""Gated recurrent units, Cho et al. 2014 (arXiv:1406.1078), with the reset gate after the product, as in PyTorch.

r, z = sigmoid(W x_t + b + U h_{t-1} + c), n = tanh(W_n x_t + b_n + r (U_n h_{t-1} + c_n)), h_t = n + z (h_{t-1} - n).

PyTorch's GRU has no fast kernels on the CPU and takes about twice the time of an LSTM. Here, everything that does not
need h_{t-1} is computed for all steps at once: the products with the inputs and, in the backward pass, the derivatives
of the gates and the gradients of the weights. Each step then needs one product with U and few operations on its result.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from offpcc.config.registry import configurable
from offpcc.core import State
from offpcc.networks.cells.base import Cell
from offpcc.networks.cells.linear import gradient_of_weight
from offpcc.networks.cells.torch_rnn import TorchCell
from offpcc.networks.numpy_inference import Array, Mirror


@configurable
class GRU(TorchCell, nn.GRU, Cell):  # type: ignore[misc]
    """Gated recurrent units: `num_layers` layers of width `hidden_dim`."""

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:  # type: ignore[override]
        """See `Cell.forward`."""
        if x.device.type != "cpu" or torch.compiler.is_exporting():
            return super().forward(x, state)
        h, after = x.transpose(0, 1).contiguous(), []
        for layer, weights in enumerate(self.all_weights):
            before = h.new_zeros(len(x), self.hidden_size) if state is None else state[:, layer]
            h = _Layer.apply(h, before, *weights)  # type: ignore[no-untyped-call]
            after.append(h[-1])
        return h.transpose(0, 1), torch.stack(after, 1)

    def mirror(self) -> Mirror:
        """Return the NumPy version; see `offpcc.networks.numpy_inference`."""
        layers, size = self.weights(), self.hidden_size
        half = np.array(0.5, layers[0][0].dtype)

        def step(x: Array, state: State) -> tuple[Array, State]:
            before = state if state is not None else self.zero_state(x)
            h = np.empty_like(before)
            for layer, (weight, recurrent, bias, other_bias) in enumerate(layers):
                new, old, kept = np.dot(x, weight), np.dot(before[:, layer], recurrent), before[:, layer]
                new += bias
                old += other_bias
                gates = new[:, : 2 * size]
                gates += old[:, : 2 * size]
                gates *= half  # a sigmoid is tanh(x / 2) / 2 + 1 / 2
                np.tanh(gates, gates)
                gates *= half
                gates += half
                n, reset = new[:, 2 * size :], old[:, 2 * size :]
                reset *= gates[:, :size]
                n += reset
                np.tanh(n, n)
                x = kept - n
                x *= gates[:, size:]
                x += n
                h[:, layer] = x
            return x, h

        return step


class _Layer(Function):
    """One GRU layer, with steps as the first axis.

    It maps x (T, B, num_in), h_0 (B, N), and PyTorch's weights and biases to h (T, B, N). It computes in float32 also
    under bfloat16 autocast: gates with 8 bits of precision would lose long memories.
    """

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor, h0: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
        (length, rows, _), size = x.shape, h0.shape[1]
        gates, h = x.new_empty(length, rows, 3 * size), x.new_empty(length + 1, rows, size)
        read, flat = x.flatten(0, 1), gates.flatten(0, 1)
        # `gates` gets the terms to which each step adds U h_{t-1}: those of r, of z, and the part of n that r
        # multiplies. `n` gets the other part of n.
        torch.addmm((b + c)[: 2 * size], read, w[: 2 * size].t(), out=flat[:, : 2 * size])
        flat[:, 2 * size :] = c[2 * size :]
        n = torch.addmm(b[2 * size :], read, w[2 * size :].t()).view(length, rows, size)
        h[0] = h0
        before, *following = h.unbind(0)
        recurrent = u.t().contiguous()
        steps = (each.unbind(0) for each in (gates, gates[..., : 2 * size], *gates.chunk(3, -1), n))
        for all_t, open_t, r_t, z_t, v_t, n_t, h_t in zip(*steps, following, strict=True):
            all_t.addmm_(before, recurrent)
            open_t.sigmoid_()
            n_t.addcmul_(r_t, v_t).tanh_()
            before = torch.lerp(n_t, before, z_t, out=h_t)
        ctx.save_for_backward(x, w, u, gates, n, h)
        return h[1:]

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, w, u, gates, n, h = ctx.saved_tensors
        size, before = n.shape[2], h[:-1]
        r, z, v = gates.chunk(3, -1)
        # Derivatives of h_t by the input of each gate. Multiplied by dL/dh_t, they become the gradients.
        of_gates = torch.empty_like(gates)
        of_r, of_z, of_v = of_gates.chunk(3, -1)
        of_n = (n * n).neg_().add_(1.0)
        of_n.addcmul_(of_n, z, value=-1.0)
        torch.mul(of_n, r, out=of_v)
        torch.mul(of_v, v, out=of_r).addcmul_(of_r, r, value=-1.0)
        torch.sub(before, n, out=of_z).mul_(z)
        of_z.addcmul_(of_z, z, value=-1.0)
        g = torch.empty_like(h)
        g[0] = 0.0
        g[1:] = gradient
        steps = g.unbind(0)
        views = (each.unbind(0) for each in (of_gates, of_gates.view(*n.shape[:2], 3, size), z))
        for g_t, g_before, all_t, each_t, z_t in reversed(list(zip(steps[1:], steps[:-1], *views, strict=True))):
            each_t.mul_(g_t.unsqueeze(1))
            g_before.addcmul_(g_t, z_t).addmm_(all_t, u)
        flat, read = of_gates.flatten(0, 1), x.flatten(0, 1)
        of_u, of_c = gradient_of_weight(flat, before.flatten(0, 1)), flat.sum(0)
        torch.mul(of_n, g[1:], out=of_v)  # from here on, of_v is the gradient of the part of n without r
        of_b = torch.cat([of_c[: 2 * size], of_v.sum((0, 1))])
        of_x = (flat @ w).view_as(x) if ctx.needs_input_grad[0] else None
        return of_x, g[0], gradient_of_weight(flat, read), of_u, of_b, of_c
