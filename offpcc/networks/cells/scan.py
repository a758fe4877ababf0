"""Linear recurrences over all steps of a sequence: h_t = a_t h_{t-1} + b_t, elementwise, real or complex.

Nothing is divided and no logarithm is taken, so that with |a_t| at most 1 no gate and no length makes a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def constant_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, chunk: int | None = None) -> Tensor:
    """h_t = a h_{t-1} + b_t: of a (N,), b (B, T, N) and h0 (B, N), zeros if there is none; `chunk` as in `scan`."""
    h: Tensor = _ConstantScan.apply(a, b, start(b) if h0 is None else h0, chunk)  # type: ignore[no-untyped-call]
    return h


class _ConstantScan(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor, chunk: int | None) -> Tensor:
        h = scan(a, b.clone(), h0, chunk)
        ctx.save_for_backward(a, h, h0)
        ctx.chunk = chunk
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        a, h, h0 = ctx.saved_tensors
        g = scan_back(a.conj().resolve_conj(), gradient.clone(), ctx.chunk)
        of_a = (g[:, 0] * h0.conj()).sum(0) + (g[:, 1:] * h[:, :-1].conj()).sum((0, 1))
        return of_a, g, a.conj() * g[:, 0], None


def start(b: Tensor) -> Tensor:
    """The state (B, N) before an episode of inputs b (B, T, N)."""
    return torch.zeros_like(b[:, 0])


def scan(a: Tensor, b: Tensor, h0: Tensor, chunk: int | None = None) -> Tensor:
    """h (B, T, N) in the place of b, without a gradient.

    Args:
        a: what is kept of the state before, (B, T, N), or (N,) if it is the same at all steps.
        b: what comes to it, (B, T, N).
        h0: the state before the first step, (B, N).
        chunk: steps that are taken one after another, in all chunks of the sequences at the same time; the chunks are
            then joined one after another; by default `best_chunk`.
    """
    length = b.shape[1]
    chunk = best_chunk(length, b.device) if chunk is None else chunk
    if chunk >= length:
        for a_t, b_t in zip(_steps(a, length), b.unbind(1), strict=True):
            h0 = b_t.addcmul_(a_t, h0)
        return b
    a = a.expand_as(b)
    left = a.clone()  # how much of the state before a chunk is left at each of its steps
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
    """g_t = dL/dh_t + a_{t+1} g_{t+1}, in the place of `gradient`: what a loss asks of each b_t, through all after."""
    length = gradient.shape[1]
    chunk = best_chunk(length, gradient.device) if chunk is None else chunk
    if chunk >= length:
        steps, kept = gradient.unbind(1), _steps(a, length)
        for t in reversed(range(length - 1)):
            steps[t].addcmul_(kept[t + 1], steps[t + 1])
        return gradient
    a = a.expand_as(gradient)
    following = torch.cat([a[:, :1], a[:, 1:].flip(1)], 1)  # the first meets a state of zeros
    return scan(following, gradient.flip(1), start(gradient), chunk).flip(1)


def best_chunk(length: int, device: torch.device) -> int:
    """Steps of a scan to take one after another.

    On the CPU all of them, where one pass over the memory is best. Elsewhere the number of kernels is what costs, two
    for each step of a chunk and one for each chunk: about fewest with the length's root.
    """
    return length if device.type == "cpu" else math.isqrt(length - 1) + 1


def _steps(a: Tensor, length: int) -> Sequence[Tensor]:
    """Of (B, T, N) or (N,), what each of T steps keeps."""
    return a.unbind(1) if a.dim() > 1 else [a] * length
