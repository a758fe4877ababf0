"""R2D2: recurrent replay distributed DQN, Kapturowski et al. 2019 (ICLR, "Recurrent experience replay").

It is DQN with memory and rescaled values. Its other parts are options that other algorithms may use, too:

- n-step targets (`n_step`), double Q-learning and dueling heads
- segments with burn-in, drawn by priorities: `PrioritizedRecurrentReplayBuffer`, the default buffer of this algorithm
- a ladder of epsilons over the environments (`epsilon_ladder`)
- the previous action and the previous reward as inputs of the memory

Differs from the paper:

- The memory starts each burn-in from its initial state. The paper stores the states of acting with the data.
- By default, environments step and networks learn in turn, in one process. The paper has 256 actors and one learner.
- The loss is Huber's with threshold 1, as in DQN. In the paper, it is the squared error.
- The target is a Polyak average, unless ``polyak = 0`` and `target_update_interval` copy the networks.
- Sequences begin every `period` steps, up to the end of an episode; the last ones are shorter. The paper shifts the
  last one to the left, so that it ends with the episode.
- New sequences have the largest priority so far. The paper's actors compute their errors.
"""

from typing import Any

import torch
from torch import Tensor

from offpcc.algorithms.dqn import DQN
from offpcc.config.registry import configurable
from offpcc.config.validation import NonnegativeNumber
from offpcc.core import Batch, Summaries
from offpcc.networks import Recurrent


@configurable
class R2D2(DQN):
    """R2D2, Kapturowski et al. 2019: DQN with memory, rescaled values and priorities, for discrete actions.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        rescaling: the epsilon of h(x) = sign(x) (sqrt(abs(x) + 1) - 1) + epsilon x; the Q network learns h(Q)
            (Pohlen et al. 2018, arXiv:1805.11593).
        kwargs: see `DQN`, `ValueBased` and `ActorCritic`.
    """

    default_encoder = Recurrent
    draws_by_priority = True

    def __init__(
        self, observation_space: Any, action_space: Any, *, rescaling: NonnegativeNumber = 1e-3, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.rescaling = rescaling

    def parts_warning(self, buffer: Any) -> str:
        """Return a warning if R2D2 has none of the parts that its configs give it, else ""."""
        if self.dueling or self.n_step > 1 or getattr(buffer, "burn_in", None):
            return ""
        return (
            "R2D2 has no n-step targets, dueling heads and burn-in here; configs/discrete/cartpole_r2d2.gin and "
            "atari_r2d2.gin have all parts of the paper"
        )

    def action_values(self, h: Summaries, actions: Tensor) -> Tensor:
        """See `ActorCritic`; the network's values h(Q) are rescaled back to Q."""
        return restored(super().action_values(h, actions), self.rescaling)

    def td_target(self, batch: Batch, next_value: Tensor) -> Tensor:
        """Return y = h(r + gamma (1 - d) h^-1(next_value)), (B, T, 1), with n steps as in `ActorCritic`."""
        return rescaled(
            super().td_target(batch, restored(next_value.to(batch.rewards.dtype), self.rescaling)), self.rescaling
        )


def rescaled(x: Tensor, epsilon: float) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x. This form loses no digits near 0."""
    return x / ((x.abs() + 1.0).sqrt() + 1.0) + epsilon * x


def restored(x: Tensor, epsilon: float) -> Tensor:
    """Return the inverse of `rescaled`."""
    size = x.abs() + 1.0 + epsilon
    root = 2.0 * size / (1.0 + (1.0 + 4.0 * epsilon * size).sqrt())  # sqrt(|h^-1(x)| + 1)
    return torch.sign(x) * (root.square() - 1.0)
