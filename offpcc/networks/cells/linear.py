"""Linear layers whose gradients are computed in the cheapest order."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from offpcc.networks.numpy_inference import Mirror, mirror_of_linear


def gradient_of_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """Return dL/dW (num_out, num_in) of x W^T, from dL/d(x W^T) (M, num_out) and x (M, num_in), where M is large."""
    # If num_in is small, CPU libraries take several times as long for one order of the product as for the other.
    return (x.t() @ gradient).t() if x.shape[1] < gradient.shape[1] else gradient.t() @ x


def as_float32(x: Tensor) -> Tensor:
    """Return `x` in float32 if autocast made it bfloat16 or float16, for computations that need more precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class Linear(nn.Linear):
    """`nn.Linear` with a gradient that is also fast for narrow inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., num_in) -> (..., num_out)."""
        return linear(x, self.weight, self.bias)

    def mirror(self) -> Mirror:
        """Return the NumPy version; see `offpcc.networks.numpy_inference`."""
        return mirror_of_linear(self)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b for x (..., num_in), W (num_out, num_in) and b (num_out,)."""
    if x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return nn.functional.linear(x, weight, bias)
    y: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        flat = gradient.reshape(-1, gradient.shape[-1])
        return (
            (flat @ weight).view_as(x) if for_x else None,
            gradient_of_weight(flat, x.reshape(-1, x.shape[-1])) if for_weight else None,
            flat.sum(0) if for_bias else None,
        )
