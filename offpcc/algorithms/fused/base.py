"""`FusedUpdate`, the base class of fused updates, and `FlatBatch`, their batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from offpcc.algorithms.fused.eligibility import NetworkFingerprint, require_fusable, why_not_fusable
from offpcc.algorithms.fused.kernels import MLPKernel
from offpcc.core import Batch, Stats
from offpcc.networks import Identity, Inputs, PassThrough
from offpcc.networks.encoders import vector
from offpcc.networks.sequences import encode

if TYPE_CHECKING:
    from offpcc.algorithms.base import ActorCritic


class FlatBatch(NamedTuple):
    """A batch flattened to M = B T rows, one for each step, as networks without encoders read it."""

    both: Tensor  # (2M, H): all o, then all o'
    now: Tensor  # (M, H): o
    next: Tensor  # (M, H): o'
    batch_actions: Tensor  # (B, T, A)
    actions: Tensor  # (M, A)
    shares: Tensor  # (M, 1): weight of each row in `Batch.mean`

    @classmethod
    def of(cls, agent: Any, batch: Batch) -> FlatBatch:
        """Flatten a batch that `agent.prepare` returned."""
        h = read(agent, batch)
        if batch.complete:
            shares = torch.full_like(batch.loss_mask, 1.0 / batch.loss_mask.numel())
        else:
            shares = torch.where(batch.loss_mask > 0, 1.0 / batch.loss_mask.sum(), 0.0)
        both = torch.cat([h[:, :-1], h[:, 1:]]).view(-1, h.shape[-1])
        actions = batch.actions.flatten(0, 1)
        now, following = both.chunk(2)
        return cls(both, now, following, batch.actions, actions, shares.view(-1, 1))

    def with_action(self, action: Tensor) -> Tensor:
        """Return the critics' input for o and `action` (M, A)."""
        return torch.cat([self.now, action], -1)

    def next_with(self, action: Tensor) -> Tensor:
        """Return the critics' input for o' and `action` (M, A)."""
        return torch.cat([self.next, action], -1)

    def unflatten(self, x: Tensor) -> Tensor:
        """Reshape (..., M, 1) to (..., B, T, 1)."""
        return x.view(*x.shape[:-2], *self.batch_actions.shape[:-1], 1)


def read(agent: Any, batch: Batch) -> Tensor:
    """Return the summary (B, T+1, H); all networks have the same, as their encoders have no weights."""
    shared, own = agent.shared_encoder, agent.actor_encoder
    if type(shared) is PassThrough and type(own) is Identity and not own.extra_dim:
        return vector(batch.observations)
    inputs = Inputs.of(batch)
    return encode(own, inputs, batch, encode(shared, inputs, batch))


class FusedUpdate:
    """Base class of hand-written updates; an algorithm's `fused_update` is its subclass.

    It holds views of the agent's weights and work memory, and nothing that has to be saved. A copy creates its own
    views, and so does the original when its weights have moved to other memory.

    Args:
        is_wanted: what to do with an agent that does not fit: True raises an error, False uses its plain update.
    """

    actor_class: ClassVar[type[nn.Module]]
    others: ClassVar[tuple[str, ...]] = ()  # names of MLPs other than actor and critics
    # Methods of the algorithm that the fused update does not call.
    replaced_methods: ClassVar[tuple[str, ...]] = (
        *("update_networks", "inner_update", "update_critics", "summarize"),
        *("critic_loss", "actor_loss", "td_loss"),
    )
    actor: MLPKernel
    critics: MLPKernel
    target_critics: MLPKernel
    _wiring: NetworkFingerprint | None = None  # at the last call of `why_not_fusable`
    _fits = False

    def __init__(self, is_wanted: bool) -> None:
        self.is_wanted = is_wanted

    @classmethod
    def of(cls, agent: ActorCritic, is_wanted: bool) -> FusedUpdate:
        """Return the fused update of `agent`.

        Raises:
            UserError: `is_wanted` is True, but the agent does not fit.
        """
        if is_wanted:
            require_fusable(agent)
        return cls(is_wanted)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without views, as the copy's agent has its own weights."""
        return {"is_wanted": self.is_wanted}

    def fits(self, agent: Any) -> bool:
        """Check whether this can update `agent` in its current state.

        Raises:
            UserError: it cannot, but `is_wanted` is True.
        """
        if self._wiring is None or not self._wiring.is_that_of(agent):
            if self.is_wanted:
                require_fusable(agent)
            self._fits = not why_not_fusable(agent)
            if self._fits:
                self.bind(agent)
            self._wiring = NetworkFingerprint(agent)
        return self._fits

    @torch.no_grad()
    def __call__(self, agent: Any, batch: Batch) -> Stats:
        """Do what the agent's `inner_update` does. Call it only if `fits` returned True."""
        batch = agent.prepare(batch)
        return self.update(agent, batch, FlatBatch.of(agent, batch))

    def bind(self, agent: Any) -> None:
        """Create the kernels over the weights of `agent`."""
        self.actor = MLPKernel(list(agent.actor.net.parameters()))
        if agent.has_critics:
            self.critics = MLPKernel(list(agent.critics.parameters()))
            self.target_critics = MLPKernel(list(agent.target_critics.parameters()))

    def update(self, agent: Any, batch: Batch, rows: FlatBatch) -> Stats:
        """Make one update.

        Args:
            agent: the agent.
            batch: the result of `agent.prepare`.
            rows: the same batch, flattened.
        """
        raise NotImplementedError

    def step_critics(self, agent: Any, batch: Batch, rows: FlatBatch, y: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step of the critics towards targets `y` (B, T, 1).

        Returns:
            Mean (Q(o, a) - y)^2, summed over critics, and mean Q.
        """
        x = rows.with_action(rows.actions)
        q = self.critics.forward(x)
        error = q - y.view(-1, 1)
        self.critics.backward(x, error * (2.0 * rows.shares))
        loss = batch.mean(rows.unflatten(error.square())).sum()
        agent.critic_optimizer.step(self.critics.gradients, loss=loss, flat_gradients=self.critics.flat_gradients)
        return loss, batch.mean(rows.unflatten(q)).mean()
