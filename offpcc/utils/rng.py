"""Random generators whose state can be saved."""

from __future__ import annotations

from typing import Any

import numpy as np


class NumpyGenerator:
    """A numpy generator that can be saved; each owner of randomness has one."""

    def __init__(self, *seed: int) -> None:
        """Seeded by a sequence of integers, so that owners of one run's seed differ."""
        self.generator = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """The bit generator's state."""
        return {"state": generator_state(self.generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        set_generator_state(self.generator, state["state"])


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """The state of a numpy generator as plain data (its integers exceed 64 bits, hence strings)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, np.ndarray):
            return {"array": value.tolist(), "dtype": str(value.dtype)}
        return f"int:{value}" if isinstance(value, int) else value

    return plain(generator.bit_generator.state)  # type: ignore[no-any-return]


def set_generator_state(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Put a generator where `generator_state` found it."""

    def restored(value: Any) -> Any:
        if isinstance(value, dict) and "array" in value:
            return np.array(value["array"], dtype=value["dtype"])
        if isinstance(value, dict):
            return {key: restored(item) for key, item in value.items()}
        return int(value[4:]) if isinstance(value, str) and value.startswith("int:") else value

    generator.bit_generator.state = restored(state)
