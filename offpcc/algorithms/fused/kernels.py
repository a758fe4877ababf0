"""`MLPKernel`: forward and backward pass of an MLP into preallocated memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LINE = 16  # numbers of 4 bytes


class MLPKernel:
    """N perceptrons side by side over the memory of their parameters.

    Each has products of its own: one for all of them is no faster, and for a last layer of a single column many times
    as slow. What an operation on few numbers costs is its overhead, so views are made once.

    Args:
        parameters: weights (N, in, out) and biases (N, 1, out) in turn; or of one network, as `nn.Linear` has them.

    Attributes:
        gradients: of the parameters, in memory as they are; `backward` writes them.
        flat_gradients: one tensor of all gradients, for who asks the same of each of them.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.gradients, whole = _side_by_side(parameters)
        self.flat_gradients = [whole]
        self._networks = [_Network(*pair) for pair in zip(_views(parameters), _views(self.gradients), strict=True)]
        self._outputs = self.gradients[0].new_empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """(M, in) -> (N, M, out), which the next call overwrites."""
        if self._outputs.dim() == 1 or self._outputs.shape[1] != len(x):
            self._outputs = torch.stack([network.allocate(len(x)) for network in self._networks])
            for network, output in zip(self._networks, self._outputs, strict=True):
                network.values[-1] = output
        for network in self._networks:
            network.forward(x)
        return self._outputs

    def backward(self, x: Tensor, gradient: Tensor) -> None:
        """Write `gradients`, from the `gradient` (N, M, out) of what the last `forward` made of its first rows, `x`."""
        for network, down in zip(self._networks, gradient, strict=True):
            network.backward(x, down)

    def backward_to_inputs(self, gradient: Tensor, columns: int) -> Tensor:
        """The gradient (M, columns), summed over networks, of the last columns of what the last `forward` read."""
        of_inputs = gradient.new_zeros(gradient.shape[1], columns)
        for network, down in zip(self._networks, gradient, strict=True):
            network.backward_to_inputs(down, of_inputs)
        return of_inputs


class _Network:
    """One perceptron.

    Args:
        layers: weights (in, out) and biases (out,).
        of_layers: where their gradients go.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], of_layers: list[tuple[Tensor, Tensor]]) -> None:
        self.layers = [(bias, weight) for weight, bias in layers]
        self.transposed = [weight.t() for weight, _ in layers]
        self.of_layers = [(weight, _along_the_longer_side(weight), bias) for weight, bias in of_layers]
        self.values: list[Tensor] = []  # of each layer, the last one's without ReLU
        self.read: list[tuple[Tensor, Tensor, Tensor]] = []  # first rows of hidden ones; transposed; their gradients

    def allocate(self, rows: int) -> Tensor:
        """Have room for as many rows; where the last layer writes."""
        self.values = [weight.new_empty(rows, weight.shape[1]) for _, weight in self.layers]
        self.read = []
        return self.values[-1]

    def forward(self, x: Tensor) -> None:
        """Compute `values` of `x`."""
        last = len(self.layers) - 1
        for number, ((bias, weight), write) in enumerate(zip(self.layers, self.values, strict=True)):
            x = torch.addmm(bias, x, weight, out=write)
            if number < last:
                x.relu_()

    def backward(self, x: Tensor, down: Tensor) -> None:
        """Write the gradients of weights and biases."""
        self._have_read(len(down))
        for number in reversed(range(len(self.layers))):
            of_weight, written, of_bias = self.of_layers[number]
            torch.mm(self.read[number - 1][1] if number else x.t(), down, out=written)
            if written is not of_weight:
                of_weight.copy_(written)
            torch.sum(down, 0, out=of_bias)
            if number:
                down = self._through(number, down)

    def backward_to_inputs(self, down: Tensor, of_inputs: Tensor) -> None:
        """Add the gradient of the inputs' last columns."""
        self._have_read(len(down))
        for number in reversed(range(1, len(self.layers))):
            down = self._through(number, down)
        of_inputs.addmm_(down, self.transposed[0][:, -of_inputs.shape[1] :])

    def _through(self, number: int, down: Tensor) -> Tensor:
        """The gradient of a hidden layer before its ReLU, from that of layer `number` above it."""
        values, _, below = self.read[number - 1]
        torch.mm(down, self.transposed[number], out=below)
        torch.ops.aten.threshold_backward.grad_input(below, values, 0, grad_input=below)
        return below

    def _have_read(self, rows: int) -> None:
        if not self.read or len(self.read[0][0]) != rows:
            hidden = [values[:rows] for values in self.values[:-1]]
            self.read = [(values, values.t(), torch.empty_like(values)) for values in hidden]


def _side_by_side(parameters: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Zeros like each parameter, in one tensor's memory; each begins where a line of the processor's cache does."""
    sizes = [-(-parameter.numel() // LINE) * LINE for parameter in parameters]
    whole = parameters[0].new_zeros(sum(sizes))
    parts = zip(torch.split(whole, sizes), parameters, strict=True)
    return [part[: p.numel()].as_strided(p.shape, torch.empty_like(p).stride()) for part, p in parts], whole


def _along_the_longer_side(gradient: Tensor) -> Tensor:
    """Where to write a product of this shape: several times as fast along the longer side, if the other is short."""
    num_rows, num_columns = gradient.shape
    along_rows = gradient.stride(1) == 1
    if num_rows == num_columns or along_rows == (num_columns > num_rows):
        return gradient
    return gradient.t().contiguous().t() if along_rows else gradient.contiguous()


def _views(tensors: Sequence[Tensor]) -> list[list[tuple[Tensor, Tensor]]]:
    """Of parameters, or of their gradients: (in, out) and (out,), layer by layer for each network."""
    pairs = [(w.detach(), b.detach()) for w, b in zip(tensors[::2], tensors[1::2], strict=True)]
    if tensors[0].dim() == 2:
        return [[(weight.t(), bias) for weight, bias in pairs]]
    return [[(weight[number], bias[number, 0]) for weight, bias in pairs] for number in range(len(tensors[0]))]
