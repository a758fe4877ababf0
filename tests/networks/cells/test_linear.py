"""Products: a linear layer's values and gradients, in whichever order they are taken."""

import pytest
import torch

from offpcc.networks.cells.linear import Linear
from offpcc.networks.numpy_inference import mirror_of


@pytest.mark.parametrize("num_in, num_out", [(2, 7), (7, 2), (4, 4)])
@pytest.mark.parametrize("shape", [(5,), (2, 5)])
def test_gradients_are_those_of_pytorchs_own(num_in, num_out, shape):
    ours, theirs = Linear(num_in, num_out).double(), torch.nn.Linear(num_in, num_out).double()
    theirs.load_state_dict(ours.state_dict())
    x, found = torch.randn(*shape, num_in, dtype=torch.float64, requires_grad=True), []
    for layer in (ours, theirs):
        y = layer(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_its_mirror():
    layer, x = Linear(3, 4), torch.randn(2, 3)
    torch.testing.assert_close(torch.from_numpy(mirror_of(layer)(x.numpy())), layer(x).detach(), rtol=1e-5, atol=1e-6)
