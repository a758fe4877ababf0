"""Augmentation of images."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from offpcc.checks import NonnegativeInteger, Rule, with_parentheses
from offpcc.learning import Noise
from offpcc.registry import configurable


@configurable
class RandomShift:
    """Images moved by up to `pad` pixels each way, borders repeated (DrQ, Kostrikov et al. 2020, section 3.1).

    Args:
        pad: largest shift, in pixels; 0 turns it off.
    """

    def __init__(self, pad: NonnegativeInteger = 4) -> None:
        self.pad = pad

    def __call__(self, frames: Tensor, noise: Noise, *, one_per_row: bool) -> Tensor:
        """`frames` (B, T, C, height, width), each shifted; with `one_per_row` a row's frames move together."""
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


Augmentation = Annotated[
    RandomShift,
    Rule(
        "an augmentation such as @RandomShift()",
        lambda value: callable(value) and not isinstance(value, type),
        with_parentheses,
    ),
]
