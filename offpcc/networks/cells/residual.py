"""Residual blocks with layer normalisation around recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.core import State
from offpcc.networks.cells.base import Cell
from offpcc.networks.cells.linear import Linear
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of


class Layer(nn.Module):
    """Base class of one layer of a memory cell.

    Attributes:
        state_dim: number of real numbers in its state.
    """

    state_dim: int

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Map (B, T, num_in) and the state (B, state_dim) to (B, T, hidden_dim) and the state after the last step."""
        raise NotImplementedError

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`.

        It reads arrays (N, num_in) and (N, state_dim).
        """
        raise NotImplementedError


class Blocks(Cell):
    """Cell of stacked residual layers, x + layer(norm(x)), with layer normalisation of the result.

    The first layer reads the raw inputs. Normalisation would remove most of the information in a vector of few numbers,
    and a linear layer in front would double the cost of the layer's own product. The residual connection of the first
    layer is a linear projection of the inputs instead of x.

    Args:
        num_in: width of the inputs.
        hidden_dim: output width of each layer.
        layers: the layers; the first reads `num_in` numbers, the others `hidden_dim`.
    """

    def __init__(self, num_in: int, hidden_dim: int, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.dim = hidden_dim
        self.state_shape = len(layers), layers[0].state_dim
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
