"""PyTorch's LSTM and RNN as memory cells.

The LSTM is Hochreiter & Schmidhuber 1997 ("Long short-term memory") with the forget gates of Gers et al. 2000
("Learning to forget"). The RNN is Elman 1990 ("Finding structure in time").

Differs from the papers:

* Gradients flow through all steps of a sequence and through all gates.
* There are no peephole connections.
* Each gate has two biases, which are added.
* Layers can be stacked.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.config.registry import configurable
from offpcc.config.validation import Number
from offpcc.core import State
from offpcc.networks.cells.base import Cell
from offpcc.networks.numpy_inference import Array, Mirror, view_as_numpy
from offpcc.networks.states import map_state


class TorchCell:
    """Mixin for PyTorch's recurrent modules: it makes the batch the first axis of their states, not the second."""

    hidden_size: int
    num_layers: int
    all_weights: list[list[Tensor]]
    in_float32: tuple[str, ...] = ("cuda",)  # also under autocast: cuDNN would take float16, which overflows

    def __init__(self, num_in: int, hidden_dim: int, num_layers: int) -> None:
        super().__init__(num_in, hidden_dim, num_layers, batch_first=True)  # type: ignore[call-arg]
        self.dim = hidden_dim

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """See `Cell.forward`."""
        layers_first = map_state(lambda s: s.transpose(0, 1).contiguous(), state)
        device = x.device.type
        if device in self.in_float32 and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                h, after = super().forward(x.float(), map_state(Tensor.float, layers_first))  # type: ignore[misc]
        else:
            h, after = super().forward(x, layers_first)  # type: ignore[misc]
        return h, map_state(lambda s: s.transpose(0, 1), after)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, with its weights in one piece of memory on a GPU, as cuDNN needs them."""
        super().__setstate__(state)  # type: ignore[misc]
        self.flatten_parameters()  # type: ignore[attr-defined]

    def weights(self) -> list[tuple[Array, ...]]:
        """Return, for each layer, the transposed weights of input and state, and both biases. `mirror` uses them."""
        return [
            (view_as_numpy(w).T, view_as_numpy(u).T, view_as_numpy(b), view_as_numpy(c))
            for w, u, b, c in self.all_weights
        ]

    def zero_state(self, x: Array) -> Array:
        """Return the zero state (N, num_layers, hidden_dim) at an episode's start, for `x` (N, num_in)."""
        return np.zeros((len(x), self.num_layers, self.hidden_size), x.dtype)


@configurable
class LSTM(TorchCell, nn.LSTM, Cell):  # type: ignore[misc]
    """Long short-term memory: `num_layers` layers of width `hidden_dim`.

    Args:
        forget_bias: added to the initial biases of the forget gates. With 1 or more (Jozefowicz et al. 2015), an
            untrained memory keeps its content for longer.
    """

    if "AVX512" not in torch.backends.cpu.get_cpu_capability():  # without it, oneDNN has no LSTM in bfloat16
        in_float32 = ("cuda", "cpu")

    def __init__(self, num_in: int, hidden_dim: int, num_layers: int, *, forget_bias: Number = 0.0) -> None:
        super().__init__(num_in, hidden_dim, num_layers)
        with torch.no_grad():
            for _, _, bias, _ in self.all_weights:
                bias[hidden_dim : 2 * hidden_dim] += forget_bias

    def mirror(self) -> Mirror:
        """Return the NumPy version; see `offpcc.networks.numpy_inference`."""
        layers, size = self.weights(), self.hidden_size
        # Gates i, f, o need a sigmoid, g needs a tanh. One tanh does all: sigmoid(x) = tanh(x / 2) / 2 + 1 / 2.
        scale = np.repeat(np.array([0.5, 0.5, 1.0, 0.5], layers[0][0].dtype), size)
        shift = 1.0 - scale
        shift[2 * size : 3 * size] = 0.0

        def step(x: Array, state: State) -> tuple[Array, State]:
            before, remembered = state if state is not None else (self.zero_state(x), self.zero_state(x))
            h, c = np.empty_like(before), np.empty_like(remembered)
            for layer, (weight, recurrent, bias, other_bias) in enumerate(layers):
                gates = np.dot(x, weight)
                gates += np.dot(before[:, layer], recurrent)
                gates += bias
                gates += other_bias
                gates *= scale
                np.tanh(gates, gates)
                gates *= scale
                gates += shift
                kept = gates[:, size : 2 * size]
                kept *= remembered[:, layer]
                added = gates[:, :size]
                added *= gates[:, 2 * size : 3 * size]
                kept += added
                c[:, layer] = kept
                x = np.tanh(kept)
                x *= gates[:, 3 * size :]
                h[:, layer] = x
            return x, (h, c)

        return step


@configurable
class RNN(TorchCell, nn.RNN, Cell):  # type: ignore[misc]
    """Elman network: `num_layers` layers of width `hidden_dim`, with tanh."""

    def mirror(self) -> Mirror:
        """Return the NumPy version; see `offpcc.networks.numpy_inference`."""
        layers = self.weights()

        def step(x: Array, state: State) -> tuple[Array, State]:
            before = state if state is not None else self.zero_state(x)
            h = np.empty_like(before)
            for layer, (weight, recurrent, bias, other_bias) in enumerate(layers):
                x = np.tanh(x @ weight + bias + before[:, layer] @ recurrent + other_bias)
                h[:, layer] = x
            return x, h

        return step
