"""What can be done with an encoder's state without knowing what it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from offpcc.core import State


def map_state(function: Callable[[Any], Any], state: State) -> State:
    """`state` with `function` applied to each of its tensors, or arrays."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return tuple(map_state(function, part) for part in state)
    return function(state)


def keep_rows(state: State, kept: Tensor) -> State:
    """`state` with the rows where `kept` (B,) is 0 back at an episode's start."""
    return map_state(lambda s: torch.where(kept.view(-1, *(1,) * (s.dim() - 1)) > 0, s, 0.0), state)
