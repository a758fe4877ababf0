"""NEUBAY, Ni et al. 2025 (arXiv:2512.04341): long rollouts, each in one network of a large ensemble, without a penalty.

Each network is a guess about the environment. An agent with memory finds out during a rollout which one it is in. A
rollout is cut where the elites disagree more than anywhere in the data, and its value is bootstrapped there. Use it
with memory: `rneubay_s`. Its memory first reads the recorded steps before the rollout.

Differs from the authors' code:

- The agent is RLPD's: ten critics, a random subset of two in targets, layer norm. Its loss is squared, not Huber's.
- In `rneubay_s`, all networks share a memory, which the critics train. In `rneubay`, each critic has its own. The code
  has one memory for all critics, and one for the actor.
- Disagreement is that of observations, in standard deviations of their changes. The code's includes the reward, in
  standard deviations of observations.
- The step that passes the threshold is left out. The code stores it and bootstraps after it.
- `Imagination.real_share` is the share of real trajectories in a batch. The code weighs the two losses instead.
- Rollouts have at most 64 steps by default (`Imagination.length`). The code's end at the task's time limit only.
- The ensemble is that of `DynamicsModel`. For the paper's, bind 128 members, 100 elites, layer norm, "leaky_relu", and
  bounds that are not learned. These bounds of the log variance are -10 and 0.5. The authors' code has -5 and 0.25.
- Imagined observations stay within the data's range, widened by a standard deviation (`DynamicsModel.margin`).
"""

from collections.abc import Mapping
from typing import Any

from offpcc.algorithms.rlpd import RLPD
from offpcc.config.registry import configurable


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
    default_target_entropy_per_dim = -1.0
