"""Image augmentation for updates."""

import inspect
from typing import Annotated, Any

import torch
from torch import Tensor

from offpcc.config.registry import configurable
from offpcc.config.validation import NonnegativeSize, Rule, with_parentheses
from offpcc.networks.noise import Noise


@configurable
class RandomShift:
    """Random shift of images by up to `pad` pixels in each direction (DrQ, Kostrikov et al. 2020, section 3.1).

    The pixels of the border fill the gap.

    Args:
        pad: largest shift, in pixels; 0 turns the augmentation off.
    """

    def __init__(self, pad: NonnegativeSize = 4) -> None:
        self.pad = pad

    def __call__(self, frames: Tensor, noise: Noise, *, one_per_row: bool) -> Tensor:
        """Shift each of `frames` (B, T, C, height, width); with `one_per_row`, frames of one row share a shift."""
        if self.pad == 0:
            return frames
        rows, steps, _, height, width = frames.shape
        shape = (rows, 1 if one_per_row else steps, 2, 1)
        shifts = noise.integers(-self.pad, self.pad + 1, shape).expand(rows, steps, 2, 1).flatten(0, 1)
        flat = frames.flatten(0, 1)
        y = (torch.arange(height, device=flat.device) + shifts[:, 0]).clamp(0, height - 1)
        x = (torch.arange(width, device=flat.device) + shifts[:, 1]).clamp(0, width - 1)
        number = torch.arange(len(flat), device=flat.device)
        shifted = flat[number[:, None, None], :, y[:, :, None], x[:, None, :]]  # (B*T, height, width, C)
        return shifted.permute(0, 3, 1, 2).view_as(frames)


def _is_augmentation(value: Any) -> bool:
    """Check whether `value` can be called like a `RandomShift`."""
    if not callable(value) or isinstance(value, type):
        return False
    try:
        inspect.signature(value).bind(None, None, one_per_row=True)
    except TypeError:
        return False
    except ValueError:  # a compiled function without a signature
        return True
    return True


Augmentation = Annotated[
    RandomShift, Rule("an augmentation such as @RandomShift()", _is_augmentation, with_parentheses)
]
