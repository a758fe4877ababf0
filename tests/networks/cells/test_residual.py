"""Blocks: any depth learns, any length and size of inputs stays finite, and mirrors give what the networks give."""

import functools

import numpy as np
import pytest
import torch

from offpcc.networks.cells import LRU, MinGRU
from offpcc.networks.cells.lru import LRULayer
from offpcc.networks.cells.residual import Blocks
from offpcc.networks.numpy_inference import mirror_of

CELLS = [MinGRU, functools.partial(MinGRU, expansion=2), LRU, functools.partial(LRU, state_dim=3)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}

every_cell = pytest.mark.parametrize("build", CELLS, ids=["mingru", "mingru-wide", "lru", "lru-small"])
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def made(build, depth=2, dtype=torch.float32, num_in=3, hidden_dim=8):
    torch.manual_seed(0)
    return build(num_in, hidden_dim, depth).to(dtype)


class Summing(torch.nn.Module):
    """The least that a layer can be: h_t = h_{t-1} / 2 + W x_t."""

    def __init__(self, num_in, state_dim):
        super().__init__()
        self.state_dim = state_dim
        self.weight = torch.nn.Parameter(torch.randn(state_dim, num_in))

    def forward(self, x, state):
        last, rows = x.new_zeros(len(x), self.state_dim) if state is None else state, []
        for x_t in x.unbind(1):
            last = 0.5 * last + x_t @ self.weight.t()
            rows.append(last)
        return torch.stack(rows, 1), last


class Silent(torch.nn.Module):
    state_dim = 8

    def forward(self, x, state):
        return torch.zeros_like(x), torch.zeros_like(x[:, 0])


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_blocks_by_hand(depth):
    """x + layer(norm(x)) but for the first, beside which a linear layer stands, and a norm behind the last."""
    torch.manual_seed(0)
    cell = Blocks(3, 5, depth, lambda width: Summing(width, 5)).double()
    with torch.no_grad():
        for norm in cell.norms:
            norm.weight.normal_()
            norm.bias.normal_()
    x, start = torch.randn(6, 3, dtype=torch.float64), torch.randn(1, depth, 5, dtype=torch.float64)
    with torch.no_grad():
        h, last = cell(x[None], start)
    states = start[0].numpy().copy()
    weights = {name: weight.detach().numpy() for name, weight in cell.named_parameters()}
    for t in range(6):
        read = x[t].numpy()
        stream = weights["input_projection.weight"] @ read + weights["input_projection.bias"]
        for number in range(depth):
            states[number] = 0.5 * states[number] + weights[f"layers.{number}.weight"] @ read
            stream = stream + states[number]
            normed = (stream - stream.mean()) / np.sqrt(stream.var() + 1e-5)
            read = weights[f"norms.{number}.weight"] * normed + weights[f"norms.{number}.bias"]
        np.testing.assert_allclose(h[0, t], read, rtol=0, atol=1e-12)
    np.testing.assert_allclose(last[0], states, rtol=0, atol=1e-12)


def test_a_layer_is_heard_past_those_that_say_nothing():
    """What the residuals are for: what the first of four layers gives, and its gradient, are as if it were alone."""
    torch.manual_seed(0)
    first, x = LRULayer(3, 8, 4, 0.9, 0.99, 0.3), torch.randn(2, 20, 3)
    beside, found = None, []
    for silent in (0, 3):
        layers = iter([first, *[Silent() for _ in range(silent)]])
        cell = Blocks(3, 8, 1 + silent, lambda width, layers=layers: next(layers))
        beside = cell.input_projection.state_dict() if beside is None else beside
        cell.input_projection.load_state_dict(beside)
        h, _ = cell(x)
        found.append((h.detach(), *torch.autograd.grad(h[:, -1, 0].sum(), [*first.parameters()])))
    assert all(gradient.abs().max() > 1e-6 for gradient in found[0][1:])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("build", [MinGRU, LRU], ids=["mingru", "lru"])
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_layers_and_heads_read_numbers_of_the_size_of_one_whatever_the_inputs_are(build, scale):
    """What the normalisations are for."""
    cell, read = made(build, 4), []
    for layer in [*cell.layers][1:]:
        layer.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    with torch.no_grad():
        read.append(cell(scale * torch.randn(4, 50, 3))[0])
    assert len(read) == 4
    for x in read:
        torch.testing.assert_close(x.square().mean(-1), torch.ones(4, 50), rtol=0, atol=0.05)


@pytest.mark.parametrize("build", [MinGRU, LRU], ids=["mingru", "lru"])
def test_the_first_of_four_layers_is_taught_nearly_as_much_as_the_last(build):
    """About half as much; without the residuals, or without the normalisations, minGRU's a fifth."""
    shares = []
    for seed in range(4):
        torch.manual_seed(seed)
        cell = build(3, 16, 4)
        h, _ = cell(torch.randn(8, 50, 3))
        (h * torch.randn_like(h)).sum().backward()
        norms = [torch.cat([w.grad.flatten() for w in layer.parameters()]).norm().item() for layer in cell.layers]
        shares.append(norms[0] / norms[-1])
    assert 0.3 < np.mean(shares) < 3.0


@pytest.mark.parametrize("build", [MinGRU, LRU], ids=["mingru", "lru"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_every_depth_learns_to_remember_the_first_input(build, depth):
    cell, draw = made(build, depth, num_in=2, hidden_dim=16), torch.Generator().manual_seed(0)
    head = torch.nn.Linear(16, 1)
    adam = torch.optim.Adam([*cell.parameters(), *head.parameters()], 1e-2)
    errors = []
    for _ in range(150):
        x = 0.1 * torch.randn(32, 20, 2, generator=draw)
        x[:, 0, 0] = cue = torch.randint(0, 2, (32,), generator=draw) * 2.0 - 1.0
        loss = torch.nn.functional.mse_loss(head(cell(x)[0][:, -1])[:, 0], cue)
        errors.append(loss.item())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert np.mean(errors[-5:]) < 0.2


@every_cell
@every_dtype
def test_long_sequences_in_pieces_are_the_whole(build, dtype):
    cell, x = made(build, dtype=dtype), torch.randn(2, 5000, 3, dtype=dtype)
    with torch.no_grad():
        whole, last = cell(x)
        state, parts = None, []
        for piece in x.split([1, 1, 1500, 2000, 1498], 1):
            h, state = cell(piece, state)
            parts.append(h)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=TOLERANCE[dtype])
        torch.testing.assert_close(state, last, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        torch.testing.assert_close(cell(x, torch.zeros_like(last))[0], whole, rtol=0, atol=0)


@every_cell
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_long_and_extreme_sequences_stay_finite(build, scale):
    cell = made(build)
    h, state = cell((scale * torch.randn(2, 5000, 3).sign()).requires_grad_())
    h.square().mean().backward()
    assert torch.isfinite(h).all() and torch.isfinite(state).all()
    assert all(torch.isfinite(weight.grad).all() for weight in cell.parameters())


@every_cell
@every_dtype
@pytest.mark.parametrize("depth", [1, 3])
def test_the_mirror_gives_what_the_network_gives(build, depth, dtype):
    """Also after its weights have moved, from a state that was handed on, and of several rows."""
    cell = made(build, depth, dtype)
    mirror = mirror_of(cell)
    x = torch.randn(2, 6, 3, dtype=dtype)
    with torch.no_grad():
        for weight in cell.parameters():
            weight += 0.1 * torch.randn_like(weight)
        h, last = cell(x)
    state = None
    for t in range(6):
        before = state
        kept = None if state is None else state.copy()
        found, state = mirror(x[:, t].numpy(), state)
        assert found.dtype == state.dtype == x.numpy().dtype
        np.testing.assert_allclose(found, h[:, t], rtol=0, atol=TOLERANCE[dtype])
        assert before is None or np.array_equal(before, kept)
    np.testing.assert_allclose(state, last, rtol=0, atol=TOLERANCE[dtype])


@every_cell
def test_the_step_of_an_export_is_that_of_acting(build, monkeypatch):
    cell = made(build, dtype=torch.float64)
    x, state = (torch.randn(4, *shape, dtype=torch.float64) for shape in ((1, 3), cell.state_shape))
    expected = cell(x, state)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    torch.testing.assert_close(cell(x, state), expected)


@every_cell
def test_there_is_no_mirror_of_what_is_watched(build):
    cell = made(build)
    assert mirror_of(cell) is not None
    handle = cell.layers[1].register_forward_hook(lambda *_: None)
    assert mirror_of(cell) is None
    handle.remove()
    assert mirror_of(cell) is not None
