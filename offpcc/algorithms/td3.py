"""Twin Delayed DDPG, Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1.

With plain MLPs on a CPU, `fused/deterministic.py` computes the updates (`ActorCritic.fused`).

Differs from the paper: Adam's learning rate and the network sizes are those of the configs.
"""

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.ddpg import DDPG
from offpcc.config.registry import configurable
from offpcc.config.validation import NonnegativeNumber, PositiveInteger
from offpcc.core import Batch, Stats, Summaries


@configurable
class TD3(DDPG):
    """TD3, Fujimoto et al. 2018 (arXiv:1802.09477): DDPG with three changes.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        target_noise: standard deviation of the smoothing noise on target actions.
        noise_clip: bound of that noise.
        policy_delay: number of critic updates for each update of actor and targets. With a `target_update_interval`,
            targets move in updates whose number is a multiple of both.
        kwargs: see `DeterministicPolicy` and `ActorCritic`.
    """

    default_num_critics = 2

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        target_noise: NonnegativeNumber = 0.2,
        noise_clip: NonnegativeNumber = 0.5,
        policy_delay: PositiveInteger = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.target_noise, self.noise_clip, self.policy_delay = target_noise, noise_clip, policy_delay

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        reasons = {}
        if not self.target_noise:
            reasons = {"noise_clip": "target_noise is 0, so there is nothing to clip"}
        elif not self.noise_clip:
            reasons = {"target_noise": "noise_clip is 0, so target actions have no noise"}
        return super().unused_parameters() | reasons

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of the critics, and every `policy_delay` steps one of actor and targets (algorithm 1)."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        num_updates = self.critic_optimizer.num_updates
        if num_updates % self.policy_delay == 0:
            stats = {**stats, **self.update_actor(h, batch, num_updates - 1)}
            self.update_targets()
        return stats

    def target_action(self, h: Summaries) -> Tensor:
        """Return a' = clip(mu'(o') + clip(noise)): target policy smoothing (section 5.3).

        `DDPG.critic_loss` takes the min over critics.
        """
        action: Tensor = self.target_actor(h.next_pi)
        noise = self.target_noise * self.noise.normal(action)
        return torch.clamp(action + noise.clamp(-self.noise_clip, self.noise_clip), -1.0, 1.0)
