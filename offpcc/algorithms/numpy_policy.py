"""`NumpyPolicy`: acts in NumPy, which is faster than PyTorch for few environments on the CPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from offpcc.core import Memory, State
from offpcc.networks import Inputs
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of
from offpcc.networks.states import map_state

MOST_MIRRORED = 8  # environments; with more, matrix products dominate, and PyTorch's threads are faster


class NumpyState(tuple[State, ...]):
    """Hidden state that holds arrays; that of a resumed run holds tensors."""


class NumpyPolicy:
    """Acts with NumPy mirrors of an agent's networks.

    Args:
        mirrors: mirrors of the agent's `actor_parts`, by name.
        memoryless: whether the agent has no hidden state.
    """

    def __init__(self, mirrors: Mapping[str, Mirror], memoryless: bool) -> None:
        self.shared, self.own, self.choose = (mirrors[name] for name in ("shared_encoder", "actor_encoder", "actor"))
        self.normalize = mirrors.get("normalization")
        self.memoryless = memoryless
        self.weights: list[Tensor] = []
        self.places: list[int] = []

    @classmethod
    def of(cls, parts: Mapping[str, nn.Module], memoryless: bool) -> NumpyPolicy | None:
        """Return the policy for an agent's `actor_parts`, or None if one of them has no mirror."""
        if (mirrors := mirrors_of(*parts.values())) is None:
            return None
        policy = cls(dict(zip(parts, mirrors, strict=True)), memoryless)
        policy.weights = [weight for part in parts.values() for weight in part.parameters()]
        policy.places = [weight.data_ptr() for weight in policy.weights]
        return policy

    @property
    def is_stale(self) -> bool:
        """True if weights have moved to other memory, as after `torch.nn.utils.vector_to_parameters`."""
        return [weight.data_ptr() for weight in self.weights] != self.places

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
        elif begins is not None:
            memory = _kept(memory, begins)
        elif type(memory) is not NumpyState:
            memory = map_state(np.asarray, memory)
        shared_state, own_state = memory
        features, shared_state = self.shared(inputs, shared_state)
        summary, own_state = self.own(Inputs(features, *past), own_state)
        action = self.choose(summary, noise)
        return action, None if self.memoryless else NumpyState((shared_state, own_state))


def _kept(memory: Memory, begins: Array) -> Memory:
    """Return `memory` as arrays, with zeros in the rows that begin an episode."""
    memory = map_state(np.asarray, memory)
    return map_state(lambda s: np.where(begins.reshape(-1, *(1,) * (s.ndim - 1)), s.dtype.type(0), s), memory)
