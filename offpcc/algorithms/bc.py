"""Behaviour cloning, Pomerleau 1991 (Neural Computation 3:1): regression of recorded actions.

There are no critics, so the encoders, a shared one too, are trained by the actor's loss.

Differs from the paper: the outputs are the action itself, as in the baselines of offline learning, instead of a bump
over units for each steering direction; Adam's rate and network sizes as in the configs. There is no authors' code; the
loss is that of the imitation in TD3+BC (Fujimoto & Gu 2021, arXiv:2106.06860).
"""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

from offpcc.algorithms.base import DeterministicPolicy
from offpcc.config.registry import configurable
from offpcc.core import Batch, Stats, Summaries


class BCStats(TypedDict):
    """What an update tells; 0-d tensors."""

    actor_loss: Tensor


@configurable
class BC(DeterministicPolicy):
    """Behaviour cloning: an actor without critics; arguments as of `DeterministicPolicy` and `ActorCritic`."""

    has_critics = False
    normalizes_recorded = True
    loss_covers_batch = True
    stat_names = tuple(BCStats.__annotations__)

    def update_networks(self, batch: Batch) -> Stats:
        """One step of the actor."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        actor_loss = self.actor_loss(h, batch)
        self.actor_optimizer.minimize(actor_loss)
        return BCStats(actor_loss=actor_loss.detach())  # type: ignore[return-value]

    def actor_loss(self, h: Summaries, batch: Batch) -> Tensor:
        """Mean (pi(o) - a)^2."""
        return batch.mean((self.actor(h.pi) - batch.actions).square())
