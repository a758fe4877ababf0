"""GRU: the numbers and the gradients of PyTorch's own."""

import pytest
import torch

from offpcc.networks.cells import GRU
from offpcc.networks.numpy_inference import mirror_of

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
CASES = [(1, 1, 3), (2, 7, 3), (3, 40, 20)]  # layers, steps, inputs


every_case = pytest.mark.parametrize("layers, steps, num_in", CASES)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


def made(layers=2, num_in=3, dtype=torch.float64, size=6):
    torch.manual_seed(0)
    ours, theirs = GRU(num_in, size, layers).to(dtype), torch.nn.GRU(num_in, size, layers, batch_first=True).to(dtype)
    theirs.load_state_dict(ours.state_dict())  # names and shapes are theirs
    return ours, theirs


def drawn(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@every_dtype
@every_case
@pytest.mark.parametrize("started", [False, True])
def test_it_is_pytorchs_own(layers, steps, num_in, started, dtype):
    ours, theirs = made(layers, num_in, dtype)
    x, state = drawn(4, steps, num_in, dtype=dtype), drawn(4, layers, 6, dtype=dtype)
    found, last = ours(x, state if started else None)
    expected, after = theirs(x, state.transpose(0, 1).contiguous() if started else None)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(last, after.transpose(0, 1), rtol=0, atol=TOLERANCE[dtype])


@every_case
@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_so_are_its_gradients(layers, steps, num_in, dtype, atol):
    """Of outputs and of the last state, by every weight, the inputs and the first state."""
    found, expected = [], []
    cells = made(layers, num_in, dtype)
    for cell, grads in zip(cells, (found, expected), strict=True):
        x, state = (drawn(*shape, dtype=dtype).requires_grad_() for shape in ((4, steps, num_in), (4, layers, 6)))
        ours = cell is cells[0]
        h, last = cell(x, state if ours else state.transpose(0, 1).contiguous())
        last = last if ours else last.transpose(0, 1)
        loss = (h * drawn(*h.shape, dtype=dtype)).sum() + (last * drawn(*last.shape, dtype=dtype)).sum()
        grads += torch.autograd.grad(loss, [x, state, *cell.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-4 if dtype == torch.float32 else 0, atol=atol)


@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_by_differences(layers):
    cell, _ = made(layers, size=3)
    names, weights = zip(*cell.named_parameters(), strict=True)

    def run(x, state, *weights):
        return torch.func.functional_call(cell, dict(zip(names, weights, strict=True)), (x, state))

    assert torch.autograd.gradcheck(
        run, (drawn(2, 4, 3).requires_grad_(), drawn(2, layers, 3).requires_grad_(), *weights)
    )


def test_the_same_each_time():
    (cell, _), grads = made(dtype=torch.float32), []
    for _ in range(2):
        cell.zero_grad()
        cell(drawn(3, 30, 3, dtype=torch.float32))[0].square().sum().backward()
        grads.append([weight.grad.clone() for weight in cell.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@every_dtype
@pytest.mark.parametrize("layers", [1, 3])
def test_the_mirror_gives_what_the_network_gives(layers, dtype):
    cell, _ = made(layers, dtype=dtype)
    mirror, state, x = mirror_of(cell), None, drawn(2, 6, 3, dtype=dtype)
    with torch.no_grad():
        h, last = cell(x)
    for t in range(6):
        before, kept = state, None if state is None else state.copy()
        found, state = mirror(x[:, t].numpy(), state)
        assert found.dtype == x.numpy().dtype
        torch.testing.assert_close(torch.from_numpy(found), h[:, t], rtol=0, atol=TOLERANCE[dtype])
        assert before is None or (before == kept).all()
    torch.testing.assert_close(torch.from_numpy(state), last, rtol=0, atol=TOLERANCE[dtype])


def test_long_and_extreme_sequences_stay_finite():
    cell, _ = made(dtype=torch.float32)
    h, _ = cell(1e4 * drawn(2, 5000, 3, dtype=torch.float32))
    h.square().mean().backward()
    assert torch.isfinite(h).all() and all(torch.isfinite(weight.grad).all() for weight in cell.parameters())


def test_where_products_are_of_bfloat16_it_is_of_float32():
    cell, theirs = made(dtype=torch.float32)
    x = drawn(2, 5, 3, dtype=torch.float32).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, state = cell(x)
    assert h.dtype == state.dtype == torch.float32
    torch.testing.assert_close(h, theirs(x.float())[0])
