"""The fused update of IQL."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.fused.base import FlatBatch, FusedUpdate
from offpcc.algorithms.fused.kernels import MLPKernel
from offpcc.core import Batch, Stats
from offpcc.networks import GaussianActor


class FusedIQL(FusedUpdate):
    """Fused version of `IQL.inner_update`."""

    actor_class = GaussianActor
    others = ("value",)
    replaced_methods = (*FusedUpdate.replaced_methods, "value_loss", "recorded_value")
    value: MLPKernel  # V at o, for its own step
    values: MLPKernel  # V at o and o' after its step, for actor and critics

    def bind(self, agent: Any) -> None:
        """See `FusedUpdate`."""
        super().bind(agent)
        weights = list(agent.value.parameters())
        self.value, self.values = MLPKernel(weights), MLPKernel(weights)

    def update(self, agent: Any, batch: Batch, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        recorded = self.target_critics.forward(rows.with_action(rows.actions)).amin(0)
        value_loss, v = self.step_value(agent, batch, rows, recorded)
        v_now, v_next = self.values.forward(rows.both)[0].chunk(2)
        weight = (agent.beta * (recorded - v_now)).exp_().clamp_(max=agent.max_advantage_weight)
        actor_loss = self.step_actor(agent, batch, rows, weight)
        critic_loss, q = self.step_critics(agent, batch, rows, agent.td_target(batch, rows.unflatten(v_next)))
        agent.update_targets()
        return {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "value_loss": value_loss,
            "q": q,
            "v": v,
            "weight": batch.mean(rows.unflatten(weight)),
        }

    def step_value(self, agent: Any, batch: Batch, rows: FlatBatch, recorded: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step of V towards the expectile of `recorded` (M, 1), which is min Q'(o, a).

        Returns:
            The loss and mean V.
        """
        v = self.value.forward(rows.now)[0]
        u = recorded - v
        share = (agent.expectile - (u < 0.0).to(u.dtype)).abs_()
        of_u = share * u
        loss = batch.mean(rows.unflatten(of_u * u))
        self.value.backward(rows.now, of_u.mul_(rows.shares).mul_(-2.0).unsqueeze(0))
        mean = batch.mean(rows.unflatten(v))
        agent.value_optimizer.step(self.value.gradients, loss=loss, flat_gradients=self.value.flat_gradients)
        return loss, mean

    def step_actor(self, agent: Any, batch: Batch, rows: FlatBatch, weight: Tensor) -> Tensor:
        """Make one step of the actor towards recorded actions with `weight` (M, 1), and return the loss.

        With z = (a - mean) / std, d log pi / d mean is z / std, and d log pi / d log std is z^2 - 1.
        """
        mean = self.actor.forward(rows.now)[0].tanh()
        free = agent.actor.log_std.detach()
        log_std = free.clamp(*agent.actor.log_std_bounds)
        inverse = (-log_std).exp_()
        z = (rows.actions - mean).mul_(inverse)
        square = z.square()
        log_prob = (-0.5 * square).sub_(log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1, keepdim=True)
        loss = -batch.mean(rows.unflatten(weight * log_prob))
        of_log_prob = -weight * rows.shares
        of_mean = torch.ops.aten.tanh_backward(z.mul_(inverse).mul_(of_log_prob), mean)
        self.actor.backward(rows.now, of_mean.unsqueeze(0))
        of_log_std = square.sub_(1.0).mul_(of_log_prob).sum(0).mul_(log_std == free)
        gradients, flat_gradients = [of_log_std, *self.actor.gradients], [of_log_std, *self.actor.flat_gradients]
        agent.actor_optimizer.step(gradients, loss=loss, flat_gradients=flat_gradients)
        return loss
