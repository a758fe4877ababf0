"""Fused updates of BC, DDPG, TD3 and TD3+BC."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from offpcc.algorithms.fused.base import FlatBatch, FusedUpdate
from offpcc.algorithms.fused.kernels import MLPKernel
from offpcc.core import Stats
from offpcc.networks import DeterministicActor


class FusedBC(FusedUpdate):
    """Fused version of `BC.inner_update`."""

    actor_class = DeterministicActor

    def update(self, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        return {"actor_loss": self.step_actor(rows)}

    def step_actor(self, rows: FlatBatch, num_updates: int | None = None) -> Tensor:
        """Make one step of the actor and return its loss."""
        action = self.actor.forward(rows.now)[0].tanh()
        loss, of_action = self.actor_loss(rows, action)
        self.actor.backward(rows.now, torch.ops.aten.tanh_backward(of_action, action).unsqueeze(0))
        self.agent.actor_optimizer.step(self.actor.gradients, num_updates, loss, self.actor.flat_gradients)
        return loss

    def actor_loss(self, rows: FlatBatch, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient (M, A) with respect to the actor's `action` (M, A)."""
        error = action - rows.actions
        loss = rows.mean(error.square())
        return loss, error.mul_(rows.shares).mul_(2.0 / self.agent.action_dim)


class FusedDDPG(FusedBC):
    """Fused version of `DDPG.inner_update`."""

    replaced_methods = (*FusedUpdate.replaced_methods, "target_action")
    needed: ClassVar[dict[str, Any]] = {**FusedUpdate.needed, "actor_q": "first"}
    target_actor: MLPKernel
    first_critic: MLPKernel

    def bind(self, agent: Any) -> None:
        """See `FusedUpdate`."""
        super().bind(agent)
        self.target_actor = MLPKernel(list(agent.target_actor.parameters()))
        self.first_critic = MLPKernel([parameter[:1] for parameter in agent.critics.parameters()])

    def update(self, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        critic_loss, q = self.step_critics(rows, self.targets(rows))
        actor_loss = self.step_actor(rows)
        self.agent.update_targets()
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "q": q}

    def targets(self, rows: FlatBatch) -> Tensor:
        """Return the critics' targets y (B, T, 1)."""
        next_q = self.target_critics.forward(torch.cat([rows.next, self.target_action(rows)], -1)).amin(0)
        y: Tensor = self.agent.td_target(rows.batch, rows.unflatten(next_q))
        return y

    def target_action(self, rows: FlatBatch) -> Tensor:
        """Return the target actor's actions a' (M, A)."""
        return self.target_actor.forward(rows.next)[0].tanh()

    def actor_loss(self, rows: FlatBatch, action: Tensor) -> tuple[Tensor, Tensor]:
        """See `FusedBC`."""
        q = self.first_critic.forward(torch.cat([rows.now, action], -1))[0]
        of_action = self.first_critic.backward_to_inputs(-rows.shares.unsqueeze(0), self.agent.action_dim)
        return -rows.mean(q), of_action


class FusedTD3(FusedDDPG):
    """Fused version of `TD3.inner_update`."""

    def update(self, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        critic_loss, q = self.step_critics(rows, self.targets(rows))
        stats = {"critic_loss": critic_loss, "q": q}
        num_updates = self.agent.critic_optimizer.num_updates
        if num_updates % self.agent.policy_delay == 0:
            stats["actor_loss"] = self.step_actor(rows, num_updates - 1)
            self.agent.update_targets()
        return stats

    def target_action(self, rows: FlatBatch) -> Tensor:
        """See `FusedDDPG`."""
        agent = self.agent
        noise = (agent.target_noise * agent.noise.normal(rows.batch.actions)).clamp_(
            -agent.noise_clip, agent.noise_clip
        )
        return super().target_action(rows).add_(noise.view(-1, agent.action_dim)).clamp_(-1.0, 1.0)


class FusedTD3BC(FusedTD3):
    """Fused version of `TD3BC.inner_update`."""

    def actor_loss(self, rows: FlatBatch, action: Tensor) -> tuple[Tensor, Tensor]:
        """See `FusedBC`."""
        q = self.first_critic.forward(torch.cat([rows.now, action], -1))[0]
        weight = self.agent.bc_alpha / rows.mean(q.abs())
        error = action - rows.actions
        of_action = self.first_critic.backward_to_inputs(-weight * rows.shares.unsqueeze(0), self.agent.action_dim)
        of_action.addcmul_(error, rows.shares, value=2.0 / self.agent.action_dim)
        return rows.mean(error.square()) - weight * rows.mean(q), of_action
