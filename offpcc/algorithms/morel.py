"""Model-based Offline Reinforcement Learning, Kidambi et al. 2020 (arXiv:2005.05951), algorithm 1.

An imagined episode ends with a low reward where the largest distance between the means of two elites passes a
threshold, by default the largest distance over the data (the discrepancy).

Differs from the paper:

- The policy learns by SAC. The paper's is a natural policy gradient after imitation of the data.
- Rollouts begin at any recorded observation, and have at most 10 steps by default (`Imagination.length`). The paper's
  begin at first observations and have hundreds of steps.
- The reward is learned, too; the paper takes the true reward function.
- Only the elites predict and are compared; the paper compares all networks. `configs/algorithms/morel.gin` makes all of
  them elites.
- The networks predict Gaussians. Distances are in standard deviations of the data's observations.
- Imagined observations stay within the data's range, widened by a standard deviation (`DynamicsModel.margin`).
"""

from collections.abc import Mapping
from typing import Any

from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable


@configurable
class MOReL(SAC):
    """Model-based Offline Reinforcement Learning, Kidambi et al. 2020 (arXiv:2005.05951). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {"length": 10, "threshold": "max * 1", "uncertainty": "epistemic"}
    normalizes_recorded = True
