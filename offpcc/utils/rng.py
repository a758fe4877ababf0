"""Random generators with a state that can be saved."""

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

# PyTorch draws initial weights from its global generator. So this lock is held while networks are built, and while code
# here seeds or restores global generators. Otherwise, two threads that build agents would change each other's weights.
GLOBAL_LOCK = threading.RLock()


def derived_seed(*key: int) -> int:
    """Return the seed of a part of a run, from the run's seed and numbers of the part.

    Keys of other lengths differ, unless the longer one has only zeros more.
    """
    return int(np.random.SeedSequence(key).generate_state(1)[0] >> 1)


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
def seeded_torch(seed: int) -> Iterator[None]:
    """Seed torch's global generators, from which initial weights are drawn, and restore them at the end."""
    import torch

    with forked_torch_generators():
        torch.manual_seed(seed)
        yield


class SharedState:
    """State of the process that blocks of code change. It is restored at the end, also if threads' blocks overlap."""

    def __init__(self, read: Callable[[], Any], restore: Callable[[Any], None]) -> None:
        self._read, self._restore = read, restore
        self._before: list[list[Any]] = []  # the state before each block that runs, in the order of their starts

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the state at the end."""
        with GLOBAL_LOCK:
            mine = [self._read()]
            self._before.append(mine)
        try:
            yield
        finally:
            with GLOBAL_LOCK:
                place = next(number for number, one in enumerate(self._before) if one is mine)
                if mine is self._before[-1]:
                    self._restore(mine[0])
                else:  # a later block of another thread runs, and restores what was before this one
                    self._before[place + 1][0] = mine[0]
                del self._before[place]


def cuda_states() -> list[Any]:
    """Return the states of the GPUs' global generators; none if no GPU is used, which costs nothing."""
    import torch  # here, because worker processes do not import it

    is_used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if is_used else []


def _global_states() -> tuple[Any, ...]:
    import torch

    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda_states()


def _set_global_states(states: tuple[Any, ...]) -> None:
    import torch

    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3]:
        torch.cuda.set_rng_state_all(states[3])


same_global_generators = SharedState(_global_states, _set_global_states).kept  # of Python, NumPy and PyTorch


def seed_global_generators(seed: int, imports_torch: bool = True) -> None:
    """Seed the global generators of Python, NumPy and PyTorch, because users' code may draw from them.

    The generators of GPUs are seeded only if a GPU is in use. Otherwise the seed would wait for the first use of a GPU,
    perhaps after the run. Without `imports_torch`, PyTorch's are seeded only if it is imported already.
    """
    with GLOBAL_LOCK:
        random.seed(seed)
        np.random.seed(seed)
        if not imports_torch and "torch" not in sys.modules:
            return
        import torch

        torch.default_generator.manual_seed(seed)
        if cuda_states():
            torch.cuda.manual_seed_all(seed)
