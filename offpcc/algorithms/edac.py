"""Ensemble-Diversified Actor-Critic, An et al. 2021 (arXiv:2110.01548), algorithm 1: SAC-N with diverse critics.

The least of N critics is low where critics disagree. EDAC makes them disagree with fewer critics. It adds a term to
their loss, the similarity of their gradients with respect to the recorded action.

Differs from the authors' code as SAC-N does, and:

- The term has the gradients of all N critics, as in the paper and in CORL. The code draws min(N, A) of them in each
  update, for A action dimensions. So the same `eta` is stronger here: N / min(N, A) times for equal similarities.
- There is no maximum over next actions in the target, which the code takes for some tasks of Adroit.
"""

from typing import Any

from torch import Tensor
from torch.nn import functional

from offpcc.algorithms.sac_n import SACN
from offpcc.config.registry import configurable
from offpcc.config.validation import NonnegativeNumber
from offpcc.core import Batch, Stats, Summaries
from offpcc.utils.errors import UserError


@configurable
class EDAC(SACN):
    """Ensemble-Diversified Actor-Critic, An et al. 2021 (arXiv:2110.01548).

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        eta: weight of the similarity of the critics' gradients; with 0, this is SAC-N.
        kwargs: see `SAC` and `ActorCritic`.

    Raises:
        UserError: there is a single critic.
    """

    stat_names = (*SACN.stat_names, "similarity")

    def __init__(
        self, observation_space: Any, action_space: Any, *, eta: NonnegativeNumber = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.eta = eta
        if self.critics.num < 2:
            name = type(self).__name__
            raise UserError(f"{name}.num_critics is 1; {name} compares critics in pairs, so it has to be 2 or more")

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return SAC's loss plus eta times the mean `similarity` at recorded actions (eq. 4), and statistics."""
        y = self.target(h, batch)
        q, gradients = self.critics.with_action_gradients(h.q, batch.actions)
        loss, stats = self.td_loss(batch, q, y)
        similarity = batch.mean(self.similarity(gradients))  # importance weights apply to the squared errors only
        return loss + self.eta * similarity, {**stats, "similarity": similarity.detach()}

    def similarity(self, gradients: Tensor) -> Tensor:
        """Return 1 / (N - 1) sum of cos(g_i, g_j) over i != j for gradients g (N, B, T, A), (B, T, 1) (eq. 3).

        The sum over all pairs is the squared length of the sum; those with i = j are taken off.
        """
        g = functional.normalize(gradients, dim=-1)
        pairs = g.sum(0).square() - g.square().sum(0)
        similarity: Tensor = pairs.sum(-1, keepdim=True) / (self.critics.num - 1)
        return similarity
