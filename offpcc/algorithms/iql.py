"""Implicit Q-Learning, Kostrikov et al. 2021 (arXiv:2110.06169).

IQL never evaluates actions outside the data. V is an upper expectile of Q over recorded actions, and Q learns from V.
The policy imitates recorded actions, weighted by their advantage.

With plain MLPs on a CPU, `fused/iql.py` computes the updates (`ActorCritic.fused`).

Differs from the paper:

- One update makes a step of V, of the policy and of Q, in the order of the authors' code. The paper extracts the policy
  after training.
- As in the authors' code, the weights of recorded actions are bounded, and the advantage uses the least of two target
  critics.
- As in the authors' code, tanh squashes the policy's mean, and the standard deviation is the same for all observations.
  Its log is between -5 and 2.

Differs from the authors' code:

- Initial weights are PyTorch's, not orthogonal.
- There is no dropout by default. The authors' code uses 0.1 in the policy for Adroit and Kitchen.
- Recorded actions at -1 and 1 are not moved inwards. This is not necessary, because the density is not squashed.
- The scale of rewards comes from whole episodes, including the last steps of truncated ones.
- Q and the policy have encoders. V reads the policy's summary and does not train it.
- By default, observations of a dataset are normalised.
"""

from typing import Any

import torch
from torch import Tensor, nn

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.optim import loss_and_stats
from offpcc.config.registry import configurable
from offpcc.config.validation import Fraction, NonnegativeNumber, PositiveNumber
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks import GaussianActor
from offpcc.networks.layers import head

LOG_STD_BOUNDS = -5.0, 2.0  # the authors' code


@configurable
class IQL(ActorCritic):
    """Implicit Q-Learning, Kostrikov et al. 2021 (arXiv:2110.06169).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        expectile: tau; 0.5 gives the mean over recorded actions; near 1 it gives their best.
        beta: inverse temperature of the advantage weights; 0 only imitates.
        max_advantage_weight: largest weight of a recorded action.
        kwargs: see `ActorCritic`.
    """

    actor: GaussianActor
    is_offline = normalizes_recorded = True
    default_actor_q = None
    stat_names = ("critic_loss", "actor_loss", "value_loss", "q", "v", "weight")

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        expectile: Fraction = 0.7,
        beta: NonnegativeNumber = 3.0,
        max_advantage_weight: PositiveNumber = 100.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.expectile, self.beta, self.max_advantage_weight = expectile, beta, max_advantage_weight
        self.value_optimizer = self.optimizer([(self.value.parameters(), self.lr)])

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> GaussianActor:
        """Return a Gaussian policy; only its mean is squashed."""
        return GaussianActor(summary_dim, self.action_dim, hidden_dims, LOG_STD_BOUNDS)

    def build_heads(self, summary_dim: int, hidden_dims: Any) -> None:
        """Build V."""
        self.value = head(summary_dim, hidden_dims, 1)

    def networks(self) -> tuple[nn.Module, ...]:
        """See `ActorCritic`."""
        return *super().networks(), self.value

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of V, actor, critics and targets."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        recorded = self.recorded_value(h, batch)
        value_loss, value_stats = loss_and_stats(self, "value_loss", self.value_loss(h, batch, recorded))
        self.value_optimizer.minimize(value_loss)
        actor_stats = self.update_actor(h, batch, recorded=recorded)
        stats = self.update_critics(h, batch)
        self.update_targets()
        return {**stats, **actor_stats, "value_loss": value_loss.detach(), **value_stats}

    def value_loss(self, h: Summaries, batch: Batch, recorded: Tensor | None = None) -> tuple[Tensor, Stats]:
        """Return L_V = mean |tau - 1(u < 0)| u^2, where u = min Q'(o, a) - V(o), and {"v"}, the mean of V.

        `recorded` is min Q'(o, a); None to compute it.
        """
        v: Tensor = self.value(h.v[:, :-1])
        u = (self.recorded_value(h, batch) if recorded is None else recorded) - v
        share = (self.expectile - (u < 0.0).to(u.dtype)).abs()
        return batch.mean(share * u.square()), {"v": batch.mean(v.detach())}

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return L_Q = mean (r + gamma (1 - d) V(o') - Q(o, a))^2, and statistics; see `td_loss`."""
        with torch.no_grad():
            y = self.td_target(batch, self.value(h.v[:, 1:]))
        return self.td_loss(batch, self.critics(h.q, batch.actions), y)

    def actor_loss(self, h: Summaries, batch: Batch, recorded: Tensor | None = None) -> tuple[Tensor, Stats]:
        """Return L_pi = -mean w log pi(a|o), and {"weight"}, the mean of w.

        w = exp(beta (min Q'(o, a) - V(o))), at most `max_advantage_weight`. For `recorded` see `value_loss`.
        """
        with torch.no_grad():
            recorded = self.recorded_value(h, batch) if recorded is None else recorded
            advantage = recorded - self.value(h.v[:, :-1])
            weight = (self.beta * advantage).exp().clamp(max=self.max_advantage_weight)
        loss = -batch.mean(weight * self.actor.log_prob(h.pi, batch.actions))
        return loss, {"weight": batch.mean(weight)}

    @torch.no_grad()
    def recorded_value(self, h: Summaries, batch: Batch) -> Tensor:
        """Return min Q'(o, a) of recorded actions, (B, T, 1)."""
        return self.target_values(h.target_q[:, :, :-1], batch.actions).amin(0)
