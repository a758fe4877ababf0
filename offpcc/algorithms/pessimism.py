"""SAC in a model with one of four kinds of pessimism, after github.com/Mr-Pepe/offline-model-based-rl.

The uncertainty is aleatoric (the largest predicted variance) or epistemic (the largest distance between two elites'
means). It lowers the reward (penalty), or ends an imagined episode as a failure (partitioning). For D4RL's names of
data, the length of rollouts and the coefficient or threshold are those that the repository tuned
(`offpcc.training.models.tuned_rollouts`). For other data, the coefficient is the middle of its search range, and the
threshold the 0.99 quantile over the data.

Differs from its code:

- Rollouts are whole: they are made every 250 updates, 50 steps per update. There, 50 rollouts go on by one step each.
- Each step draws one of the elites, and uncertainties and mean rewards are over the elites. There, one network of all
  serves all rollouts, and both are over all networks.
- By default, 5 % of each batch is recorded. There, batches are imagined (`configs/model_based/modes.gin` has this).
- Imagined observations stay within the data's range, widened by a standard deviation.
- Where rewards are negative on average, a failure costs the smallest reward forever, not minus the largest one.
"""

from collections.abc import Mapping
from typing import Any

from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable

OF_MODES: Mapping[str, Any] = {"length": 10, "mean_reward": True}


@configurable
class AleatoricPenalty(SAC):
    """SAC in a model; the reward falls by the largest predicted variance. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "aleatoric", "penalty": "range * 0.5"}
    normalizes_recorded = True


@configurable
class EpistemicPenalty(SAC):
    """SAC in a model; the reward falls by the largest distance of two elites' means. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "epistemic", "penalty": "range * 0.5"}
    normalizes_recorded = True


@configurable
class AleatoricPartitioning(SAC):
    """SAC in a model that ends where the largest predicted variance passes a threshold. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "aleatoric", "threshold": "quantile 0.99"}
    normalizes_recorded = True


@configurable
class EpistemicPartitioning(SAC):
    """SAC in a model that ends where two elites' means are farther apart than a threshold. Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {**OF_MODES, "uncertainty": "epistemic", "threshold": "quantile 0.99"}
    normalizes_recorded = True
