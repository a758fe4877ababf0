"""Encoding of batches of sequences, with burn-in."""

import torch
from torch import Tensor, nn

from offpcc.core import Batch, State
from offpcc.networks.cells.linear import as_float32
from offpcc.networks.encoders import Inputs
from offpcc.networks.states import keep_rows


def encode(
    encoder: nn.Module, inputs: Inputs, batch: Batch, features: Tensor | None = None, skip: str | None = None
) -> Tensor:
    """Return the summaries (B, T+1, H) of a batch's inputs.

    If `features` (B, T+1, F) is given, it replaces the observations. A memoryless encoder reads the last observation
    without gradient, because it is only used for bootstrapping. All encoders read the burn-in without gradient. With
    memory, rows without burn-in steps start from the zero state.

    With `skip` "first" or "last", a memoryless encoder does not read this observation; its summary is NaN.
    """
    if features is not None:
        inputs = inputs._replace(observation=features)
    if encoder.memoryless and is_empty(encoder):
        return _first(encoder(inputs))
    if encoder.memoryless:
        if skip == "first":
            later = _first(encoder(inputs.steps(1, None)))
            return torch.cat([torch.full_like(later[:, :1], torch.nan), later], 1)
        before = _first(encoder(inputs.steps(batch.burn_in or None, -1)))
        if batch.burn_in:
            with torch.no_grad():
                earlier = _first(encoder(inputs.steps(None, batch.burn_in)))
            before = torch.cat([earlier, before], 1)
        if skip == "last":
            return torch.cat([before, torch.full_like(before[:, :1], torch.nan)], 1)
        with torch.no_grad():
            last = _first(encoder(inputs.steps(-1, None)))
        return torch.cat([before, last], 1)
    if batch.burn_in == 0:
        return _first(encoder(inputs))
    with torch.no_grad():
        before, state = encoder(inputs.steps(None, batch.burn_in))
        state = keep_rows(state, batch.valid[:, batch.burn_in - 1, 0])
    return torch.cat([before, _first(encoder(inputs.steps(batch.burn_in, None), state))], 1)


def reads_previous(encoder: nn.Module, *what: str) -> bool:
    """Check whether a part of an encoder reads the previous "action" or "reward"; without `what`, one of them."""
    names = [f"use_previous_{name}" for name in what or ("action", "reward")]
    return any(getattr(part, name, False) for part in encoder.modules() for name in names)


def _first(pair: tuple[Tensor, State]) -> Tensor:
    """Return the summaries, in float32 if autocast made them bfloat16: losses and noise take their dtype from them."""
    return as_float32(pair[0])


def is_empty(module: nn.Module) -> bool:
    """Check whether a module has no parameters. Networks can share such an encoder instead of having their own."""
    return next(module.parameters(), None) is None
