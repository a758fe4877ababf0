"""Flow Q-Learning, Park et al. 2025 (arXiv:2502.02538), algorithm 1.

A flow imitates the recorded actions, also where they have several modes. A one-step policy imitates the flow, and
maximises Q. So no gradient passes through the flow's integration, and acting takes one step.

Differs from the authors' code:

- One update steps the critics, then the policies. In the code, both steps use the networks from before.
- Hidden layers have ReLU, and in the critics layer norm comes before it. The code has GELU, and layer norm after it.
- Initial weights are PyTorch's. The code scales them by the mean of a layer's two widths.
- The deterministic policy, which tests use, has noise 0. The code's tests draw noise at each step.
- With images, all networks share the convolutions, which the critics train. The code has convolutions for each network.
- By default, the loss divides Q by its size (`normalize_q_loss`), as the code's README advises for new tasks, and
  observations of a dataset are normalised.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NonnegativeNumber, NumParts, one_of
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks import FlowActor


@configurable
class FQL(ActorCritic):
    """Flow Q-Learning, Park et al. 2025 (arXiv:2502.02538).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        alpha: weight of the one-step policy's distance to the flow. Larger values imitate more.
        normalize_q_loss: whether the policy's loss divides Q by the mean of |Q|, so that `alpha` does not depend on the
            scale of rewards.
        q_agg: how targets combine critics: "mean" or "min".
        flow_steps: number of steps of Euler's method in the flow.
        kwargs: see `ActorCritic`.
    """

    actor: FlowActor
    default_layer_norm = True
    default_actor_q = "mean"
    is_offline = normalizes_recorded = True
    stat_names = ("critic_loss", "actor_loss", "flow_loss", "distill_loss", "q")

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        alpha: NonnegativeNumber = 1.0,
        normalize_q_loss: Flag = True,
        q_agg: Annotated[str, one_of(("mean", "min"))] = "mean",
        flow_steps: NumParts = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.alpha, self.normalize_q_loss = alpha, normalize_q_loss
        self.q_agg, self.flow_steps = q_agg, flow_steps

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        reasons = {"q_agg": "targets ask a single critic"} if self.asks_one_critic else {}
        if not self.alpha:
            reasons["flow_steps"] = "alpha is 0, so the policy does not imitate the flow"
        return super().unused_parameters() | reasons

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> FlowActor:
        """Return the one-step policy and the flow."""
        return FlowActor(summary_dim, self.action_dim, hidden_dims)

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of the critics, of both policies and of the targets (algorithm 1)."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        actor_stats = self.update_actor(h, batch)
        self.update_targets()
        return {**stats, **actor_stats}

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (Q(o, a) - y)^2, and statistics; see `td_loss`.

        y = r + gamma (1 - d) mean Q'(o', a'), or the minimum over critics, where a' is of the one-step policy.
        """
        with torch.no_grad():
            action = self.actor.choose(h.next_pi, self.noise.normal(batch.actions))
            next_q = self.target_values(h.target_q[:, :, 1:], action)
            y = self.td_target(batch, next_q.amin(0) if self.q_agg == "min" else next_q.mean(0))
        return self.td_loss(batch, self.critics(h.q, batch.actions), y)

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return `flow_loss` + alpha mean (pi(o, z) - flow(o, z))^2 - lambda mean Q(o, pi(o, z)), and statistics.

        z is noise, Q the mean over critics, and lambda = 1 / mean |Q|, or 1 without `normalize_q_loss`.
        """
        flow_loss, noise = self.flow_loss(h, batch), self.noise.normal(batch.actions)
        with torch.no_grad():
            imitated = self.actor.flow(h.pi, noise, self.flow_steps)
        action = self.actor(h.pi, noise)
        distill_loss = batch.mean((action - imitated).square())
        q = self.policy_value(h, action.clamp(-1.0, 1.0))
        scale = batch.mean(q.detach().abs()) if self.normalize_q_loss else 1.0
        loss = flow_loss + self.alpha * distill_loss - batch.mean(q) / scale
        return loss, {"flow_loss": flow_loss.detach(), "distill_loss": distill_loss.detach()}

    def flow_loss(self, h: Summaries, batch: Batch) -> Tensor:
        """Return mean (v(o, x_t, t) - (a - z))^2, where x_t = (1 - t) z + t a, t is uniform in [0, 1) and z noise."""
        noise, time = self.noise.normal(batch.actions), 0.5 * (self.noise.uniform(batch.rewards) + 1.0)
        velocity = self.actor.velocity(h.pi, (1.0 - time) * noise + time * batch.actions, time)
        return batch.mean((velocity - (batch.actions - noise)).square())
