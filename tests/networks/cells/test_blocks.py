"""Blocks: any depth learns, any length and size of inputs stays finite, and mirrors give what the networks give."""

import functools

import numpy as np
import pytest
import torch

from offpcc.networks.cells import LRU, MinGRU
from offpcc.networks.mirrors import mirror_of

CELLS = [MinGRU, functools.partial(MinGRU, expansion=2), LRU, functools.partial(LRU, state_dim=3)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}

every_cell = pytest.mark.parametrize("build", CELLS, ids=["mingru", "mingru-wide", "lru", "lru-small"])
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def made(build, depth=2, dtype=torch.float32, num_in=3, hidden_dim=8):
    torch.manual_seed(0)
    return build(num_in, hidden_dim, depth).to(dtype)


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
def test_there_is_no_mirror_of_what_is_watched(build):
    cell = made(build)
    assert mirror_of(cell) is not None
    handle = cell.layers[1].register_forward_hook(lambda *_: None)
    assert mirror_of(cell) is None
    handle.remove()
    assert mirror_of(cell) is not None
