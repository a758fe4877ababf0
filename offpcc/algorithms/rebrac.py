"""ReBRAC, Tarasov et al. 2023 (arXiv:2305.09836): TD3 that imitates in the actor's loss and in the critics' target.

The distance of actions is the squared length of their difference, a sum over action dimensions. TD3+BC has its mean.

Differs from the paper and its authors' code:

- In the critics, layer norm comes before the ReLU of a hidden layer. In the code, it comes after it.
- Initial weights are PyTorch's. The code has small last layers.
- The policy explores online with noise. The code does not act while it learns.
- Where the data has no next action, the target has no penalty. This is so after a time limit and at the end of a
  recording. The code leaves these transitions out.
- By default, observations of a dataset are normalised.
"""

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.td3 import TD3
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NonnegativeNumber
from offpcc.core import Batch, Stats, Summaries


@configurable
class ReBRAC(TD3):
    """ReBRAC, Tarasov et al. 2023 (arXiv:2305.09836).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        actor_bc_coef: the paper's beta_1: weight of the distance to the recorded action in the actor's loss.
        critic_bc_coef: the paper's beta_2: weight of the distance to the recorded next action in the target.
        normalize_q: whether the actor's loss divides Q by the mean of |Q|.
        kwargs: see `TD3`, `DeterministicPolicy` and `ActorCritic`.
    """

    default_layer_norm = True
    default_actor_q = "min"
    is_offline = normalizes_recorded = True
    reads_next_actions = True

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        actor_bc_coef: NonnegativeNumber = 0.01,
        critic_bc_coef: NonnegativeNumber = 0.01,
        normalize_q: Flag = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.actor_bc_coef, self.critic_bc_coef, self.normalize_q = actor_bc_coef, critic_bc_coef, normalize_q

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (Q(o, a) - y)^2 (eq. 5), and statistics; see `td_loss`.

        y = r + gamma (1 - d) (min Q'(o', a') - beta_2 |a' - a_data'|^2), where a' is the smoothed target action.
        """
        with torch.no_grad():
            action = self.target_action(h)
            next_q = self.target_values(h.target_q[:, :, 1:], action).amin(0)
            recorded, exists = batch.recorded_next_actions()
            penalty = torch.where(exists > 0, distance(action, recorded), 0.0)
            y = self.td_target(batch, next_q - self.critic_bc_coef * penalty)
        return self.td_loss(batch, self.critics(h.q, batch.actions), y)

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (beta_1 |pi(o) - a|^2 - lambda min Q(o, pi(o))) (eq. 4); no statistics.

        lambda = 1 / mean |Q|, or 1 without `normalize_q`.
        """
        action = self.actor(h.pi)
        q = self.policy_value(h, action)
        imitation = self.actor_bc_coef * batch.mean(distance(action, batch.actions))
        return imitation - batch.mean(q) / (batch.mean(q.detach().abs()) if self.normalize_q else 1.0), {}


def distance(action: Tensor, other: Tensor) -> Tensor:
    """Return the squared length of the difference of two actions (..., A), (..., 1)."""
    return (action - other).square().sum(-1, keepdim=True)
