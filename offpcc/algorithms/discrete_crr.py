"""Critic Regularized Regression for discrete actions, Wang et al. 2020 (arXiv:2006.15134), algorithm 1.

Recorded actions weigh exp(A / beta), with the advantage A over the policy's own value. On Atari, this alone does not
learn; with CQL's term on the critics it does (``conservative_weight``).

Differs from the paper:

- The critics return a mean. The paper's return a distribution.
- The value is the least of two critics, unless `num_critics` is 1.
- The policy's expectations over actions are sums, not samples.
- Target critics are Polyak averages. The policy has no target copy: the next action comes from the policy itself.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.discrete_cql import conservative_gap
from offpcc.config.registry import configurable
from offpcc.config.validation import NonnegativeNumber, PositiveNumber, one_of
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.actors import DiscreteActor
from offpcc.networks.critics import DiscreteCritics, of_actions


@configurable
class DiscreteCRR(ActorCritic):
    """Critic Regularized Regression for discrete actions, Wang et al. 2020 (arXiv:2006.15134).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        weight_type: "exp" weighs recorded actions by exp(advantage / temperature), "binary" by 1 if the advantage is
            above 0, else by 0.
        temperature: beta of the weights.
        max_advantage_weight: upper limit of the weights.
        conservative_weight: weight of CQL's gap in the critics' loss (Kumar et al. 2020, arXiv:2006.04779, eq. 4).
        kwargs: see `ActorCritic`.
    """

    is_discrete = is_offline = normalizes_recorded = True
    target_reads_now = False
    counterpart = "crr"
    default_actor_q = None
    stat_names = ("critic_loss", "actor_loss", "q", "gap", "advantage_weight")
    actor: DiscreteActor
    critics: DiscreteCritics

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        weight_type: Annotated[str, one_of(("exp", "binary"))] = "exp",
        temperature: PositiveNumber = 1.0,
        max_advantage_weight: PositiveNumber = 20.0,
        conservative_weight: NonnegativeNumber = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.weight_type, self.temperature = weight_type, temperature
        self.max_advantage_weight, self.conservative_weight = max_advantage_weight, conservative_weight

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        idle = ("temperature", "max_advantage_weight") if self.weight_type == "binary" else ()
        return super().unused_parameters() | dict.fromkeys(idle, "weight_type is 'binary'")

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of critics, actor and targets."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        actor_stats = self.update_actor(h, batch)
        self.update_targets()
        return {**stats, **actor_stats}

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (Q(o, a) - y)^2 plus `conservative_weight` x CQL's gap, summed over critics, and statistics."""
        q = self.critics(h.q)
        loss, stats = self.td_loss(batch, of_actions(q, batch.actions), self.target(h, batch))
        gap = batch.mean(conservative_gap(q, batch))
        return loss + self.conservative_weight * gap.sum(), {**stats, "gap": gap.detach().mean()}

    def target(self, h: Summaries, batch: Batch) -> Tensor:
        """Return y = r + gamma (1 - d) sum_a' pi(a'|o') min Q'(o', a'), (B, T, 1)."""
        with torch.no_grad():
            probs = self.actor.log_probs(h.next_pi).exp()
            values = self.target_values(h.target_q[:, :, 1:]).amin(0)
            return self.td_target(batch, (probs * values).sum(-1, keepdim=True))

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean -w log pi(a|o) over recorded actions (eq. 1), and {"advantage_weight"}, the mean of w."""
        log_probs = self.actor.log_probs(h.pi)
        with torch.no_grad():
            q = self.critics(h.q).amin(0)
            advantage = of_actions(q, batch.actions) - (log_probs.exp() * q).sum(-1, keepdim=True)
            weight = self.weight(advantage)
        loss = -batch.mean(weight * of_actions(log_probs, batch.actions))
        return loss, {"advantage_weight": batch.mean(weight)}

    def weight(self, advantage: Tensor) -> Tensor:
        """Return the weights of recorded actions: 1(A > 0) (eq. 3), or exp(A / beta), bounded (eq. 4)."""
        if self.weight_type == "binary":
            return (advantage > 0.0).to(advantage.dtype)
        return (advantage / self.temperature).exp().clamp(max=self.max_advantage_weight)
