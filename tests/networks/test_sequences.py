import pytest
import torch

from offpcc.core import Batch
from offpcc.networks import Encoder, Inputs, InputShape
from offpcc.networks.sequences import encode


class Sum(Encoder):
    """A memory without parameters."""

    memoryless = False

    def __init__(self, shape):
        super().__init__(shape)
        self.dim = shape.observation[0]

    def forward(self, inputs, state=None):
        sums = inputs.observation.cumsum(1) + (0.0 if state is None else state.unsqueeze(1))
        return sums, sums[:, -1]


def test_burn_in_holds_for_a_memory_without_parameters():
    """A row that has no burn-in begins with the zero state, whatever its padding left behind."""
    observations = torch.ones(2, 5, 1)
    real = torch.ones(2, 5, 1)
    real[1, :2] = 0.0
    zeros = torch.zeros(2, 4, 1)
    batch = Batch(observations, zeros, zeros, zeros, real, zeros, zeros[:, 0], zeros[:, 0], burn_in=2)
    h = encode(Sum(InputShape((1,), 1)), Inputs.of(batch), batch)
    assert h[:, 2:, 0].tolist() == [[3.0, 4.0, 5.0], [1.0, 2.0, 3.0]]


class Scale(Encoder):
    """An encoder without memory, with one weight, which counts what gets a gradient."""

    def __init__(self, shape):
        super().__init__(shape)
        self.dim = shape.observation[0]
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, inputs, state=None):
        return self.weight * inputs.observation, None


@pytest.mark.parametrize("burn_in", [0, 1, 3])
def test_no_gradient_flows_into_the_burn_in_of_an_encoder_without_memory(burn_in):
    observations = 10.0 ** torch.arange(5).expand(2, 5).unsqueeze(-1)
    zeros = torch.zeros(2, 4, 1)
    ones = torch.ones(2, 5, 1)
    batch = Batch(observations, zeros, zeros, zeros, ones, zeros, zeros[:, 0], zeros[:, 0], burn_in=burn_in)
    encoder = Scale(InputShape((1,), 1))
    h = encode(encoder, Inputs.of(batch), batch)
    assert h.equal(observations)
    h[0].sum().backward()
    assert encoder.weight.grad.item() == sum(10.0**t for t in range(burn_in, 4))  # the last one only bootstraps
