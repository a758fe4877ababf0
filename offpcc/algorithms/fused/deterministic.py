"""Fused updates of DDPG, TD3, TD3+BC and BC."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.fused.base import FlatBatch, FusedUpdate
from offpcc.algorithms.fused.kernels import MLPKernel
from offpcc.core import Batch, Stats
from offpcc.networks import DeterministicActor


class FusedDDPG(FusedUpdate):
    """Fused version of `DDPG.inner_update`."""

    actor_class = DeterministicActor
    replaced_methods = (*FusedUpdate.replaced_methods, "target_action")
    target_actor: MLPKernel
    first_critic: MLPKernel

    def bind(self, agent: Any) -> None:
        """See `FusedUpdate`."""
        super().bind(agent)
        self.target_actor = MLPKernel(list(agent.target_actor.parameters()))
        self.first_critic = MLPKernel([parameter[:1] for parameter in agent.critics.parameters()])

    def update(self, agent: Any, batch: Batch, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        critic_loss, q = self.step_critics(agent, batch, rows, self.targets(agent, batch, rows))
        actor_loss = self.step_actor(agent, batch, rows)
        agent.update_targets()
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "q": q}

    def targets(self, agent: Any, batch: Batch, rows: FlatBatch) -> Tensor:
        """Return the critics' targets y (B, T, 1)."""
        next_q = self.target_critics.forward(rows.next_with(self.target_action(agent, rows))).amin(0)
        y: Tensor = agent.td_target(batch, rows.unflatten(next_q))
        return y

    def target_action(self, agent: Any, rows: FlatBatch) -> Tensor:
        """Return the target actor's actions a' (M, A)."""
        return self.target_actor.forward(rows.next)[0].tanh()

    def step_actor(self, agent: Any, batch: Batch, rows: FlatBatch, num_updates: int | None = None) -> Tensor:
        """Make one step of the actor and return its loss."""
        action = self.actor.forward(rows.now)[0].tanh()
        q = self.first_critic.forward(rows.with_action(action))[0]
        loss, of_action = self.actor_loss(agent, batch, rows, action, q)
        self.actor.backward(rows.now, torch.ops.aten.tanh_backward(of_action, action).unsqueeze(0))
        agent.actor_optimizer.step(self.actor.gradients, num_updates, loss, self.actor.flat_gradients)
        return loss

    def actor_loss(self, agent: Any, batch: Batch, rows: FlatBatch, action: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient (M, A) with respect to `action` (M, A); `q` (M, 1) is Q_1(o, action)."""
        of_action = self.first_critic.backward_to_inputs(-rows.shares.unsqueeze(0), agent.action_dim)
        return -batch.mean(rows.unflatten(q)), of_action


class FusedTD3(FusedDDPG):
    """Fused version of `TD3.inner_update`."""

    def update(self, agent: Any, batch: Batch, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        critic_loss, q = self.step_critics(agent, batch, rows, self.targets(agent, batch, rows))
        stats = {"critic_loss": critic_loss, "q": q}
        num_updates = agent.critic_optimizer.num_updates
        if num_updates % agent.policy_delay == 0:
            stats["actor_loss"] = self.step_actor(agent, batch, rows, num_updates - 1)
            agent.update_targets()
        return stats

    def target_action(self, agent: Any, rows: FlatBatch) -> Tensor:
        """See `FusedDDPG`."""
        noise = (agent.target_noise * agent.noise.normal(rows.batch_actions)).clamp_(
            -agent.noise_clip, agent.noise_clip
        )
        return super().target_action(agent, rows).add_(noise.view(-1, agent.action_dim)).clamp_(-1.0, 1.0)


class FusedTD3BC(FusedTD3):
    """Fused version of `TD3BC.inner_update`."""

    def actor_loss(self, agent: Any, batch: Batch, rows: FlatBatch, action: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """See `FusedDDPG`."""
        weight = agent.bc_alpha / batch.mean(rows.unflatten(q.abs()))
        error = action - rows.actions
        of_action = self.first_critic.backward_to_inputs(-weight * rows.shares.unsqueeze(0), agent.action_dim)
        of_action.addcmul_(error, rows.shares, value=2.0 / agent.action_dim)
        imitation = batch.mean(error.square().view(rows.batch_actions.shape))
        return imitation - weight * batch.mean(rows.unflatten(q)), of_action


class FusedBC(FusedUpdate):
    """Fused version of `BC.inner_update`."""

    actor_class = DeterministicActor

    def update(self, agent: Any, batch: Batch, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        action = self.actor.forward(rows.now)[0].tanh()
        error = action - rows.actions
        loss = batch.mean(error.square().view(rows.batch_actions.shape))
        of_action = error.mul_(rows.shares).mul_(2.0 / agent.action_dim)
        self.actor.backward(rows.now, torch.ops.aten.tanh_backward(of_action, action).unsqueeze(0))
        agent.actor_optimizer.step(self.actor.gradients, loss=loss, flat_gradients=self.actor.flat_gradients)
        return {"actor_loss": loss}
