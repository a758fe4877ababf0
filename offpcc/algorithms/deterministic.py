"""A deterministic policy that explores by Gaussian noise: what DDPG, with its children, and behaviour cloning share."""

from __future__ import annotations

from typing import Any

from offpcc.algorithms.base import ActorCritic
from offpcc.checks import NonnegativeNumber
from offpcc.networks import DeterministicActor
from offpcc.registry import configurable


@configurable
class DeterministicPolicy(ActorCritic):
    """An agent whose actor gives one action for a summary.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        action_noise: standard deviation of noise for acting while learning, in the units of actions in [-1, 1].
        kwargs: see `ActorCritic`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, action_noise: NonnegativeNumber = 0.1, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.action_noise = self.noise_scale = action_noise

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> DeterministicActor:
        """A deterministic policy."""
        return DeterministicActor(summary_dim, self.action_dim, hidden_dims)
