"""Model-Based Policy Optimization, Janner et al. 2019 (arXiv:1906.08253), algorithm 2: SAC that also learns in a model.

An ensemble learns the environment from the replay buffer. From states of the buffer, the policy plays short rollouts in
it. Most of each batch is imagined. `Imagination` (`offpcc.training.models.imagination`) has the settings of the
rollouts.

Differs from the authors' code:

- The model is trained with AdamW and one weight decay for all layers, with ReLU, and with new Adam moments each time.
- The imagined transitions of the last 20 rounds are kept (`Imagination.keep`), in the code those of 1,000 steps.
- `Imagination.steps_per_update` counts imagined steps, the code counts rollouts. `configs/algorithms/mbpo.gin` has 400
  steps per environment step, the code has 400 rollouts. Both are equal for rollouts of one step. For rollouts of 15
  steps, the code imagines 15 times as much.
- Imagined observations stay within the range of the buffer, widened by a standard deviation (`DynamicsModel.margin`).
  The model normalises its targets, too, so its bounds of log-variances are in those units.
- SAC is that of its page: its temperature's loss uses log alpha.
"""

from collections.abc import Mapping
from typing import Any

from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable


@configurable
class MBPO(SAC):
    """Model-Based Policy Optimization, Janner et al. 2019 (arXiv:1906.08253). Arguments: see `SAC`."""

    imagination: Mapping[str, Any] = {"keep": 20}
    trains_model = True
    normalizes_recorded = True
