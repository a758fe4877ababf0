"""Types that all parts of the library share: Batch, Step, Summaries and the protocols.

Time alignment: a row of a batch is a sub-trajectory ``o_1, a_1, r_1, o_2, ..., a_T, r_T, o_{T+1}``. The agent takes
action ``a_t`` after it sees ``o_t``, and then gets reward ``r_t`` and observation ``o_{t+1}``. At ``t``, the agent's
input is ``o_t``, the previous action ``a_{t-1}`` and the previous reward ``r_{t-1}``. At the start of an episode, the
previous action and the previous reward are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from offpcc.utils.errors import UserError
from offpcc.utils.spaces import (
    DictShape,
    PackedDict,
    channels_first,
    channels_first_shape,
    channels_last,
    entries_of,
    has_images,
    is_image,
)

__all__ = [
    "Algorithm",
    "Batch",
    "Buffer",
    "Chunk",
    "DictShape",
    "Memory",
    "PackedDict",
    "State",
    "Stats",
    "Step",
    "Store",
    "Summaries",
    "channels_first",
    "channels_first_shape",
    "channels_last",
    "entries_of",
    "has_images",
    "is_image",
]

Stats = Mapping[str, Tensor]  # detached tensors by name; all are 0-d, except "td_error"
State = Any  # an encoder's hidden state: None, a tensor, or nested tuples of tensors; axis 0 is the batch
Memory = Any  # the memory that `act` returns and takes at the next step; as opaque as State


class Step(NamedTuple):
    """The agent's input from N parallel environments: arrays or tensors."""

    observation: Any  # (N, *obs)
    previous_action: Any  # (N, A) in [-1, 1]: the action that was executed; zeros at an episode's start
    previous_reward: Any  # (N, 1)
    is_first: Any  # (N,): reset the memory of these rows


class Batch(NamedTuple):
    """B sub-trajectories of T steps; a single transition is a sub-trajectory with T = 1."""

    observations: Tensor  # (B, T+1, *obs)
    actions: Tensor  # (B, T, A)
    rewards: Tensor  # (B, T, 1)
    terminations: Tensor  # (B, T, 1): 1 if the task ended at t+1; 0 at a time limit
    valid: Tensor  # (B, T+1, 1): 1 where the observation exists
    loss_mask: Tensor  # (B, T, 1): 1 where the step counts in losses; 0 for padding and burn-in
    first_action: Tensor  # (B, A): the action before o_1, zeros at an episode's start
    first_reward: Tensor  # (B, 1)
    burn_in: int = 0  # number of leading steps that only warm up the hidden state
    complete: bool = False  # True if nothing is padded and every step counts; `mean` then skips the mask
    weights: Tensor | None = None  # (B, 1, 1): importance weights in the critics' loss; None: all rows weigh the same
    # For algorithms with `reads_next_actions`: the recorded action after o_{t+1}, (B, T, A), and 1 where there is one,
    # (B, T, 1). There is none after an episode's end, a time limit included, and after the end of the recording.
    next_actions: Tensor | None = None
    has_next_action: Tensor | None = None
    # For algorithms with `reads_returns`: the discounted sum of the recorded rewards from step t on, (B, T, 1), and the
    # discounted sum of ones over the same steps. Both are 0 where they are unknown; see `storage.returns_to_go`.
    returns_to_go: Tensor | None = None
    discounts_to_go: Tensor | None = None
    imagined: Tensor | None = None  # (B, 1, 1): 1 for rows of a learned model, 0 for others; None without a model
    states: Tensor | None = None  # (B, T+1, S): what only critics see; None without `make.state`
    # (B, 1, 1): factor on the value of the last observation, if the rewards of n steps are summed; see `folded`.
    discounts: Tensor | None = None

    def folded(self, discount: float, scale: float = 1.0, shift: float = 0.0) -> Batch:
        """Return windows as single steps, for agents without memory: from o_1 to the last observation that exists.

        The reward becomes the discounted sum of all rewards, scaled and shifted; `discounts` has the rest of the
        target. Only the first step of a window may count in losses.

        Args:
            discount: gamma.
            scale: factor on rewards.
            shift: added to rewards after scaling.
        """
        exists = self.has_step().float()
        factors = torch.where(exists > 0, discount * (1.0 - self.terminations), 1.0).cumprod(1)
        before = torch.cat([torch.ones_like(factors[:, :1]), factors[:, :-1]], 1) * exists
        rewards = (before * torch.where(exists > 0, scale * self.rewards + shift, 0.0)).sum(1, keepdim=True)
        last = exists.sum(1).long().flatten()
        rows = torch.arange(len(last), device=last.device)

        def ends(column: Tensor) -> Tensor:
            return torch.stack([column[:, 0], column[rows, last]], 1)

        def at_last(column: Tensor | None) -> Tensor | None:
            return None if column is None else column[rows, (last - 1).clamp(min=0)].unsqueeze(1)

        def first(column: Tensor | None) -> Tensor | None:
            return None if column is None else column[:, :1]

        discounts = factors[:, -1:]
        return self._replace(
            observations=ends(self.observations),
            actions=self.actions[:, :1],
            rewards=rewards,
            terminations=(discounts == 0.0).to(self.terminations.dtype),
            valid=ends(self.valid),
            loss_mask=self.loss_mask[:, :1],
            next_actions=at_last(self.next_actions),
            has_next_action=at_last(self.has_next_action),
            returns_to_go=first(self.returns_to_go),
            discounts_to_go=first(self.discounts_to_go),
            states=None if self.states is None else ends(self.states),
            discounts=discounts,
        )

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of `x` (..., B, T, D) over the counted steps and D; keep the leading axes.

        The library takes every mean over a batch with this method.

        Raises:
            ValueError: `x` has other rows, such as by a target without its last axis.
        """
        if x.shape[-3:-1] != self.loss_mask.shape[:2]:  # else it may broadcast to a mean of other numbers
            rows = ", ".join(map(str, self.loss_mask.shape[:2]))
            raise ValueError(
                f"batch.mean got the shape {tuple(x.shape)}, but needs (..., {rows}, D); keep the axes of Q values "
                f"(N, B, T, 1) and of targets (B, T, 1)"
            )
        if self.complete:
            return x.mean((-3, -2, -1))
        counted = torch.where(self.loss_mask > 0, x, 0.0).sum((-3, -2)).mean(-1)
        return counted / self.loss_mask.sum()

    def recorded(self) -> Batch:
        """Return the batch with a mask that leaves out imagined rows."""
        if self.imagined is None:
            return self
        return self._replace(loss_mask=self.loss_mask * (1.0 - self.imagined), complete=False)

    def weighted_mean(self, x: Tensor) -> Tensor:
        """Return the mean of `x` (..., B, T, D) times the importance weights (Schaul et al. 2016, section 3.4)."""
        return self.mean(x if self.weights is None else self.weights * x)

    def has_step(self) -> Tensor:
        """Return (B, T, 1), true where step t exists, that is, where o_t and o_{t+1} both exist."""
        return (self.valid[:, :-1] > 0) & (self.valid[:, 1:] > 0)

    def recorded_next_actions(self) -> tuple[Tensor, Tensor]:
        """Return `next_actions` and `has_next_action`.

        Raises:
            UserError: the batch has none.
        """
        if self.next_actions is None or self.has_next_action is None:
            raise UserError(
                "the batch has no recorded next actions, which this algorithm reads; set gives_next_actions of its "
                "buffer to True, as offpcc.build does"
            )
        return self.next_actions, self.has_next_action

    def recorded_returns(self) -> tuple[Tensor, Tensor]:
        """Return `returns_to_go` and `discounts_to_go`.

        With rewards scale x r + shift, the return is scale x `returns_to_go` + shift x `discounts_to_go`.

        Raises:
            UserError: the batch has none.
        """
        if self.returns_to_go is None or self.discounts_to_go is None:
            raise UserError(
                "the batch has no returns of the recorded steps, which this algorithm reads; set return_discount of "
                "its buffer to the algorithm's gamma, as offpcc.build does"
            )
        return self.returns_to_go, self.discounts_to_go

    def without_padding(self) -> Batch:
        """Return the batch with zeros in place of the padding, which may hold NaN.

        A mask on the loss is not enough: the gradient of a masked NaN is 0 x NaN.
        """
        if self.has_next_action is not None:
            assert self.next_actions is not None  # both fields are given, or neither
            next_actions = torch.where(self.has_next_action > 0, self.next_actions, 0.0)
            self = self._replace(next_actions=next_actions)
        if self.complete:
            return self
        step, valid = self.has_step(), self.valid > 0
        valid = valid.reshape(*valid.shape[:2], *(1,) * (self.observations.dim() - 2))
        if self.returns_to_go is not None:
            assert self.discounts_to_go is not None  # both fields are given, or neither
            sums, ones = (torch.where(step, x, 0.0) for x in (self.returns_to_go, self.discounts_to_go))
            self = self._replace(returns_to_go=sums, discounts_to_go=ones)
        return self._replace(
            observations=_or_zero(valid, self.observations),
            actions=torch.where(step, self.actions, 0.0),
            rewards=torch.where(step, self.rewards, 0.0),
            terminations=torch.where(step, self.terminations, 0.0),
            first_action=torch.where(self.valid[:, 0] > 0, self.first_action, 0.0),
            first_reward=torch.where(self.valid[:, 0] > 0, self.first_reward, 0.0),
        )

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`."""
        if self.observations.device == device:
            return self
        return Batch(*(x.to(device) if isinstance(x, Tensor) else x for x in self))  # type: ignore[arg-type]


def _or_zero(where: Tensor, x: Tensor) -> Tensor:
    """Return x where it is true, else 0. Bytes are multiplied, which takes a fortieth of the time of `torch.where`."""
    return x * where if x.dtype == torch.uint8 else torch.where(where, x, 0)


class Summaries(NamedTuple):
    """The encoders' outputs, computed once per update; H is the `dim` of the encoder.

    If critics see the state, `q`, `target_q` and `v` also hold it, or hold it alone; see `critic_inputs`. With images,
    some algorithms of offpcc leave out what they never read, which is NaN then; for a class of yours, all is computed.
    """

    pi: Tensor  # (B, T, H): the actor's encoder at t
    next_pi: Tensor  # (B, T, H), no gradient: at t+1, the encoder of the actor that picks a'
    q: Tensor  # (N or 1, B, T, H): the critics' encoders at t; size 0 on axis 0 without critics
    target_q: Tensor  # (N or 1, B, T+1, H), no gradient: the target critics' encoders at t and t+1
    v: Tensor  # (B, T+1, H), no gradient: the actor's encoder at t and t+1, input of a V network or a VAE


class Algorithm(Protocol):
    """All members of an algorithm that building, training, checkpoints and resuming use; no base class is needed.

    `offpcc.fit` and the command line need a child of `ActorCritic`.

    `build` makes it with the two spaces, and with ``device`` and ``seed`` by keyword. Some features need an
    `ActorCritic`: warnings about its settings, its encoders, learning from recorded data.
    """

    memoryless: bool
    stat_names: tuple[str, ...]
    n_step: int  # steps of a window that a memoryless agent gets
    device: torch.device
    action_space: Any  # a Box, in the environment's units; None if unknown
    action_dim: int

    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[np.ndarray, Memory]:
        """Return actions (N, A) in [-1, 1] and the memory to pass at the next step."""
        ...

    def update_networks(self, batch: Batch) -> Stats:
        """Make one update; the returned statistics stay on the device until they are logged.

        If the batch has importance weights, ``"td_error"`` among them is |Q - y|, (B, T, 1); it goes to the buffer.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs to resume exactly."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`."""
        ...

    def actor_parts(self) -> dict[str, torch.nn.Module]:
        """Return the modules that `act` uses, by name."""
        ...

    def actor_file(self) -> dict[str, Any]:
        """Return the content of an actor's file, as plain data and tensors."""
        ...


class Chunk(NamedTuple):
    """A part of a buffer's content, which a checkpoint writes to a file of its own."""

    key: int
    version: Hashable  # changes whenever the content changes; only meaningful in this process
    arrays: Sequence[Any]  # the buffer's own memory: contiguous NumPy arrays


class Store(Protocol):
    """The interface of an object that stores transitions."""

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
        is_first: bool = False,
    ) -> None:
        """Store one transition of environment number `env`. `is_first` is true if it begins an episode.

        An unfinished episode of this environment ends then; its last transition counts as truncated.
        """
        ...

    def drop(self, env: int) -> None:
        """End the unfinished episode of an environment that failed; its next transition starts a new episode.

        A buffer of transitions keeps those that are complete; a buffer of episodes discards the unfinished episode.
        """
        ...

    def truncate(self, env: int) -> None:
        """End the unfinished episode of an environment, if there is one; mark its last transition as truncated."""
        ...


class Buffer(Store, Protocol):
    """All members of a buffer that building, training, checkpoints and resuming use; no base class is needed.

    `build` makes it with the two spaces, and by keyword ``device``, ``seed``, ``num_envs``, ``frame_stack``, and for
    agents without memory ``num_steps``. Recorded data, `offpcc.fit` and the command line need a child of `ReplayBuffer`
    or `RecurrentReplayBuffer`.
    """

    def sample(self) -> Batch:
        """Return a batch, drawn with the buffer's own generator."""
        ...

    def __len__(self) -> int:
        """Return the number of items that can be sampled; with 0, `sample` fails."""
        ...

    def update_priorities(self, batch: Batch, td_error: Tensor) -> None:
        """Receive the TD errors (B, T, 1) of the update with the last batch; called if the batch had weights.

        If the update was skipped, they are NaN on a GPU; on the CPU there is no call.
        """
        ...

    def chunks(self) -> Sequence[Chunk]:
        """Return the content in chunks, of which a checkpoint writes those that changed; may be empty."""
        ...

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides the chunks, as plain data and tensors; also the generator's state."""
        ...

    def load(self, metadata: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Chunk], None]) -> None:
        """Restore the buffer: allocate the chunks, and call `fill` with the number of each and the chunk.

        `num_bytes` is the size of all saved chunks.
        """
        ...
