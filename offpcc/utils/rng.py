"""Random generators with a state that can be saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class NumpyGenerator:
    """A NumPy generator that can be saved; each object that draws random numbers has its own."""

    def __init__(self, *seed: int) -> None:
        """Seed with a sequence of integers, so that several generators of one run seed differ."""
        self.generator = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the bit generator."""
        return {"state": generator_state(self.generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`."""
        set_generator_state(self.generator, state["state"])


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of a NumPy generator as plain data; integers become strings, because they exceed 64 bits."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, np.ndarray):
            return {"array": value.tolist(), "dtype": str(value.dtype)}
        return f"int:{value}" if isinstance(value, int) else value

    return plain(generator.bit_generator.state)  # type: ignore[no-any-return]


def set_generator_state(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore the state that `generator_state` returned."""

    def restored(value: Any) -> Any:
        if isinstance(value, dict) and "array" in value:
            return np.array(value["array"], dtype=value["dtype"])
        if isinstance(value, dict):
            return {key: restored(item) for key, item in value.items()}
        return int(value[4:]) if isinstance(value, str) and value.startswith("int:") else value

    generator.bit_generator.state = restored(state)


class Noise:
    """Random numbers of an agent: a torch generator for updates, on the device; a NumPy generator for `act`.

    `act` draws few numbers at a time; for this, NumPy is several times faster.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        # Not the seed itself: the initial weights came from it, and the noise must not repeat their numbers.
        own = np.random.SeedSequence((seed, 1)).generate_state(1, np.uint64) >> np.uint64(1)
        self.generator = torch.Generator(device).manual_seed(int(own[0]))
        self.acting = NumpyGenerator(seed, 4)

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal numbers with the shape and dtype of `like`."""
        return torch.randn(like.shape, generator=self.generator, device=self.device, dtype=like.dtype)

    def array(self, *shape: int) -> np.ndarray:
        """Return standard normal numbers (float32) for `act`."""
        numbers: np.ndarray = self.acting.generator.standard_normal(shape, np.float32)
        return numbers

    def uniform(self, like: Tensor) -> Tensor:
        """Return uniform numbers in [-1, 1) with the shape and dtype of `like`."""
        numbers = torch.rand(like.shape, generator=self.generator, device=self.device, dtype=like.dtype)
        return 2.0 * numbers - 1.0

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Return integers in [low, high), int64."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generators."""
        return {
            "state": self.generator.get_state(),
            "device": self.device.type,
            "acting": self.acting.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`; if the device type differs, the torch generator keeps its own state."""
        self.acting.load_state_dict(state["acting"])
        if state["device"] == self.device.type:
            self.generator.set_state(state["state"].cpu())
