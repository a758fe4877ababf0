"""Soft Actor-Critic for discrete actions, Christodoulou 2019 (arXiv:1910.07207).

The policy's expectations over actions are sums, so nothing is sampled.

Differs from the paper: the target entropy is a share of the largest entropy, log A. The paper's share is 0.98. A policy
cannot keep it and still prefer an action, so the temperature would grow without end; see `target_entropy_ratio`.
`backup_entropy` comes from Asad et al. 2025 (arXiv:2509.09838): without it, only the actor's loss rewards entropy.
"""

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.components import Temperature
from offpcc.algorithms.discrete import chosen_values
from offpcc.algorithms.optim import Optimizer, Rate
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, Fraction, NonnegativeNumber
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.actors import DiscreteActor
from offpcc.networks.critics import DiscreteCritics
from offpcc.utils.errors import UserError


@configurable
class DiscreteSAC(ActorCritic):
    """Soft Actor-Critic for discrete actions, Christodoulou 2019 (arXiv:1910.07207).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        alpha: initial temperature.
        autotune: whether the temperature is learned; else it stays `alpha`.
        target_entropy_ratio: target entropy of the policy, as a share of log A; below 1, if the temperature is learned.
        alpha_lr: learning rate of the temperature.
        backup_entropy: whether the critics' targets contain the next actions' entropy. With False, an agent that waits
            earns nothing by it, so the temperature may be higher.
        kwargs: see `ActorCritic`.
    """

    is_discrete = True
    target_reads_now = False
    stat_names = ("critic_loss", "actor_loss", "q", "entropy", "alpha")
    actor: DiscreteActor
    critics: DiscreteCritics

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        alpha: NonnegativeNumber = 1.0,
        autotune: Flag = True,
        target_entropy_ratio: Fraction = 0.5,
        alpha_lr: Rate = 3e-4,
        backup_entropy: Flag = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        if autotune and alpha == 0.0:
            raise UserError(
                f"{type(self).__name__}.alpha is 0; a learned temperature must start above 0. For a constant "
                f"temperature of 0, set autotune = False"
            )
        if autotune and target_entropy_ratio == 1.0:
            raise UserError(
                f"{type(self).__name__}.target_entropy_ratio is {target_entropy_ratio}; only the uniform policy has "
                f"that entropy, so a learned temperature would grow without end; give less, such as 0.5"
            )
        self.backup_entropy = backup_entropy
        entropy = target_entropy_ratio * float(torch.tensor(float(self.action_dim)).log())
        self.temperature = Temperature(alpha, autotune, entropy).to(self.device)
        self.alpha_optimizer = Optimizer([(self.temperature.learned_parameters(), alpha_lr)])

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        learned = self.temperature.learned_parameters()
        idle = () if learned else ("target_entropy_ratio", "alpha_lr")
        return super().unused_parameters() | dict.fromkeys(idle, "autotune is False, so alpha is constant")

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of critics, actor, temperature and targets."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        stats = {**stats, **self.update_actor(h, batch)}
        self.alpha_optimizer.minimize(self.temperature.loss(stats["entropy"]))
        self.update_targets()
        return {**stats, "alpha": self.temperature()}

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return J_Q = mean (Q(o, a) - y)^2, where y is `target` (eq. 4), and statistics; see `td_loss`."""
        return self.td_loss(batch, chosen_values(self.critics, h, batch), self.target(h, batch))

    def target(self, h: Summaries, batch: Batch) -> Tensor:
        """Return y = r + gamma (1 - d) V(o'), with V = sum_a' pi(a'|o') (min Q'(o', a') - alpha log pi(a'|o')).

        Without `backup_entropy`, V does not contain alpha log pi.
        """
        with torch.no_grad():
            log_probs = self.actor.log_probs(h.next_pi)
            values = self.target_values(h.target_q[:, :, 1:]).amin(0)
            if self.backup_entropy:
                values = values - self.temperature() * log_probs
            return self.td_target(batch, (log_probs.exp() * values).sum(-1, keepdim=True))

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return J_pi = mean sum_a pi(a|o) (alpha log pi(a|o) - Q(o, a)) (eq. 12), and {"entropy"}."""
        with torch.no_grad():
            q = self.policy_values(self.critics(h.q))
        log_probs = self.actor.log_probs(h.pi)
        probs = log_probs.exp()
        loss = (probs * (self.temperature() * log_probs - q)).sum(-1, keepdim=True)
        return batch.mean(loss), {"entropy": -batch.mean((probs * log_probs).detach().sum(-1, keepdim=True))}

    def policy_values(self, q: Tensor) -> Tensor:
        """Return the Q values (B, T, A) that the actor's loss raises, of the critics' (N, B, T, A); see `actor_q`."""
        if self.actor_q == "first":
            return q[0]
        return q.mean(0) if self.actor_q == "mean" else q.amin(0)
