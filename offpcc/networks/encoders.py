"""Encoders: from observations, and optionally previous actions and rewards, to summaries.

Every encoder maps `(inputs (B, T, ...), state)` to `(h (B, T, H), state)` and, fed step by step with the state
handed on, gives what it gives fed at once. A state is None or nested tuples of tensors whose first axis is the
batch; zeros are the state at an episode's start, so a row starts anew by multiplication with zero.
"""

from __future__ import annotations

import functools
import inspect
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.config.registry import configurable, specification
from offpcc.config.validation import Flag, Rule, format_value
from offpcc.core import Batch, State, is_image
from offpcc.networks.cells.base import Cell
from offpcc.networks.numpy_inference import Array, Mirror
from offpcc.utils.errors import UserError


class InputShape(NamedTuple):
    """What an encoder reads at one step."""

    observation: tuple[int, ...]  # images have channels first
    action_dim: int


class Inputs(NamedTuple):
    """What is known at each step; for a mirror, at one step, arrays (N, ...)."""

    observation: Any  # (B, T, *obs)
    previous_action: Any  # (B, T, A)
    previous_reward: Any  # (B, T, 1)

    @classmethod
    def of(cls, batch: Batch) -> Inputs:
        """The T+1 inputs of a batch: actions and rewards move one step later."""
        return cls(
            batch.observations,
            torch.cat([batch.first_action.unsqueeze(1), batch.actions], 1),
            torch.cat([batch.first_reward.unsqueeze(1), batch.rewards], 1),
        )

    def steps(self, start: int | None, stop: int | None) -> Inputs:
        """Inputs from step `start` to before step `stop`."""
        return Inputs(*(x[:, start:stop] for x in self))


class EncoderBuilder(Protocol):
    """A class of encoders, or a partial application of one."""

    def __call__(self, shape: InputShape, /) -> Encoder:
        """An encoder of inputs of this shape."""
        ...


class Encoder(nn.Module):
    """Base class: the extra inputs, and the convention for states.

    Args:
        shape: of the inputs; a child takes it first, by this name.
        use_previous_action: whether the previous action is an input.
        use_previous_reward: whether the previous reward is one.

    Attributes:
        dim: width of a summary.
        context_length: see `Cell`.
    """

    memoryless = True
    sizes: ClassVar[frozenset[str]] = frozenset({"shape"})
    dim: int
    context_length: int | None = None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a summary, for an encoder that reads this one's."""
        return (self.dim,)

    def __init__(
        self, shape: InputShape, *, use_previous_action: Flag = False, use_previous_reward: Flag = False
    ) -> None:
        super().__init__()
        self.use_previous_action = use_previous_action
        self.use_previous_reward = use_previous_reward
        self.extra_dim = shape.action_dim * use_previous_action + use_previous_reward

    def with_extras(self, features: Tensor, inputs: Inputs) -> Tensor:
        """`features` (B, T, F) followed by the extra inputs that are in use."""
        extras = [inputs.previous_action] if self.use_previous_action else []
        extras += [inputs.previous_reward] if self.use_previous_reward else []
        return torch.cat([features, *extras], -1) if extras else features

    def extended(self, features: Array, inputs: Inputs) -> Array:
        """What `with_extras` gives, as a vector each, in NumPy: of arrays (N, ...) of one step."""
        flat = features.reshape(len(features), -1)
        flat = flat.astype(np.float32) if flat.dtype == np.uint8 else flat
        extras = [inputs.previous_action] if self.use_previous_action else []
        extras += [inputs.previous_reward] if self.use_previous_reward else []
        return np.concatenate([flat, *extras], -1) if extras else flat

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """Summaries (B, T, dim) and the state after the last step."""
        raise NotImplementedError

    def unused_parameters(self) -> dict[str, str]:
        """Parameters that change nothing of this encoder, as it is built, and why."""
        return {}


def _builds_encoders(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, Encoder)
    return inspect.isroutine(value) or isinstance(value, functools.partial)


def built_encoder(build: EncoderBuilder, shape: InputShape, name: str) -> Encoder:
    """An encoder of inputs of this shape.

    Args:
        build: a class of encoders, or a function that gives one.
        shape: of the inputs.
        name: of the parameter that `build` was given for, such as ``SAC.encoder``.

    Raises:
        UserError: `build` is a function that gives something else.
    """
    encoder: Any = build(shape)
    if not isinstance(encoder, Encoder):
        raise UserError(f"{name} gives {format_value(encoder)}; it has to be a class of encoders such as @Recurrent")
    return encoder


def _without_parentheses(value: Any) -> str:
    return f"write @{type(value).__name__} without parentheses" if isinstance(value, Encoder) else ""


Builder = Annotated[
    EncoderBuilder, Rule("a class of encoders such as @Recurrent", _builds_encoders, _without_parentheses)
]


@configurable
class PassThrough(Encoder):
    """No encoder: observations of any shape go on as they are, to the encoder behind."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.dim = torch.Size(shape.observation).numel()
        self.shape = tuple(shape.observation)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The observation's."""
        return self.shape

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """(B, T, *obs), unchanged."""
        return inputs.observation, None

    def mirror(self) -> Mirror:
        """See `offpcc.networks.numpy_inference`."""
        return lambda inputs, state: (inputs.observation, None)


@configurable
class Identity(Encoder):
    """The observation itself, flattened, as a summary; with the extra inputs that are in use."""

    def __init__(self, shape: InputShape, **kwargs: bool) -> None:
        super().__init__(shape, **kwargs)
        self.dim = vector_dim(shape.observation) + self.extra_dim

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """(B, T, *obs) -> (B, T, dim)."""
        return self.with_extras(vector(inputs.observation), inputs), None

    def mirror(self) -> Mirror:
        """See `offpcc.networks.numpy_inference`."""
        return lambda inputs, state: (self.extended(inputs.observation, inputs), None)


def vector_dim(shape: tuple[int, ...]) -> int:
    """The number of features of an observation that is read as a vector.

    Raises:
        UserError: it is an image.
    """
    if is_image(shape):
        raise UserError(
            f"observations of shape {shape} are images, which need a convolutional encoder: choose an algorithm "
            f"with c in front, such as csac, or bind an encoder, or Recurrent.feature_extractor, to @Convolutional"
        )
    return torch.Size(shape).numel()


def vector(observation: Tensor) -> Tensor:
    """(B, T, *obs) -> (B, T, features), bytes as floats."""
    flat = observation.flatten(2)
    return flat.float() if flat.dtype == torch.uint8 else flat


def rebuilds(part: Encoder | Cell) -> dict[str, Any]:
    """A specification of what built an encoder or a cell: all arguments but the sizes, which its builder is given.

    Raises:
        UserError: an encoder has another name for its shape, or an argument cannot be written.
    """
    description = specification(part)
    for name, value in vars(part)["_arguments"].items():
        if isinstance(value, InputShape) and name not in part.sizes:
            raise UserError(
                f"{type(part).__name__} takes the shape of its inputs by the name {name}, and could not be built again "
                f"from an actor's file; call this argument shape"
            )
    arguments = {key: value for key, value in description["arguments"].items() if key not in part.sizes}
    for name, inside in part.named_children():  # a part inside, built by an argument of its name
        if name in arguments and isinstance(inside, Encoder | Cell):
            arguments[name] = rebuilds(inside)
    return {"partial": {"reference": description["class"]}, "arguments": arguments}
