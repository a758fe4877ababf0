"""Conservative Q-Learning for discrete actions, Kumar et al. 2020 (arXiv:2006.04779): the H form (eq. 4), on QR-DQN.

CQL adds a term to the Q network's loss. It lowers Q of all actions (their soft maximum) and raises Q of recorded ones.

Differs from the paper: targets are Polyak averages, unless ``polyak = 0``.
"""

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.qrdqn import QRDQN
from offpcc.config.registry import configurable
from offpcc.config.validation import NonnegativeNumber
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.critics import of_actions


@configurable
class DiscreteCQL(QRDQN):
    """Conservative Q-Learning for discrete actions, Kumar et al. 2020 (arXiv:2006.04779).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        conservative_weight: weight of the gap between the soft maximum of Q and recorded actions' Q.
        kwargs: see `QRDQN`, `ValueBased` and `ActorCritic`.
    """

    is_offline = normalizes_recorded = True
    counterpart = "cql"
    stat_names = ("critic_loss", "q", "gap")

    def __init__(
        self, observation_space: Any, action_space: Any, *, conservative_weight: NonnegativeNumber = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.conservative_weight = conservative_weight

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return QR-DQN's loss plus weight x gap, and statistics. The gap is mean (log sum_a exp Q(o, a) - Q(o, a))."""
        quantiles = self.critics.quantiles(h.q)[0]
        loss, stats = self.quantile_loss(quantiles, h, batch)
        gap = batch.mean(conservative_gap(quantiles.mean(-1), batch))
        return loss + self.conservative_weight * gap, {**stats, "gap": gap.detach()}


def conservative_gap(q: Tensor, batch: Batch) -> Tensor:
    """Return the soft maximum of `q` (..., B, T, A) minus the recorded actions' Q, (..., B, T, 1)."""
    return torch.logsumexp(q, -1, keepdim=True) - of_actions(q, batch.actions)
