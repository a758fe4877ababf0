"""TD3+BC, Fujimoto & Gu 2021 (arXiv:2106.06860): TD3 with a behaviour cloning term in the actor's loss.

With plain MLPs on a CPU, `fused/deterministic.py` computes the updates (`ActorCritic.fused`).

Differs from the paper: lambda is normalised by |Q| at the policy's actions, as in the authors' code, not at the
recorded ones.

Differs from the authors' code:

- Normalised observations are clipped to +/- 10 standard deviations.
- Without the statistics of a dataset, as online, running statistics normalise observations.
- With more than two critics, the target is the least of all.
"""

from typing import Any

from torch import Tensor

from offpcc.algorithms.td3 import TD3
from offpcc.config.registry import configurable
from offpcc.config.validation import NonnegativeNumber
from offpcc.core import Batch, Stats, Summaries


@configurable
class TD3BC(TD3):
    """TD3+BC, Fujimoto & Gu 2021 (arXiv:2106.06860).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        bc_alpha: the paper's alpha: weight of the normalised Q relative to the imitation loss; 0 only imitates.
        kwargs: see `TD3`, `DeterministicPolicy` and `ActorCritic`.
    """

    is_offline = default_normalize_observations = True

    def __init__(
        self, observation_space: Any, action_space: Any, *, bc_alpha: NonnegativeNumber = 2.5, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.bc_alpha = bc_alpha

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (-lambda Q(o, pi(o)) + (pi(o) - a)^2), where lambda = alpha / mean |Q(o, pi(o))|; and {}."""
        action = self.actor(h.pi)
        q = self.policy_value(h, action)
        weight = self.bc_alpha / batch.mean(q.detach().abs())
        return -weight * batch.mean(q) + batch.mean((action - batch.actions).square()), {}
