"""Random generators with a state that can be saved."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

# PyTorch draws initial weights from its global generator. So this lock is held while networks are built, and while code
# here seeds or restores global generators. Otherwise, two threads that build agents would change each other's weights.
GLOBAL_LOCK = threading.RLock()


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


@contextmanager
def forked_torch_generators(devices: Sequence[Any] = ()) -> Iterator[None]:
    """Restore torch's global generators, of the CPU and of these GPUs, at the end; for one thread at a time."""
    import torch

    with GLOBAL_LOCK, torch.random.fork_rng(devices=list(devices)):
        yield


@contextmanager
def same_global_generators() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and PyTorch (CPU) at the end, for code that seeds them."""
    import torch  # here, because worker processes do not import it

    with GLOBAL_LOCK:
        of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        with GLOBAL_LOCK:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
            torch.set_rng_state(of_torch)


def seed_global_generators(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch, because users' code may draw from them."""
    import torch

    with GLOBAL_LOCK:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
