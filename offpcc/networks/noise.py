"""`Noise`: the random numbers of an algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpcc.utils.rng import NumpyGenerator


class Noise:
    """Generators that can be saved: torch's for learning, on the device where its numbers are used; one to act by.

    Acting draws few numbers at a time, which NumPy gives several times as fast.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        # Not the seed itself: initial weights were drawn from it, and noise is not to repeat their numbers.
        own = np.random.SeedSequence((seed, 1)).generate_state(1, np.uint64) >> np.uint64(1)
        self.generator = torch.Generator(device).manual_seed(int(own[0]))
        self.acting = NumpyGenerator(seed, 4)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers of `like`'s shape and dtype."""
        return torch.randn(like.shape, generator=self.generator, device=self.device, dtype=like.dtype)

    def array(self, *shape: int) -> np.ndarray:
        """Standard normal numbers to act by, float32."""
        numbers: np.ndarray = self.acting.generator.standard_normal(shape, np.float32)
        return numbers

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers between -1 and 1, each as likely, of `like`'s shape and dtype."""
        numbers = torch.rand(like.shape, generator=self.generator, device=self.device, dtype=like.dtype)
        return 2.0 * numbers - 1.0

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Integers in [low, high), int64."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """The generators' states."""
        return {
            "state": self.generator.get_state(),
            "device": self.device.type,
            "acting": self.acting.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`; a generator of another kind of device cannot, and keeps its own."""
        self.acting.load_state_dict(state["acting"])
        if state["device"] == self.device.type:
            self.generator.set_state(state["state"].cpu())
