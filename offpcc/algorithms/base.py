"""`ActorCritic`, the base class of all algorithms. This module has its update; see also `construction` and `acting`."""

import functools
from typing import Any, final

import torch
from torch import Tensor

from offpcc.algorithms.acting import Acting
from offpcc.algorithms.construction import Construction
from offpcc.algorithms.nonfinite import SkippedUpdate
from offpcc.algorithms.optim import loss_and_stats
from offpcc.config.registry import configurable
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks import Inputs
from offpcc.networks.sequences import encode


@configurable
class ActorCritic(Acting, Construction):
    """Base class of all algorithms. Arguments: see `Construction`.

    Every network reads a summary of the history. Two encoders compute it: first the `shared_encoder` of all networks,
    then the network's own `encoder`. The critics' loss trains the shared encoder; without critics, the actor's does.
    Memoryless, convolutional, recurrent and sharing agents differ only in these encoders.
    """

    __init__ = Construction.__init__  # sets all attributes; `configurable` registers its arguments as ActorCritic's

    @final
    def update_networks(self, batch: Batch) -> Stats:
        """Make one update by `inner_update`, with the options of `execution`; return statistics or raise at NaN."""
        guard = self.nonfinite_guard
        with guard.update(self, batch):
            try:
                if self._fused is not None and batch.weights is None and self._fused.fits(self):
                    return guard.finish(self._fused(self, batch))
                with self.execution.autocast(self.device):
                    return guard.finish(self._graphed(self, batch) if self._graphed else self.inner_update(batch))
            except SkippedUpdate:
                return guard.stats_of_skipped(self, batch)

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of each optimizer, and return statistics; each algorithm implements it."""
        raise NotImplementedError

    def prepare(self, batch: Batch, learns: bool = True) -> Batch:
        """Return the batch with zeros in padding, and observations augmented (images) and normalised (vectors)."""
        self.set_modes(learns)
        batch = self.unpack(self.fold(batch.to(self.device)).without_padding())
        observations = batch.observations
        self.nonfinite_guard.check_batch(*[getattr(batch, name) for name in self.checked_fields if learns])
        if learns:  # otherwise, no statistics may change
            if self.augmentation is not None:
                observations = self.augment(observations)
            if self.normalization is not None:
                self.normalization.update(batch.observations[:, :-1].flatten(0, 1), batch.loss_mask.flatten())
        batch = self.normalize_states(batch, learns)
        if self.normalization is not None:
            valid = batch.valid.view(*batch.valid.shape[:2], *(1,) * len(self.observation_shape))
            observations = torch.where(valid > 0, self.normalization(observations), 0.0)
        return batch._replace(observations=observations)

    def summarize(self, batch: Batch) -> Summaries:
        """Encode the batch once for all networks. The rest of an update is feed-forward."""
        inputs = Inputs.of(batch)
        if self.encoders_are_empty:  # all networks have the same summary
            h: Tensor = self.actor_encoder(inputs._replace(observation=self.shared_encoder(inputs)[0]))[0]
            v = self.with_states(h, batch)
            q = v.unsqueeze(0) if self.has_critics else v.new_empty(0, *v.shape)
            return Summaries(pi=h[:, :-1], next_pi=h[:, 1:], q=q[:, :, :-1], target_q=q, v=v)
        read = functools.partial(encode, inputs=inputs, batch=batch, skip=self.skipped(False))
        shared, is_own = read(self.shared_encoder), self.has_critics and not self.acts_by_values
        pi = read(self.actor_encoder, features=shared.detach() if is_own else shared)
        if not self.has_critics:
            none = pi.new_empty(0, *pi.shape)
            return Summaries(pi=pi[:, :-1], next_pi=pi[:, 1:].detach(), q=none[:, :, :-1], target_q=none, v=pi.detach())
        v = self.with_states(pi.detach(), batch)
        if self.critic_encoders and not self.acts_by_values:
            q = torch.stack([self.with_states(read(part, features=shared), batch) for part in self.critic_encoders])
        else:  # the summary that the Q network acts by, or the states alone
            q = (pi if self.acts_by_values else v).unsqueeze(0)
        with torch.no_grad():
            of_target = functools.partial(encode, inputs=inputs, batch=batch, skip=self.skipped(True))
            target_shared, target_q = of_target(self.target_shared_encoder), q
            if self.critic_encoders:
                own = (of_target(encoder, features=target_shared) for encoder in self.target_critic_encoders)
                target_q = torch.stack([self.with_states(part, batch) for part in own])
            next_pi = of_target(self.target_actor_encoder, features=target_shared) if self.has_target_actor else pi
        return Summaries(pi=pi[:, :-1], next_pi=next_pi[:, 1:].detach(), q=q[:, :, :-1], target_q=target_q, v=v)

    def td_target(self, batch: Batch, next_value: Tensor) -> Tensor:
        """Return targets (B, T, 1) from the value (B, T, 1) of each next observation.

        y_t = r_t + gamma (1 - d_t) V(o_{t+1}), with scaled and shifted rewards; with n steps, y_t sums up to n of them.
        """
        if batch.discounts is not None:  # see `Batch.folded`
            return batch.rewards + batch.discounts * next_value
        rewards = self.reward_scale * batch.rewards + self.reward_shift
        continues = self.gamma * (1.0 - batch.terminations)
        y = one_step = rewards + continues * next_value
        for _ in range(self.n_step - 1):
            longer = rewards[:, :-1] + continues[:, :-1] * y[:, 1:]
            y = torch.cat([torch.where(batch.has_step()[:, 1:], longer, one_step[:, :-1]), one_step[:, -1:]], 1)
        return y

    def update_critics(self, h: Summaries, batch: Batch) -> Stats:
        """Make one step of the critics by the algorithm's `critic_loss`, and return its statistics."""
        loss, stats = loss_and_stats(self, "critic_loss", self.critic_loss(h, batch))
        self.critic_optimizer.minimize(loss)
        return {"critic_loss": loss.detach(), **stats}

    def update_actor(self, h: Summaries, batch: Batch, num_updates: int | None = None, **given: Any) -> Stats:
        """Make one step of the actor by `actor_loss`, which takes `given`, too; for the rest see `update_critics`."""
        loss, stats = loss_and_stats(self, "actor_loss", self.actor_loss(h, batch, **given))
        self.actor_optimizer.minimize(loss, num_updates)
        return {"actor_loss": loss.detach(), **stats}

    def td_loss(self, batch: Batch, q: Tensor, y: Tensor, penalty: Any = torch.square) -> tuple[Tensor, Stats]:
        """Return mean w penalty(Q - y), summed over critics, for `q` (N, B, T, 1) and `y` (B, T, 1); and mean Q.

        If there are importance weights w, the statistics contain "td_error" (B, T, 1): |Q - y|, averaged over critics.
        """
        error = q - y
        stats = {"q": batch.mean(q.detach()).mean()}
        if batch.weights is not None:
            stats["td_error"] = torch.where(batch.loss_mask > 0, error.detach().abs().mean(0), 0.0)
        return batch.weighted_mean(penalty(error)).sum(), stats

    def update_targets(self) -> None:
        """Update all target networks by Polyak averaging, if this is one of the updates that do."""
        if self.critic_optimizer.num_updates % self.target_update_interval == 0:
            self._targets.update(self.nonfinite_guard.found_inf)
