"""Forward and backward passes of MLPs, written by hand for fused updates.

What a small network costs beside its matrix products is mostly the overhead of operations, and for many rows the
passes over memory between them. Here a network is one operation to autograd, and rows go through all its layers in
blocks that stay in the processor's cache. Elsewhere than on the CPU, and where a network is not plain, PyTorch's own
layers do the same; the tests hold one against the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

BLOCK = 2**18  # numbers of a layer that a block of rows makes: 1 MB


def rows_of_block(widths: Iterable[int]) -> int:
    """Rows that go through a network of these widths at once."""
    return max(BLOCK // max(widths, default=1), 1)


class _Perceptrons(torch.autograd.Function):
    """y = W_L relu(... relu(W_1 x + b_1) ...) + b_L, of N networks; no gradient is made that nothing asks for."""

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
    """(N, M, in) -> (N, M, out) by N networks, of weights (N, in, out) and biases (N, 1, out) in turn."""
    y: Tensor = _Perceptrons.apply(x, *parameters)  # type: ignore[no-untyped-call]
    return y
