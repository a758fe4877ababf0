"""Advantage Weighted Actor-Critic, Nair et al. 2020 (arXiv:2006.09359), algorithm 1.

The critics learn the value of the policy. The policy imitates recorded actions, weighted by their advantage. So the
actor's loss asks the critics about other actions only for the baseline.

Differs from the paper: the weights of recorded actions are bounded, as in CORL (arXiv:2210.07105).

Differs from the authors' code (rlkit):

- Weights are not normalised. The code takes a softmax over the batch, times its size.
- The actor's loss reads the critics after their step. The code's reads those before it.
- The policy has no weight decay, and its MLP has the widths of the critics.
- The log standard deviation is a clipped parameter between -6 and 2 that starts at 0. The code maps it by a sigmoid to
  -6 to 0. Initial weights are PyTorch's.
- Rewards below 0 do not bound the critics' output.
- By default, observations of a dataset are normalised, as in CORL.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.config.registry import configurable
from offpcc.config.validation import PositiveNumber, Size
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks import GaussianActor

LOG_STD_BOUNDS = -6.0, 2.0


@configurable
class AWAC(ActorCritic):
    """Advantage Weighted Actor-Critic, Nair et al. 2020 (arXiv:2006.09359).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        temperature: the paper's lambda: recorded actions weigh exp(advantage / temperature).
        num_samples: number of the policy's actions whose Q is the baseline of the advantage; default: 1, in CRR 4.
        max_advantage_weight: largest weight of a recorded action; default: 100, in CRR 20.
        kwargs: see `ActorCritic`.
    """

    actor: GaussianActor
    is_offline = normalizes_recorded = True
    counterpart = "dcrr"
    default_actor_q = None
    default_num_samples: ClassVar[int] = 1
    default_max_advantage_weight: ClassVar[float] = 100.0
    stat_names = ("critic_loss", "actor_loss", "q", "weight")

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        temperature: PositiveNumber = 1.0,
        num_samples: Size | None = None,
        max_advantage_weight: PositiveNumber | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.advantage_temperature = temperature
        self.num_samples = self.default_num_samples if num_samples is None else num_samples
        most = self.default_max_advantage_weight if max_advantage_weight is None else max_advantage_weight
        self.max_advantage_weight = most

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> GaussianActor:
        """Return a Gaussian policy; only its mean is squashed."""
        return GaussianActor(summary_dim, self.action_dim, hidden_dims, LOG_STD_BOUNDS)

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of critics, actor and targets (algorithm 1)."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        actor_stats = self.update_actor(h, batch)
        self.update_targets()
        return {**stats, **actor_stats}

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (Q(o, a) - y)^2, where y = r + gamma (1 - d) V(o') (eq. 4), and statistics; see `td_loss`."""
        with torch.no_grad():
            y = self.td_target(batch, self.next_value(h, batch))
        return self.td_loss(batch, self.critics(h.q, batch.actions), y)

    def next_value(self, h: Summaries, batch: Batch) -> Tensor:
        """Return V(o') = min Q'(o', a') for one a' of the policy, (B, T, 1)."""
        return self.target_values(h.target_q[:, :, 1:], self.samples(h.next_pi, 1)).amin(0).squeeze(-2)

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return L_pi = -mean w log pi(a|o) over recorded actions (eq. 13), and {"weight"}, the mean of w."""
        with torch.no_grad():
            weight = self.weight(self.advantage(h, batch))
        loss = -batch.mean(weight * self.actor.log_prob(h.pi, batch.actions))
        return loss, {"weight": batch.mean(weight)}

    def weight(self, advantage: Tensor) -> Tensor:
        """Return w = exp(A / lambda), at most `max_advantage_weight`, (B, T, 1)."""
        return (advantage / self.advantage_temperature).exp().clamp(max=self.max_advantage_weight)

    def advantage(self, h: Summaries, batch: Batch) -> Tensor:
        """Return A(o, a) = min Q(o, a) - `baseline` of recorded actions a, (B, T, 1)."""
        actions = torch.cat([batch.actions.unsqueeze(-2), self.samples(h.pi, self.num_samples)], -2)
        q: Tensor = self.critics(h.q, actions).amin(0)  # (B, T, 1 + M, 1)
        return q[..., 0, :] - self.baseline(q[..., 1:, :])

    def baseline(self, q: Tensor) -> Tensor:
        """Return V(o) (B, T, 1), the mean of min Q(o, .) over M actions of the policy, `q` (B, T, M, 1)."""
        return q.mean(-2)

    def samples(self, summary: Tensor, num: int) -> Tensor:
        """Sample M = `num` actions for each summary (B, T, H): (B, T, M, A), clipped to [-1, 1]."""
        mean, log_std = self.actor(summary)
        mean = mean.unsqueeze(-2).expand(*mean.shape[:-1], num, self.action_dim)
        action: Tensor = (mean + log_std.exp() * self.noise.normal(mean)).clamp(-1.0, 1.0)
        return action
