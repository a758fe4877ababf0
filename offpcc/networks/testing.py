"""`check_encoder` and `check_cell`: check that your own encoder or cell follows the conventions of this library."""

import copy

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offpcc.config.registry import from_specification
from offpcc.config.validation import format_value
from offpcc.core import State
from offpcc.networks.encoders import Encoder, EncoderBuilder, Inputs, InputShape, rebuilds
from offpcc.networks.numpy_inference import mirror_of
from offpcc.networks.states import keep_rows, map_state
from offpcc.utils.errors import UserError, format_error
from offpcc.utils.spaces import PackedDict, channels_first_shape

ROWS, STEPS = 3, 7
MANY_STEPS = 300  # more than the context length of most memories
TOLERANCE = 1e-4  # relative to the largest absolute value, or to 1 if that is larger


def check_encoder(
    build: EncoderBuilder, observation: tuple[int, ...] | spaces.Box | spaces.Dict = (4,), action_dim: int = 2
) -> None:
    """Build an encoder, check it on random sequences, and rebuild it as `Agent.load` does.

    The function accepts any encoder that an algorithm accepts. To check your own memory cell, pass
    ``functools.partial(Recurrent, cell=Mine)``.

    Args:
        build: an encoder class, or a `functools.partial` of one.
        observation: the space of observations, or the shape of a vector or an image. As in training, an image is uint8
            with channels first, and entries of a Dict are float32.
        action_dim: number of action dimensions.

    Raises:
        UserError: a check failed. The message names the first failure.
    """
    if isinstance(observation, spaces.Dict):
        observation = PackedDict(observation).unpacked_shape
    elif isinstance(observation, spaces.Box):
        observation = channels_first_shape(observation.shape)
    elif not isinstance(observation, tuple):
        raise UserError(
            f"check_encoder.observation is {format_value(observation)}; it has to be a Box, a Dict or a shape such as "
            f"(4,); a Discrete observation of n values reaches an encoder as the shape (n,)"
        )
    if not callable(build):
        raise UserError(f"check_encoder.build is {format_value(build)}; give an encoder class, or a partial of one")
    shape = InputShape(observation, action_dim)
    try:
        encoder = build(shape)
    except UserError:
        raise
    except Exception as error:  # of the user's code
        raise UserError(f"the encoder cannot be built: {format_error(error)}; correct it") from error
    if not isinstance(encoder, Encoder):
        raise UserError(
            f"{type(encoder).__name__} is not an encoder; derive it from Encoder, or check a memory cell by "
            f"functools.partial(Recurrent, cell={type(encoder).__name__})"
        )
    encoder.eval()
    with torch.no_grad():
        _try(encoder, _random(shape, STEPS))
        if not encoder.memoryless:
            _try(encoder, _random(shape, MANY_STEPS))
        _try_again(encoder, shape)


def check_own_encoder(encoder: Encoder, shape: InputShape, is_image: bool) -> None:
    """Check that an encoder with parts of the user's runs, and returns summaries and a state.

    This is the part of `check_encoder` that takes no time; algorithms call it when they are built.

    Args:
        encoder: the encoder. The check runs a copy of it, in eval mode.
        shape: the shape of its inputs.
        is_image: whether inputs with three axes are images of bytes; else they are float32.

    Raises:
        UserError: the encoder raises an exception, or returns something else.
    """
    if all(type(part).__module__.startswith(("offpcc.", "torch.")) for part in encoder.modules()):
        return
    encoder = copy.deepcopy(encoder).eval()
    with torch.no_grad(), torch.random.fork_rng([]):
        _run(encoder, _random(shape, STEPS, is_image))


def check_cell(cell: nn.Module, num_in: int, dim: int) -> None:
    """Check that a memory cell has the batch as its first axis, returns its state, and does not mix rows.

    Args:
        cell: the cell, or a copy of it: the check runs it, in eval mode.
        num_in: numbers in an input.
        dim: numbers in a summary.

    Raises:
        UserError: a check failed, or the cell raised an exception.
    """
    name = type(cell).__name__
    x = torch.randn(ROWS, STEPS, num_in, generator=torch.Generator().manual_seed(0))
    cell.eval()
    with torch.no_grad(), torch.random.fork_rng([]):
        try:
            result, again, others = (cell(read, None) for read in (x, x, torch.cat([x[:1], -x[1:]])))
        except Exception as error:  # of the user's code
            raise UserError(
                f"{name}.forward(x, None) failed for x of the shape (batch, steps, numbers) = {tuple(x.shape)}: "
                f"{format_error(error)}; correct it"
            ) from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor) or result[1] is None:
        raise UserError(f"{name}.forward has to return summaries and a state; correct it")
    h, state = result
    if h.shape != (ROWS, STEPS, dim):
        expected = f"(batch, steps, {name}.dim) = ({ROWS}, {STEPS}, {dim})"
        raise UserError(f"summaries of {name} have the shape {tuple(h.shape)}; it must be {expected}")
    _check_state(name, state)
    if torch.equal(again[0], h):  # else it draws random numbers
        _compare(others[0][:1], h[:1], f"summaries of {name} depend on other rows of the batch")


def _check_state(name: str, state: State) -> None:
    try:
        keep_rows(state, torch.ones(ROWS))
    except UserError as error:
        raise UserError(f"{name}: {error.message}") from error


def _random(shape: InputShape, num_steps: int, is_image: bool = True) -> Inputs:
    draw = torch.Generator().manual_seed(0)
    sizes = tuple(shape.observation), (shape.action_dim,), (1,)
    inputs = Inputs(*(torch.randn(ROWS, num_steps, *size, generator=draw) for size in sizes))
    if len(sizes[0]) != 3 or not is_image:
        return inputs
    return inputs._replace(observation=(32.0 * inputs.observation + 128.0).clamp(0.0, 255.0).to(torch.uint8))


def _name(encoder: Encoder) -> str:
    """Return the name of an encoder's class, with that of its cell."""
    cell = getattr(encoder, "cell", None)
    return type(encoder).__name__ + ("" if cell is None else f" with {type(cell).__name__}")


def _run(encoder: Encoder, inputs: Inputs) -> tuple[Tensor, State]:
    """Return the summaries and the state of an encoder, once they are what an encoder returns."""
    name, seen = type(encoder).__name__, tuple(inputs.observation.shape)
    if not isinstance(dim := getattr(encoder, "dim", None), int):
        raise UserError(f"{name}.dim is not set; set it in __init__ to the width of a summary")
    try:
        result = encoder(inputs, None)
    except NotImplementedError as error:
        raise UserError(f"{name} has no forward(inputs, state); write it") from error
    except Exception as error:  # of the user's code
        raise UserError(
            f"{name}.forward(inputs, None) failed for inputs.observation of the shape (batch, steps, ...) = {seen}: "
            f"{format_error(error)}; correct it"
        ) from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor):
        raise UserError(f"{name}.forward has to return summaries and a state, which is None without memory; correct it")
    h, last = result
    if h.shape != (*seen[:2], dim):
        expected = f"(batch, steps, dim) = {(*seen[:2], dim)}, with {name}.dim = {dim}"
        raise UserError(f"summaries of {name} have the shape {tuple(h.shape)}; it must be {expected}")
    if encoder.memoryless != (last is None):
        raise UserError(
            f"{name}.memoryless is {encoder.memoryless}, but it returned {'no state' if last is None else 'a state'}; "
            f"encoders with a memory always return a state, and others return None"
        )
    _check_state(name, last)
    return h, last


def _try(encoder: Encoder, inputs: Inputs) -> None:
    name, steps = _name(encoder), inputs.observation.shape[1]
    h, last = _run(encoder, inputs)
    cut = steps // 2
    changed = Inputs(*(torch.cat([x[:, :cut], -x[:, cut:]], 1) for x in inputs))
    _compare(encoder(changed)[0][:, :cut], h[:, :cut], f"summaries of {name} depend on later steps")
    others = Inputs(*(torch.cat([x[:1], -x[1:]]) for x in inputs))
    _compare(encoder(others)[0][:1], h[:1], f"summaries of {name} depend on other rows of the batch")
    begun = keep_rows(last, torch.tensor([0.0] + [1.0] * (ROWS - 1)))
    _compare(_in_steps(encoder, inputs), h, f"summaries of {name} differ between one call and step by step")
    _compare(encoder(inputs, begun)[0][:1], h[:1], f"{name} with a state of zeros differs from an episode's start")
    if mirror := mirror_of(encoder):
        state, found = None, []
        for t in range(steps):
            summary, state = mirror(Inputs(*(x[:, t].numpy() for x in inputs)), state)
            found.append(torch.as_tensor(summary))
        _compare(torch.stack(found, 1), h, f"the mirror of {name} returns other summaries than forward")


def _in_steps(encoder: Encoder, inputs: Inputs) -> Tensor:
    state: State = None
    parts = []
    for t in range(inputs.observation.shape[1]):
        h, state = encoder(inputs.steps(t, t + 1), map_state(torch.clone, state))
        parts.append(h)
    return torch.cat(parts, 1)


def _try_again(encoder: Encoder, shape: InputShape) -> None:
    """Rebuild the encoder as an actor file would, and compare the summaries."""
    name, inputs = _name(encoder), _random(shape, STEPS)
    description = rebuilds(encoder)
    try:
        again: Encoder = from_specification(description)(shape)
        again.load_state_dict(encoder.state_dict())
    except Exception as error:  # a user's class may raise anything
        message = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name} cannot be rebuilt from an actor's file ({message})") from error
    again.eval()
    fault = f"{name} returns other summaries after it was rebuilt from an actor's file"
    _compare(again(inputs)[0], encoder(inputs)[0], fault)


def _compare(found: Tensor, expected: Tensor, fault: str) -> None:
    difference, allowed = (found - expected).abs().max().item(), TOLERANCE * max(expected.abs().max().item(), 1.0)
    if not difference <= allowed:
        steps = f"in {expected.shape[1]} steps"
        raise UserError(f"{fault}: by up to {difference:.3g} {steps}; rounding causes at most {allowed:g}")
