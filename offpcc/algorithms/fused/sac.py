"""The fused update of SAC."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from offpcc.algorithms.fused.base import FlatBatch, FusedUpdate
from offpcc.core import Stats
from offpcc.networks import SquashedGaussianActor
from offpcc.networks.actors import LOG_STD_MAX, LOG_STD_MIN


class FusedSAC(FusedUpdate):
    """Fused version of `SAC.inner_update`."""

    actor_class = SquashedGaussianActor
    needed: ClassVar[dict[str, Any]] = {**FusedUpdate.needed, "actor_q": "min", "policy_delay": 1}
    replaced_methods = (*FusedUpdate.replaced_methods, "target", "next_value", "sample")

    def update(self, rows: FlatBatch) -> Stats:
        """See `FusedUpdate`."""
        agent, alpha = self.agent, self.agent.temperature()
        now, (next_action, next_log_prob, *_) = self.sample(rows)
        next_q = self.target_critics.forward(torch.cat([rows.next, next_action], -1)).amin(0)
        y = agent.td_target(rows.batch, rows.unflatten(next_q - alpha * next_log_prob))
        critic_loss, q = self.step_critics(rows, y)
        actor_loss, entropy = self.step_actor(rows, now, alpha)
        if agent.alpha_optimizer.parameters:
            agent.alpha_optimizer.step([entropy - agent.temperature.target_entropy])
        agent.update_targets()
        stats = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q": q}
        return {**stats, "entropy": entropy, "alpha": agent.temperature()}

    def sample(self, rows: FlatBatch) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return samples of the policy at o and at o': actions, log-probabilities, std * noise, unclamped log std.

        One pass gives both, because the critics' step does not change the actor. The log-probability is computed as in
        `networks.actors.squash`: a = tanh(u), where u = mean + std * noise.
        """
        agent, like = self.agent, rows.batch.actions
        at_next, at_now = agent.noise.normal(like), agent.noise.normal(like)
        noise = torch.cat([at_now, at_next]).view(-1, agent.action_dim)
        mean, unbounded = self.actor.forward(rows.both)[0].chunk(2, -1)
        log_std = unbounded.clamp(LOG_STD_MIN, LOG_STD_MAX)
        shift = log_std.exp().mul_(noise)
        u = mean + shift
        log_slope = softplus(-2.0 * u).add_(u)  # log 2 minus half of log(1 - tanh(u)^2)
        log_prob = log_slope.mul_(2.0).sub_(log_std).addcmul_(noise, noise, value=-0.5).sum(-1, keepdim=True)
        log_prob.sub_(agent.action_dim * (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0)))
        now, following = zip(*(x.chunk(2) for x in (u.tanh_(), log_prob, shift, unbounded)), strict=True)
        return now, following

    def step_actor(self, rows: FlatBatch, now: tuple[Tensor, ...], alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step of the actor from the `sample` at o; return its loss and the entropy.

        For fixed noise and u, d log pi / d log std = -1. For fixed noise and std, d log pi / du = 2a, because
        d log(1 - tanh(u)^2) / du = -2 tanh(u).
        """
        action, log_prob, shift, log_std = now
        every_q = self.critics.forward(torch.cat([rows.now, action], -1))
        q = every_q.amin(0)
        is_least = every_q == q
        of_action = self.critics.backward_to_inputs(is_least * (-rows.shares / is_least.sum(0)), self.agent.action_dim)
        of_log_prob = alpha * rows.shares
        of_mean = torch.ops.aten.tanh_backward(of_action, action).addcmul_(of_log_prob, action, value=2.0)
        of_log_std = (of_mean * shift).sub_(of_log_prob)
        of_log_std = torch.ops.aten.hardtanh_backward(of_log_std, log_std, LOG_STD_MIN, LOG_STD_MAX)
        self.actor.backward(rows.now, torch.cat([of_mean, of_log_std], -1).unsqueeze(0))
        loss = rows.mean(alpha * log_prob - q)
        self.agent.actor_optimizer.step(self.actor.gradients, None, loss, self.actor.flat_gradients)
        return loss, -rows.mean(log_prob)
