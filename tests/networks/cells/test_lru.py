"""LRU: the paper's equations, where its numbers start, and what learning can make of them."""

import math

import numpy as np
import pytest
import torch

from offpcc.networks.cells import LRU
from offpcc.networks.cells.lru import LRULayer
from offpcc.utils.errors import UserError


def factor(layer):
    return torch.polar(torch.exp(-torch.exp(layer.nu)), torch.exp(layer.theta)).detach()


def layer_of(num_in=3, hidden_dim=4, num=5, r_min=0.5, r_max=0.9, max_phase=math.pi):
    torch.manual_seed(0)
    return LRULayer(num_in, hidden_dim, num, r_min, r_max, max_phase)


def test_a_layer_by_hand():
    layer = layer_of().double()
    u = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nu, theta, gamma, B, C = (
        x.detach().numpy() for x in (layer.nu, layer.theta, layer.gamma, layer.B.weight, layer.C.weight)
    )
    weight, bias = (x.detach().numpy() for x in (layer.gate.weight, layer.gate.bias))
    kept = np.exp(-np.exp(nu) + 1j * np.exp(theta))
    B, C = B[::2] + 1j * B[1::2], C[:, ::2] - 1j * C[:, 1::2]
    x, expected = np.zeros(5, complex), []
    for u_t in u.numpy():
        x = kept * x + np.exp(gamma) * (B @ u_t)
        y = (C @ x).real
        expected.append(y / (1.0 + np.exp(-(weight @ y + bias))))
    found, last = layer(u[None], None)
    np.testing.assert_allclose(found[0].detach(), np.stack(expected), rtol=0, atol=1e-12)
    np.testing.assert_allclose(last[0].detach(), np.stack([x.real, x.imag], 1).flatten(), rtol=0, atol=1e-12)


def test_gradients():
    layer = layer_of(hidden_dim=3, num=2).double()
    u = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(u, state, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (u, state))

    assert torch.autograd.gradcheck(run, (u, state, *weights))


def test_moduli_and_phases_start_in_their_ring():
    layer = layer_of(num=300, r_min=0.6, r_max=0.8, max_phase=1.0)
    moduli, phases = factor(layer).abs(), factor(layer).angle()
    assert moduli.min() >= 0.6 - 1e-5 and moduli.max() <= 0.8 + 1e-5 and moduli.std() > 0.03
    assert phases.min() >= 0.0 and phases.max() <= 1.0 and phases.std() > 0.2
    assert phases.mean() == pytest.approx(0.5, abs=0.1)
    assert layer.C.weight.std().item() == pytest.approx(300**-0.5, rel=0.1)  # the authors': 1 / sqrt(N) of each part


def test_a_state_has_the_size_of_its_input():
    """What gamma is for: as much of white noise in slow units as in fast ones."""
    layer = layer_of(num_in=8, num=400, r_min=0.1, r_max=0.99)
    x = torch.randn(40, 600, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, state = layer(x, None)
    power = state.view(40, 400, 2).square().sum(-1).mean(0)
    slow = factor(layer).abs() > 0.9
    assert power[slow].mean().item() == pytest.approx(1.0, rel=0.2)
    assert power[~slow].mean().item() == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("r_min, r_max", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_the_ends_of_the_range_are_no_trap(r_min, r_max):
    layer = layer_of(r_min=r_min, r_max=r_max)
    h, _ = layer(torch.full((1, 5000, 3), 1e4), None)
    h.square().mean().backward()
    assert torch.isfinite(h).all()
    assert all(torch.isfinite(weight.grad).all() for weight in layer.parameters())


@pytest.mark.parametrize("value", [-40.0, 40.0, 90.0])
def test_no_modulus_that_is_learned_is_above_1(value):
    layer = layer_of()
    with torch.no_grad():
        layer.nu.fill_(value)
    h, _ = layer(torch.ones(1, 5000, 3), None)
    h.mean().backward()
    assert factor(layer).abs().max() <= 1.0 + 1e-6
    assert torch.isfinite(h).all() and torch.isfinite(layer.B.weight.grad).all()


def test_the_ring_has_to_be_one():
    with pytest.raises(UserError) as caught:
        LRU(3, 4, 1, r_min=0.9, r_max=0.5)
    assert caught.value.message == "LRU.r_min is 0.9 but LRU.r_max is 0.5; it has to be that or less"


@pytest.mark.parametrize("hidden_dim, state_dim, expected", [(6, None, 6), (5, None, 6), (1, None, 2), (4, 7, 14)])
def test_the_states_width(hidden_dim, state_dim, expected):
    h, state = LRU(3, hidden_dim, 2, state_dim=state_dim)(torch.zeros(2, 4, 3))
    assert h.shape == (2, 4, hidden_dim) and state.shape == (2, 2, expected)
