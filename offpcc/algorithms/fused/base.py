"""`FusedUpdate`, the base class of fused updates, and `FlatBatch`, their batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from offpcc.algorithms.fused.eligibility import fingerprint_of, is_fusable
from offpcc.algorithms.fused.kernels import MLPKernel
from offpcc.core import Batch, Stats
from offpcc.networks import Identity, Inputs, PassThrough
from offpcc.networks.encoders import vector
from offpcc.networks.sequences import encode


class FlatBatch(NamedTuple):
    """A batch flattened to M = B T rows, one for each step."""

    batch: Batch  # (B, T, ...)
    both: Tensor  # (2M, H): all o, then all o'
    now: Tensor  # (M, H): o
    next: Tensor  # (M, H): o'
    actions: Tensor  # (M, A)
    shares: Tensor  # (M, 1): weight of each row in `mean`

    @classmethod
    def of(cls, agent: Any, batch: Batch) -> FlatBatch:
        """Flatten a batch that `agent.prepare` returned."""
        shared, own = agent.shared_encoder, agent.actor_encoder
        if type(shared) is PassThrough and type(own) is Identity and not own.extra_dim:
            h = vector(batch.observations)
        else:  # all networks have this summary, because their encoders have no weights
            inputs = Inputs.of(batch)
            h = encode(own, inputs, batch, encode(shared, inputs, batch))
        if batch.complete:
            shares = torch.full_like(batch.loss_mask, 1.0 / batch.loss_mask.numel())
        else:
            shares = torch.where(batch.loss_mask > 0, 1.0 / batch.loss_mask.sum(), 0.0)
        both = torch.cat([h[:, :-1], h[:, 1:]]).view(-1, h.shape[-1])
        now, following = both.chunk(2)
        return cls(batch, both, now, following, batch.actions.flatten(0, 1), shares.view(-1, 1))

    def unflatten(self, x: Tensor) -> Tensor:
        """Reshape (..., M, D) to (..., B, T, D)."""
        return x.view(*x.shape[:-2], *self.batch.actions.shape[:-1], x.shape[-1])

    def mean(self, x: Tensor) -> Tensor:
        """Return the `Batch.mean` of `x` (..., M, D)."""
        return self.batch.mean(self.unflatten(x))


class FusedUpdate:
    """Base class of hand-written updates; an algorithm's `fused_update` is its subclass.

    It holds views of the agent's weights, and work memory. None of this is saved or copied: `fits` creates the views
    again, also when weights moved to other memory.

    Args:
        agent: the agent.
        is_wanted: True to raise an error if the agent cannot have a fused update, False to use its plain update then.
    """

    actor_class: ClassVar[type[nn.Module]]
    others: ClassVar[tuple[str, ...]] = ()  # names of MLPs other than actor and critics
    # Methods of the algorithm that the fused update does not call.
    replaced_methods: ClassVar[tuple[str, ...]] = (
        *("update_networks", "inner_update", "update_critics", "update_actor", "summarize"),
        *("critic_loss", "actor_loss", "td_loss", "target_values", "policy_value"),
    )
    needed: ClassVar[dict[str, Any]] = {"target_subset": None}  # the algorithm's options that it has
    agent: Any
    actor: MLPKernel
    critics: MLPKernel
    target_critics: MLPKernel
    _fingerprint: Callable[[], tuple[object, ...]] | None = None
    _checked: tuple[object, ...] = ()  # the fingerprint at the last check
    _fits = False

    def __init__(self, agent: Any, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        if is_wanted:
            is_fusable(agent, is_wanted)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without views, because the copy's agent has its own weights."""
        return {"is_wanted": self.is_wanted}

    def fits(self, agent: Any) -> bool:
        """Check whether this can update `agent` in its current state."""
        current = None if self._fingerprint is None else self._fingerprint()
        if current != self._checked:
            self._fits = is_fusable(agent, self.is_wanted)
            if self._fits:
                self.bind(agent)
            self._fingerprint = fingerprint_of(agent)
            self._checked = self._fingerprint()
        return self._fits

    @torch.no_grad()
    def __call__(self, agent: Any, batch: Batch) -> Stats:
        """Do what the agent's `inner_update` does. Call it only if `fits` returned True."""
        return self.update(FlatBatch.of(agent, agent.prepare(batch)))

    def bind(self, agent: Any) -> None:
        """Create the kernels over the weights of `agent`."""
        self.agent = agent
        self.actor = MLPKernel(list(agent.actor.net.parameters()))
        if agent.has_critics:
            self.critics = MLPKernel(list(agent.critics.parameters()))
            self.target_critics = MLPKernel(list(agent.target_critics.parameters()))

    def update(self, rows: FlatBatch) -> Stats:
        """Make one update and return its statistics."""
        raise NotImplementedError

    def step_critics(self, rows: FlatBatch, y: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step of the critics towards targets `y` (B, T, 1).

        Returns:
            Mean (Q(o, a) - y)^2, summed over critics, and mean Q.
        """
        x = torch.cat([rows.now, rows.actions], -1)
        q = self.critics.forward(x)
        error = q - y.view(-1, 1)
        self.critics.backward(x, error * (2.0 * rows.shares))
        loss = rows.mean(error.square()).sum()
        self.agent.critic_optimizer.step(self.critics.gradients, None, loss, self.critics.flat_gradients)
        return loss, rows.mean(q).mean()
