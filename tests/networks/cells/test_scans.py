"""Scans: any division into chunks gives what the definition gives, and so do the gradients."""

import pytest
import torch

from offpcc.networks.cells.scans import constant_scan, scan, scan_back

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
def test_gradients_of_a_constant_recurrence(chunk, dtype):
    a, b, h0 = (x.requires_grad_() for x in given(dtype))
    a = a[0, 0].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: constant_scan(*x, chunk), (a, b, h0))


def test_what_is_kept_of_nothing_is_nothing():
    a, b, _ = given(torch.float64)
    assert torch.equal(constant_scan(a[0, 0], b), constant_scan(a[0, 0], b, torch.zeros(2, 3, dtype=b.dtype)))
