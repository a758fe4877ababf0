"""The convolutional encoder."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offpcc.config.registry import configurable
from offpcc.config.validation import Size, Sizes
from offpcc.core import DictShape, State, has_images
from offpcc.networks.encoders import (
    Encoder,
    Identity,
    Inputs,
    InputShape,
    MemorylessBuilder,
    UnsuitedEncoderError,
    build_encoder,
)
from offpcc.utils.errors import UserError
from offpcc.utils.torch_private import is_traced


@configurable
class Convolutional(Encoder):
    """Encoder of images (DrQ, Kostrikov et al. 2020, appendix B).

    Its layers are convolutions with ReLU, then a linear layer, layer normalisation and tanh. For Dict observations,
    each image has layers of its own. `vector_encoder` encodes all vectors, and the summary is the concatenation.

    Args:
        shape: input shape; observations are (channels, height, width), uint8 in [0, 255] or floats; or an unpacked Dict
            observation with one image or more, see `PackedDict.unpack`.
        channels: number of output channels of each convolution.
        kernels: kernel size of each convolution, in pixels.
        strides: stride of each convolution, in pixels.
        feature_dim: number of output features of an image, without the extra inputs. None leaves out the layers after
            the convolutions: the summary has all their outputs, as in DQN (Mnih et al. 2015), where `hidden_dims` have
            the next layer.
        vector_encoder: an encoder without memory for the vectors of a Dict observation. It reads them as one vector.
        kwargs: the extra inputs, see `Encoder`.
    """

    def __init__(
        self,
        shape: InputShape,
        *,
        channels: Sizes = (32, 32, 32, 32),
        kernels: Sizes = (3, 3, 3, 3),
        strides: Sizes = (2, 1, 1, 1),
        feature_dim: Size | None = 50,
        vector_encoder: MemorylessBuilder = Identity,
        **kwargs: bool,
    ) -> None:
        super().__init__(shape, **kwargs)
        if not isinstance(shape.observation, DictShape) and len(shape.observation) == 2:
            raise UserError(
                f"a convolutional encoder needs images with an axis for channels, but observations have the shape "
                f"{shape.observation}; add this axis: observations[:, None]"
            )
        if not has_images(shape.observation):
            entries = isinstance(shape.observation, DictShape)
            raise UnsuitedEncoderError(
                f"a convolutional encoder needs images, but observations "
                f"{'are a Dict without images' if entries else f'have the shape {shape.observation}'}: choose an "
                f"algorithm without convolutions; an image is uint8 with an axis for channels"
            )
        numbers = [len(channels), len(kernels), len(strides)]
        if len(set(numbers)) > 1:
            raise UserError(
                f"Convolutional.channels, kernels and strides are lists of {numbers[0]}, {numbers[1]} and {numbers[2]} "
                f"numbers; give each the same length, one number for each convolution"
            )
        self.entries = shape.observation if isinstance(shape.observation, DictShape) else None
        images = [shape.observation] if self.entries is None else [part.shape for part in self.entries.images]
        layers = list(zip(channels, kernels, strides, strict=True))
        stacks, dims = zip(*(_layers(image, layers, feature_dim) for image in images), strict=True)
        self.dim = sum(dims) + self.extra_dim
        if self.entries is None:
            self.convolutions, self.features = stacks[0]
        else:
            self.images = nn.ModuleList(nn.Sequential(*stack) for stack in stacks)
            if self.entries.vectors:
                vectors = InputShape((self.entries.num_numbers,), shape.action_dim)
                self.vector_encoder = build_encoder(
                    vector_encoder, vectors, "Convolutional.vector_encoder", may_have_memory=False
                )
                self.dim += self.vector_encoder.dim

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """(B, T, channels, height, width), or (B, T, F) of Dict observations -> (B, T, dim)."""
        rows = inputs.observation.shape[:2]
        if self.entries is None:
            frames = _laid_out(inputs.observation.flatten(0, 1))
            frames = frames.float().div_(255.0) if frames.dtype == torch.uint8 else frames
            return self.with_extras(self.features(self.convolutions(frames)).view(*rows, -1), inputs), None
        flat = inputs.observation.flatten(0, 1)
        read = [
            stack(_laid_out(flat[:, part.columns].view(-1, *part.shape)))
            for stack, part in zip(self.images, self.entries.images, strict=True)
        ]
        features = torch.cat(read, -1).view(*rows, -1)
        if self.entries.vectors:
            vectors = inputs._replace(observation=inputs.observation[..., : self.entries.num_numbers])
            features = torch.cat([features, self.vector_encoder(vectors)[0]], -1)
        return self.with_extras(features, inputs), None

    def unused_parameters(self) -> dict[str, str]:
        """Return the parameters that have no effect with these observations, each with the reason."""
        has_vectors = self.entries is not None and self.entries.vectors
        return {} if has_vectors else {"vector_encoder": "observations are not a Dict with vectors"}


def _laid_out(frames: Tensor) -> Tensor:
    """Return frames (N, channels, height, width), channels last in memory if the CPU then computes them faster.

    Updates of 32 frames and more are up to 30 % faster then, mostly in the backward pass; a few frames are not.
    An exported actor takes any number of frames, so its graph must not depend on that number.
    """
    if frames.device.type == "cpu" and not is_traced() and len(frames) >= 32:
        return frames.contiguous(memory_format=torch.channels_last)
    return frames


def _layers(
    shape: tuple[int, ...], sizes: Sequence[tuple[int, int, int]], feature_dim: int | None
) -> tuple[tuple[nn.Sequential, nn.Sequential], int]:
    """Return the convolutions of images of this shape and the layers after them, and the number of features."""
    layers: list[nn.Module] = []
    num_in = shape[0]
    for num_out, kernel, stride in sizes:
        layers += [nn.Conv2d(num_in, num_out, kernel, stride), nn.ReLU()]
        num_in = num_out
    convolutions = nn.Sequential(*layers, nn.Flatten())
    try:
        with torch.no_grad():
            flat_dim = convolutions(torch.zeros(1, *shape)).shape[-1]
    except RuntimeError as error:
        _, kernels, strides = zip(*sizes, strict=True)
        smaller = _fitting(min(shape[1:]), len(sizes))
        raise UserError(
            f"images of shape {shape} are too small for kernels {kernels} with strides {strides}: bind "
            f"Convolutional.kernels and Convolutional.strides to smaller numbers, such as {smaller[0]} and {smaller[1]}"
        ) from error
    if feature_dim is None:
        return (convolutions, nn.Sequential()), flat_dim
    return (
        convolutions,
        nn.Sequential(nn.Linear(flat_dim, feature_dim), nn.LayerNorm(feature_dim), nn.Tanh()),
    ), feature_dim


def _fitting(width: int, num_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return kernels and strides that fit images of this width."""
    sizes = []
    for _ in range(num_layers):
        kernel, stride = min(3, width), 2 if width > 6 else 1
        width = (width - kernel) // stride + 1
        sizes.append((kernel, stride))
    kernels, strides = zip(*sizes, strict=True)
    return kernels, strides
