"""`Concat`: concatenates the last inputs; a baseline without learned memory.

Yang & Nguyen 2021 (arXiv:2110.12628) compare recurrent agents with agents that read the last 5 or 10 observations.

Differs from the paper:

* The cell concatenates all of its inputs. So it includes previous actions and rewards where these are inputs.
* After a burn-in of `num_steps` - 1 steps or more, a summary is the same as in the uncut episode. With a shorter
  burn-in, or none, zeros replace the inputs from before the cut.
* An agent with this cell learns from sequences, like agents with memory, so a comparison shows only the effect of the
  memory. The paper's agents learn from single transitions of an environment that returns several observations. For
  that, use the environments with `concat` in their names or the wrapper `offpcc.envs.wrappers.Concatenate`.
"""

import numpy as np
import torch
from torch import Tensor

from offpcc.config.registry import configurable
from offpcc.config.validation import Size
from offpcc.core import State
from offpcc.networks.cells.base import Cell
from offpcc.networks.numpy_inference import Array, Mirror


@configurable
class Concat(Cell):
    """Cell whose summary is the last `num_steps` inputs, oldest first. It has no parameters.

    Zeros replace inputs from before an episode's start. The state is the last `num_steps` - 1 inputs
    (B, num_steps - 1, num_in).

    Args:
        num_in: width of the inputs.
        hidden_dim: no effect.
        num_layers: no effect.
        num_steps: number of inputs in a summary, including the current one.
    """

    def __init__(self, num_in: int, hidden_dim: int, num_layers: int, *, num_steps: Size = 10) -> None:
        super().__init__()
        self.num_in, self.num_steps = num_in, num_steps
        self.dim = num_steps * num_in

    def unused_parameters(self) -> dict[str, str]:
        """See `Cell.unused_parameters`."""
        return dict.fromkeys(("hidden_dim", "num_layers"), "concat only concatenates inputs and has no layers")

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """(B, T, num_in) -> (B, T, num_steps * num_in)."""
        before = x.new_zeros(len(x), self.num_steps - 1, self.num_in) if state is None else state
        known = torch.cat([before, x], 1)
        h = known.unfold(1, self.num_steps, 1).transpose(2, 3).flatten(2)
        return h, known[:, x.shape[1] :]

    def mirror(self) -> Mirror:
        """Return the NumPy version; see `offpcc.networks.numpy_inference`."""

        def step(x: Array, state: State) -> tuple[Array, State]:
            before = np.zeros((len(x), self.num_steps - 1, self.num_in), x.dtype) if state is None else state
            known = np.concatenate([before, x[:, np.newaxis]], 1)
            return known.reshape(len(x), self.dim), known[:, 1:]

        return step
