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
| the four modes of github.com/Mr-Pepe/offline-model-based-rl | see `TUNED` |

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
TASKS = ("halfcheetah", "hopper", "walker2d")
KINDS = ("random", "medium", "medium-replay", "medium-expert", "expert")
# Length of rollouts, and threshold or coefficient, for D4RL's v2 data: rows are `TASKS`, columns are `KINDS`. They are
# those of the reference implementation's hyper-parameter search (github.com/Mr-Pepe/offline-model-based-rl).
TUNED: Mapping[str, Any] = {
    "aleatoric_partitioning": (
        ((19, 0.36515), (18, 2.23), (15, 0.69141), (7, 1.0944), (5, 0.31109)),
        ((9, 0.00436), (19, 0.0131), (9, 0.0483), (9, 0.0473), (20, 0.00145)),
        ((17, 0.40423), (10, 1.8323), (20, 1.1510), (15, 2.4947), (8, 1.3946)),
    ),
    "epistemic_partitioning": (
        ((18, 4.2511), (13, 3.733), (20, 3.5232), (17, 1.4370), (7, 1.5848)),
        ((11, 0.20551), (18, 0.72861), (20, 0.599), (20, 1.0881), (18, 0.19435)),
        ((15, 1.1804), (11, 1.5975), (4, 3.12812), (10, 1.9587), (19, 3.0755)),
    ),
    "aleatoric_penalty": (
        ((17, 0.0), (3, 1.8882), (17, 0.69304), (2, 8.1968), (11, 10.944)),
        ((10, 15.398), (15, 300.0), (8, 48.06), (15, 380.0), (40, 438.51)),
        ((20, 0.1491), (9, 1.51), (20, 1.32213), (19, 2.3841), (17, 1.8705)),
    ),
    "epistemic_penalty": (
        ((17, 0.22774), (4, 1e-15), (15, 5.0), (1, 5.0), (13, 0.68733)),
        ((5, 3.9639), (15, 35.0), (15, 35.0), (15, 45.0), (15, 30.0)),
        ((15, 2.5), (15, 4.3), (15, 4.3), (15, 4.3), (15, 2.5)),
    ),
}


def tuned_pair(algorithm: str, data: str) -> dict[str, Any]:
    """Return the tuned length of rollouts and threshold or coefficient of a mode for D4RL's data; {} if unknown.

    Args:
        algorithm: name of the algorithm without memory, such as "aleatoric_penalty".
        data: name of the data, such as "hopper-medium-replay-v2".
    """
    names = {f"{task}-{kind}-v2": (row, column) for row, task in enumerate(TASKS) for column, kind in enumerate(KINDS)}
    if algorithm not in TUNED or data not in names:
        return {}
    row, column = names[data]
    length, value = TUNED[algorithm][row][column]
    return {"length": length, "penalty" if algorithm.endswith("penalty") else "threshold": value}


@configurable
class MBPO(SAC):
    """Model-Based Policy Optimization, Janner et al. 2019 (arXiv:1906.08253). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {}
    trains_model = True
    normalizes_recorded = True
    stat_names = (*SAC.stat_names, *STATS, "model_error")


@configurable
class MOPO(SAC):
    """Model-based Offline Policy Optimization, Yu et al. 2020 (arXiv:2005.13239). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {"length": 5, "penalty": 1.0, "uncertainty": "deviation"}
    normalizes_recorded = True
    stat_names = (*SAC.stat_names, *STATS)


@configurable
class MOReL(SAC):
    """Model-based Offline Reinforcement Learning, Kidambi et al. 2020 (arXiv:2005.05951). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {"length": 10, "threshold": "max * 1", "uncertainty": "epistemic"}
    normalizes_recorded = True
    stat_names = (*SAC.stat_names, *STATS)


@configurable
class COMBO(CQL):
    """Conservative Offline Model-Based Policy Optimization, Yu et al. 2021 (arXiv:2102.08363). Arguments: see `CQL`."""

    imagination: Mapping[str, Any] = {"length": 5, "real_share": 0.5}
    stat_names = (*CQL.stat_names, *STATS)

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
    stat_names = (*RLPD.stat_names, *STATS)


OF_MODES: Mapping[str, Any] = {"length": 10, "mean_reward": True}


@configurable
class AleatoricPenalty(SAC):
    """SAC in a model; the reward falls by the largest predicted variance. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "aleatoric", "penalty": "range * 0.5"}
    normalizes_recorded = True
    stat_names = (*SAC.stat_names, *STATS)


@configurable
class EpistemicPenalty(SAC):
    """SAC in a model; the reward falls by the largest distance of two networks' means. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "epistemic", "penalty": "range * 0.5"}
    normalizes_recorded = True
    stat_names = (*SAC.stat_names, *STATS)


@configurable
class AleatoricPartitioning(SAC):
    """SAC in a model that ends where the largest predicted variance passes a threshold. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "aleatoric", "threshold": "quantile 0.99"}
    normalizes_recorded = True
    stat_names = (*SAC.stat_names, *STATS)


@configurable
class EpistemicPartitioning(SAC):
    """SAC in a model that ends where two networks' means are farther apart than a threshold. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "epistemic", "threshold": "quantile 0.99"}
    normalizes_recorded = True
    stat_names = (*SAC.stat_names, *STATS)
