"""The fused update of IQL."""

import math
from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.fused.base import FlatBatch, FusedUpdate
from offpcc.algorithms.fused.kernels import MLPKernel
from offpcc.core import Stats
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
        self.value, self.values = (MLPKernel(list(agent.value.parameters())) for _ in range(2))

    def update(self, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        agent = self.agent
        recorded = self.target_critics.forward(torch.cat([rows.now, rows.actions], -1)).amin(0)
        value_loss, v = self.step_value(rows, recorded)
        v_now, v_next = self.values.forward(rows.both)[0].chunk(2)
        weight = (agent.beta * (recorded - v_now)).exp_().clamp_(max=agent.max_advantage_weight)
        actor_loss = self.step_actor(rows, weight)
        critic_loss, q = self.step_critics(rows, agent.td_target(rows.batch, rows.unflatten(v_next)))
        agent.update_targets()
        stats = {"critic_loss": critic_loss, "actor_loss": actor_loss, "value_loss": value_loss}
        return {**stats, "q": q, "v": v, "weight": rows.mean(weight)}

    def step_value(self, rows: FlatBatch, recorded: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step of V towards the expectile of `recorded` (M, 1), which is min Q'(o, a).

        Returns:
            The loss and mean V.
        """
        v = self.value.forward(rows.now)[0]
        u = recorded - v
        share = (self.agent.expectile - (u < 0.0).to(u.dtype)).abs_()
        of_u = share * u
        loss = rows.mean(of_u * u)
        self.value.backward(rows.now, of_u.mul_(rows.shares).mul_(-2.0).unsqueeze(0))
        mean = rows.mean(v)
        self.agent.value_optimizer.step(self.value.gradients, None, loss, self.value.flat_gradients)
        return loss, mean

    def step_actor(self, rows: FlatBatch, weight: Tensor) -> Tensor:
        """Make one step of the actor towards recorded actions with `weight` (M, 1), and return the loss.

        With z = (a - mean) / std, d log pi / d mean is z / std, and d log pi / d log std is z^2 - 1.
        """
        mean = self.actor.forward(rows.now)[0].tanh()
        free = self.agent.actor.log_std.detach()
        log_std = free.clamp(*self.agent.actor.log_std_bounds)
        inverse = (-log_std).exp_()
        z = (rows.actions - mean).mul_(inverse)
        square = z.square()
        log_prob = (-0.5 * square).sub_(log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1, keepdim=True)
        loss = -rows.mean(weight * log_prob)
        of_log_prob = -weight * rows.shares
        of_mean = torch.ops.aten.tanh_backward(z.mul_(inverse).mul_(of_log_prob), mean)
        self.actor.backward(rows.now, of_mean.unsqueeze(0))
        of_log_std = square.sub_(1.0).mul_(of_log_prob).sum(0).mul_(log_std == free)
        gradients, flat_gradients = [of_log_std, *self.actor.gradients], [of_log_std, *self.actor.flat_gradients]
        self.agent.actor_optimizer.step(gradients, None, loss, flat_gradients)
        return loss
