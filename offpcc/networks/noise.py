"""`Noise`: the random numbers of an algorithm."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpcc.utils.rng import NumpyGenerator

Fill = Callable[[Tensor], Tensor]  # writes random numbers to a tensor and returns it


class Noise:
    """Random numbers of an agent: a torch generator on the device for updates, and a NumPy generator for `act`.

    `act` draws few numbers at a time. For few numbers, NumPy is several times faster.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        # The seed itself gave the initial weights; the noise must not repeat their random numbers.
        own = np.random.SeedSequence((seed, 1)).generate_state(1, np.uint64) >> np.uint64(1)
        self.generator = torch.Generator(device).manual_seed(int(own[0]))
        self.acting = NumpyGenerator(seed, 4)
        # Set while an update is compiled: it returns the tensor that each repetition of the update fills first.
        self.on_draw: Callable[[Fill, Sequence[int], torch.dtype], Tensor] | None = None

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal numbers with the shape and dtype of `like`."""
        return self._draw(lambda x: x.normal_(generator=self.generator), like.shape, like.dtype)

    def array(self, *shape: int) -> np.ndarray:
        """Return standard normal numbers (float32) for `act`."""
        numbers: np.ndarray = self.acting.generator.standard_normal(shape, np.float32)
        return numbers

    def gumbel(self, *shape: int) -> np.ndarray:
        """Return standard Gumbel numbers (float32) for `act`: the largest logit plus such noise is a sample."""
        return self.acting.generator.gumbel(size=shape).astype(np.float32)

    def uniform(self, like: Tensor) -> Tensor:
        """Return uniform numbers in [-1, 1) with the shape and dtype of `like`."""
        return 2.0 * self.fractions(like.shape, like.dtype) - 1.0

    def fractions(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return uniform numbers in [0, 1)."""
        return self._draw(lambda x: x.uniform_(generator=self.generator), shape, dtype)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Return integers in [low, high), int64."""
        return self._draw(lambda x: x.random_(low, high, generator=self.generator), shape, torch.int64)

    def subset(self, num: int, size: int) -> Tensor:
        """Return `size` different integers in [0, num), int64, (size,)."""
        order = self._draw(
            lambda x: torch.randperm(num, generator=self.generator, out=x, device=x.device), (num,), torch.int64
        )
        return order[:size]

    def _draw(self, fill: Fill, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if self.on_draw is not None:
            return self.on_draw(fill, shape, dtype)
        return fill(torch.empty(shape, dtype=dtype, device=self.device))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generators."""
        return {"state": self.generator.get_state(), "device": self.device.type, "acting": self.acting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`; if the device type differs, the torch generator keeps its own state."""
        self.acting.load_state_dict(state["acting"])
        if state["device"] == self.device.type:
            self.generator.set_state(state["state"].cpu())
