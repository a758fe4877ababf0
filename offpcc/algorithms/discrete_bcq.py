"""Batch-Constrained Q-learning for discrete actions, Fujimoto et al. 2019 (arXiv:1910.01708).

A policy imitates the recorded actions. Only actions whose probability is above a share of the largest one may be
chosen, by the agent and in targets. The policy reads the Q network's summary, and one loss trains all.

Differs from the paper: targets are Polyak averages, unless ``polyak = 0``.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.algorithms.dqn import DQN
from offpcc.config.registry import configurable
from offpcc.config.validation import Fraction, NonnegativeNumber
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.actors import ValueActor, choose_best
from offpcc.networks.critics import DiscreteCritics, of_actions
from offpcc.networks.layers import head
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of

LOWEST = -1e12  # score of an action that is not allowed; finite, because infinity shows a fault


class ConstrainedActor(ValueActor):
    """Actor that chooses the action with the largest Q among those that an imitating policy finds likely."""

    def __init__(self, critics: DiscreteCritics, imitation: nn.Module, threshold: float) -> None:
        super().__init__(critics)
        self.imitation = imitation
        self.set_threshold(threshold)

    def set_threshold(self, threshold: float) -> None:
        """Allow actions whose probability is at least this share of the likeliest action's; with 0, all actions."""
        self.least = math.log(threshold) if threshold > 0.0 else -math.inf

    def forward(self, summary: Tensor) -> Tensor:
        """(N, 1, H) -> Q values (N, 1, A), or `LOWEST` for actions that are not allowed."""
        return torch.where(self.is_allowed(summary), super().forward(summary), LOWEST)

    def is_allowed(self, summary: Tensor) -> Tensor:
        """Return whether each action is likely enough, (..., A), for the summary (..., H)."""
        logits = self.imitation(summary)
        is_allowed: Tensor = logits - logits.amax(-1, keepdim=True) >= self.least
        return is_allowed

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (mirrors := mirrors_of(self.critics, self.imitation)) is None:
            return None
        values, imitate = mirrors

        def scores(summary: Array) -> Array:
            logits = imitate(summary)
            is_allowed = logits - logits.max(-1, keepdims=True) >= self.least
            return np.where(is_allowed, values(summary), np.float32(LOWEST))

        net: Callable[[Array], Array] = scores
        return lambda summary, noise: choose_best(net, summary, noise)


@configurable
class DiscreteBCQ(DQN):
    """Batch-Constrained Q-learning for discrete actions, Fujimoto et al. 2019 (arXiv:1910.01708).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        threshold: tau: an action is allowed if its probability is at least this share of the likeliest action's. With
            0, all are allowed; with 1, only the likeliest.
        logits_weight: weight of the mean square of the imitating policy's logits in the loss.
        kwargs: see `DQN`, `ValueBased` and `ActorCritic`.
    """

    is_offline = normalizes_recorded = True
    counterpart = "bcq"
    stat_names = ("critic_loss", "q", "imitation_loss")
    actor: ConstrainedActor

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        threshold: Fraction = 0.3,
        logits_weight: NonnegativeNumber = 0.01,
        **kwargs: Any,
    ) -> None:
        self._threshold, self.logits_weight = threshold, logits_weight  # `build_actor` reads the first
        super().__init__(observation_space, action_space, **kwargs)
        self.reads_next = True  # also without `double`, because targets ask which actions are allowed

    @property
    def threshold(self) -> float:
        """The argument `threshold`, which may change during a run, see `OfflineToOnline.decay`."""
        return self._threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._threshold = value
        self.actor.set_threshold(value)
        self._arguments = {**self._arguments, "threshold": value}  # an actor file has it

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> ConstrainedActor:
        """Return the actor, with the Q network's weights and the imitating policy."""
        return ConstrainedActor(self.critics, head(summary_dim, hidden_dims, self.action_dim), self.threshold)

    def target(self, h: Summaries, batch: Batch) -> Tensor:
        """See `DQN`; a' is the best allowed action, without `double` too."""
        if self.double:
            return super().target(h, batch)
        with torch.no_grad():
            next_q = self.target_critics(h.target_q[:, :, 1:])[0]
            allowed = torch.where(self.actor.is_allowed(h.next_pi), next_q, LOWEST)
            return self.td_target(batch, allowed.amax(-1, keepdim=True))

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return DQN's loss plus the imitation loss: mean -log p(a|o), and the penalty of large logits."""
        loss, stats = super().critic_loss(h, batch)
        logits = self.actor.imitation(h.q[0])
        likelihood = batch.mean(of_actions(torch.log_softmax(logits, -1), batch.actions))
        imitation = self.logits_weight * batch.mean(logits.square()) - likelihood
        return loss + imitation, {**stats, "imitation_loss": imitation.detach()}
