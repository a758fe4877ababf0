"""Critic Regularized Regression, Wang et al. 2020 (arXiv:2006.15134), algorithm 1: AWAC with other weights.

Recorded actions weigh exp(A / beta) or, with binary weights, 1 if they are better than the policy's own and else 0. The
baseline of the advantage A is the mean or the largest Q of several actions of the policy.

Differs from the paper:

- The critics return a mean. The paper's return a distribution.
- The value is the least of two critics. The paper has one critic.
- Targets are Polyak averages. The paper's are copied every 100 updates. The next action is one of the policy, not of a
  target policy.
- The policy is one Gaussian with a squashed mean and one standard deviation for all observations. The paper's is a
  mixture of Gaussians.
- The agent acts by its policy. In the paper, it may instead sample several actions and choose among them by Q.
- `sarsa_target` is an option of Acme's code. Where the data has no next action, the target takes one of the policy.
  This is so after a time limit and at the end of a recording.
- By default, observations of a dataset are normalised.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from offpcc.algorithms.awac import AWAC
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, one_of
from offpcc.core import Batch, Summaries


@configurable
class CRR(AWAC):
    """Critic Regularized Regression, Wang et al. 2020 (arXiv:2006.15134).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        weight_type: "exp" weighs recorded actions by exp(advantage / temperature), "binary" by 1 if the advantage is
            above 0, else by 0.
        advantage_type: baseline of the advantage over the policy's `num_samples` actions: "mean" or "max" of their Q.
        sarsa_target: whether targets take the recorded next action, not one of the policy. Then Q is the value of the
            recorded behaviour, and the policy is one step better than it.
        kwargs: see `AWAC` and `ActorCritic`.
    """

    default_num_samples = 4
    default_max_advantage_weight = 20.0

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        weight_type: Annotated[str, one_of(("exp", "binary"))] = "exp",
        advantage_type: Annotated[str, one_of(("mean", "max"))] = "mean",
        sarsa_target: Flag = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.reads_next_actions = sarsa_target
        self.weight_type, self.advantage_type = weight_type, advantage_type

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        idle = ("temperature", "max_advantage_weight") if self.weight_type == "binary" else ()
        reasons = {"advantage_type": "mean and maximum of one sample are equal"} if self.num_samples == 1 else {}
        return super().unused_parameters() | dict.fromkeys(idle, "weight_type is 'binary'") | reasons

    def next_value(self, h: Summaries, batch: Batch) -> Tensor:
        """Return V(o') (B, T, 1), or with `sarsa_target` min Q'(o', a') of the recorded a', where there is one."""
        value = super().next_value(h, batch)
        if not self.reads_next_actions:
            return value
        action, exists = batch.recorded_next_actions()
        return torch.where(exists > 0, self.target_values(h.target_q[:, :, 1:], action).amin(0), value)

    def weight(self, advantage: Tensor) -> Tensor:
        """Return the weights of recorded actions: 1(A > 0) (eq. 3), or exp(A / beta), bounded (eq. 4)."""
        return (advantage > 0.0).to(advantage.dtype) if self.weight_type == "binary" else super().weight(advantage)

    def baseline(self, q: Tensor) -> Tensor:
        """Return the mean or the maximum of `q` (B, T, M, 1) over M actions of the policy, (B, T, 1) (table 1)."""
        return q.amax(-2) if self.advantage_type == "max" else super().baseline(q)
