"""Conservative Q-Learning, Kumar et al. 2020 (arXiv:2006.04779): the H form (eq. 4), on SAC.

CQL adds a term to the critics' loss. It lowers Q of all actions (their soft maximum) and raises Q of recorded actions.
The difference of the two is the *gap*. There are two temperatures. The argument `temperature` is that of the soft
maximum, stored as `softmax_temperature`. `self.temperature` is alpha, SAC's temperature of the policy's entropy.

Differs from SAC: the target does not contain the next action's entropy (`backup_entropy` adds it).

Differs from the paper, all as in the authors' code:

- The soft maximum over actions is not divided by the number of samples, so with 30 samples it is larger by log 30. The
  authors' thresholds fit this form. The actor may imitate in the first updates.
- The soft maximum has a third group of samples, from the policy at the next observation, and a temperature.

Differs from the authors' code:

- One update steps critics, multiplier, actor and temperature in this order, as in SAC. In the authors' code the
  temperature is first, and the actor's loss uses the critics from before their step.
- Target critics start as copies of the critics. Initial weights are PyTorch's, without small last layers.
- The policy's log standard deviation is at least -20, not -5. By default, observations of a dataset are normalised.
- Log-probabilities have no 1e-6 in their logarithm, and imitation does not bound the mean to +/- 9.
- `max_q_backup` uses the best of `num_samples` next actions, not always of 10. Imitation lasts one update longer.
"""

import math
from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.components import LagrangeMultiplier
from offpcc.algorithms.optim import Optimizer
from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NonnegativeInteger, NonnegativeNumber, PositiveNumber, Size
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.actors import squash


@configurable
class CQL(SAC):
    """Conservative Q-Learning, Kumar et al. 2020 (arXiv:2006.04779).

    Args:
        args: see `ActorCritic`.
        conservative_weight: the paper's alpha: weight of the gap between the soft maximum of Q and recorded actions' Q.
        num_samples: number of actions in each of the three groups that estimate the soft maximum.
        temperature: temperature of the soft maximum; near 0 it is the maximum.
        lagrange_threshold: tau: upper limit of the weighted gap, enforced by a learned multiplier. None for no limit.
        max_q_backup: whether targets take the best of `num_samples` next actions.
        backup_entropy: whether targets contain the next action's entropy; no effect with `max_q_backup`.
        bc_steps: number of first updates in which the actor imitates recorded actions and does not maximise Q.
        kwargs: see `SAC` and `ActorCritic`.
    """

    stat_names = (*SAC.stat_names, "gap", "multiplier")
    is_offline = normalizes_recorded = True
    first_updates = ("bc_steps",)
    folds_windows = False  # the soft maximum needs the observation after each step, which a folded window lacks

    def __init__(
        self,
        *args: Any,
        conservative_weight: NonnegativeNumber = 5.0,
        num_samples: Size = 10,
        temperature: PositiveNumber = 1.0,
        lagrange_threshold: NonnegativeNumber | None = None,
        max_q_backup: Flag = False,
        backup_entropy: Flag = False,
        bc_steps: NonnegativeInteger = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.conservative_weight, self.num_samples, self.bc_steps = conservative_weight, num_samples, bc_steps
        self.softmax_temperature, self.max_q_backup, self.backup_entropy = temperature, max_q_backup, backup_entropy
        self.multiplier = LagrangeMultiplier(lagrange_threshold).to(self.device)
        self.multiplier_optimizer = Optimizer([(self.multiplier.learned_parameters(), self.lr)])

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        idle = ("backup_entropy",) if self.max_q_backup else ()
        return super().unused_parameters() | dict.fromkeys(idle, "with max_q_backup, targets have no entropy")

    def updates_warning(self, num_updates: float) -> str:
        """See `ActorCritic`."""
        warning = (
            f"the actor will only imitate and never maximise Q: CQL.bc_steps is {self.bc_steps:,}, and the run has "
            f'{num_updates:,.0f} updates; lower it, for example by --gin "{type(self).__name__}.bc_steps='
            f'{num_updates // 10:.0f}", or raise train.num_epochs'
        )
        return warning if 0 < num_updates <= self.bc_steps else super().updates_warning(num_updates)

    def update_critics(self, h: Summaries, batch: Batch) -> Stats:
        """Make one step of the critics and one of the multiplier."""
        stats = super().update_critics(h, batch)
        self.multiplier_optimizer.minimize(self.multiplier.loss(self.excess(stats["gap"])))  # one for all critics
        self.multiplier.bound()
        return {**stats, "multiplier": self.multiplier()}

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return SAC's loss plus alpha' (weight x gap - tau), summed over critics (eq. 4), and statistics.

        The gap of a critic is the mean of (soft maximum of Q(o, .) - Q(o, a)) with recorded a.
        """
        y = self.target(h, batch)
        q, soft_maximum = self.q_and_soft_maximum(h, batch)
        loss, stats = self.td_loss(batch, q, y)  # importance weights apply to this term only, on purpose
        gap = batch.mean(soft_maximum - q)  # (N,): a term for each critic, so summed; multiplier and log take the mean
        return loss + (self.multiplier() * self.excess(gap)).sum(), {**stats, "gap": gap.detach().mean()}

    def excess(self, gap: Tensor) -> Tensor:
        """Return weight x gap - tau, with `conservative_weight`: while it is above 0, the multiplier alpha' grows."""
        return self.conservative_weight * gap - self.multiplier.threshold

    def q_and_soft_maximum(self, h: Summaries, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return Q(o, a) of recorded actions and the soft maximum of Q(o, .), (N, B, T, 1) each.

        At temperature 1, the soft maximum is the log of the sum of exp Q(o, a') / density(a') over samples a' of three
        policies: uniform, pi(.|o) and pi(.|o'); with any `n_step`, o' comes right after o. All Q values are at o.
        """
        with torch.no_grad():
            actions, log_probs = zip(*(self.samples(x, self.num_samples) for x in (h.pi, h.next_pi)), strict=True)
            uniform = self.noise.uniform(actions[0])
            log_density = torch.full_like(log_probs[0], -self.action_dim * math.log(2.0))
        # One pass for recorded and sampled actions is faster than two; M = num_samples.
        q = self.critics(h.q, torch.cat([batch.actions.unsqueeze(-2), uniform, *actions], -2))  # (N, B, T, 1 + 3 M, 1)
        weighted = self.sampled_values(q[..., 1:, :], batch) - torch.cat([log_density, *log_probs], -2)
        return q[..., 0, :], self.softmax_temperature * torch.logsumexp(weighted / self.softmax_temperature, -2)

    def sampled_values(self, q: Tensor, batch: Batch) -> Tensor:
        """Return the Q values of sampled actions that the loss lowers: `q` (N, B, T, 3 M, 1), uniform ones first."""
        return q

    def samples(self, summary: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """Sample M = `num` actions for each summary (B, T, H): (B, T, M, A), and log-probabilities (B, T, M, 1)."""
        mean, log_std = (x.unsqueeze(-2) for x in self.actor(summary))
        return squash(mean, log_std, self.noise.normal(mean.expand(*mean.shape[:-2], num, self.action_dim)))

    def next_value(self, h: Summaries) -> Tensor:
        """Return the min over critics of Q'(o', a') (B, T, 1); with `max_q_backup`, of its maximum over several a'."""
        if self.backup_entropy and not self.max_q_backup:
            return super().next_value(h)
        actions, _ = self.samples(h.next_pi, self.num_samples if self.max_q_backup else 1)
        return self.target_values(h.target_q[:, :, 1:], actions).amax(-2).amin(0)

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return SAC's loss, or in the first `bc_steps` mean (alpha log pi(a'|o) - log pi(recorded|o)); {"entropy"}."""
        if self.critic_optimizer.num_updates > self.bc_steps:
            return super().actor_loss(h, batch)
        _, log_prob = self.sample(h.pi)
        imitation = batch.recorded().mean(self.actor.log_prob(h.pi, batch.actions))  # not of imagined actions
        return batch.mean(self.temperature() * log_prob) - imitation, {"entropy": -batch.mean(log_prob.detach())}
