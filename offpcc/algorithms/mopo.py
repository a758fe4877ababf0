"""Model-based Offline Policy Optimization, Yu et al. 2020 (arXiv:2005.13239), algorithm 1: MBPO on recorded data.

The reward of an imagined step falls by `Imagination.penalty` times the largest length, over the elites, of the
predicted standard deviations (eq. 7 and section 4.3).

Differs from the authors' code:

- A rollout takes its networks from the elites, and the penalty is the largest over the elites, not over all networks.
- New rollouts begin every 250 updates, with 50 imagined steps per update. The code makes 250 per update.
- Imagined observations stay within the range of the data, widened by a standard deviation (`DynamicsModel.margin`).
  The model normalises its targets, too, so its bounds of log-variances are in those units.
- SAC is that of its page, and observations are normalised by the data's statistics.
"""

from collections.abc import Mapping
from typing import Any

from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable


@configurable
class MOPO(SAC):
    """Model-based Offline Policy Optimization, Yu et al. 2020 (arXiv:2005.13239). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {"length": 5, "penalty": 1.0, "uncertainty": "deviation"}
    normalizes_recorded = True
