"""The policy of FQL: a one-step policy, and a flow that imitates recorded actions."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.networks.layers import concat_inputs, head
from offpcc.networks.numpy_inference import Array, Mirror, mirror_of, within

CLIP_ACTION = within(-1.0, 1.0)


class FlowActor(nn.Module):
    """Two networks that map a summary and standard normal noise to an action (Park et al. 2025, arXiv:2502.02538).

    The flow integrates a velocity from the noise to the action. The one-step policy, which acts, needs no integration.

    Args:
        summary_dim: H.
        action_dim: A; also the number of noise numbers.
        hidden_dims: hidden layers of both networks; see `HiddenLayers`.
    """

    def __init__(self, summary_dim: int, action_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.net = head(summary_dim + action_dim, hidden_dims, action_dim)
        self.velocity_net = head(summary_dim + action_dim + 1, hidden_dims, action_dim)

    def forward(self, summary: Tensor, noise: Tensor) -> Tensor:
        """Return the action of the one-step policy (..., A), not clipped, for `summary` (..., H), `noise` (..., A)."""
        action: Tensor = self.net(concat_inputs(summary, noise))
        return action

    def velocity(self, summary: Tensor, point: Tensor, time: Tensor) -> Tensor:
        """Return the flow's velocity (..., A) at `point` (..., A) and `time` (..., 1) from 0 to 1."""
        velocity: Tensor = self.velocity_net(concat_inputs(summary, torch.cat([point, time], -1)))
        return velocity

    def flow(self, summary: Tensor, noise: Tensor, num_steps: int) -> Tensor:
        """Return the flow's action (..., A) from `noise`, by `num_steps` of Euler's steps, clipped to [-1, 1]."""
        point = noise
        for step in range(num_steps):
            time = torch.full_like(point[..., :1], step / num_steps)
            point = point + self.velocity(summary, point, time) / num_steps
        return point.clamp(-1.0, 1.0)

    def choose(self, summary: Tensor, noise: Tensor | None) -> Tensor:
        """Return the action of the one-step policy (..., A), clipped to [-1, 1]. Without noise, the noise is 0."""
        noise = summary.new_zeros(*summary.shape[:-1], self.action_dim) if noise is None else noise
        action: Tensor = self(summary, noise)
        return action.clamp(-1.0, 1.0)

    def mirror(self) -> Mirror | None:
        """Return `choose` in NumPy, or None if a part has no mirror; see `offpcc.networks.numpy_inference`."""
        if (net := mirror_of(self.net)) is None:
            return None
        size = self.action_dim

        def choose(summary: Array, noise: Array | None) -> Array:
            noise = np.zeros((len(summary), size), np.float32) if noise is None else noise
            action: Array = CLIP_ACTION(net(np.concatenate([summary, noise], -1)))
            return action

        return choose
