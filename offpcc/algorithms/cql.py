"""Conservative Q-Learning, Kumar et al. 2020 (arXiv:2006.04779): the H form (eq. 4), on SAC.

Differs from SAC: the target leaves the next action's entropy out (`backup_entropy` puts it back).

Differs from the paper: the soft maximum over actions is not divided by the number of samples, as in the authors' code,
to which the threshold belongs (with 30 samples it is larger by log 30); it has a third group of samples, of the policy
at the next observation, and a temperature, and the actor may imitate at first, all as there.

Differs from the authors' code: one update steps critics, multiplier, actor and temperature, as SAC does (there the
temperature is first, and the actor reads the critics from before their step); target critics begin as copies, not with
weights of their own; weights begin as PyTorch's, not with small last layers; the policy's log standard deviation is
bounded by -20, not -5; log-probabilities have no 1e-6 in their logarithm, and imitation does not bound the mean to
+/- 9; the best of `num_samples` next actions, not always of 10, is backed up; imitation lasts one update longer;
by default, observations of a data set are normalised.
"""

from __future__ import annotations

import math
from typing import Any, TypedDict

import torch
from torch import Tensor

from offpcc.algorithms.components import LagrangeMultiplier
from offpcc.algorithms.optim import Optimizer
from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NonnegativeInteger, NonnegativeNumber, PositiveNumber, Size
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.actors import squash


class CQLStats(TypedDict):
    """What an update tells; 0-d tensors."""

    critic_loss: Tensor
    actor_loss: Tensor
    q: Tensor
    entropy: Tensor
    alpha: Tensor
    gap: Tensor
    multiplier: Tensor


@configurable
class CQL(SAC):
    """Conservative Q-Learning, Kumar et al. 2020 (arXiv:2006.04779).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        conservative_weight: the paper's alpha: of the gap between the soft maximum of Q and Q of recorded actions.
        num_samples: actions of each of the three groups that the soft maximum is estimated from.
        temperature: temperature of the soft maximum; near 0 it is the maximum.
        lagrange_threshold: tau, which the weighted gap is held to by a multiplier that is learned; None for none.
        max_q_backup: whether targets take the best of `num_samples` next actions.
        backup_entropy: whether targets contain the next action's entropy; not with `max_q_backup`.
        bc_steps: updates at the start in which the actor imitates instead of seeking high Q.
        kwargs: see `SAC` and `ActorCritic`.
    """

    stat_names = tuple(CQLStats.__annotations__)
    normalizes_recorded = True

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        conservative_weight: NonnegativeNumber = 5.0,
        num_samples: Size = 10,
        temperature: PositiveNumber = 1.0,
        lagrange_threshold: NonnegativeNumber | None = None,
        max_q_backup: Flag = False,
        backup_entropy: Flag = False,
        bc_steps: NonnegativeInteger = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.conservative_weight, self.num_samples, self.softmax_temperature = (
            conservative_weight,
            num_samples,
            temperature,
        )
        self.max_q_backup, self.backup_entropy = max_q_backup, backup_entropy
        self.bc_steps = bc_steps
        self.multiplier = LagrangeMultiplier(lagrange_threshold).to(self.device)
        self.multiplier_optimizer = Optimizer([(self.multiplier.learned_parameters(), self.lr)])

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        idle = ("backup_entropy",) if self.max_q_backup else ()
        return super().unused_parameters() | dict.fromkeys(idle, "max_q_backup leaves the entropy out")

    def about_updates(self, num_updates: float) -> str:
        """See `ActorCritic`."""
        if not 0 < num_updates <= self.bc_steps:
            return ""
        return (
            f"the actor will only imitate and never seek high Q: CQL.bc_steps is "
            f"{self.bc_steps:,}, and the run has {num_updates:,.0f} updates; lower it, such as --gin "
            f'"{type(self).__name__}.bc_steps={num_updates // 10:.0f}", or raise train.num_epochs'
        )

    def update_networks(self, batch: Batch) -> Stats:
        """One step of critics, multiplier, actor, temperature and targets."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        critic_loss, q, gap = self.critic_loss(h, batch)
        self.critic_optimizer.minimize(critic_loss)
        self.multiplier_optimizer.minimize(self.multiplier.loss(self.excess(gap)))
        actor_loss, entropy = self.actor_loss(h, batch)
        self.actor_optimizer.minimize(actor_loss)
        self.alpha_optimizer.minimize(self.temperature.loss(entropy))
        self.update_targets()
        return CQLStats(  # type: ignore[return-value]
            critic_loss=critic_loss.detach(),
            actor_loss=actor_loss.detach(),
            q=q,
            entropy=entropy,
            alpha=self.temperature(),
            gap=gap.detach(),
            multiplier=self.multiplier(),
        )

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """SAC's plus alpha' (alpha (soft maximum Q(o, .) - Q(o, a)) - tau) (eq. 4); mean Q; mean gap."""
        y = self.target(h, batch)
        q, soft_maximum = self.values(h, batch)
        bellman, gap = batch.mean((q - y).square()), batch.mean(soft_maximum - q)  # (N,)
        loss = bellman.sum() + (self.multiplier() * self.excess(gap)).sum()
        return loss, batch.mean(q.detach()).mean(), gap.mean()

    def excess(self, gap: Tensor) -> Tensor:
        """The weighted `gap` less its threshold."""
        return self.conservative_weight * gap - self.multiplier.threshold

    def values(self, h: Summaries, batch: Batch) -> tuple[Tensor, Tensor]:
        """Q(o, a), and log of the sum of exp Q(o, a') / density(a') over samples of three policies, (N, B, T, 1) each.

        They are uniform, pi(.|o) and pi(.|o'), and Q is at o for all of them.
        """
        with torch.no_grad():
            actions, log_probs = zip(*(self.samples(x, self.num_samples) for x in (h.pi, h.next_pi)), strict=True)
            uniform = self.noise.uniform(actions[0])
            log_density = torch.full_like(log_probs[0], -self.action_dim * math.log(2.0))
        # One pass for all of them takes less time than one for the recorded action and one for the others.
        q = self.critics(h.q, torch.cat([batch.actions.unsqueeze(-2), uniform, *actions], -2))  # (N, B, T, 1 + S, 1)
        weighted = q[..., 1:, :] - torch.cat([log_density, *log_probs], -2)
        return q[..., 0, :], self.softmax_temperature * torch.logsumexp(weighted / self.softmax_temperature, -2)

    def samples(self, summary: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """So many actions (B, T, S, A) for each summary (B, T, H), and their log-probabilities (B, T, S, 1)."""
        mean, log_std = (x.unsqueeze(-2) for x in self.actor(summary))
        like = mean.expand(*mean.shape[:-2], num, self.action_dim)
        return squash(mean, log_std, self.noise.normal(like))

    def next_value(self, h: Summaries) -> Tensor:
        """Min over critics of Q'(o', a'), or of its maximum over several a', (B, T, 1)."""
        if self.backup_entropy and not self.max_q_backup:
            return super().next_value(h)
        actions, _ = self.samples(h.next_pi, self.num_samples if self.max_q_backup else 1)
        q: Tensor = self.target_critics(h.target_q[:, :, 1:], actions)  # (N, B, T, S, 1)
        return q.amax(-2).amin(0)

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Tensor]:
        """SAC's; in the first updates mean (alpha log pi(a'|o) - log pi(a|o)) with recorded a."""
        if self.critic_optimizer.num_updates > self.bc_steps:
            return super().actor_loss(h, batch)
        _, log_prob = self.sample(h.pi)
        imitation = self.actor.log_prob(h.pi, batch.actions)
        return batch.mean(self.temperature() * log_prob - imitation), -batch.mean(log_prob.detach())
