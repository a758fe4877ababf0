"""Behaviour cloning, Pomerleau 1991 (Neural Computation 3:1): regression of recorded actions.

There are no critics, so the actor's loss trains all encoders, also a shared one. There is no authors' code. The loss is
the imitation loss of TD3+BC (Fujimoto & Gu 2021, arXiv:2106.06860).

With plain MLPs on a CPU, `fused/deterministic.py` computes the updates (`ActorCritic.fused`).

Differs from the paper:

- The output is the action itself, as in the baselines of offline learning. The paper has one output unit for each
  steering direction and trains them towards a bump.
- Adam's learning rate and the network sizes are those of the configs.
"""

from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.construction import DeterministicPolicy
from offpcc.config.registry import configurable
from offpcc.core import Batch, Stats, Summaries


@configurable
class BC(DeterministicPolicy, ActorCritic):
    """Behaviour cloning: an actor without critics. Arguments: see `DeterministicPolicy` and `ActorCritic`."""

    has_critics = False
    is_offline = normalizes_recorded = True
    counterpart = "dbc"
    loss_covers_batch = True
    stat_names = ("actor_loss",)

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of the actor."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        return self.update_actor(h, batch)

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (pi(o) - a)^2; no statistics."""
        return batch.mean((self.actor(h.pi) - batch.actions).square()), {}
