"""Deep Q-networks, Mnih et al. 2015 (Nature 518), with double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461).

Differs from the paper:

- The target is a Polyak average. With ``polyak = 0`` and `target_update_interval`, it is copied as in the paper.
- The optimizer is Adam, not RMSProp.
- The loss is Huber's with threshold 1. As in the paper, it clips the gradient of the error.
- The next action of the target is the Q network's (double Q-learning), unless `double` is False.
- With `dueling`, gradients are neither scaled by 1 / sqrt(2) nor clipped at a norm of 10, as Wang et al. do.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from offpcc.algorithms.discrete import ValueBased, chosen_values
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.critics import of_actions


@configurable
class DQN(ValueBased):
    """Deep Q-network, Mnih et al. 2015 (Nature 518), for discrete actions.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        double: whether the Q network chooses the target's next action (arXiv:1509.06461); else the target network does.
        kwargs: see `ValueBased` and `ActorCritic`.
    """

    def __init__(self, observation_space: Any, action_space: Any, *, double: Flag = True, **kwargs: Any) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.double = self.reads_next = double

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return the mean Huber loss of Q(o, a) - y, where y is `target`; and statistics, see `td_loss`."""
        return self.td_loss(batch, chosen_values(self.critics, h, batch), self.target(h, batch), huber)

    def target(self, h: Summaries, batch: Batch) -> Tensor:
        """Return y = r + gamma (1 - d) Q'(o', a'), (B, T, 1); a' is greedy."""
        with torch.no_grad():
            next_q = self.target_critics(h.target_q[:, :, 1:])[0]
            value = of_actions(next_q, self.next_action(h)) if self.double else next_q.amax(-1, keepdim=True)
            return self.td_target(batch, value)


def huber(error: Tensor) -> Tensor:
    """Return Huber's loss of each error, with threshold 1."""
    return huber_loss(error, torch.zeros_like(error), reduction="none")
