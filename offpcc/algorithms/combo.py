"""Conservative Offline Model-Based Policy Optimization, Yu et al. 2021 (arXiv:2102.08363), algorithm 1: CQL in a model.

The critics' loss lowers Q of the policy's actions at recorded and imagined observations, and raises Q of recorded
actions at recorded observations only (eq. 2). So it needs no estimate of the model's uncertainty.

Differs from the paper:

- All of CQL's page applies, such as its three groups of sampled actions.
- The lowered observations are those of the whole batch, recorded ones included, as in later public code.
- Imagined observations stay within the data's range, widened by a standard deviation (`DynamicsModel.margin`).
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from offpcc.algorithms.cql import CQL
from offpcc.config.registry import configurable
from offpcc.core import Batch, Stats, Summaries


@configurable
class COMBO(CQL):
    """Conservative Offline Model-Based Policy Optimization, Yu et al. 2021 (arXiv:2102.08363). Arguments: see `CQL`."""

    imagination: Mapping[str, Any] = {"length": 5, "real_share": 0.5}
    needs_recorded = True

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return CQL's loss, where only recorded rows raise Q of their actions (eq. 2), and statistics."""
        y = self.target(h, batch)
        q, soft_maximum = self.q_and_soft_maximum(h, batch)
        loss, stats = self.td_loss(batch, q, y)
        gap = batch.mean(soft_maximum) - batch.recorded().mean(q)
        return loss + (self.multiplier() * self.excess(gap)).sum(), {**stats, "gap": gap.detach().mean()}
