"""RLPD, Ball et al. 2023 (arXiv:2302.02948), algorithm 1: SAC with many critics, for many updates per step.

Ten critics with layer norm learn from targets that ask two of them, drawn at random in each update, as in REDQ (Chen et
al. 2021, arXiv:2101.05982). The actor raises the mean of all ten. Layer norm bounds what critics say about unseen
actions, so recorded data beside new data need no pessimism. The paper fills half of each batch from recorded data.

Differs from the authors' code:

- Each update draws its own batch. The code draws one large batch for the updates of a step and cuts it into parts.
- The temperature's loss uses log alpha.
- Initial weights are PyTorch's. The code's are those of Glorot & Bengio 2010.
"""

from typing import Any

from torch import Tensor

from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag
from offpcc.core import Summaries


@configurable
class RLPD(SAC):
    """RLPD, Ball et al. 2023 (arXiv:2302.02948).

    Args:
        args: see `ActorCritic`.
        backup_entropy: whether targets contain the next action's entropy.
        kwargs: see `SAC` and `ActorCritic`.
    """

    default_num_critics = 10
    default_layer_norm = True
    default_target_subset = 2
    default_actor_q = "mean"
    default_target_entropy_per_dim = -0.5

    def __init__(self, *args: Any, backup_entropy: Flag = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.backup_entropy = backup_entropy

    def next_value(self, h: Summaries) -> Tensor:
        """Return SAC's V(o'), or without `backup_entropy` the min of Q'(o', a') over the subset, (B, T, 1)."""
        if self.backup_entropy:
            return super().next_value(h)
        return self.target_values(h.target_q[:, :, 1:], self.sample(h.next_pi)[0]).amin(0)
