"""`check_encoder` and `check_cell`: check that your own encoder or cell follows the conventions of this library."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offpcc.config.registry import from_specification
from offpcc.config.validation import format_value
from offpcc.core import State
from offpcc.networks.encoders import Encoder, EncoderBuilder, Inputs, InputShape, check_dim, rebuilds
from offpcc.networks.numpy_inference import mirror_of
from offpcc.networks.states import keep_rows, map_state, tensors_of
from offpcc.utils.errors import UserError, format_error
from offpcc.utils.rng import same_global_generators
from offpcc.utils.spaces import PackedDict, channels_first_shape

ROWS, STEPS = 3, 7
MANY_STEPS = 300  # more than the context length of most memories
TOLERANCE = 1e-4  # relative to the largest absolute value, or to 1 if that is larger
KINDS = {  # classes with the methods that algorithms call
    "choose": "SquashedGaussianActor or DeterministicActor",
    "forward": "Critics",
    "quantiles": "QuantileCritics",
}


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
    elif isinstance(observation, list | tuple):
        observation = tuple(observation)
    else:
        raise UserError(
            f"check_encoder.observation is {format_value(observation)}; it has to be a Box, a Dict or a shape such as "
            f"(4,); a Discrete observation of n values reaches an encoder as the shape (n,)"
        )
    if not callable(build):
        raise UserError(f"check_encoder.build is {format_value(build)}; give an encoder class, or a partial of one")
    if isinstance(build, type) and not issubclass(build, Encoder):
        raise _no_encoder(build)
    shape = InputShape(observation, action_dim)
    with _explaining("the encoder cannot be built", UserError):
        encoder = build(shape)
    if not isinstance(encoder, Encoder):
        raise _no_encoder(type(encoder))
    check_dim(encoder)
    encoder.eval()
    with torch.no_grad():
        _try(encoder, _random(shape, STEPS))
        if not encoder.memoryless:
            _try(encoder, _random(shape, MANY_STEPS))
        _try_again(encoder, shape)


@contextmanager
def _explaining(fault: str, *but: type[Exception]) -> Iterator[None]:
    """Turn an error of the user's code into a `UserError` that begins with `fault`; those of `but` stay as they are."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        raise UserError(f"{fault}: {format_error(error)}; correct it") from error


def _no_encoder(cls: type) -> UserError:
    return UserError(
        f"{cls.__name__} is not an encoder; derive it from Encoder, or check a memory cell by "
        f"functools.partial(Recurrent, cell={cls.__name__})"
    )


def check_own_encoders(shared: Encoder, own: Encoder, shape: InputShape, dtype: torch.dtype) -> None:
    """Check that encoders with parts of the user's run, and that they return summaries and a state.

    Algorithms call this when they are built. It is a small part of `check_encoder`: one call with zeros, in two rows of
    two steps. Zeros are legal for every encoder, because they take the place of padding. `own` reads the output of
    `shared`. The check runs copies, in eval mode, on the device of the weights.
    """
    if not any(map(_own_parts, (shared, own))):
        return
    try:
        shared, own = copy.deepcopy((shared, own))
    except Exception:  # a part cannot be copied, so it cannot be tried without a trace
        return
    shared.eval()
    own.eval()
    device = next((weight.device for weight in (*shared.parameters(), *own.parameters())), torch.device("cpu"))
    sizes = ((tuple(shape.observation), dtype), ((shape.action_dim,), torch.float32), ((1,), torch.float32))
    inputs = Inputs(*(torch.zeros(2, 2, *size, dtype=kind, device=device) for size, kind in sizes))
    with torch.no_grad(), same_global_generators():
        h, _ = _run(shared, inputs, shared.output_shape)
        _run(own, inputs._replace(observation=h), (own.dim,))


def check_own_heads(
    owner: str,
    heads: Mapping[str, tuple[nn.Module, int]],
    action_dim: int,
    num_critics: int,
    num_quantiles: int | None = None,
) -> None:
    """Check that an actor and critics of the user's have the methods that algorithms call, and run.

    Algorithms call this when they are built, with zeros for two rows of two steps. `heads` are what `build_actor` and
    `build_critics` returned, if they are the user's, by "actor" and "critics", and the numbers in their summaries. The
    check runs copies, in eval mode. Networks of offpcc are not tried, but for the `num_quantiles` (N, B, T, K) that
    some algorithms ask critics for.
    """
    for name, (head, dim) in heads.items():
        is_own = not type(head).__module__.startswith("offpcc.")
        given = (1, 2, 2, dim), (2, 2, action_dim)
        if name == "actor" and is_own:
            _check_head(owner, "build_actor", head, "choose", (2, 2, dim), None, (2, 2, action_dim))
        if name == "critics" and is_own:
            _check_head(owner, "build_critics", head, "forward", *given, (num_critics, 2, 2, 1))
        if name == "critics" and num_quantiles is not None:
            _check_head(owner, "build_critics", head, "quantiles", *given, (num_critics, 2, 2, num_quantiles))


def _check_head(
    owner: str,
    method: str,
    head: nn.Module,
    call: str,
    of_summary: tuple[int, ...],
    of_action: tuple[int, ...] | None,
    wanted: tuple[int, ...],
) -> None:
    """Call a method of a head with a summary and an action, or no noise, and compare the shape of the result."""
    name = type(head).__name__
    kinds = KINDS[call]
    if not callable(getattr(head, call, None)):
        raise UserError(
            f"{owner}.{method} returned {name}, which has no method {call}; inherit from {kinds} of offpcc.networks, "
            f"or write its methods"
        )
    try:
        head = copy.deepcopy(head).eval()
    except Exception:  # it cannot be copied, so it cannot be tried without a trace
        return
    device = next((weight.device for weight in head.parameters()), torch.device("cpu"))
    given = [torch.zeros(*of_summary, device=device)]
    given.append(None if of_action is None else torch.zeros(*of_action, device=device))  # type: ignore[arg-type]
    shapes = ", ".join("None" if one is None else str(tuple(one.shape)) for one in given)
    fault = f"{name}.{call} of {owner}.{method} failed for inputs of the shapes {shapes}"
    with torch.no_grad(), same_global_generators(), _explaining(fault):
        result = getattr(head, call)(*given)
    found = tuple(result.shape) if isinstance(result, Tensor) else None
    if found != wanted:
        told = f"shape {found}" if found is not None else f"type {type(result).__name__}"
        raise UserError(
            f"{name}.{call} of {owner}.{method} returned a value of {told} for inputs of the shapes {shapes}, but "
            f"{wanted} is needed; correct it"
        )


def _own_parts(module: nn.Module) -> list[str]:
    """Return the names of the classes in a module that belong to neither offpcc nor torch."""
    classes = map(type, module.modules())
    return [cls.__name__ for cls in classes if not cls.__module__.startswith(("offpcc.", "torch."))]


def check_cell(cell: nn.Module, num_in: int, dim: int) -> None:
    """Check that a memory cell has the batch as its first axis, returns its state, and does not mix rows.

    The cell, or a copy of it, reads `num_in` numbers and returns `dim`. The check runs it, in eval mode.
    """
    name = type(cell).__name__
    x = torch.randn(ROWS, STEPS, num_in, generator=torch.Generator().manual_seed(0))
    cell.eval()
    fault = f"{name}.forward(x, None) failed for x of the shape (batch, steps, numbers) = {tuple(x.shape)}"
    with torch.no_grad(), torch.random.fork_rng([]), _explaining(fault):
        result, again, others = (cell(read, None) for read in (x, x, torch.cat([x[:1], -x[1:]])))
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor):
        raise UserError(f"{name}.forward has to return summaries and a state; correct it")
    h, state = result
    if state is None:
        raise UserError(
            f"{name}.forward returned None as its state; return what the cell remembers, such as a tensor with the "
            f"batch as its first axis"
        )
    if h.shape != (ROWS, STEPS, dim):
        expected = f"(batch, steps, {name}.dim) = ({ROWS}, {STEPS}, {dim})"
        raise UserError(f"summaries of {name} have the shape {tuple(h.shape)}; it must be {expected}")
    _check_state(name, state, ROWS)
    if torch.equal(again[0], h):  # else it draws random numbers
        _compare(others[0][:1], h[:1], f"summaries of {name} depend on other rows of the batch")


def _check_state(name: str, state: State, rows: int) -> None:
    try:
        found = tensors_of(state)
        keep_rows(state, torch.ones(rows, device=found[0].device if found else None))
    except UserError as error:
        raise UserError(f"{name}: {error.message}") from error


def _random(shape: InputShape, num_steps: int) -> Inputs:
    draw = torch.Generator().manual_seed(0)
    sizes = tuple(shape.observation), (shape.action_dim,), (1,)
    inputs = Inputs(*(torch.randn(ROWS, num_steps, *size, generator=draw) for size in sizes))
    if len(sizes[0]) != 3:
        return inputs
    return inputs._replace(observation=(32.0 * inputs.observation + 128.0).clamp(0.0, 255.0).to(torch.uint8))


def _name(encoder: Encoder) -> str:
    """Return the name of an encoder's class; if it is one of offpcc, with the first class of the user's inside it."""
    own, name = _own_parts(encoder), type(encoder).__name__
    return f"{name} with {own[0]}" if own and own[0] != name else name


def _run(encoder: Encoder, inputs: Inputs, output_shape: tuple[int, ...]) -> tuple[Tensor, State]:
    """Return the summaries and the state of an encoder, once they are what an encoder returns."""
    name, seen = _name(encoder), tuple(inputs.observation.shape)
    if type(encoder).forward is Encoder.forward:
        raise UserError(f"{name} has no forward(inputs, state); write it")
    fault = f"{name}.forward(inputs, None) failed for inputs.observation of the shape (batch, steps, ...) = {seen}"
    with _explaining(fault, UserError):
        result = encoder(inputs, None)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor):
        raise UserError(f"{name}.forward has to return summaries and a state, which is None without memory; correct it")
    h, last = result
    expected = (*seen[:2], *output_shape)
    if h.shape != expected:
        sizes = f"(batch, steps, dim) = {expected}, with {name}.dim = {encoder.dim}"
        sizes = sizes if len(output_shape) == 1 else f"(batch, steps, *output_shape) = {expected}"
        raise UserError(f"summaries of {name} have the shape {tuple(h.shape)}; it must be {sizes}")
    if encoder.memoryless != (last is None):
        raise UserError(
            f"{name}.memoryless is {encoder.memoryless}, but it returned {'no state' if last is None else 'a state'}; "
            f"encoders with a memory always return a state, and others return None"
        )
    _check_state(name, last, seen[0])
    return h, last


def _try(encoder: Encoder, inputs: Inputs) -> None:
    name, steps = _name(encoder), inputs.observation.shape[1]
    h, last = _run(encoder, inputs, encoder.output_shape)
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
