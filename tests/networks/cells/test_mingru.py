"""minGRU: the paper's equations, its logarithmic form, gradients, and gates that are open or shut."""

import math

import pytest
import torch
from torch.nn.functional import logsigmoid

from offpcc.networks.cells import MinGRU, mingru
from offpcc.networks.cells import scan as scans
from offpcc.networks.cells.mingru import MinGRULayer, gated_scan


def random(*shape, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def g(v):
    return torch.where(v >= 0.0, v + 0.5, torch.sigmoid(v))


@pytest.fixture
def chunk(request, monkeypatch):
    """The length of a scan's chunks; None for the default."""
    if request.param is not None:
        monkeypatch.setattr(scans, "best_chunk", lambda length, device: request.param)


@pytest.mark.parametrize("chunk", [None, 4], indirect=True)
def test_it_is_the_papers_logarithmic_form(chunk):
    gates, h0 = random(2, 9, 10), random(2, 5).exp()
    k, v = gates.chunk(2, -1)
    kept = logsigmoid(-k).cumsum(1)
    come = torch.cat([h0.log().unsqueeze(1), logsigmoid(k) + g(v).log() - kept], 1)
    expected = (kept + come.logcumsumexp(1)[:, 1:]).exp()
    torch.testing.assert_close(gated_scan(gates, h0), expected, rtol=0, atol=1e-12)


def test_a_layer_by_hand():
    layer, x, h = MinGRULayer(3, 4, 1, 100).double(), random(2, 6, 3), torch.zeros(2, 4, dtype=torch.float64)
    found, last = layer(x, None)
    for t in range(6):
        k, v = layer.gates(x[:, t]).chunk(2, -1)
        z = torch.sigmoid(k)
        h = (1.0 - z) * h + z * g(v)
        torch.testing.assert_close(found[:, t], h, rtol=0, atol=1e-12)
    assert torch.equal(last, found[:, -1])


@pytest.mark.parametrize("chunk", [None, 1, 3, 7], indirect=True)
def test_gradients(chunk):
    gates, h0 = random(2, 7, 6, scale=3.0).requires_grad_(), random(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(gated_scan, (gates, h0))


@pytest.mark.parametrize("steps_at_once", [1, 3, 100])
@pytest.mark.parametrize("num_in", [2, 9])
def test_gradients_of_a_layer_that_is_taken_in_blocks(num_in, steps_at_once, monkeypatch):
    monkeypatch.setattr(mingru, "BLOCK", steps_at_once * 2 * 4)
    layer = MinGRULayer(num_in, 4, 1, 100).double()
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(x, state, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x, state))

    x, state = random(2, 7, num_in).requires_grad_(), random(2, 4).requires_grad_()
    assert torch.autograd.gradcheck(run, (x, state, *weights))


def test_blocks_change_nothing(monkeypatch):
    layer, x = MinGRULayer(3, 4, 1, 100).double(), random(2, 50, 3)
    expected = layer(x, None)[0]
    monkeypatch.setattr(mingru, "BLOCK", 7 * 2 * 4)
    torch.testing.assert_close(layer(x, None)[0], expected, rtol=0, atol=1e-14)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, None)[0], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("chunk", [None, 32], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_gates_make_no_nan(chunk, dtype):
    """Open or shut altogether, at any candidate."""
    signs = random(2, 1000, 6).sign().to(dtype)
    gates = (1e4 * signs).requires_grad_()
    h = gated_scan(gates)
    h.sum().backward()
    assert torch.isfinite(h).all() and torch.isfinite(gates.grad).all()
    opened, candidate = (gates.detach() > 0).chunk(2, -1)
    assert torch.equal(h[opened], torch.where(candidate, 1e4 + 0.5, 0.0).to(dtype)[opened])
    assert torch.equal(h[:, 1:][~opened[:, 1:]], h[:, :-1][~opened[:, 1:]])


@pytest.mark.parametrize("horizon", [1, 50])
def test_units_start_to_forget_over_times_up_to_the_horizon(horizon):
    torch.manual_seed(0)
    cell = MinGRU(3, 200, 2, horizon=horizon)
    for layer in cell.layers:
        times = 1.0 / torch.sigmoid(layer.gates.bias[:200].detach())
        assert times.min() >= 2.0 - 1e-5 and times.max() <= (horizon + 1.0) * (1.0 + 1e-5)
        assert (times - 1.0).log().mean().item() == pytest.approx(math.log(horizon) / 2, rel=0.15)


def test_a_wider_state():
    cell = MinGRU(3, 4, 2, expansion=3)
    h, state = cell(torch.zeros(2, 5, 3))
    assert h.shape == (2, 5, 4) and state.shape == (2, 2, 12)
