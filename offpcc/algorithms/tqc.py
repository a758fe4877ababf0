"""Truncated Quantile Critics, Kuznetsov et al. 2020 (arXiv:2005.04269): SAC that learns quantiles of returns.

Each of N critics gives M quantiles of the return. A target pools the quantiles of all target critics and leaves out the
largest d N of them. So overestimation is controlled in small steps, by `top_quantiles_to_drop`, without a minimum.

Differs from the authors' code:

- Critics' losses are summed and not averaged. With Adam, this is the same but for its epsilon.
- The actor's loss has the critics after their step of this update, as in SAC and in sb3-contrib. The code computes it
  before the step.
- The first steps act at random, as many as `train.update_after`. The code acts by its policy from the start.
"""

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.qrdqn import quantile_huber
from offpcc.algorithms.sac import SAC
from offpcc.config.registry import configurable
from offpcc.config.validation import NonnegativeInteger, Size
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.critics import QuantileCritics
from offpcc.utils.errors import UserError


@configurable
class TQC(SAC):
    """Truncated Quantile Critics, Kuznetsov et al. 2020 (arXiv:2005.04269).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        num_quantiles: M, the number of quantiles of each critic.
        top_quantiles_to_drop: how many of the M target quantiles per critic are left out (d), the largest of all
            critics' together. More of them make the critics more pessimistic.
        kwargs: see `SAC` and `ActorCritic`.

    Raises:
        UserError: no quantile would be left.
    """

    default_num_critics = 5
    default_actor_q = "mean"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        num_quantiles: Size = 25,
        top_quantiles_to_drop: NonnegativeInteger = 2,
        **kwargs: Any,
    ) -> None:
        if top_quantiles_to_drop >= num_quantiles:
            raise UserError(
                f"{type(self).__name__}.top_quantiles_to_drop is {top_quantiles_to_drop}, but num_quantiles is "
                f"{num_quantiles}; no quantile would be left, so choose a smaller number"
            )
        self.num_quantiles, self.top_quantiles_to_drop = num_quantiles, top_quantiles_to_drop
        super().__init__(observation_space, action_space, **kwargs)
        self.levels = (torch.arange(num_quantiles, device=self.device, dtype=torch.float64) + 0.5) / num_quantiles

    def build_critics(self, num: int, summary_dim: int, hidden_dims: Any) -> QuantileCritics:
        """Return the critics."""
        return QuantileCritics(num, summary_dim, self.action_dim, hidden_dims, self.num_quantiles)

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return the sum over critics of the mean quantile Huber loss, and statistics."""
        return self.quantile_loss(batch, self.critics.quantiles(h.q, batch.actions), self.target(h, batch))

    def quantile_loss(self, batch: Batch, quantiles: Tensor, y: Tensor) -> tuple[Tensor, Stats]:
        """Return the loss of `quantiles` (N, B, T, M) for targets `y` (B, T, K), and statistics; see `td_loss`."""
        of_all = quantiles.movedim(0, -2).flatten(-2)  # one sort of the targets serves all critics
        loss = quantile_huber(of_all, y, self.levels.repeat(len(quantiles))) / self.num_quantiles
        q = quantiles.detach().to(y.dtype).mean(-1, keepdim=True)
        stats = {"q": batch.mean(q).mean()}
        if batch.weights is not None:
            error = (q - y.mean(-1, keepdim=True)).abs().mean(0)
            stats["td_error"] = torch.where(batch.loss_mask > 0, error, 0.0)
        return batch.weighted_mean(loss.to(y.dtype)), stats

    def next_value(self, h: Summaries) -> Tensor:
        """Return z_i(o', a') - alpha log pi(a'|o') of the (M - d) N smallest quantiles z_i, (B, T, (M - d) N)."""
        action, log_prob = self.sample(h.next_pi)
        quantiles = self.target_critics.quantiles(h.target_q[:, :, 1:], action, *self.drawn_critics())
        kept = len(quantiles) * (self.num_quantiles - self.top_quantiles_to_drop)
        smallest: Tensor = quantiles.movedim(0, -1).flatten(-2).sort(-1).values[..., :kept]
        return smallest - self.temperature() * log_prob  # type: ignore[no-any-return]
