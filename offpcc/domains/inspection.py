"""What an environment may return: what is harmless passes, and is put into the form that its space promises."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offpcc.domains.faults import kind_of

__all__ = ["Inspection", "UnfitError"]

Array = NDArray[Any]
LARGEST = float(np.finfo(np.float32).max)  # as buffers and networks hold numbers

SPACE = "return what observation_space promises"
DIVERGES = "look for a division by 0 or a simulation that diverges, and end the episode before it"


class UnfitError(ValueError):
    """Something returned cannot be learned from.

    Args:
        what: was returned, as in "returned nan at index 1 of its observation".
        remedy: what to do about it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class Inspection:
    """Of what one environment returns.

    Numbers in other types, lists of them and NumPy's truth values are common and harmless, so they are converted.

    Args:
        space: of its observations.
    """

    def __init__(self, space: spaces.Box) -> None:
        self.shape, self.dtype = space.shape, space.dtype
        is_vector = len(self.shape) == 1 and np.issubdtype(space.dtype, np.floating)
        # A weighted sum is finite only if all its terms are, and a third of the price of asking each; by these weights,
        # the largest numbers do not overflow.
        self._weights = np.full(self.shape, 0.5 / self.shape[0], space.dtype) if is_vector else None

    def observation(self, returned: Any) -> Array:
        """An observation as its space promises it.

        Raises:
            UnfitError: its shape is another, it is no number, NaN, infinite, or lost in the space's type.
        """
        is_promised = type(returned) is np.ndarray and returned.dtype is self.dtype and returned.shape == self.shape
        if is_promised and (self._weights is None or math.isfinite(returned.dot(self._weights))):
            return returned  # type: ignore[no-any-return]
        return self._read(returned)

    def _read(self, returned: Any) -> Array:
        try:
            seen = np.asarray(returned)
        except ValueError:  # a ragged list
            raise UnfitError(f"returned {kind_of(returned)} for an observation", SPACE) from None
        if seen.shape != self.shape or seen.dtype.kind not in "biuf":
            promised = f"its space says {self.dtype} of shape {self.shape}"
            raise UnfitError(f"returned {kind_of(returned)} for an observation, {promised},", SPACE)
        with np.errstate(all="ignore"):
            read = seen.astype(self.dtype, copy=False)
            is_lost = ~np.isfinite(read) if self.dtype.kind == "f" else read != seen  # NaN is unequal
        if is_lost.any():
            index = tuple(int(place) for place in np.argwhere(is_lost)[0])
            number = f"{seen[index]:.6g} at index {index[0] if len(index) == 1 else index} of its observation"
            if np.isfinite(seen[index]):
                raise UnfitError(f"returned {number}, which {self.dtype} cannot hold,", SPACE)
            raise UnfitError(f"returned {number}", DIVERGES)
        return read

    def reward(self, returned: Any) -> float:
        """A reward.

        Raises:
            UnfitError: it is no number, NaN, or larger than float32 can hold.
        """
        try:
            if math.fabs(returned) <= LARGEST:
                return float(returned)
            number = f"{float(returned):.6g}"
        except Exception:  # whatever was returned may raise anything
            raise UnfitError(f"returned {kind_of(returned)} for a reward", "return a number: float(reward)") from None
        raise UnfitError(f"returned the reward {number}", DIVERGES)

    def flag(self, name: str, returned: Any) -> bool:
        """Whether an episode is `name`, "terminated" or "truncated".

        Raises:
            UnfitError: it is no truth value.
        """
        if returned is True or returned is False:
            return returned
        is_number = isinstance(returned, numbers.Real | np.bool_) or (
            isinstance(returned, np.ndarray) and returned.size == 1 and returned.dtype.kind in "biuf"
        )
        if is_number and (returned == 0 or returned == 1):
            return bool(returned)
        shown = returned if isinstance(returned, numbers.Real) else kind_of(returned)
        raise UnfitError(f"returned {shown} for {name}", f"return True or False: bool({name})")
