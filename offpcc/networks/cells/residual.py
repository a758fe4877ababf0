"""Residual blocks with layer normalisation around recurrent layers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.core import State
from offpcc.networks.cells.base import Cell
from offpcc.networks.cells.linear import Linear
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of


class Blocks(Cell):
    """Cell of stacked residual layers, x + layer(norm(x)), with layer normalisation of the result.

    The first layer reads the raw inputs. Normalisation would remove most of the information in a vector of few numbers.
    A linear layer in front would double the cost of the layer's own product. The residual connection of the first layer
    is a linear projection of the inputs.

    A layer is a module with `state_dim`, the number of real numbers in its state. Its `forward` maps (B, T, width) and
    the state (B, state_dim) or None to (B, T, hidden_dim) and the state after the last step. Its `mirror` reads arrays
    (N, width) and (N, state_dim). `build` returns a layer that reads inputs of a width.
    """

    def __init__(self, num_in: int, hidden_dim: int, num_layers: int, build: Callable[[int], Any]) -> None:
        super().__init__()
        layers = [build(width) for width in (num_in, *[hidden_dim] * (num_layers - 1))]
        self.dim = hidden_dim
        self.state_shape = num_layers, layers[0].state_dim
        self.layers = nn.ModuleList(layers)
        self.input_projection = Linear(num_in, hidden_dim)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_dim) for _ in self.layers)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """See `Cell.forward`; the state is (B, num_layers, state_dim)."""
        stream, after = self.input_projection(x), []
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            h, left = layer(x, None if state is None else state[:, number])
            stream = stream + h
            x = norm(stream)
            after.append(left)
        return x, torch.stack(after, 1)

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (mirrors := mirrors_of(self.input_projection, *self.layers, *self.norms)) is None:
            return None
        num, shape = len(self.layers), self.state_shape
        input_projection, layers, norms = mirrors[0], mirrors[1 : 1 + num], mirrors[1 + num :]

        def step(x: Array, state: State) -> tuple[Array, State]:
            before = state if state is not None else np.zeros((len(x), *shape), x.dtype)
            after, stream = np.empty_like(before), input_projection(x)
            for number, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
                h, after[:, number] = layer(x, before[:, number])
                stream += h
                x = norm(stream)
            return x, after

        return step
