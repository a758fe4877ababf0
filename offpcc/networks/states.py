"""Operations on encoder states of any structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from offpcc.core import State
from offpcc.utils.errors import UserError


def map_state(function: Callable[[Any], Any], state: State) -> State:
    """`state` with `function` applied to each of its tensors, or arrays.

    Raises:
        UserError: it holds something else.
    """
    if state is None:
        return None
    if isinstance(state, tuple):  # named ones become plain, as a checkpoint holds nothing else
        return tuple(map_state(function, part) for part in state)
    if not isinstance(state, Tensor | np.ndarray):
        raise UserError(
            f"a memory's state is, or has in it, a {type(state).__name__}; it has to be a tensor, or nested tuples of "
            f"tensors"
        )
    return function(state)


def keep_rows(state: State, kept: Tensor) -> State:
    """`state` with the rows where `kept` (B,) is 0 back at an episode's start.

    Raises:
        UserError: a part of it has no row for each of the batch.
    """

    def with_zeros(part: Tensor) -> Tensor:
        if part.shape[:1] != kept.shape:
            raise UserError(
                f"a part of a memory's state has the shape {tuple(part.shape)} in a batch of {len(kept)}; its first "
                f"axis has to be the batch"
            )
        return part.masked_fill(kept.view(-1, *(1,) * (part.dim() - 1)) == 0, 0)

    return map_state(with_zeros, state)
