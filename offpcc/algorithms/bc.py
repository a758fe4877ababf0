"""Behaviour cloning, Pomerleau 1991 (Neural Computation 3:1): regression of recorded actions.

There are no critics, so the encoders, a shared one too, are trained by the actor's loss.

Differs from the paper: the outputs are the action itself, as in the baselines of offline learning, instead of a bump
over units for each steering direction; Adam's rate and network sizes as in the configs.
"""

from __future__ import annotations

from typing import Any, TypedDict

from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.checks import NonnegativeNumber
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks import DeterministicActor
from offpcc.registry import configurable


class BCStats(TypedDict):
    """What an update tells; 0-d tensors."""

    actor_loss: Tensor


@configurable
class BC(ActorCritic):
    """Behaviour cloning: an actor without critics.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        action_noise: standard deviation of noise for acting while learning, in the units of actions in [-1, 1].
        kwargs: see `ActorCritic`.
    """

    has_critics = False
    stat_names = tuple(BCStats.__annotations__)

    def __init__(
        self, observation_space: Any, action_space: Any, *, action_noise: NonnegativeNumber = 0.1, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.action_noise = action_noise

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> DeterministicActor:
        """A deterministic policy."""
        return DeterministicActor(summary_dim, self.action_dim, hidden_dims)

    def choose_action(self, summary: Tensor, deterministic: bool) -> Tensor:
        """pi(h), with Gaussian noise unless `deterministic`."""
        action: Tensor = self.actor(summary)
        if deterministic:
            return action
        return (action + self.action_noise * self.noise.normal(action)).clamp(-1.0, 1.0)

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
