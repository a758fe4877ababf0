"""The fused update of SAC."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from offpcc.algorithms.fused.base import FlatBatch, FusedUpdate
from offpcc.core import Batch, Stats
from offpcc.networks import SquashedGaussianActor
from offpcc.networks.actors import LOG_STD_MAX, LOG_STD_MIN


class Sample(NamedTuple):
    """Sampled actions and intermediate results of the sampling; a = tanh(u), u = mean + std * noise."""

    action: Tensor  # (M, A)
    log_prob: Tensor  # (M, 1)
    shift: Tensor  # (M, A): std * noise
    log_std: Tensor  # (M, A), before clamping


class FusedSAC(FusedUpdate):
    """Fused version of `SAC.inner_update`."""

    actor_class = SquashedGaussianActor
    replaced_methods = (*FusedUpdate.replaced_methods, "target", "next_value", "sample")

    def update(self, agent: Any, batch: Batch, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        alpha = agent.temperature()
        now, following = self.sample(agent, rows)
        next_q = self.target_critics.forward(rows.next_with(following.action)).amin(0)
        y = agent.td_target(batch, rows.unflatten(next_q - alpha * following.log_prob))
        critic_loss, q = self.step_critics(agent, batch, rows, y)
        actor_loss, entropy = self.step_actor(agent, batch, rows, now, alpha)
        if agent.alpha_optimizer.parameters:
            agent.alpha_optimizer.step([entropy - agent.temperature.target_entropy])
        agent.update_targets()
        return {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "q": q,
            "entropy": entropy,
            "alpha": agent.temperature(),
        }

    def sample(self, agent: Any, rows: FlatBatch) -> tuple[Sample, Sample]:
        """Return samples of the policy at o and at o'.

        One pass gives both, because the critics' step does not change the actor. The log-probability is computed as in
        `networks.actors.squash`.
        """
        like = rows.batch_actions
        at_next, at_now = agent.noise.normal(like), agent.noise.normal(like)
        noise = torch.cat([at_now, at_next]).view(-1, agent.action_dim)
        mean, unbounded = self.actor.forward(rows.both)[0].chunk(2, -1)
        log_std = unbounded.clamp(LOG_STD_MIN, LOG_STD_MAX)
        shift = log_std.exp().mul_(noise)
        u = mean + shift
        log_slope = softplus(-2.0 * u).add_(u)  # log 2 minus half of log(1 - tanh(u)^2)
        log_prob = log_slope.mul_(2.0).sub_(log_std).addcmul_(noise, noise, value=-0.5).sum(-1, keepdim=True)
        log_prob.sub_(agent.action_dim * (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0)))
        parts = zip(*(x.chunk(2) for x in (u.tanh_(), log_prob, shift, unbounded)), strict=True)
        now, following = (Sample(*part) for part in parts)
        return now, following

    def step_actor(
        self, agent: Any, batch: Batch, rows: FlatBatch, now: Sample, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Make one step of the actor; return its loss and the entropy.

        u = mean + std * noise and a = tanh(u). For fixed noise and u, d log pi / d log std = -1. For fixed noise and
        std, d log pi / du = 2a, because d log(1 - tanh(u)^2) / du = -2 tanh(u).
        """
        every_q = self.critics.forward(rows.with_action(now.action))
        q = every_q.amin(0)
        is_least = every_q == q
        of_action = self.critics.backward_to_inputs(is_least * (-rows.shares / is_least.sum(0)), agent.action_dim)
        of_log_prob = alpha * rows.shares
        of_mean = torch.ops.aten.tanh_backward(of_action, now.action).addcmul_(of_log_prob, now.action, value=2.0)
        of_log_std = (of_mean * now.shift).sub_(of_log_prob)
        of_log_std = torch.ops.aten.hardtanh_backward(of_log_std, now.log_std, LOG_STD_MIN, LOG_STD_MAX)
        self.actor.backward(rows.now, torch.cat([of_mean, of_log_std], -1).unsqueeze(0))
        log_prob = rows.unflatten(now.log_prob)
        loss = batch.mean(alpha * log_prob - rows.unflatten(q))
        agent.actor_optimizer.step(self.actor.gradients, loss=loss, flat_gradients=self.actor.flat_gradients)
        return loss, -batch.mean(log_prob)
