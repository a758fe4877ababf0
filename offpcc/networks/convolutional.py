"""The convolutional encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offpcc.config.registry import configurable
from offpcc.config.validation import Size, Sizes
from offpcc.core import State, is_image
from offpcc.networks.encoders import Encoder, Inputs, InputShape
from offpcc.utils.errors import UserError


@configurable
class Convolutional(Encoder):
    """Encoder of images (DrQ, Kostrikov et al. 2020, appendix B).

    Convolutions with ReLU, then a linear layer, layer normalisation and tanh.

    Args:
        shape: input shape; observations are (channels, height, width), uint8 in [0, 255] or floats.
        channels: number of output channels of each convolution.
        kernels: kernel size of each convolution, in pixels.
        strides: stride of each convolution, in pixels.
        feature_dim: number of output features, without the extra inputs.
        kwargs: the extra inputs, see `Encoder`.
    """

    def __init__(
        self,
        shape: InputShape,
        *,
        channels: Sizes = (32, 32, 32, 32),
        kernels: Sizes = (3, 3, 3, 3),
        strides: Sizes = (2, 1, 1, 1),
        feature_dim: Size = 50,
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
