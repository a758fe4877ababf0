"""Deep Deterministic Policy Gradient, Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1.

With plain MLPs on a CPU, `fused/deterministic.py` computes the updates (`ActorCritic.fused`).

Differs from the paper:

- The exploration noise is Gaussian, not Ornstein-Uhlenbeck.
- Adam's learning rate and the network sizes are those of the configs.
- There is no weight decay, and no batch normalisation.
- Initial weights are PyTorch's. The paper's last layers are small.
- Targets keep a share of 0.995 in an update (`polyak`), as in TD3. The paper's keep 0.999.
- Actions enter the critic at its first layer.
"""

import torch
from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.construction import DeterministicPolicy
from offpcc.config.registry import configurable
from offpcc.core import Batch, Stats, Summaries


@configurable
class DDPG(DeterministicPolicy, ActorCritic):
    """DDPG, Lillicrap et al. 2016 (arXiv:1509.02971); arguments: see `DeterministicPolicy` and `ActorCritic`."""

    default_num_critics = 1
    default_actor_q = "first"
    has_target_actor = True
    loss_covers_batch = True
    stat_names = ("critic_loss", "actor_loss", "q")

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of critics, actor and targets (algorithm 1)."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        actor_stats = self.update_actor(h, batch)
        self.update_targets()
        return {**stats, **actor_stats}

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return L = mean (y - Q(o, a))^2, where y = r + gamma (1 - d) Q'(o', mu'(o')); see `td_loss`."""
        with torch.no_grad():
            next_q = self.target_values(h.target_q[:, :, 1:], self.target_action(h))
            y = self.td_target(batch, next_q.amin(0))
        return self.td_loss(batch, self.critics(h.q, batch.actions), y)

    def target_action(self, h: Summaries) -> Tensor:
        """Return a' = mu'(o')."""
        action: Tensor = self.target_actor(h.next_pi)
        return action

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return -mean Q(o, mu(o)), whose gradient is the deterministic policy gradient (eq. 6); no statistics."""
        return -batch.mean(self.policy_value(h, self.actor(h.pi))), {}
