"""Whether an encoder keeps what the library relies on, for those who write one, or a memory, of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from offpcc.core import State
from offpcc.errors import UserError
from offpcc.networks.encoders import Encoder, EncoderBuilder, Inputs, InputShape
from offpcc.networks.mirrors import mirror_of
from offpcc.networks.states import keep_rows, map_state

ROWS, STEPS = 3, 7
CUT = 4  # the step at which sequences are cut in two
TOLERANCE = 1e-4  # for numbers of the size of one


def check_encoder(build: EncoderBuilder, observation: tuple[int, ...] = (4,), action_dim: int = 2) -> None:
    """Build an encoder and try it on sequences of random numbers.

    It may be any that an algorithm takes, also a memory of one's own, by ``functools.partial(Recurrent, cell=Mine)``.

    Args:
        build: its class, or a partial application of one.
        observation: the shape of an observation, images with channels first.
        action_dim: the number of action dimensions.

    Raises:
        UserError: it breaks a promise; the first that is found is named.
    """
    encoder = build(InputShape(observation, action_dim))
    encoder.eval()
    draw = torch.Generator().manual_seed(0)
    shapes = (*observation,), (action_dim,), (1,)
    inputs = Inputs(*(torch.randn(ROWS, STEPS, *shape, generator=draw) for shape in shapes))
    with torch.no_grad():
        _try(encoder, inputs)


def _try(encoder: Encoder, inputs: Inputs) -> None:
    name = type(encoder).__name__
    h, last = encoder(inputs)
    if (dim := getattr(encoder, "dim", None)) is None or h.shape != (ROWS, STEPS, dim):
        expected = f"({ROWS}, {STEPS}, dim), with {name}.dim = {dim}"
        raise UserError(f"summaries of {name} have the shape {tuple(h.shape)}; it has to be {expected}")
    if encoder.memoryless != (last is None):
        raise UserError(
            f"{name}.memoryless is {encoder.memoryless}, but its state after a step is "
            f"{'None' if last is None else 'not'}; a state is for encoders with a memory, and they always have one"
        )
    changed = Inputs(*(torch.cat([x[:, :CUT], -x[:, CUT:]], 1) for x in inputs))
    _compare(encoder(changed)[0][:, :CUT], h[:, :CUT], f"summaries of {name} depend on later steps")
    others = Inputs(*(torch.cat([x[:1], -x[1:]]) for x in inputs))
    _compare(encoder(others)[0][:1], h[:1], f"summaries of {name} depend on other rows of the batch")
    begun = keep_rows(last, torch.tensor([0.0] + [1.0] * (ROWS - 1)))
    _compare(_in_steps(encoder, inputs), h, f"summaries of {name} differ when it is fed step by step")
    _compare(encoder(inputs, begun)[0][:1], h[:1], f"{name} does not start anew from a state of zeros")
    if mirror := mirror_of(encoder):
        state: State = None
        for t in range(STEPS):
            seen, state = mirror(Inputs(*(x[:, t].numpy() for x in inputs)), state)
            _compare(torch.as_tensor(seen), h[:, t], f"the mirror of {name} computes something else")


def _in_steps(encoder: Encoder, inputs: Inputs) -> Tensor:
    state, parts = None, []
    for t in range(STEPS):
        h, state = encoder(inputs.steps(t, t + 1), map_state(torch.clone, state))
        parts.append(h)
    return torch.cat(parts, 1)


def _compare(found: Tensor, expected: Tensor, fault: str) -> None:
    difference = (found - expected).abs().max().item()
    if not difference <= TOLERANCE:
        raise UserError(f"{fault}: by up to {difference:.3g}, and rounding explains {TOLERANCE:g}")
