"""Operations on encoder states of any structure."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from offpcc.core import State
from offpcc.utils.errors import UserError


def map_state(function: Callable[[Any], Any], state: State) -> State:
    """Apply `function` to each tensor or array in `state`, and return the result."""
    if state is None:
        return None
    if isinstance(state, tuple):  # a named tuple becomes a plain one; a checkpoint holds only plain tuples
        return tuple(map_state(function, part) for part in state)
    if not isinstance(state, Tensor | np.ndarray):
        raise UserError(
            f"a memory's state contains a {type(state).__name__}; it must be a tensor, or nested tuples of tensors"
        )
    return function(state)


def tensors_of(state: State) -> list[Tensor]:
    """Return the tensors in `state`."""
    found: list[Tensor] = []
    map_state(found.append, state)
    return found


def with_tensors(state: State, tensors: Sequence[Tensor]) -> State:
    """Return a state like `state`, with these tensors."""
    left = iter(tensors)
    return map_state(lambda _: next(left), state)


def keep_rows(state: State, kept: Tensor) -> State:
    """Return `state` with zeros, the state at an episode's start, in rows where `kept` (B,) is 0."""

    def with_zeros(part: Tensor) -> Tensor:
        if part.shape[:1] != kept.shape:
            raise UserError(
                f"a tensor in a memory's state has the shape {tuple(part.shape)} in a batch of {len(kept)}; its first "
                f"axis must be the batch"
            )
        return part.masked_fill(kept.view(-1, *(1,) * (part.dim() - 1)) == 0, 0)

    return map_state(with_zeros, state)
