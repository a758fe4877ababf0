"""Hand-written forward and backward passes of MLPs and critics on the CPU.

In a small network, the overhead of each operation is a large part of the cost. With many rows, memory traffic between
operations is another. Here, a whole network is one autograd operation, and rows pass through all layers in blocks that
stay in the CPU cache. On other devices, and for networks that are not plain (see `layers.is_plain`), PyTorch's layers
compute the same. The tests compare the two.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from offpcc.utils.torch_private import is_traced

BLOCK = 2**18  # numbers in the widest layer's output for one block of rows: 1 MB in float32
DENSE = 0.8  # share of rows with a gradient from which it is computed in all rows
NORM_EPS = 1e-5  # of layer norm, as in PyTorch's layers


def rows_of_block(widths: Iterable[int]) -> int:
    """Return the number of rows in one block, for a network with layers of these widths."""
    return max(BLOCK // max(widths, default=1), 1)


def takes_kernels(x: Tensor) -> bool:
    """Check whether `perceptrons` may read `x`. Exported and compiled programs have PyTorch's layers only."""
    return x.device.type == "cpu" and not is_traced()


class _Perceptrons(torch.autograd.Function):
    """N MLPs with ReLU, or layer norm and ReLU, after each hidden layer. It computes only the needed gradients.

    If many rows have no gradient, it computes the others alone. This is so for the minimum of N critics, where each row
    has a gradient through one of them, and for the masked steps of sequences.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, has_norm: bool, is_differentiated: bool, *parameters: Tensor) -> Tensor:
        layers = _layers(parameters, has_norm)
        y = x.new_empty(*x.shape[:2], layers[-1][0].shape[2])
        rows_at_once = rows_of_block(layer[0].shape[2] for layer in layers)
        kept: list[Tensor] = []  # of each block: each hidden layer's output, then what its layer norm needs
        for number in range(len(x)):
            *hidden, (last_weight, last_bias) = [[parameter[number] for parameter in layer] for layer in layers]
            for start in range(0, x.shape[1], rows_at_once):
                block = slice(start, start + rows_at_once)
                read = x[number, block]
                for weight, bias, *norm in hidden:
                    made = torch.addmm(bias, read, weight)
                    if norm:
                        normalised = torch.native_layer_norm(made, made.shape[1:], norm[0][0], norm[1][0], NORM_EPS)
                        activations = [normalised[0].relu_(), made, *normalised[1:]]
                    else:
                        activations = [made.relu_()]
                    read = activations[0]
                    if is_differentiated:
                        kept += activations
                torch.addmm(last_bias, read, last_weight, out=y[number, block])
        ctx.has_norm, ctx.rows_at_once, ctx.num_parameters = has_norm, rows_at_once, len(parameters)
        ctx.save_for_backward(x, *parameters, *kept)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        parameters, kept = saved[: ctx.num_parameters], iter(saved[ctx.num_parameters :])
        layers = _layers(parameters, ctx.has_norm)
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        of_parameters = [torch.zeros_like(p) for p in parameters] if any(ctx.needs_input_grad[3:]) else []
        of_layers = _layers(of_parameters, ctx.has_norm) if of_parameters else [()] * len(layers)
        for number in range(len(gradient)):
            members = [[parameter[number] for parameter in layer] for layer in layers]
            of_members = [[parameter[number] for parameter in layer] for layer in of_layers]
            for start in range(0, gradient.shape[1], ctx.rows_at_once):
                block = slice(start, start + ctx.rows_at_once)
                activations = [[next(kept) for _ in range(4 if ctx.has_norm else 1)] for _ in layers[1:]]
                down, read = gradient[number, block], x[number, block]
                rows = rows_with_gradient(down)
                if rows is not None:
                    down, read = down.index_select(0, rows), read.index_select(0, rows)
                    activations = [[tensor.index_select(0, rows) for tensor in layer] for layer in activations]
                down = _backward_of_rows(down, read, activations, members, of_members, of_x is not None)
                if of_x is not None and rows is not None:
                    of_x[number, block].zero_().index_copy_(0, rows, down)
                elif of_x is not None:
                    of_x[number, block] = down
        return of_x, None, None, *(of_parameters if of_parameters else [None] * len(parameters))


def rows_with_gradient(gradient: Tensor) -> Tensor | None:
    """Return the numbers of the rows of `gradient` (M, out) that are not zero; None if these are most rows."""
    rows = (gradient.squeeze(1) if gradient.shape[1] == 1 else gradient.any(1)).nonzero().squeeze(1)
    return rows if len(rows) < DENSE * len(gradient) else None


def _layers(parameters: Sequence[Tensor], has_norm: bool) -> list[Sequence[Tensor]]:
    """Return weight and bias, and of hidden layers with layer norm also scale and shift, of each layer."""
    size = 4 if has_norm else 2
    return [parameters[first : first + size] for first in range(0, len(parameters), size)]


def _backward_of_rows(
    down: Tensor,
    x: Tensor,
    activations: Sequence[Sequence[Tensor]],
    layers: Sequence[Sequence[Tensor]],
    gradients: Sequence[Sequence[Tensor]],
    for_x: bool,
) -> Tensor:
    """Return the gradient of rows x (M, in), if `for_x`, and add those of parameters to `gradients`, if it has any.

    `down` (M, out) is the gradient of the output. `activations` are of each hidden layer its output, and with layer
    norm also the norm's input, mean and 1 / deviation.
    """
    reads = [x, *(layer[0] for layer in activations)]
    for depth in reversed(range(len(layers))):
        weight, _, *norm = layers[depth]
        if depth < len(activations):
            output, *before_norm = activations[depth]
            torch.ops.aten.threshold_backward.grad_input(down, output, 0, grad_input=down)
            if norm:
                made, mean, rstd = before_norm  # rstd: 1 / deviation
                wanted = [True, *[len(gradients[depth]) > 0] * 2]
                down, *of_norm = torch.ops.aten.native_layer_norm_backward(
                    down, made, made.shape[1:], mean, rstd, norm[0][0], norm[1][0], wanted
                )
                for target, value in zip(gradients[depth][2:], of_norm, strict=False):
                    target.add_(value)
        if gradients[depth]:
            of_weight, of_bias, *_ = gradients[depth]
            of_weight.addmm_(reads[depth].t(), down)
            of_bias.add_(down.sum(0))
        if depth > 0 or for_x:
            down = torch.mm(down, weight.t())
    return down


def perceptrons(x: Tensor, parameters: Sequence[Tensor], has_norm: bool = False) -> Tensor:
    """Run N MLPs on x (N, M, in) -> (N, M, out), with ReLU, or layer norm and ReLU, after each hidden layer.

    Weights (N, in, out) and biases (N, 1, out) alternate. With `has_norm`, the scale (N, 1, out) and shift (N, 1, out)
    of the layer norm follow the bias of each hidden layer.
    """
    y: Tensor = _Perceptrons.apply(x, has_norm, torch.is_grad_enabled(), *parameters)  # type: ignore[no-untyped-call]
    return y


def evaluate_perceptrons(xs: Sequence[Tensor], parameters: Sequence[Tensor], members: Iterable[int]) -> Tensor:
    """Run each of the MLPs `members` on its own rows (M, in) of `xs`, on a CPU without gradients.

    The rows of the result, (sum of M, out), are in order of `xs`.
    """
    weights, biases = parameters[::2], parameters[1::2]
    sizes = [len(x) for x in xs]
    rows_at_once = min(rows_of_block(weight.shape[2] for weight in weights), max(sizes))
    hidden = [xs[0].new_empty(rows_at_once, weight.shape[2]) for weight in weights[:-1]]
    y = xs[0].new_empty(sum(sizes), weights[-1].shape[2])
    for x, made, member in zip(xs, y.split_with_sizes(sizes), members, strict=True):
        layers = [(weight[member], bias[member]) for weight, bias in zip(weights, biases, strict=True)]
        for start in range(0, len(x), rows_at_once):
            read, written = x[start : start + rows_at_once], made[start : start + rows_at_once]
            for (weight, bias), rows in zip(layers[:-1], hidden, strict=True):
                write = rows[: len(read)]
                torch.addmm(bias, read, weight, out=write)
                read = write.relu_()
            torch.addmm(layers[-1][1], read, layers[-1][0], out=written)
    return y
