"""Linear recurrent units, Orvieto et al. 2023 (arXiv:2303.06349), sections 3.2 to 3.4 and appendix A.

x_t = lambda x_{t-1} + gamma B u_t, with N complex numbers. The modulus of lambda = exp(-exp(nu) + i exp(theta)) is
below 1 for any parameters. gamma keeps the state at the scale of the input. The output is y_t = Re(C x_t), followed by
a gated linear unit.

Differs from the paper:

* There is no D u_t, because the residual connection already carries the input past the layer.
* The gated linear unit is y * sigmoid(W y + b). It has no second product for the factor y.
* The first layer reads inputs that are not normalised.
* N is half of hidden_dim, so that a state has as many real numbers as an LSTM's h.
* All parameters have the same learning rate, and there is no dropout.
* Initial moduli are between 0.9 and 0.999 and initial phases up to pi / 10, instead of the whole disc. The paper
  advises such a narrow ring for long sequences (section 3.4).
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.config.registry import configurable
from offpcc.config.validation import Fraction, PositiveNumber, Size
from offpcc.networks.cells.linear import as_float32, linear
from offpcc.networks.cells.residual import Blocks
from offpcc.networks.cells.scan import constant_scan
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of, sigmoid, view_as_numpy
from offpcc.utils.errors import UserError

SMALLEST = 1e-6  # lower bound before a logarithm; learning could hardly move the logarithm of a smaller number


@configurable
class LRU(Blocks):
    """Linear recurrent units: `num_layers` layers of width `hidden_dim`.

    Args:
        state_dim: number of complex numbers in a layer's state; default: half of `hidden_dim`, rounded up.
        r_min: smallest initial modulus of the recurrence's complex factors lambda; a layer remembers about
            1 / (1 - modulus) steps.
        r_max: largest initial modulus of lambda.
        max_phase: largest initial phase of lambda, in radians per step.
    """

    def __init__(
        self,
        num_in: int,
        hidden_dim: int,
        num_layers: int,
        *,
        state_dim: Size | None = None,
        r_min: Fraction = 0.9,
        r_max: Fraction = 0.999,
        max_phase: PositiveNumber = math.pi / 10.0,
    ) -> None:
        if r_min > r_max:
            raise UserError(f"LRU.r_min is {r_min} but LRU.r_max is {r_max}; it has to be that or less")
        size = (hidden_dim + 1) // 2 if state_dim is None else state_dim
        super().__init__(
            num_in, hidden_dim, num_layers, lambda width: LRULayer(width, hidden_dim, size, r_min, r_max, max_phase)
        )


class LRULayer(nn.Module):
    """One LRU layer; see the module docstring. Adjacent pairs of real numbers store complex numbers."""

    def __init__(self, num_in: int, hidden_dim: int, num: int, r_min: float, r_max: float, max_phase: float) -> None:
        super().__init__()
        self.state_dim = 2 * num
        modulus_squared = torch.empty(num).uniform_(r_min**2, r_max**2).clamp(SMALLEST, 1.0 - SMALLEST)
        phase = torch.empty(num).uniform_(0.0, max_phase).clamp(min=SMALLEST)
        self.nu = nn.Parameter((-0.5 * modulus_squared.log()).log())
        self.theta = nn.Parameter(phase.log())
        self.gamma = nn.Parameter(0.5 * (1.0 - modulus_squared).log())
        for parameter in (self.nu, self.theta, self.gamma):
            parameter.no_decay = True  # type: ignore[attr-defined]
        self.B = nn.Linear(num_in, 2 * num, bias=False)
        self.C = nn.Linear(2 * num, hidden_dim, bias=False)
        self.gate = nn.Linear(hidden_dim, hidden_dim)
        nn.init.normal_(self.B.weight, std=(2 * num_in) ** -0.5)
        nn.init.normal_(self.C.weight, std=num**-0.5)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `Blocks`."""
        if torch.compiler.is_exporting() and state is not None:
            return self._real_step(x, state)
        factor = torch.polar(torch.exp(-torch.exp(self.nu)), torch.exp(self.theta))
        weight = self.B.weight * torch.exp(self.gamma).repeat_interleave(2).unsqueeze(-1)
        read = as_float32(linear(x, weight))  # PyTorch has no complex bfloat16
        h = constant_scan(factor, _complex(read), None if state is None else _complex(state))
        h = torch.view_as_real(h).flatten(-2)
        y = self.C(h)
        return y * torch.sigmoid(self.gate(y)), h[:, -1]

    def _real_step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute one step in real numbers: ONNX has no complex ones."""
        modulus, phase = torch.exp(-torch.exp(self.nu)), torch.exp(self.theta)
        real, imaginary = modulus * torch.cos(phase), modulus * torch.sin(phase)
        read = (self.B(x)[:, 0] * torch.exp(self.gamma).repeat_interleave(2)).view(state.shape[0], -1, 2)
        before = state.reshape(state.shape[0], -1, 2)
        kept = real * before[..., 0] - imaginary * before[..., 1], real * before[..., 1] + imaginary * before[..., 0]
        after = (torch.stack(kept, -1) + read).flatten(-2)
        y = self.C(after).unsqueeze(1)
        return y * torch.sigmoid(self.gate(y)), after

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (mirrors := mirrors_of(self.B, self.C, self.gate)) is None:
            return None
        read, write, gate = mirrors
        nu, theta, gamma = view_as_numpy(self.nu), view_as_numpy(self.theta), view_as_numpy(self.gamma)
        kind = np.result_type(nu, np.complex64)
        factor = np.empty(len(nu), kind)

        def step(x: Array, state: Array) -> tuple[Array, Array]:
            new = read(x).view(kind)
            new *= np.exp(gamma)
            modulus, phase = np.exp(-np.exp(nu)), np.exp(theta)
            factor.real, factor.imag = modulus * np.cos(phase), modulus * np.sin(phase)
            new += factor * np.ascontiguousarray(state).view(kind)
            h = new.view(x.dtype)
            y = write(h)
            return y * sigmoid(gate(y)), h

        return step


def _complex(pairs: Tensor) -> Tensor:
    """View real pairs (..., 2N) as complex numbers (..., N)."""
    return torch.view_as_complex(pairs.view(*pairs.shape[:-1], -1, 2))
