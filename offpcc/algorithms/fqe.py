"""Fitted Q evaluation (FQE), Le et al. 2019 (arXiv:1903.08738), algorithm 3: the value of a fixed policy from data.

The settings are those of google-research's policy_eval: temporal differences with a Polyak target, Q = net /
(1 - gamma), and targets that are clipped to [smallest reward, largest reward] / (1 - gamma).

Differs from the paper and that code:

- The paper solves a regression to the end in each of its iterations. Here, as in that code, the target network follows.
- Rewards are scaled, but not shifted: a shift changes the value of an episode that terminates.
- If an episode of the data terminates, the bounds of the targets include 0, the value after an end.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offpcc.algorithms.base import ActorCritic
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks import InputShape, PassThrough
from offpcc.utils.errors import UserError


class FQE(ActorCritic):
    """Critics that learn the Q function of a fixed policy. It has no actor of its own, and does not act.

    With several critics, a target and the value are the mean of all of them.

    A batch holds 2A actions: the recorded action (A) at o_t, then the policy's action (A) at o_{t+1}. So any policy can
    be evaluated, with any memory: its actions are computed once, along whole recorded episodes. The critics have their
    own encoders, and read the recorded history.

    Args:
        observation_space: see `ActorCritic`.
        action_space: the space of one action (A).
        reward_range: smallest and largest reward of the data, unscaled.
        has_terminations: whether an episode of the data terminates.
        kwargs: see `ActorCritic`; `reward_scale` has to be above 0.
    """

    default_num_critics = 1
    normalizes_recorded = True
    stat_names = ("critic_loss", "q")

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        reward_range: tuple[float, float],
        has_terminations: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        if not self.encoders_are_empty:  # then the critics have their own encoders, and nothing reads the actor's
            self.actor_encoder = PassThrough(InputShape(self.shared_encoder.output_shape, self.action_dim))
        if not self.reward_scale > 0.0:
            raise UserError(f"FQE.reward_scale is {self.reward_scale}; values are divided by it: give a number above 0")
        self.horizon = 1.0 / (1.0 - self.gamma)
        low, high = (self.reward_scale * self.horizon * reward for reward in reward_range)
        self.bounds = (min(low, 0.0), max(high, 0.0)) if has_terminations else (low, high)

    def build_actor(self, summary_dim: int, hidden_dims: Sequence[int]) -> nn.Module:
        """Return a module without parameters."""
        return nn.Identity()

    def prepare(self, batch: Batch, learns: bool = True) -> Batch:
        """Return the batch as other algorithms get it, with the policy's actions as `next_actions`."""
        batch = super().prepare(batch, learns)
        size = self.action_dim
        return batch._replace(
            actions=batch.actions[..., :size],
            first_action=batch.first_action[..., :size],
            next_actions=batch.actions[..., size:],
        )

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of critics and targets."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        self.update_targets()
        return stats

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (Q(o, a) - y)^2 and statistics; see `td_loss`."""
        return self.td_loss(batch, self.horizon * self.critics(h.q, batch.actions), self.target(h, batch))

    @torch.no_grad()
    def target(self, h: Summaries, batch: Batch) -> Tensor:
        """Return y = r + gamma (1 - d) Q'(o', pi(o')), (B, T, 1), clipped to the bounds of a value."""
        assert batch.next_actions is not None
        next_q = self.horizon * self.target_values(h.target_q[:, :, 1:], batch.next_actions).mean(0)
        return self.td_target(batch, next_q).clamp(*self.bounds)

    @torch.no_grad()
    def initial_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return Q'(o_1, a_1) of the target critics, (N,), in units of the data's rewards.

        Args:
            observations: (N, *obs), the first observations of episodes.
            actions: (N, A) in [-1, 1], the policy's actions there.
        """
        num = len(observations)
        nothing = actions.new_zeros(num, 1, 1)
        batch = Batch(
            observations=torch.stack([observations, observations], 1),
            actions=torch.cat([actions, actions], -1).unsqueeze(1),
            rewards=nothing,
            terminations=nothing,
            valid=actions.new_ones(num, 2, 1),
            loss_mask=nothing + 1.0,
            first_action=actions.new_zeros(num, 2 * self.action_dim),
            first_reward=actions.new_zeros(num, 1),
            complete=True,
        )
        batch = self.prepare(batch, learns=False)
        h = self.summarize(batch)
        q: Tensor = self.target_critics(h.target_q[:, :, :1], batch.actions).mean(0)
        return q.flatten() * (self.horizon / self.reward_scale)
