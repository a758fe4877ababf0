"""`Notice`: one remarkable property of a dataset; and the notices about its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from offpcc.data.datasets.columns import Array, SpoiledData
from offpcc.utils.spaces import is_image

LEAST_OF_PIXELS = 100  # images with a number above this are pixels; symbols of a grid have smaller numbers
MOST_OF_A_FLOAT_IMAGE = 2.0  # images of floats are from 0 to 1, or normalised

# Counted in the whole dataset, when it is read.
COUNTING = ("jumps", "no next observations", "resets")
OF_WHOLE = " (counted in the whole dataset, of which this is a part)"


class Notice(NamedTuple):
    """One remarkable property of a dataset."""

    kind: str
    text: str

    def in_part(self) -> Notice:
        """Return the notice for a part of the dataset: a count is marked as that of the whole dataset."""
        if self.kind not in COUNTING or self.text.endswith(OF_WHOLE):
            return self
        return self._replace(text=self.text + OF_WHOLE)


def notices_on_limits(limit: int | None) -> list[Notice]:
    """Return the notice on data without truncations, whose episodes may be joined."""
    text = "an episode that a time limit ended is joined to the next one, unless max_episode_steps is given"
    if limit:
        text = f"episodes are cut after {limit} steps, which is taken to be the time limit"
    kind = "time limit" if limit else "no time limits"
    return [Notice(kind, f"there are no truncations (timeouts): {text}")]


def notices_on_copies(number: int) -> list[Notice]:
    """Return the notice on data in which all of this number of truncations are terminations."""
    text = (
        f"all {number:,} truncations are terminations, too: agents treat them as terminations, so no value is "
        f"bootstrapped there; if time limits cut these episodes, set their terminations to False, as by "
        f"dones & ~timeouts"
    )
    return [Notice("both ends", text)]


def notices_on_rounding(rounded: Sequence[tuple[int, int, int]]) -> list[Notice]:
    """Return the notice on what `rounded_columns` found."""
    if not rounded:
        return []
    told = ", ".join(f"number {index} ({number:,} and {left:,})" for index, number, left in rounded[:3])
    text = (
        f"observations become float32, and some numbers then have fewer different values: {told}; subtract a "
        f"constant from them, such as the first time, or drop them"
    )
    return [Notice("rounded", text)]


def notices_on_images(few: Array, of_type: np.dtype[Any], name: str) -> list[Notice]:
    """Return the notice on images of floats, of which `few` are a part; they were of another type in the recording.

    Raises:
        SpoiledData: they are pixels, but not of uint8.
    """
    if few.ndim != 4 or few.dtype.kind != "f":
        return []
    if is_image(few.shape[1:]) and _are_pixels(few):
        raise SpoiledData(
            f"{name}: observations are images of whole numbers up to {few.max():.0f}, but of type {of_type}, and "
            f"networks divide only uint8 by 255; give them as uint8, as by observations.astype(np.uint8); or, if "
            f"they are no pixels, flatten them"
        )
    if few.max(initial=0.0) <= MOST_OF_A_FLOAT_IMAGE:
        return []
    text = (
        f"observations are images of {few.dtype} with values up to {few.max():.4g}, and networks read these as "
        f"they are; give uint8, which networks divide by 255, or divide the values yourself"
    )
    return [Notice("remark", text)]


def _are_pixels(images: Array) -> bool:
    """Check whether images (N, C, H, W) hold whole numbers from 0 to 255."""
    in_range = images.size > 0 and images.min() >= 0 and LEAST_OF_PIXELS < images.max() <= 255
    return bool(in_range and (images == np.floor(images)).all())
