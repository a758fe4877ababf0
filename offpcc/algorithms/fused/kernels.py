"""`MLPKernel`: forward and backward pass of MLPs; results are written to preallocated memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from offpcc.networks.mlp_kernels import rows_with_gradient

LINE = 16  # numbers of 4 bytes


class MLPKernel:
    """N MLPs of the same shape, on views of existing parameters.

    Each MLP has its own matrix products. A batched product for all is not faster; for a last layer with one column, it
    is many times slower. On small tensors, the overhead of each operation dominates, so all views are created once.

    Args:
        parameters: weights (N, in, out) and biases (N, 1, out), alternating; or those of one network with the shapes of
            `nn.Linear`.

    Attributes:
        gradients: the parameters' gradients, with the parameters' strides; `backward` writes them.
        flat_gradients: a list with one tensor that holds all gradients, for operations on all of them.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.gradients, whole = _side_by_side(parameters)
        self.flat_gradients = [whole]
        self._networks = [_Network(*pair) for pair in zip(_views(parameters), _views(self.gradients), strict=True)]
        self._outputs = self.gradients[0].new_empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (N, M, out) for `x` (M, in). The next call overwrites them."""
        if self._outputs.dim() == 1 or self._outputs.shape[1] != len(x):
            num_out = self._networks[0].layers[-1][0].shape[0]
            self._outputs = x.new_empty(len(self._networks), len(x), num_out)
            for network, output in zip(self._networks, self._outputs, strict=True):
                network.allocate(output)
        for network in self._networks:
            network.forward(x)
        return self._outputs

    def backward(self, x: Tensor, gradient: Tensor) -> None:
        """Write `gradients` from the gradient of the last `forward`'s outputs.

        Args:
            x: (M, in), the first M rows of the last `forward`'s input.
            gradient: (N, M, out), the gradient of the outputs for these rows.
        """
        for network, down in zip(self._networks, gradient, strict=True):
            network.backward(down, x)

    def backward_to_inputs(self, gradient: Tensor, columns: int) -> Tensor:
        """Return the gradient (M, columns) of the input's last columns, summed over networks.

        Args:
            gradient: (N, M, out), the gradient of the last `forward`'s outputs.
            columns: number of last columns.
        """
        of_inputs = gradient.new_zeros(gradient.shape[1], columns)
        for network, down in zip(self._networks, gradient, strict=True):
            weight = network.transposed[0][:, -columns:]
            rows = rows_with_gradient(down)
            if rows is None:
                of_inputs.addmm_(network.backward(down), weight)
            else:
                of_inputs.index_add_(0, rows, torch.mm(network.backward_rows(rows, down.index_select(0, rows)), weight))
        return of_inputs


class _Network:
    """One MLP: its weights (in, out) and biases (out,), and memory for their gradients."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], of_layers: list[tuple[Tensor, Tensor]]) -> None:
        self.layers = [(bias, weight) for weight, bias in layers]
        self.transposed = [weight.t() for weight, _ in layers]
        self.of_layers = [(weight, _along_the_longer_side(weight), bias) for weight, bias in of_layers]
        self.values: list[Tensor] = []  # output of each layer, after the ReLU if it has one
        self.read: list[tuple[Tensor, Tensor, Tensor]] = []  # hidden layers: first rows, transposed, gradients

    def allocate(self, output: Tensor) -> None:
        """Allocate the outputs of all layers except the last, which writes to `output`."""
        hidden = [weight.new_empty(len(output), weight.shape[1]) for _, weight in self.layers[:-1]]
        self.values, self.read = [*hidden, output], []

    def forward(self, x: Tensor) -> None:
        """Compute `values` for `x`."""
        last = len(self.layers) - 1
        for number, ((bias, weight), write) in enumerate(zip(self.layers, self.values, strict=True)):
            x = torch.addmm(bias, x, weight, out=write)
            if number < last:
                x.relu_()

    def backward(self, down: Tensor, x: Tensor | None = None) -> Tensor:
        """Return the gradient of the first layer's output."""
        if not self.read or len(self.read[0][0]) != len(down):
            hidden = [values[: len(down)] for values in self.values[:-1]]
            self.read = [(values, values.t(), torch.empty_like(values)) for values in hidden]
        for number in reversed(range(len(self.layers))):
            if x is not None:
                of_weight, written, of_bias = self.of_layers[number]
                torch.mm(self.read[number - 1][1] if number else x.t(), down, out=written)
                if written is not of_weight:
                    of_weight.copy_(written)
                torch.sum(down, 0, out=of_bias)
            if number:  # through the weights and the ReLU below them
                values, _, below = self.read[number - 1]
                torch.mm(down, self.transposed[number], out=below)
                down = torch.ops.aten.threshold_backward.grad_input(below, values, 0, grad_input=below)
        return down

    def backward_rows(self, rows: Tensor, down: Tensor) -> Tensor:
        """Return the gradient of the first layer's output for these rows of the last `forward`, from theirs, `down`."""
        for number in reversed(range(1, len(self.layers))):
            down = torch.mm(down, self.transposed[number])
            values = self.values[number - 1].index_select(0, rows)
            torch.ops.aten.threshold_backward.grad_input(down, values, 0, grad_input=down)
        return down


def _side_by_side(parameters: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return zeros like each parameter, as views of one tensor, and that tensor; each view starts at a cache line."""
    sizes = [-(-parameter.numel() // LINE) * LINE for parameter in parameters]
    whole = parameters[0].new_zeros(sum(sizes))
    parts = zip(torch.split(whole, sizes), parameters, strict=True)
    return [part[: p.numel()].as_strided(p.shape, torch.empty_like(p).stride()) for part, p in parts], whole


def _along_the_longer_side(gradient: Tensor) -> Tensor:
    """Return a tensor of this shape, contiguous along the longer side, as the output of a matrix product.

    If the other side is short, the product is several times as fast. If possible, the result is `gradient` itself.
    """
    num_rows, num_columns = gradient.shape
    along_rows = gradient.stride(1) == 1
    if num_rows == num_columns or along_rows == (num_columns > num_rows):
        return gradient
    return gradient.t().contiguous().t() if along_rows else gradient.contiguous()


def _views(tensors: Sequence[Tensor]) -> list[list[tuple[Tensor, Tensor]]]:
    """Return views of parameters or gradients: for each network, a list of (in, out) and (out,) for each layer."""
    pairs = [(w.detach(), b.detach()) for w, b in zip(tensors[::2], tensors[1::2], strict=True)]
    if tensors[0].dim() == 2:
        return [[(weight.t(), bias) for weight, bias in pairs]]
    return [[(weight[number], bias[number, 0]) for weight, bias in pairs] for number in range(len(tensors[0]))]
