"""Scans: any division into chunks gives what the definition gives, and so do the gradients."""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from offpcc.networks.cells import LRU, MinGRU, mingru
from offpcc.networks.cells import scan as scans
from offpcc.networks.cells.scan import best_chunk, constant_scan, scan, scan_back

CHUNKS = [None, 1, 3, 7, 20]
KINDS = [torch.float64, torch.complex128]


def given(dtype, length=7):
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, length, 3, generator=draw, dtype=dtype) for _ in range(2))
    return a / (1.0 + a.abs()), b, torch.randn(2, 3, generator=draw, dtype=dtype)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("length", [1, 2, 7])
def test_scans_are_their_definitions(length, chunk, dtype):
    a, b, h = given(dtype, length)
    expected, g = [], torch.zeros_like(h)
    found, back = scan(a, b.clone(), h, chunk), scan_back(a, b.clone(), chunk)
    for t in range(length):
        h = a[:, t] * h + b[:, t]
        expected.append(h)
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=0, atol=1e-12)
    for t in reversed(range(length)):
        g = b[:, t] + (a[:, t + 1] * g if t + 1 < length else 0.0)
        torch.testing.assert_close(back[:, t], g, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_gradients_of_a_constant_recurrence(chunk, dtype, monkeypatch):
    monkeypatch.setattr(scans, "best_chunk", lambda length, device: chunk or length)
    a, b, h0 = (x.requires_grad_() for x in given(dtype))
    a = a[0, 0].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: constant_scan(*x), (a, b, h0))


def test_what_is_kept_of_nothing_is_nothing():
    a, b, _ = given(torch.float64)
    assert torch.equal(constant_scan(a[0, 0], b), constant_scan(a[0, 0], b, torch.zeros(2, 3, dtype=b.dtype)))


# Chunks of the length's root, the default on other devices than the CPU ----------------------------------------


class Counting(TorchDispatchMode):
    """Counts the kernels that compute a step."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.addcmul_.default, torch.ops.aten.mul_.Tensor)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("run", [lambda a, b, h: scan(a, b, h), lambda a, b, h: scan_back(a, b)], ids=["there", "back"])
@pytest.mark.parametrize("length", [1, 2, 50, 5000])
def test_a_device_takes_few_kernels_and_the_cpu_one_pass(length, run):
    counts = []
    for device in ("cpu", "meta"):
        a, b, h = (torch.ones(shape, device=device) for shape in ((1, length, 2), (1, length, 2), (1, 2)))
        with Counting() as counting:
            run(a, b, h)
        counts.append(counting.count)
    assert counts[0] in (length, length - 1)  # backward the last step has nothing to add
    assert counts[1] <= 3 * length**0.5 + 1


@pytest.mark.parametrize("length, chunk", [(1, 1), (2, 2), (49, 7), (50, 8), (5_000, 71)])
def test_the_length_of_a_chunk(length, chunk):
    assert best_chunk(length, torch.device("meta")) == chunk
    assert best_chunk(length, torch.device("cpu")) == length


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", [LRU, functools.partial(MinGRU, horizon=1_000)], ids=["lru", "mingru"])
def test_5000_steps_in_chunks_are_those_one_after_another(build, dtype, monkeypatch):
    torch.manual_seed(0)
    cell, x = build(3, 8, 2).to(dtype), torch.randn(2, 5_000, 3, dtype=dtype, requires_grad=True)
    weights = torch.randn(2, 5_000, 8, dtype=dtype)

    def learned():
        h, state = cell(x)
        return h.detach(), state.detach(), *torch.autograd.grad((h * weights).sum(), [x, *cell.parameters()])

    expected, used = learned(), []

    def as_on_a_device(length, device):
        used.append(length)
        return best_chunk(length, torch.device("meta"))

    monkeypatch.setattr(scans, "best_chunk", as_on_a_device)
    monkeypatch.setattr(mingru, "BLOCK", 5_000 * 2 * 8)  # all steps at the same time
    found = learned()
    assert used == [5_000] * 4  # there and back, of two layers
    for ours, theirs in zip(found, expected, strict=True):
        allowed = (1e-5 if dtype == torch.float32 else 1e-13) * theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=allowed)
