"""Behaviour cloning of discrete actions: maximum likelihood of the recorded actions.

There are no critics, so the actor's loss trains all encoders. There is no paper; the loss is the cross entropy of
Tianshou's imitation learning. d3rlpy's has a penalty of large logits, too.
"""

from torch import Tensor

from offpcc.algorithms.base import ActorCritic
from offpcc.config.registry import configurable
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks.actors import DiscreteActor
from offpcc.networks.critics import of_actions


@configurable
class DiscreteBC(ActorCritic):
    """Behaviour cloning of discrete actions: an actor without critics. Arguments: see `ActorCritic`."""

    has_critics = False
    is_discrete = is_offline = normalizes_recorded = True
    counterpart = "bc"
    stat_names = ("actor_loss",)
    actor: DiscreteActor

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of the actor."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        return self.update_actor(h, batch)

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return the mean of -log pi(a|o) over the recorded actions; no statistics."""
        return -batch.mean(of_actions(self.actor.log_probs(h.pi), batch.actions)), {}
