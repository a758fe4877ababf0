"""Algorithms that also learn from a model of the environment: MBPO, MOPO, MOReL, COMBO, NEUBAY, and four pessimisms.

Each is an agent of another page, and the defaults of `Imagination` (`offpcc.training.imagination`), which bind how the
agent's policy plays in the model. `MBPO` learns its model from the replay buffer. The others learn from recorded data,
with a model that `offpcc train-model` trains once.

| algorithm | where the model is unsure |
| --- | --- |
| MBPO, Janner et al. 2019 (arXiv:1906.08253) | nothing |
| MOPO, Yu et al. 2020 (arXiv:2005.13239) | the reward falls by the standard deviations' length (eq. 7) |
| MOReL, Kidambi et al. 2020 (arXiv:2005.05951) | the episode ends with a low reward |
| COMBO, Yu et al. 2021 (arXiv:2102.08363) | nothing; CQL lowers Q of imagined states' actions |
| NEUBAY, Ni et al. 2025 (arXiv:2512.04341) | the rollout is cut, and its value is bootstrapped |
| the four modes of github.com/Mr-Pepe/offline-model-based-rl | see `offpcc.training.tuned_rollouts` |

Differs from the papers:

- MBPO, MOPO, MOReL: the agent is SAC as in `sac.py`; that of MOReL is a natural policy gradient after imitation.
- Rollouts are whole: they are made once in `Imagination.every` updates. In the four modes' code, 50 rollouts go on by
  one step per update.
- COMBO: both terms of the gap are means over the batch, the second over its recorded rows only.
- NEUBAY: the agent is RLPD's, with its squared loss. Recorded and imagined trajectories share a batch by number; the
  paper weighs their losses. The number of networks and their layer norm are bindings of `DynamicsModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from offpcc.algorithms.cql import CQL
from offpcc.algorithms.rlpd import RLPD
from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable
from offpcc.core import Batch, Stats, Summaries

STATS = ("imagined_length", "imagined_uncertainty", "imagined_stopped", "imagined_bounded")


@configurable
class MBPO(SAC):
    """Model-Based Policy Optimization, Janner et al. 2019 (arXiv:1906.08253). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {}
    trains_model = True
    normalizes_recorded = True
    model_stats = (*STATS, "model_error")


@configurable
class MOPO(SAC):
    """Model-based Offline Policy Optimization, Yu et al. 2020 (arXiv:2005.13239). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {"length": 5, "penalty": 1.0, "uncertainty": "deviation"}
    normalizes_recorded = True
    model_stats = STATS


@configurable
class MOReL(SAC):
    """Model-based Offline Reinforcement Learning, Kidambi et al. 2020 (arXiv:2005.05951). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {"length": 10, "threshold": "max * 1", "uncertainty": "epistemic"}
    normalizes_recorded = True
    model_stats = STATS


@configurable
class COMBO(CQL):
    """Conservative Offline Model-Based Policy Optimization, Yu et al. 2021 (arXiv:2102.08363). Arguments: see `CQL`."""

    imagination: Mapping[str, Any] = {"length": 5, "real_share": 0.5}
    model_stats = STATS

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return CQL's loss, where only recorded rows raise Q of their actions (eq. 2), and statistics."""
        y = self.target(h, batch)
        q, soft_maximum = self.q_and_soft_maximum(h, batch)
        loss, stats = self.td_loss(batch, q, y)
        gap = batch.mean(soft_maximum) - batch.recorded().mean(q)
        return loss + (self.multiplier() * self.excess(gap)).sum(), {**stats, "gap": gap.detach().mean()}


@configurable
class NEUBAY(RLPD):
    """NEUBAY, Ni et al. 2025 (arXiv:2512.04341): each rollout lives in one network. Arguments: see `RLPD`."""

    imagination: Mapping[str, Any] = {
        "length": 64,
        "threshold": "max * 1",
        "ends": "truncated",
        "uncertainty": "disagreement",
        "one_member": True,
        "real_share": 0.5,
    }
    normalizes_recorded = True
    model_stats = STATS


OF_MODES: Mapping[str, Any] = {"length": 10, "mean_reward": True}


@configurable
class AleatoricPenalty(SAC):
    """SAC in a model; the reward falls by the largest predicted variance. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "aleatoric", "penalty": "range * 0.5"}
    normalizes_recorded = True
    model_stats = STATS


@configurable
class EpistemicPenalty(SAC):
    """SAC in a model; the reward falls by the largest distance of two networks' means. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "epistemic", "penalty": "range * 0.5"}
    normalizes_recorded = True
    model_stats = STATS


@configurable
class AleatoricPartitioning(SAC):
    """SAC in a model that ends where the largest predicted variance passes a threshold. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "aleatoric", "threshold": "quantile 0.99"}
    normalizes_recorded = True
    model_stats = STATS


@configurable
class EpistemicPartitioning(SAC):
    """SAC in a model that ends where two networks' means are farther apart than a threshold. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "epistemic", "threshold": "quantile 0.99"}
    normalizes_recorded = True
    model_stats = STATS
