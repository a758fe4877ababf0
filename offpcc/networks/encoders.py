"""Encoders: map observations, and optionally previous actions and rewards, to summaries.

Every encoder maps `(inputs (B, T, ...), state)` to `(h (B, T, H), state)`. Running it step by step, with the returned
state as the next input, gives the same summaries as one call on the whole sequence. A state is None, a tensor, or
nested tuples of tensors; the first axis is the batch. Zeros are the state at an episode's start, so setting a row of
the state to zero resets that row.
"""

import functools
import inspect
from numbers import Integral
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.config.registry import configurable, specification
from offpcc.config.validation import Flag, Rule, format_value
from offpcc.core import Batch, State, has_images
from offpcc.networks.cells.base import Cell
from offpcc.networks.numpy_inference import Array, Mirror
from offpcc.utils.errors import UserError


class UnsuitedEncoderError(UserError):
    """The encoder reads images and observations have none, or the other way round."""


class InputShape(NamedTuple):
    """Shape of an encoder's input at one step."""

    observation: tuple[int, ...]  # images have channels first; a `DictShape` for Dict observations
    action_dim: int


class Inputs(NamedTuple):
    """Inputs of an encoder at each step. A mirror gets NumPy arrays of one step, without the time axis: (N, ...)."""

    observation: Any  # (B, T, *obs)
    previous_action: Any  # (B, T, A)
    previous_reward: Any  # (B, T, 1)

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the T+1 inputs of a batch. Actions and rewards shift one step later: they are the previous ones."""
        return cls(
            batch.observations,
            torch.cat([batch.first_action.unsqueeze(1), batch.actions], 1),
            torch.cat([batch.first_reward.unsqueeze(1), batch.rewards], 1),
        )

    def steps(self, start: int | None, stop: int | None) -> Self:
        """Return the inputs from step `start` up to, but not including, step `stop`."""
        return type(self)(*(x[:, start:stop] for x in self))


class Encoder(nn.Module):
    """Base class of encoders. It handles the extra inputs; the module docstring defines states.

    Args:
        shape: input shape. A subclass must take it as its first argument, with the name `shape`.
        use_previous_action: whether the previous action is an input.
        use_previous_reward: whether the previous reward is an input.

    Attributes:
        dim: width of a summary.
        context_length: see `Cell`.
        learning_only: names of arguments for which an actor's file has None, such as a file of pretrained weights.
    """

    memoryless = True
    sizes: ClassVar[frozenset[str]] = frozenset({"shape"})
    learning_only: ClassVar[frozenset[str]] = frozenset()
    dim: int
    context_length: int | None = None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of a summary. It is the observation shape of an encoder that reads these summaries."""
        return (self.dim,)

    def __init__(
        self, shape: InputShape, *, use_previous_action: Flag = False, use_previous_reward: Flag = False
    ) -> None:
        super().__init__()
        self.use_previous_action = use_previous_action
        self.use_previous_reward = use_previous_reward
        self.extra_dim = shape.action_dim * use_previous_action + use_previous_reward

    def with_extras(self, features: Tensor, inputs: Inputs) -> Tensor:
        """Append the extra inputs that are in use to `features` (B, T, F)."""
        extras = [inputs.previous_action] if self.use_previous_action else []
        extras += [inputs.previous_reward] if self.use_previous_reward else []
        return torch.cat([features, *extras], -1) if extras else features

    def extended(self, features: Array, inputs: Inputs) -> Array:
        """Flatten `features` and append the extra inputs: the NumPy version of `with_extras`.

        Arrays are (N, ...), of one step. uint8 becomes float32.
        """
        flat = features.reshape(len(features), -1)
        flat = flat.astype(np.float32) if flat.dtype == np.uint8 else flat
        extras = [inputs.previous_action] if self.use_previous_action else []
        extras += [inputs.previous_reward] if self.use_previous_reward else []
        return np.concatenate([flat, *extras], -1) if extras else flat

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """Return summaries (B, T, dim) and the state after the last step."""
        raise NotImplementedError

    def unused_parameters(self) -> dict[str, str]:
        """Return the parameters that have no effect on this encoder as configured, each with the reason."""
        return {}


class EncoderBuilder(Protocol):
    """An encoder class, or a `functools.partial` of one."""

    def __call__(self, shape: InputShape, /) -> Encoder:
        """Build an encoder for inputs of this shape."""
        ...


def _builds_encoders(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, Encoder)
    return inspect.isroutine(value) or isinstance(value, functools.partial)


def build_encoder(build: EncoderBuilder, shape: InputShape, name: str, may_have_memory: bool = True) -> Encoder:
    """Build an encoder for inputs of this shape, and check the result.

    Args:
        build: an encoder class, or a function that returns an encoder.
        shape: input shape.
        name: name of the parameter that holds `build`, such as ``SAC.encoder``, for error messages.
        may_have_memory: False if the caller has no place for the encoder's state.
    """
    encoder: Any = build(shape)
    if not isinstance(encoder, Encoder) or type(encoder) is Encoder:
        raise UserError(
            f"{name} returned {format_value(encoder)}; {_as_encoder(encoder) or 'it has to return an encoder'}"
        )
    check_dim(encoder)
    if not (may_have_memory or encoder.memoryless):
        raise UserError(f"{name} has a memory, whose state would be lost; choose an encoder without memory")
    return encoder


def check_dim(encoder: Encoder) -> None:
    """Check the width of an encoder's summaries; one that defines its `output_shape` may have none."""
    dim, name = getattr(encoder, "dim", None), type(encoder).__name__
    if dim is None and type(encoder).output_shape is Encoder.output_shape:
        raise UserError(f"{name}.dim is not set; set it in __init__ to the width of a summary")
    if dim is not None and not isinstance(dim, Integral):
        raise UserError(f"{name}.dim is {format_value(dim)}; it has to be a whole number")


def _as_encoder(value: Any) -> str:
    """Return how a class or module that is no encoder class becomes one; "" for other values."""
    cls = value if isinstance(value, type) else type(value)
    if issubclass(cls, Cell):
        return f"a cell is a part of the encoder Recurrent: bind Recurrent.cell = @{cls.__name__}"
    if cls is Encoder:
        return "it is the base class; give a class that derives from it"
    if issubclass(cls, Encoder):
        return "" if cls is value else f"write @{cls.__name__} without parentheses; in Python, give the class"
    if issubclass(cls, nn.Module):
        return "an encoder is a class that derives from offpcc.networks.Encoder; `offpcc docs extending` has an example"
    return ""


Builder = Annotated[EncoderBuilder, Rule("an encoder class such as @Recurrent", _builds_encoders, _as_encoder)]


def _builds_memoryless(value: Any) -> bool:
    cls = value.func if isinstance(value, functools.partial) else value
    return _builds_encoders(value) and getattr(cls, "memoryless", True) is not False


MemorylessBuilder = Annotated[
    EncoderBuilder, Rule("an encoder class without memory, such as @Convolutional", _builds_memoryless, _as_encoder)
]


@configurable
class PassThrough(Encoder):
    """Encoder that returns observations of any shape unchanged, for the next encoder."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.dim = torch.Size(shape.observation).numel()
        self.shape = shape.observation

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of an observation."""
        return self.shape

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """Return the observations (B, T, *obs) unchanged."""
        return inputs.observation, None

    def mirror(self) -> Mirror:
        """Return the NumPy version; see `offpcc.networks.numpy_inference`."""
        return lambda inputs, state: (inputs.observation, None)


@configurable
class Identity(Encoder):
    """Encoder that returns the flattened observation as the summary, followed by the extra inputs in use."""

    def __init__(self, shape: InputShape, **kwargs: bool) -> None:
        super().__init__(shape, **kwargs)
        self.dim = vector_dim(shape.observation) + self.extra_dim

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """(B, T, *obs) -> (B, T, dim)."""
        return self.with_extras(vector(inputs.observation), inputs), None

    def mirror(self) -> Mirror:
        """Return the NumPy version; see `offpcc.networks.numpy_inference`."""
        return lambda inputs, state: (self.extended(inputs.observation, inputs), None)


def vector_dim(shape: tuple[int, ...]) -> int:
    """Return the number of features of an observation with this shape, flattened to a vector."""
    if has_images(shape):
        fault = f"of shape {shape} are images" if len(shape) == 3 else "have entries that are images"
        raise UnsuitedEncoderError(
            f"observations {fault} and need a convolutional encoder: choose the convolutional algorithm, with a c "
            f"before its name, such as csac for sac, or bind an encoder, or Recurrent.feature_extractor, to "
            f"@Convolutional"
        )
    return torch.Size(shape).numel()


def vector(observation: Tensor) -> Tensor:
    """Flatten (B, T, *obs) to (B, T, features), with uint8 converted to float."""
    flat = observation.flatten(2)
    return flat.float() if flat.dtype == torch.uint8 else flat


def rebuilds(part: Encoder | Cell) -> dict[str, Any]:
    """Return a specification that rebuilds an encoder or a cell.

    It holds all arguments except the sizes, which the caller passes when it rebuilds.
    """
    description = specification(part)
    for name, value in vars(part)["_arguments"].items():
        if isinstance(value, InputShape) and name not in part.sizes:
            raise UserError(
                f"{type(part).__name__} has an argument {name} for its input shape, so it cannot be rebuilt from an "
                f"actor's file; rename this argument to shape"
            )
    arguments = {key: value for key, value in description["arguments"].items() if key not in part.sizes}
    arguments |= dict.fromkeys(arguments.keys() & part.learning_only)  # not left out: gin would fill it in
    for name, inside in part.named_children():  # a child module, built from the argument of the same name
        if name in arguments and isinstance(inside, Encoder | Cell):
            arguments[name] = rebuilds(inside)
    return {"partial": {"reference": description["class"]}, "arguments": arguments}
