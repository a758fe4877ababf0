"""What wrappers ask of spaces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.spaces import Box
from numpy.typing import NDArray

__all__ = ["Array", "Info", "box"]

Array = NDArray[Any]
Info = dict[str, Any]


def box(space: gym.Space[Any], wrapper: object, num_axes: int | None = None) -> Box:
    """`space`, which `wrapper` needs to be a Box.

    Raises:
        ValueError: it is none, or has another number of axes.
    """
    if not isinstance(space, Box) or (num_axes is not None and len(space.shape) != num_axes):
        wanted = "a Box" if num_axes is None else f"a Box with {num_axes} axis"
        raise ValueError(f"{type(wrapper).__name__} needs {wanted}, not {space}; flatten or convert it before")
    return space
