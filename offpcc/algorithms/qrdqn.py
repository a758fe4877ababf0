"""Quantile regression DQN, Dabney et al. 2018 (arXiv:1710.10044), algorithm 1.

The Q network gives K quantiles of the return of each action. Their mean is Q.

Differs from the paper:

- The target is a Polyak average. With ``polyak = 0`` and `target_update_interval`, it is copied as in the paper.
- Adam's learning rate is that of the configs. Its epsilon is PyTorch's, 1e-8; `adam_eps = 3.125e-4` is the paper's.
"""

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.discrete import ValueBased
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, Size
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.critics import DiscreteCritics


@configurable
class QRDQN(ValueBased):
    """Quantile regression DQN, Dabney et al. 2018 (arXiv:1710.10044), for discrete actions.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        num_quantiles: K, the number of quantiles of each action's return.
        double: whether the Q network chooses the target's next action, as in double DQN; in the paper, the target
            network does.
        kwargs: see `ValueBased` and `ActorCritic`.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        num_quantiles: Size = 200,
        double: Flag = False,
        **kwargs: Any,
    ) -> None:
        self.num_quantiles, self.double = num_quantiles, double  # `build_critics` reads the first
        self.reads_next = double
        super().__init__(observation_space, action_space, **kwargs)
        self.levels = (torch.arange(num_quantiles, device=self.device) + 0.5) / num_quantiles

    def build_critics(self, num: int, summary_dim: int, hidden_dims: Any) -> DiscreteCritics:
        """Return the network of quantiles."""
        return DiscreteCritics(num, summary_dim, self.action_dim, hidden_dims, self.num_quantiles, self.dueling)

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return the mean over steps of the quantile Huber loss (eq. 10, 13), and statistics."""
        return self.quantile_loss(self.critics.quantiles(h.q)[0], h, batch)

    def quantile_loss(self, quantiles: Tensor, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return the loss of `critic_loss` for the `quantiles` (B, T, A, K) of all actions, and statistics."""
        theta = (quantiles * batch.actions.unsqueeze(-1)).sum(-2)  # (B, T, K)
        y = self.target(h, batch)
        loss = quantile_huber(theta, y, self.levels).to(theta.dtype)
        q = theta.detach().mean(-1, keepdim=True)
        stats = {"q": batch.mean(q)}
        if batch.weights is not None:
            stats["td_error"] = torch.where(batch.loss_mask > 0, (y.mean(-1, keepdim=True) - q).abs(), 0.0)
        return batch.weighted_mean(loss), stats

    def target(self, h: Summaries, batch: Batch) -> Tensor:
        """Return the targets y_j = r + gamma (1 - d) theta'_j(o', a'), (B, T, K); a' has the largest mean."""
        with torch.no_grad():
            quantiles = self.target_critics.quantiles(h.target_q[:, :, 1:])[0]  # (B, T, A, K)
            if self.double:
                action = self.next_action(h)
            else:
                mean = quantiles.mean(-1)
                action = torch.zeros_like(mean).scatter_(-1, mean.argmax(-1, keepdim=True), 1.0)
            return self.td_target(batch, (quantiles * action.unsqueeze(-1)).sum(-2))


def quantile_huber(theta: Tensor, y: Tensor, levels: Tensor) -> Tensor:
    """Return the quantile Huber loss of each step, (..., 1) in float64 (eq. 10, 13), with threshold 1.

    It is the sum over i of the mean over j of |tau_i - 1(y_j < theta_i)| huber(y_j - theta_i). This form takes K x K'
    numbers per step. Here the targets are sorted, and theta_i - 1, theta_i and theta_i + 1 cut them into four ranges.
    In each, the sum follows from three numbers: how many targets it has, their sum, and the sum of their squares.
    Running sums give these, so a step takes K + K' numbers. The result is the same up to rounding. Float64 and the
    subtracted mean keep differences of large sums exact.

    Args:
        theta: quantiles (..., K).
        y: targets (..., K'), without gradient.
        levels: tau, (K,).
    """
    center = y.detach().double().mean(-1, keepdim=True)
    theta, y = theta.double() - center, (y.double() - center).sort(-1).values.contiguous()
    zero = torch.zeros_like(y[..., :1])
    sums, squares = (torch.cat([zero, x.cumsum(-1)], -1) for x in (y, y.square()))  # of the first 0, 1, ... targets
    at = theta.detach().contiguous()
    counts = [torch.searchsorted(y, at + offset) for offset in (-1.0, 0.0, 1.0)]
    (n1, s1, q1), (n2, s2, q2), (n3, s3, q3) = ((n, sums.gather(-1, n), squares.gather(-1, n)) for n in counts)
    below = n1 * (theta - 0.5) - s1 + 0.5 * ((n2 - n1) * theta.square() - 2.0 * theta * (s2 - s1) + q2 - q1)
    above = 0.5 * ((n3 - n2) * theta.square() - 2.0 * theta * (s3 - s2) + q3 - q2)
    above = above + sums[..., -1:] - s3 - (y.shape[-1] - n3) * (theta + 0.5)
    return ((1.0 - levels) * below + levels * above).sum(-1, keepdim=True) / y.shape[-1]
