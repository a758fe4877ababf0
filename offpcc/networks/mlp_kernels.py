"""Hand-written forward and backward passes of MLPs on the CPU, for fused updates.

In a small network, the overhead of each operation is a large part of the cost. With many rows, memory traffic between
operations is another. Here, a whole network is one autograd operation, and rows pass through all layers in blocks that
stay in the CPU cache. On other devices, and for networks that are not plain (see `layers.is_plain`), PyTorch's layers
compute the same. The tests compare the two.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

BLOCK = 2**18  # numbers in the widest layer's output for one block of rows: 1 MB in float32


def rows_of_block(widths: Iterable[int]) -> int:
    """Return the number of rows in one block, for a network with layers of these widths."""
    return max(BLOCK // max(widths, default=1), 1)


def takes_kernels(x: Tensor) -> bool:
    """Check whether `perceptrons` may read `x`. An exported program has PyTorch's layers only."""
    return x.device.type == "cpu" and not torch.compiler.is_exporting()


class _Perceptrons(torch.autograd.Function):
    """y = W_L relu(... relu(W_1 x + b_1) ...) + b_L for N networks. It computes only the gradients that are needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        hidden = [x.new_empty(*x.shape[:2], weight.shape[2]) for weight in weights]
        rows_at_once = rows_of_block(weight.shape[2] for weight in weights)
        for number in range(len(x)):
            members = [(w[number], b[number], h[number]) for w, b, h in zip(weights, biases, hidden, strict=True)]
            for start in range(0, x.shape[1], rows_at_once):
                read = x[number, start : start + rows_at_once]
                for layer, (weight, bias, rows) in enumerate(members):
                    write = rows[start : start + rows_at_once]
                    torch.addmm(bias, read, weight, out=write)
                    read = write.relu_() if layer < len(weights) - 1 else write
        ctx.save_for_backward(x, *hidden[:-1], *weights)
        return hidden[-1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        depth = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        for_x, for_parameters = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        of_x = torch.empty_like(inputs[0]) if for_x else None
        of_weights = [torch.empty_like(weight) for weight in weights] if for_parameters else []
        of_biases = [weight.new_empty(len(weight), 1, weight.shape[2]) for weight in weights] if for_parameters else []
        rows_at_once = rows_of_block(weight.shape[2] for weight in weights)
        for number in range(len(gradient)):
            for start in range(0, gradient.shape[1], rows_at_once):
                block = slice(start, start + rows_at_once)
                down = gradient[number, block]
                for layer in reversed(range(depth)):
                    read, weight = inputs[layer][number, block], weights[layer][number]
                    if for_parameters and start == 0:
                        torch.mm(read.t(), down, out=of_weights[layer][number])
                        torch.sum(down, 0, keepdim=True, out=of_biases[layer][number])
                    elif for_parameters:
                        of_weights[layer][number].addmm_(read.t(), down)
                        of_biases[layer][number].add_(down.sum(0))
                    if layer > 0:
                        down = torch.mm(down, weight.t())
                        torch.ops.aten.threshold_backward.grad_input(down, read, 0, grad_input=down)
                    elif of_x is not None:
                        torch.mm(down, weight.t(), out=of_x[number, block])
        if not for_parameters:
            return of_x, *[None] * (2 * depth)
        return of_x, *(tensor for pair in zip(of_weights, of_biases, strict=True) for tensor in pair)


def perceptrons(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Run N MLPs on x (N, M, in) -> (N, M, out); weights (N, in, out) and biases (N, 1, out) alternate."""
    y: Tensor = _Perceptrons.apply(x, *parameters)  # type: ignore[no-untyped-call]
    return y


def evaluate_perceptrons(x: Tensor, parameters: Sequence[Tensor], members: Tensor | None = None) -> Tensor:
    """Run the MLPs `members` (N,), by default all, on x (N, M, in) -> (N, M, out) on a CPU, without gradients."""
    weights, biases = parameters[::2], parameters[1::2]
    rows_at_once = min(rows_of_block(weight.shape[2] for weight in weights), x.shape[1])
    hidden = [x.new_empty(rows_at_once, weight.shape[2]) for weight in weights[:-1]]
    y = x.new_empty(*x.shape[:2], weights[-1].shape[2])
    for number, member in enumerate(range(len(x)) if members is None else members.tolist()):
        layers = [(weight[member], bias[member]) for weight, bias in zip(weights, biases, strict=True)]
        for start in range(0, x.shape[1], rows_at_once):
            read, written = x[number, start : start + rows_at_once], y[number, start : start + rows_at_once]
            for (weight, bias), rows in zip(layers[:-1], hidden, strict=True):
                write = rows[: len(read)]
                torch.addmm(bias, read, weight, out=write)
                read = write.relu_()
            torch.addmm(layers[-1][1], read, layers[-1][0], out=written)
    return y
