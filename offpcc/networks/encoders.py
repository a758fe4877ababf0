"""Encoders ("summarizers"): from observations, and by choice previous actions and rewards, to summaries.

Every encoder maps `(inputs (B, T, ...), state)` to `(h (B, T, H), state)` and, fed step by step with the state
handed on, gives what it gives fed at once. A state is None or nested tuples of tensors whose first axis is the
batch; zeros are the state at an episode's start, so a row starts anew by multiplication with zero.
"""

from __future__ import annotations

import functools
import inspect
from typing import Annotated, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from offpcc.checks import Flag, PositiveInteger, Rule, Sizes
from offpcc.core import Batch, State, is_image
from offpcc.errors import UserError
from offpcc.networks.states import map_state
from offpcc.registry import configurable, specification


class InputShape(NamedTuple):
    """What an encoder reads at one step."""

    observation: tuple[int, ...]  # images have channels first
    action_dim: int


class Inputs(NamedTuple):
    """What is known at each step."""

    observation: Tensor  # (B, T, *obs)
    previous_action: Tensor  # (B, T, A)
    previous_reward: Tensor  # (B, T, 1)

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
        shape: of the inputs.
        use_previous_action: whether the previous action is an input.
        use_previous_reward: whether the previous reward is one.
    """

    memoryless = True
    dim: int

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

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """Summaries (B, T, dim) and the state after the last step."""
        raise NotImplementedError


def _builds_encoders(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, Encoder)
    return inspect.isroutine(value) or isinstance(value, functools.partial)


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


@configurable
class Identity(Encoder):
    """The observation itself, flattened, as a summary; with the extra inputs that are in use."""

    def __init__(self, shape: InputShape, **kwargs: bool) -> None:
        super().__init__(shape, **kwargs)
        self.dim = vector_dim(shape.observation) + self.extra_dim

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """(B, T, *obs) -> (B, T, dim)."""
        return self.with_extras(vector(inputs.observation), inputs), None


@configurable
class Convolutional(Encoder):
    """Convolutions, then a linear layer, layer normalisation and tanh (DrQ, Kostrikov et al. 2020, appendix B).

    Args:
        shape: of the inputs; observations are (channels, height, width), uint8 in [0, 255] or floats.
        channels: of each convolution's output.
        kernels: sizes, in pixels.
        strides: in pixels.
        feature_dim: the size of what is handed on.
        kwargs: the extra inputs, see `Encoder`.
    """

    def __init__(
        self,
        shape: InputShape,
        *,
        channels: Sizes = (32, 32, 32, 32),
        kernels: Sizes = (3, 3, 3, 3),
        strides: Sizes = (2, 1, 1, 1),
        feature_dim: PositiveInteger = 50,
        **kwargs: bool,
    ) -> None:
        super().__init__(shape, **kwargs)
        if not is_image(shape.observation):
            raise UserError(
                f"a convolutional encoder needs images, but observations have the shape {shape.observation}: "
                f"choose an algorithm without c in front, such as sac or rsac"
            )
        numbers = [len(channels), len(kernels), len(strides)]
        if len(set(numbers)) > 1:
            raise UserError(
                f"Convolutional.channels, kernels and strides are lists of {numbers[0]}, {numbers[1]} and {numbers[2]} "
                f"numbers; each convolution needs one of each"
            )
        layers: list[nn.Module] = []
        for num_in, num_out, kernel, stride in zip(
            [shape.observation[0], *channels[:-1]], channels, kernels, strides, strict=True
        ):
            layers += [nn.Conv2d(num_in, num_out, kernel, stride), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        try:
            with torch.no_grad():
                flat_dim = self.convolutions(torch.zeros(1, *shape.observation)).shape[-1]
        except RuntimeError as error:
            raise UserError(
                f"images of shape {shape.observation} are too small for kernels {tuple(kernels)} "
                f"with strides {tuple(strides)}: bind Convolutional.kernels and .strides to smaller ones"
            ) from error
        self.features = nn.Sequential(nn.Linear(flat_dim, feature_dim), nn.LayerNorm(feature_dim), nn.Tanh())
        self.dim = feature_dim + self.extra_dim

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """(B, T, channels, height, width) -> (B, T, dim)."""
        frames = inputs.observation
        rows, frames = frames.shape[:2], frames.flatten(0, 1)
        frames = frames.float() / 255.0 if frames.dtype == torch.uint8 else frames
        features = self.features(self.convolutions(frames)).view(*rows, -1)
        return self.with_extras(features, inputs), None


@configurable
class Recurrent(Encoder):
    """LSTM, GRU or Elman RNN over the history (Yang & Nguyen 2021: an LSTM of 2 layers x 256).

    Args:
        shape: of the inputs.
        cell: "lstm", "gru" or "rnn".
        hidden_dim: width of every layer.
        num_layers: depth.
        front: an encoder without memory that sees each observation first, such as `Convolutional`.
        kwargs: the extra inputs, see `Encoder`.
    """

    memoryless = False

    def __init__(
        self,
        shape: InputShape,
        *,
        cell: str = "lstm",
        hidden_dim: PositiveInteger = 256,
        num_layers: PositiveInteger = 2,
        front: Builder = PassThrough,
        **kwargs: bool,
    ) -> None:
        super().__init__(shape, **kwargs)
        cells = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
        if cell not in list(cells):
            raise UserError(f"Recurrent.cell is {cell!r}; choose one of {', '.join(cells)}")
        self.front = front(shape)
        if not self.front.memoryless:
            raise UserError("Recurrent.front has a memory of its own, which would be lost; choose one without")
        num_in = vector_dim(self.front.output_shape) + self.extra_dim
        self.cells = cells[cell](num_in, hidden_dim, num_layers, batch_first=True)
        self.dim = hidden_dim

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """(B, T, *obs) -> (B, T, hidden_dim)."""
        features, _ = self.front(inputs)
        layers_first = map_state(lambda s: s.transpose(0, 1).contiguous(), state)
        h, after = self.cells(self.with_extras(vector(features), inputs), layers_first)
        return h, map_state(lambda s: s.transpose(0, 1), after)


def vector_dim(shape: tuple[int, ...]) -> int:
    """The number of features of an observation that is read as a vector.

    Raises:
        UserError: it is an image.
    """
    if is_image(shape):
        raise UserError(
            f"observations of shape {shape} are images, which need a convolutional encoder: choose an algorithm "
            f"with c in front, such as csac, or bind an encoder, or Recurrent.front, to @Convolutional"
        )
    return torch.Size(shape).numel()


def vector(observation: Tensor) -> Tensor:
    """(B, T, *obs) -> (B, T, features), bytes as floats."""
    flat = observation.flatten(2)
    return flat.float() if flat.dtype == torch.uint8 else flat


def rebuilds(encoder: Encoder) -> dict[str, Any]:
    """A specification of what built `encoder`, all arguments but its input's shape."""
    description = specification(encoder)
    arguments = {key: value for key, value in description["arguments"].items() if key != "shape"}
    for name, part in encoder.named_children():  # an encoder inside, built by an argument of its name
        if name in arguments and isinstance(part, Encoder):
            arguments[name] = rebuilds(part)
    return {"partial": {"reference": description["class"]}, "arguments": arguments}
