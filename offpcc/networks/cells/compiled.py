"""Memory cells in compiled updates: a cell is one operation of the program, and runs as it does without compilation.

A program of its steps would be long: an LSTM has ten operations in each of 200 steps, and PyTorch's own is faster.
"""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from offpcc.core import State
from offpcc.networks.cells.base import Cell, run_chunked
from offpcc.networks.states import tensors_of, with_tensors
from offpcc.utils import torch_private


def run_as_one(cell: Cell, x: Tensor, state: State = None) -> tuple[Tensor, State]:
    """Do what `run_chunked` does, as one operation of the program that is being recorded."""
    call = CellCall(cell, x, state)
    summaries, *after, _ = _run(x, tensors_of(state), [*cell.parameters()], torch_private.add_part(call))
    return summaries, with_tensors(call.state_after, after)


class CellCall:
    """One call of a cell in a compiled update; the program calls it with other inputs and states of the same shapes."""

    def __init__(self, cell: Cell, x: Tensor, state: State) -> None:
        self.cell, self.state = cell, state
        self.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        learns, read = torch.is_grad_enabled(), [x, *tensors_of(state), *cell.parameters()]
        self.is_learned = [learns and tensor.requires_grad for tensor in read]
        self.recorded: Any = None  # by the last `run`, for `gradients`
        modes = {module: module.training for module in cell.modules()}
        with torch_private.outside_of_trace(), torch.no_grad():  # for the shapes
            zeros = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in (x, *tensors_of(state))]
            buffers = {name: buffer.clone() for name, buffer in cell.named_buffers()}  # a cell may change its own
            cell.eval()  # dropout would draw numbers
            try:
                summaries, after = self._computed(lambda *given: functional_call(cell, buffers, given), zeros)
                made = [summaries, *tensors_of(after)]
                self.made = [torch.empty_like(one, device="meta") for one in made]  # layouts, without gaps
                self.state_after = with_tensors(after, self.made[1:])
            finally:
                for module, mode in modes.items():
                    module.training = mode

    def _computed(self, cell: Any, given: list[Tensor]) -> tuple[Tensor, State]:
        with torch.autocast("cpu", *self.autocast):
            return run_chunked(cell, given[0], with_tensors(self.state, given[1:]))

    def run(self, x: Tensor, state: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Return the summaries and the tensors of the state after the last step."""
        own: dict[str, Tensor] = dict(self.cell.named_parameters())
        cell: Any = self.cell
        read = [x, *state]
        places = [[tensor.data_ptr() for tensor in tensors] for tensors in (own.values(), weights)]
        if places[0] != places[1]:
            # The update has changed the weights, and the program writes them at its end.
            own = dict(zip(own, self._leaves(weights, len(read)), strict=True))

            def cell(x: Tensor, state: State) -> Any:
                return functional_call(self.cell, own, (x, state))

        given = self._leaves(read, 0)
        with torch_private.plain_dispatch(), torch.set_grad_enabled(any(self.is_learned)):
            summaries, after = self._computed(cell, given)
        made = [summaries, *tensors_of(after)]
        if any(self.is_learned):
            learned = itertools.compress([*given, *own.values()], self.is_learned)
            self.recorded = made, [*learned]
        return _laid_out([one.detach() for one in made], self.made, read)

    def free(self) -> None:
        """Forget what the last `run` recorded: else each program, one for each length, would keep its memory."""
        self.recorded = None

    def _leaves(self, tensors: list[Tensor], first: int) -> list[Tensor]:
        are_learned = self.is_learned[first : first + len(tensors)]
        return [one.detach().requires_grad_(wanted) for one, wanted in zip(tensors, are_learned, strict=True)]

    def gradients(self, by_made: list[Tensor]) -> list[Tensor]:
        """Return the gradients by what is learned, from those by the results of `run`."""
        made, learned = self.recorded
        used = [one.requires_grad for one in made]
        outputs, given = ([*itertools.compress(each, used)] for each in (made, by_made))
        with torch_private.plain_dispatch():  # an update of the user's may ask twice
            found = torch.autograd.grad(outputs, learned, given, retain_graph=True, materialize_grads=True)
        like = [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in learned]
        return _laid_out([*found], like, by_made)


def _laid_out(tensors: list[Tensor], like: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return tensors with the strides of others, each in memory of its own, as PyTorch asks of an operation."""
    taken = {each.untyped_storage().data_ptr() for each in inputs}
    results = []
    for one, other in zip(tensors, like, strict=True):
        is_free = one.untyped_storage().data_ptr() not in taken and one.stride() == other.stride()
        results.append(
            one if is_free else torch.empty_strided(other.shape, other.stride(), dtype=other.dtype).copy_(one)
        )
        taken.add(results[-1].untyped_storage().data_ptr())
    return results


def _call(number: int) -> CellCall:
    call: CellCall = torch_private.part_of_program(number)
    return call


# Programs read a list of one tensor wrongly (PyTorch 2.13), so the operations return one more, which is empty.


@torch.library.custom_op("offpcc::run_cell", mutates_args=())
def _run(x: Tensor, state: list[Tensor], weights: list[Tensor], number: int) -> list[Tensor]:
    return [*_call(number).run(x, state, weights), torch.empty(0)]


@_run.register_fake
def _(x: Tensor, state: list[Tensor], weights: list[Tensor], number: int) -> list[Tensor]:
    made = _call(number).made
    return [*(torch.empty_strided(one.shape, one.stride(), dtype=one.dtype) for one in made), torch.empty(0)]


# It takes what `_run` took and made, which no other operation may overwrite before.
@torch.library.custom_op("offpcc::cell_gradients", mutates_args=())
def _gradients(read: list[Tensor], by_made: list[Tensor], number: int) -> list[Tensor]:
    return [*_call(number).gradients(by_made), torch.empty(0)]


@_gradients.register_fake
def _(read: list[Tensor], by_made: list[Tensor], number: int) -> list[Tensor]:
    learned = itertools.compress(read, _call(number).is_learned)
    return [*(torch.empty(one.shape, dtype=one.dtype) for one in learned), torch.empty(0)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, state, weights, ctx.number = inputs
    ctx.save_for_backward(x, *state, *weights, *output[:-1])


def _backward(ctx: Any, by_made: list[Tensor]) -> tuple[Any, ...]:
    call = _call(ctx.number)
    found = iter(_gradients([*ctx.saved_tensors], by_made[:-1], ctx.number))
    by_x, *others = [next(found) if wanted else None for wanted in call.is_learned]
    num = len(tensors_of(call.state))
    return by_x, others[:num], others[num:], None


_run.register_autograd(_backward, setup_context=_keep)
