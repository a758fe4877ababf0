"""Soft Actor-Critic, Haarnoja et al. 2018b (arXiv:1812.05905), algorithm 1.

With plain MLPs on a CPU, `fused/sac.py` computes the updates (`ActorCritic.fused`).
Differs from the paper:

- The temperature's loss uses log alpha, as in the authors' code.
- Adam's learning rate and the network sizes are those of the configs.
"""

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.components import Temperature
from offpcc.algorithms.optim import Optimizer, Rate
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NonnegativeNumber, Number, PositiveInteger
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks import SquashedGaussianActor
from offpcc.utils.errors import UserError


@configurable
class SAC(ActorCritic):
    """Soft Actor-Critic, Haarnoja et al. 2018b (arXiv:1812.05905).

    Args:
        args: see `ActorCritic`.
        alpha: initial temperature; constant if autotune is False.
        autotune: whether to learn the temperature from the target entropy.
        target_entropy: target entropy in nats; default: `target_entropy_per_dim` times the number of action dimensions.
        target_entropy_per_dim: default: -1, in RLPD -0.5.
        alpha_lr: learning rate of the temperature, a number or a schedule.
        policy_delay: number of critic and target updates for each update of actor and temperature.
        kwargs: see `ActorCritic`.
    """

    actor: SquashedGaussianActor
    loss_covers_batch = True
    default_target_entropy_per_dim = -1.0
    stat_names: tuple[str, ...] = ("critic_loss", "actor_loss", "q", "entropy", "alpha")

    def __init__(
        self,
        *args: Any,
        alpha: NonnegativeNumber = 1.0,
        autotune: Flag = True,
        target_entropy: Number | None = None,
        target_entropy_per_dim: Number | None = None,
        alpha_lr: Rate = 3e-4,
        policy_delay: PositiveInteger = 1,
        **kwargs: Any,
    ) -> None:
        self.policy_delay = policy_delay  # the check of fused updates reads it
        super().__init__(*args, **kwargs)
        if autotune and alpha == 0.0:
            raise UserError(
                f"{type(self).__name__}.alpha is 0; a learned temperature must start above 0. For a constant "
                f"temperature of 0, set autotune = False"
            )
        self._sets_entropy = target_entropy is not None
        per_dim = self.default_target_entropy_per_dim if target_entropy_per_dim is None else target_entropy_per_dim
        entropy = per_dim * self.action_dim if target_entropy is None else target_entropy
        self.temperature = Temperature(alpha, autotune, entropy).to(self.device)
        self.alpha_optimizer = Optimizer([(self.temperature.learned_parameters(), alpha_lr)])

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        learned = self.temperature.learned_parameters()
        idle = () if learned else ("target_entropy", "target_entropy_per_dim", "alpha_lr")
        reasons = {"target_entropy_per_dim": "target_entropy is given"} if self._sets_entropy else {}
        return super().unused_parameters() | reasons | dict.fromkeys(idle, "autotune is False, so alpha is constant")

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> SquashedGaussianActor:
        """Return a squashed Gaussian policy."""
        return SquashedGaussianActor(summary_dim, self.action_dim, hidden_dims)

    def sample(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions (..., A); return them and their log-probabilities (..., 1)."""
        return self.actor.sample(summary, self.noise.normal(summary.new_empty(*summary.shape[:-1], self.action_dim)))

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of critics and targets, and every `policy_delay` steps one of actor and temperature."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        if (num_updates := self.critic_optimizer.num_updates) % self.policy_delay == 0:
            stats = {**stats, **self.update_actor(h, batch, num_updates - 1)}
            self.alpha_optimizer.minimize(self.temperature.loss(stats["entropy"]), num_updates - 1)
            stats["alpha"] = self.temperature()
        self.update_targets()
        return stats

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return J_Q = mean (Q(o, a) - y)^2, where y is `target` (eq. 5, 6), and statistics; see `td_loss`."""
        return self.td_loss(batch, self.critics(h.q, batch.actions), self.target(h, batch))

    def target(self, h: Summaries, batch: Batch) -> Tensor:
        """Return the target of Q(o, a), y = r + gamma (1 - d) V(o'), (B, T, 1)."""
        with torch.no_grad():
            return self.td_target(batch, self.next_value(h))

    def next_value(self, h: Summaries) -> Tensor:
        """Return V(o') = min Q'(o', a') - alpha log pi(a'|o') (eq. 3), (B, T, 1)."""
        next_action, log_prob = self.sample(h.next_pi)
        next_q = self.target_values(h.target_q[:, :, 1:], next_action).amin(0)
        return next_q - self.temperature() * log_prob  # type: ignore[no-any-return]

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return J_pi = mean (alpha log pi(a|o) - min Q(o, a)), a reparametrised (eq. 9), and {"entropy"}."""
        action, log_prob = self.sample(h.pi)
        loss = batch.mean(self.temperature() * log_prob - self.policy_value(h, action))
        return loss, {"entropy": -batch.mean(log_prob.detach())}
