"""Acting in NumPy, which is faster than torch for few environments on the CPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from offpcc.core import Memory, State
from offpcc.networks import Inputs
from offpcc.networks.numpy_inference import Array, Mirror, mirror_of
from offpcc.networks.states import map_state

MOST_MIRRORED = 8  # environments side by side; with more, the products themselves are the cost, and threads pay


class NumpyState(tuple[State, ...]):
    """A memory that is of arrays already: a resumed run's is of tensors."""


class NumpyPolicy:
    """What `act` does with an agent's networks, by their mirrors.

    Args:
        mirrors: of an agent's `actor_parts`.
        memoryless: whether nothing of the past is kept.
    """

    def __init__(self, mirrors: Mapping[str, Mirror], memoryless: bool) -> None:
        self.shared, self.own, self.choose = (mirrors[name] for name in ("shared_encoder", "actor_encoder", "actor"))
        self.normalize = mirrors.get("normalization")
        self.memoryless = memoryless
        self.weights: list[Tensor] = []
        self.places: list[int] = []

    @classmethod
    def of(cls, parts: Mapping[str, nn.Module], memoryless: bool) -> NumpyPolicy | None:
        """The mirror of an agent's `actor_parts`; None if one of them has none."""
        found = {name: mirror_of(part) for name, part in parts.items()}
        mirrors = {name: mirror for name, mirror in found.items() if mirror is not None}
        if len(mirrors) < len(found):
            return None
        policy = cls(mirrors, memoryless)
        policy.weights = [weight for part in parts.values() for weight in part.parameters()]
        policy.places = [weight.data_ptr() for weight in policy.weights]
        return policy

    @property
    def is_stale(self) -> bool:
        """Whether weights lie elsewhere by now, as after `torch.nn.utils.vector_to_parameters`."""
        return [weight.data_ptr() for weight in self.weights] != self.places

    def __call__(
        self, inputs: Inputs, begins: Array | None, memory: Memory, noise: Array | None
    ) -> tuple[Array, Memory]:
        """Actions (N, A) and the memory after them, of `inputs` (N, ...) and `noise` (N, A).

        `begins` (N,) tells whose memory starts anew; None if nobody's does.
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
    """`memory` as arrays, with the rows that begin an episode back at its start."""
    memory = map_state(np.asarray, memory)
    return map_state(lambda s: np.where(begins.reshape(-1, *(1,) * (s.ndim - 1)), s.dtype.type(0), s), memory)
