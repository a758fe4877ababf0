"""SAC-N, An et al. 2021 (arXiv:2110.01548), section 3: SAC with the least of N critics.

Where critics disagree, as they do about actions that the data lacks, their minimum is low. So many critics make SAC
pessimistic, and nothing else changes.

Differs from the authors' code:

- One update steps critics, actor and temperature in this order, as in SAC. The code's order is temperature, actor,
  critics.
- Initial weights are PyTorch's. The code's first biases are 0.1, and its last layers are small.
- The lower bound of the policy's log standard deviation is -20, not -5.
- By default, observations of a dataset are normalised.
"""

from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable


@configurable
class SACN(SAC):
    """SAC-N, An et al. 2021 (arXiv:2110.01548): `num_critics` is the paper's N. Arguments: see `SAC`."""

    default_num_critics = 10
    is_offline = normalizes_recorded = True
