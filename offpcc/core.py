"""The nouns every part shares: Batch, Step, Summaries, and the protocols.

Time alignment, stated once. A row of a batch is a sub-trajectory ``o_1, a_1, r_1, o_2, ..., a_T, r_T, o_{T+1}``:
action ``a_t`` was taken after ``o_t`` and brought reward ``r_t`` and observation ``o_{t+1}``. What an agent knows
at ``t`` besides ``o_t`` is the previous action ``a_{t-1}`` and the previous reward ``r_{t-1}``, zeros at a start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

Stats = Mapping[str, Tensor]  # detached 0-d tensors by name; algorithms declare theirs as a TypedDict
State = Any  # an encoder's memory: None, a tensor, or nested tuples of tensors whose first axis is the batch
Memory = Any  # what `act` returns to be passed back at the next step; as opaque as State

MINIMAL_FRAME = 8  # pixels; a smaller 3-d observation is a small tensor, not an image


class Step(NamedTuple):
    """What the agent sees of N environments side by side; arrays or tensors."""

    observation: Any  # (N, *obs)
    previous_action: Any  # (N, A) in [-1, 1], the executed one; zeros at an episode's start
    previous_reward: Any  # (N, 1)
    is_first: Any  # (N,) these rows' memory starts anew


class Batch(NamedTuple):
    """B sub-trajectories of T steps; a single transition is a trajectory of length one."""

    observations: Tensor  # (B, T+1, *obs)
    actions: Tensor  # (B, T, A)
    rewards: Tensor  # (B, T, 1)
    terminations: Tensor  # (B, T, 1): 1 if the task ended at t+1; a time limit is 0
    valid: Tensor  # (B, T+1, 1): 1 where the observation exists
    loss_mask: Tensor  # (B, T, 1): 1 where the step counts in losses; 0 for padding and burn-in
    first_action: Tensor  # (B, A): the action before o_1, zeros at an episode's start
    first_reward: Tensor  # (B, 1)
    burn_in: int = 0  # leading steps that only warm a memory up
    complete: bool = False  # whether all observations are real and all steps count, which saves looking

    def mean(self, x: Tensor) -> Tensor:
        """Mean of `x` (..., B, T, D) over counted steps and D, keeping the leading axes; the library's only mean."""
        if self.complete:
            return x.mean((-3, -2, -1))
        counted = torch.where(self.loss_mask > 0, x, 0.0).sum((-3, -2)).mean(-1)
        return counted / self.loss_mask.sum()

    def has_step(self) -> Tensor:
        """(B, T, 1), true where step t exists: both o_t and o_{t+1} do."""
        return (self.valid[:, :-1] > 0) & (self.valid[:, 1:] > 0)

    def without_padding(self) -> Batch:
        """The same batch with zeros in place of whatever padding holds, NaN included.

        A mask on the loss alone would not do: the gradient of a masked NaN is 0 x NaN.
        """
        if self.complete:
            return self
        step, valid = self.has_step(), self.valid > 0
        valid = valid.reshape(*valid.shape[:2], *(1,) * (self.observations.dim() - 2))
        return self._replace(
            observations=torch.where(valid, self.observations, 0),
            actions=torch.where(step, self.actions, 0.0),
            rewards=torch.where(step, self.rewards, 0.0),
            terminations=torch.where(step, self.terminations, 0.0),
            first_action=torch.where(self.valid[:, 0] > 0, self.first_action, 0.0),
            first_reward=torch.where(self.valid[:, 0] > 0, self.first_reward, 0.0),
        )

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`."""
        if self.observations.device == device:
            return self
        return Batch(*(x.to(device) if isinstance(x, Tensor) else x for x in self))  # type: ignore[arg-type]


class Summaries(NamedTuple):
    """What each network reads, computed once per update; H is the reading encoder's `dim`."""

    pi: Tensor  # (B, T, H): the actor's encoder at t
    next_pi: Tensor  # (B, T, H), no gradient: at t+1, of the network that picks a'
    q: Tensor  # (N or 1, B, T, H): the critics' encoders at t; without critics N is 0
    target_q: Tensor  # (N or 1, B, T+1, H), no gradient: the target critics' encoders at t and t+1
    v: Tensor  # (B, T+1, H), no gradient: what a V network or a VAE reads at t and t+1, the actor's encoder


class Algorithm(Protocol):
    """What the loop needs of an algorithm; satisfied by structure."""

    memoryless: bool
    stat_names: tuple[str, ...]

    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[np.ndarray, Memory]:
        """Actions (N, A) in [-1, 1] and the memory to pass at the next step."""
        ...

    def update_networks(self, batch: Batch) -> Stats:
        """One update; what it returns stays on the device until it is logged."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything a later `load_state_dict` needs to go on exactly."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        ...


class Store(Protocol):
    """What transitions go into."""

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
    ) -> None:
        """Store one transition of environment number `env`."""
        ...

    def drop(self, env: int) -> None:
        """Forget the unfinished episode of an environment that broke down; what it pushes next begins another."""
        ...

    def truncate(self, env: int) -> None:
        """End the unfinished episode of an environment, if there is one: its last transition is truncated."""
        ...


class Buffer(Store, Protocol):
    """What the loop needs of a buffer."""

    def sample(self) -> Batch:
        """A batch drawn by the buffer's own generator."""
        ...

    def __len__(self) -> int:
        """What there is to draw from; 0 means that `sample` would fail."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Contents and generator."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        ...


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether observations of this shape are images, channels first or last."""
    return len(shape) == 3 and sum(size >= MINIMAL_FRAME for size in shape) >= 2


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image's shape is (height, width, channels)."""
    return is_image(shape) and shape[-1] < min(shape[:2]) and shape[0] >= MINIMAL_FRAME


def channels_first_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which observations of a space are stored and seen by networks."""
    return (shape[2], shape[0], shape[1]) if channels_last(shape) else tuple(shape)


def channels_first(observation: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`observation` (..., *shape) with an image's channels first."""
    return np.moveaxis(observation, -1, -3) if channels_last(shape) else observation
