"""The dense products of an update and nothing else: no autograd, no activations, no optimizer.

Each pass is laid out in several ways (an ensemble as one batched product or as a product for each member; weights
stored as (in, out) or as (out, in)), and the one that is fastest here is kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.cases import Case
from benchmarks.libraries import UnavailableError, Work
from benchmarks.passes import PASSES, Pass, Passes, Unroll

TRIALS = 3  # of each layout, of which the fastest counts
Products = list[Callable[[], object]]


def prepare(case: Case, num_transitions: int) -> Work:
    """All passes of an update, those of every second update in turn."""
    if case.kind not in ("update", "model", "imagine"):
        raise UnavailableError("the floor is of updates and imagined steps")
    passes = PASSES[case.algorithm](case.sizes)
    laid_out = [(each.every, *fastest(each)) for each in passes]
    numbers = itertools.count(1)

    @torch.inference_mode()
    def update() -> None:
        number = next(numbers)
        for every, products, _ in laid_out:
            if number % every == 0:
                for product in products:
                    product()

    return Work(update, note=_describe(passes, [layout for *_, layout in laid_out]))


def _describe(passes: Passes, layouts: list[str]) -> str:
    told = (f"{each.network} ({each.reads}): {layout}" for each, layout in zip(passes, layouts, strict=True))
    return "; ".join(told)


@torch.inference_mode()
def fastest(each: Pass | Unroll) -> tuple[Products, str]:
    """The products of a pass in the layout that is fastest here, and its name."""
    trials = []
    for name, products in layouts(each):
        times = []
        for _ in range(TRIALS):
            started = time.perf_counter()
            for product in products:
                product()
            times.append(time.perf_counter() - started)
        trials.append((min(times), name, products))
    _, name, products = min(trials, key=lambda trial: trial[0])
    return products, name


def layouts(each: Pass | Unroll) -> Iterator[tuple[str, Products]]:
    """All ways to lay a pass out."""
    build = mlp if isinstance(each, Pass) else lstm
    for batched, transposed in itertools.product((True, False) if each.copies > 1 else (False,), (False, True)):
        name = f"{'bmm' if batched else 'mm'}, weights ({'out, in' if transposed else 'in, out'})"
        groups = [each.copies] if batched else [0] * each.copies
        yield name, [product for copies in groups for product in build(each, copies, transposed)]  # type: ignore[arg-type]


def mlp(each: Pass, copies: int, transposed: bool) -> Iterator[Callable[[], object]]:
    """Of an MLP, or of `copies` side by side: forwards, then backwards."""
    layers = list(itertools.pairwise(each.dims))
    weights = [_weights(copies, *layer, transposed) for layer in layers]
    values = [_array(copies, each.forward, dim) for dim in each.dims]
    gradients = [_array(copies, each.backward, dim) for dim in each.dims]
    for number, weight in enumerate(weights):
        yield _product(values[number], weight, values[number + 1])
    if not each.backward:
        return
    for number, weight in reversed(list(enumerate(weights))):
        if each.weights:
            taken = _weights(copies, *layers[number], transposed)
            read = values[number].narrow(-2, 0, each.backward)
            yield _product(read.transpose(-1, -2), gradients[number + 1], taken)
        columns = each.dims[number] if number else each.inputs
        if columns:
            wanted = weight.narrow(-2, weight.shape[-2] - columns, columns)
            into = gradients[number] if number else _array(copies, each.backward, columns)
            yield _product(gradients[number + 1], wanted.transpose(-1, -2), into)


def lstm(each: Unroll, copies: int, transposed: bool) -> Iterator[Callable[[], object]]:
    """Of an LSTM's layers: the input's product of all steps at once, the recurrent ones step by step; then back."""
    rows, steps = each.sequences, range(1, each.forward)
    layers = list(itertools.pairwise(each.dims))
    inputs = [_weights(copies, num_in, 4 * width, transposed) for num_in, width in layers]
    recurrent = [_weights(copies, width, 4 * width, transposed) for _, width in layers]
    values = [_array(copies, each.forward * rows, dim) for dim in each.dims]  # time before sequences
    for number, (_, width) in enumerate(layers):
        gates = _array(copies, each.forward * rows, 4 * width)
        yield _product(values[number], inputs[number], gates)
        for step in steps:
            before, now = _step(values[number + 1], step - 1, rows), _step(gates, step, rows)
            yield _product(before, recurrent[number], now, accumulate=True)
    if not each.backward:
        return
    learned = each.backward * rows
    for number, (num_in, width) in reversed(list(enumerate(layers))):
        gradients, into = _array(copies, learned, 4 * width), _array(copies, rows, width)
        for step in range(each.backward - 1, 0, -1):
            yield _product(_step(gradients, step, rows), recurrent[number].transpose(-1, -2), into)
        if number:
            below = _array(copies, learned, num_in)
            yield _product(gradients, inputs[number].transpose(-1, -2), below)
        read = values[number].narrow(-2, 0, learned).transpose(-1, -2)
        recalled = values[number + 1].narrow(-2, 0, learned - rows).transpose(-1, -2)
        yield _product(read, gradients, _weights(copies, num_in, 4 * width, transposed))
        later = gradients.narrow(-2, rows, learned - rows)
        yield _product(recalled, later, _weights(copies, width, 4 * width, transposed))


def _product(a: Tensor, b: Tensor, out: Tensor, accumulate: bool = False) -> Callable[[], object]:
    batched = a.dim() == 3
    if accumulate:
        return (lambda: torch.baddbmm(out, a, b, out=out)) if batched else (lambda: torch.addmm(out, a, b, out=out))
    return (lambda: torch.bmm(a, b, out=out)) if batched else (lambda: torch.mm(a, b, out=out))


def _step(values: Tensor, step: int, rows: int) -> Tensor:
    return values.narrow(-2, step * rows, rows)


def _array(copies: int, rows: int, columns: int) -> Tensor:
    return torch.randn(*((copies,) if copies else ()), rows, columns)


def _weights(copies: int, num_in: int, num_out: int, transposed: bool) -> Tensor:
    """(in, out), of the size that keeps products near 1: denormal numbers would be slow."""
    shape = (num_out, num_in) if transposed else (num_in, num_out)
    weights = torch.randn(*((copies,) if copies else ()), *shape) / num_in**0.5
    return weights.transpose(-1, -2) if transposed else weights
