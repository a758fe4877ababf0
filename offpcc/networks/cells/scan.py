"""Linear recurrences over all steps of a sequence: h_t = a_t h_{t-1} + b_t, elementwise, real or complex.

The code uses no division and no logarithm. So with |a_t| <= 1, no gate value and no sequence length produces a NaN.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def constant_scan(a: Tensor, b: Tensor, h0: Tensor | None = None) -> Tensor:
    """Return h (B, T, N), where h_t = a h_{t-1} + b_t, with gradients; a is (N,), and h_0 (B, N) or zeros."""
    h: Tensor = _ConstantScan.apply(a, b, torch.zeros_like(b[:, 0]) if h0 is None else h0)  # type: ignore[no-untyped-call]
    return h


class _ConstantScan(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
        h = scan(a, b.clone(), h0)
        ctx.save_for_backward(a, h, h0)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h, h0 = ctx.saved_tensors
        g = scan_back(a.conj().resolve_conj(), gradient.clone())
        of_a = (g[:, 0] * h0.conj()).sum(0) + (g[:, 1:] * h[:, :-1].conj()).sum((0, 1))
        return of_a, g, a.conj() * g[:, 0]


def scan(a: Tensor, b: Tensor, h0: Tensor, chunk: int | None = None) -> Tensor:
    """Compute h (B, T, N) in place of b and return it, without autograd.

    `a` is (B, T, N), or (N,) if it is the same at all steps, and `h0` is (B, N). Steps inside a chunk of `chunk` steps,
    by default `best_chunk`, run one after another, for all chunks at once. Then the chunks are joined one after
    another.
    """
    length = b.shape[1]
    chunk = best_chunk(length, b.device) if chunk is None else chunk
    if chunk >= length:
        for a_t, b_t in zip(_steps(a, length), b.unbind(1), strict=True):
            h0 = b_t.addcmul_(a_t, h0)
        return b
    a = a.expand_as(b)
    left = a.clone()  # product of the factors since the start of the chunk
    for t in range(1, chunk):
        here, before = slice(t, None, chunk), slice(t - 1, None, chunk)
        num = b[:, here].shape[1]  # the last chunk may be shorter
        b[:, here].addcmul_(a[:, here], b[:, before][:, :num])
        left[:, here].mul_(left[:, before][:, :num])
    for b_c, left_c in zip(torch.split(b, chunk, 1), torch.split(left, chunk, 1), strict=True):
        b_c.addcmul_(left_c, h0.unsqueeze(1))
        h0 = b_c[:, -1]
    return b


def scan_back(a: Tensor, gradient: Tensor, chunk: int | None = None) -> Tensor:
    """Return g_t = dL/dh_t + a_{t+1} g_{t+1}: the gradient of the loss by b_t, through all later steps.

    `gradient`, dL/dh (B, T, N), may be overwritten. For the other arguments see `scan`.
    """
    length = gradient.shape[1]
    chunk = best_chunk(length, gradient.device) if chunk is None else chunk
    if chunk >= length:
        steps, kept = gradient.unbind(1), _steps(a, length)
        for t in reversed(range(length - 1)):
            steps[t].addcmul_(kept[t + 1], steps[t + 1])
        return gradient
    a = a.expand_as(gradient)
    following = torch.cat([a[:, :1], a[:, 1:].flip(1)], 1)  # the first factor multiplies a zero state
    return scan(following, gradient.flip(1), torch.zeros_like(gradient[:, 0]), chunk).flip(1)


def best_chunk(length: int, device: torch.device) -> int:
    """Return the best number of steps in a chunk of `scan`.

    On the CPU it is the whole length, since one pass over memory is best. On other devices the number of kernels is the
    cost: two for each step of a chunk, and one for each chunk. The square root of the length is close to the minimum.
    """
    return length if device.type == "cpu" else math.isqrt(length - 1) + 1


def _steps(a: Tensor, length: int) -> Sequence[Tensor]:
    """Split the factor (B, T, N) into T steps, or repeat the constant factor (N,) T times."""
    return a.unbind(1) if a.dim() > 1 else [a] * length
