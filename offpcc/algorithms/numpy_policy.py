"""`NumpyPolicy`: acts in NumPy, which is faster than PyTorch for few environments on the CPU."""

import copy
from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.core import Memory, State
from offpcc.networks import Inputs
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of
from offpcc.networks.states import map_state

MOST_MIRRORED = 8  # environments; with more, matrix products dominate, and PyTorch's threads are faster


class NumpyState(tuple[State, ...]):
    """Hidden state of NumPy arrays. A resumed run starts with tensors instead, which must be converted."""


class HostCopy:
    """Copies of modules on the CPU, which get the weights of modules on a GPU by one transfer.

    Args:
        parts: the modules by name.

    Attributes:
        parts: the copies by name. Their weights are views of `flat`.
        flat: all their numbers.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        self.sources = _tensors(parts)
        self.parts = {name: copy.deepcopy(part).cpu() for name, part in parts.items()}
        sizes = [source.numel() for source in self.sources]
        is_pinned = any(source.is_cuda for source in self.sources)
        self.flat = torch.empty(sum(sizes), pin_memory=is_pinned)
        for own, numbers in zip(_tensors(self.parts), torch.split(self.flat, sizes), strict=True):
            own.data = numbers.view(own.shape)
        self.version: tuple[int, ...] = ()  # of the weights at the last copy

    @torch.no_grad()
    def refresh(self, num_updates: int) -> None:
        """Copy the weights if they changed since the last call, by updates or otherwise; this waits for the GPU.

        PyTorch counts the changes of each tensor, but not those by a CUDA graph, so `num_updates` counts, too.
        """
        version = num_updates, *[source._version for source in self.sources]
        if version != self.version:
            self.flat.copy_(torch.cat([source.flatten() for source in self.sources]))
            self.version = version


def _tensors(parts: Mapping[str, nn.Module]) -> list[Tensor]:
    """Return all parameters and buffers of `parts` in float32. No mirror reads others."""
    held = (tensor for part in parts.values() for tensor in (*part.parameters(), *part.buffers()))
    return [tensor for tensor in held if tensor.dtype == torch.float32]


class NumpyPolicy:
    """Acts with NumPy mirrors of an agent's networks."""

    def __init__(self, mirrors: Mapping[str, Mirror], memoryless: bool) -> None:
        self.shared, self.own, self.choose = (mirrors[name] for name in ("shared_encoder", "actor_encoder", "actor"))
        self.normalize = mirrors.get("normalization")
        self.memoryless = memoryless

    @classmethod
    def of(cls, parts: Mapping[str, nn.Module], memoryless: bool) -> Self | None:
        """Return the policy for an agent's `actor_parts`, or None if one of them has no mirror."""
        mirrors = mirrors_of(*parts.values())
        return None if mirrors is None else cls(dict(zip(parts, mirrors, strict=True)), memoryless)

    def __call__(
        self, inputs: Inputs, begins: Array | None, memory: Memory, noise: Array | None
    ) -> tuple[Array, Memory]:
        """Return actions (N, A) and the new hidden state.

        Args:
            inputs: arrays (N, ...).
            begins: (N,), true for rows that begin an episode, whose hidden state is reset; None if there are none.
            memory: hidden state, or None for the initial one.
            noise: exploration noise (N, A), or None.
        """
        observation, *past = inputs
        if self.normalize is not None:
            inputs = Inputs(self.normalize(observation), *past)
        if memory is None:
            memory = None, None
        elif type(memory) is not NumpyState:
            memory = map_state(np.asarray, memory)
        if begins is not None:  # zeros in the rows that begin an episode
            memory = map_state(lambda s: np.where(begins.reshape(-1, *(1,) * (s.ndim - 1)), s.dtype.type(0), s), memory)
        shared_state, own_state = memory
        features, shared_state = self.shared(inputs, shared_state)
        summary, own_state = self.own(Inputs(features, *past), own_state)
        action = self.choose(summary, noise)
        return action, None if self.memoryless else NumpyState((shared_state, own_state))
