"""Runs encoders over batches of sequences, with burn-in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offpcc.core import Batch, State
from offpcc.networks.cells.linear import in_full
from offpcc.networks.encoders import Inputs
from offpcc.networks.states import keep_rows


def encode(encoder: nn.Module, inputs: Inputs, batch: Batch, features: Tensor | None = None) -> Tensor:
    """Summaries (B, T+1, H) of a batch's inputs, or of `features` (B, T+1, F) in the observations' place.

    A memoryless encoder reads the last observation without gradient, as it is only bootstrapped from. One with
    memory runs burn-in without gradient; rows that have none keep the zero state.
    """
    if features is not None:
        inputs = inputs._replace(observation=features)
    if encoder.memoryless and is_empty(encoder):
        return _first(encoder(inputs))
    if encoder.memoryless:
        with torch.no_grad():
            last = _first(encoder(inputs.steps(-1, None)))
        return torch.cat([_first(encoder(inputs.steps(None, -1))), last], 1)
    if batch.burn_in == 0:
        return _first(encoder(inputs))
    with torch.no_grad():
        before, state = encoder(inputs.steps(None, batch.burn_in))
        state = keep_rows(state, batch.valid[:, batch.burn_in - 1, 0])
    return torch.cat([before, _first(encoder(inputs.steps(batch.burn_in, None), state))], 1)


def _first(pair: tuple[Tensor, State]) -> Tensor:
    """The summaries, in full precision even if products were not: losses and noise have the dtype of what is read."""
    return in_full(pair[0])


def is_empty(module: nn.Module) -> bool:
    """Whether a module has no parameters: such an encoder is nobody's own."""
    return next(module.parameters(), None) is None
