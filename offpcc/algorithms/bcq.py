"""Batch-Constrained deep Q-learning, Fujimoto et al. 2018 (arXiv:1812.02900), for continuous actions.

A variational autoencoder (VAE) imitates the recorded actions. The policy draws several samples from it, perturbs each a
little, and takes the one with the highest Q.

Differs from the paper, all as in the authors' code:

- Latent numbers of samples are clipped to +/- 0.5, and the VAE's log standard deviation to [-4, 15].
- The KL term has weight 1/2 and is a mean over latent numbers.
- Acting takes the best of 100 samples.

Differs from the authors' code:

- The deterministic policy uses latent numbers that were drawn once, at construction, so that tests are reproducible.
- With more than two critics, the soft minimum combines the least and the greatest Q.
- The VAE reads the actor's summary and does not train it.
- By default, observations of a dataset are normalised: raw ones of different scales saturate the tanh of the VAE's
  decoder, and wrong actions then have no gradient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offpcc.algorithms.base import ActorCritic
from offpcc.config.registry import configurable
from offpcc.config.validation import Fraction, NonnegativeNumber, Size, Sizes
from offpcc.core import Batch, Stats, Summaries
from offpcc.networks import DeterministicActor
from offpcc.networks.layers import concat_inputs, mlp

LOG_STD_MIN, LOG_STD_MAX = -4.0, 15.0
LARGEST_LATENT = 0.5  # samples are clipped to [-0.5, 0.5]


class VariationalAutoencoder(nn.Module):
    """Variational autoencoder of actions, given a summary.

    It encodes actions as latent vectors and decodes latent vectors to actions. The bounds are those of BCQ's authors
    (arXiv:1812.02900).

    Args:
        summary_dim: H.
        action_dim: A; a latent vector has 2A numbers.
        hidden_dims: hidden widths of the encoder MLP and of the decoder MLP.
        num_latents: number of fixed latent vectors. A deterministic policy decodes these instead of random ones.
    """

    latents: Tensor  # (num_latents, 2A)

    def __init__(self, summary_dim: int, action_dim: int, hidden_dims: Sequence[int], num_latents: int) -> None:
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.encoder = mlp([summary_dim + action_dim, *hidden_dims, 2 * self.latent_dim])
        self.decoder = mlp([summary_dim + self.latent_dim, *hidden_dims, action_dim])
        self.register_buffer("latents", self.clip(torch.randn(num_latents, self.latent_dim)))

    def encode(self, summary: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation of the latent vector (..., 2A), from (..., H) and (..., A)."""
        mean, log_std = self.encoder(concat_inputs(summary, action)).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def decode(self, summary: Tensor, latent: Tensor) -> Tensor:
        """Return actions (..., [S,] A) for `summary` (..., H) and `latent` (..., [S,] 2A)."""
        return torch.tanh(self.decoder(concat_inputs(summary, latent)))

    @staticmethod
    def clip(latent: Tensor) -> Tensor:
        """Clip random latent vectors to the middle of the latent space, where recorded actions lie."""
        return latent.clamp(-LARGEST_LATENT, LARGEST_LATENT)


@configurable
class BCQ(ActorCritic):
    """BCQ, Fujimoto et al. 2018 (arXiv:1812.02900); the actor is the perturbation network.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        phi: largest perturbation, for actions in [-1, 1].
        lmbda: lambda: weight of the lowest critic in targets; the highest critic has weight 1 - lambda.
        num_samples: number of sampled next actions; a target takes the best.
        num_acting_samples: number of sampled actions in acting; the policy takes the best.
        vae_hidden_dims: widths of the VAE's two MLPs.
        kwargs: see `ActorCritic`.
    """

    has_target_actor = acts_by_critics = True
    counterpart = "dbcq"
    default_actor_q = "first"
    is_offline = normalizes_recorded = True
    stat_names = ("critic_loss", "actor_loss", "vae_loss", "q")

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        phi: NonnegativeNumber = 0.05,
        lmbda: Fraction = 0.75,
        num_samples: Size = 10,
        num_acting_samples: Size = 100,
        vae_hidden_dims: Sizes = (750, 750),
        **kwargs: Any,
    ) -> None:
        self.vae_hidden_dims, self.num_acting_samples = vae_hidden_dims, num_acting_samples  # `build_heads` reads them
        super().__init__(observation_space, action_space, **kwargs)
        self.phi, self.lmbda, self.num_samples = phi, lmbda, num_samples
        self.vae_optimizer = self.optimizer([(self.vae.parameters(), self.lr)])

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        reasons = {"lmbda": "targets ask a single critic"} if self.asks_one_critic else {}
        return super().unused_parameters() | reasons

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> DeterministicActor:
        """Return the perturbation network, which also reads an action."""
        return DeterministicActor(summary_dim + self.action_dim, self.action_dim, hidden_dims)

    def build_heads(self, summary_dim: int, hidden_dims: Any) -> None:
        """Build the VAE."""
        self.vae = VariationalAutoencoder(summary_dim, self.action_dim, self.vae_hidden_dims, self.num_acting_samples)

    def networks(self) -> tuple[nn.Module, ...]:
        """See `ActorCritic`."""
        return *super().networks(), self.vae

    def acting_encoders(self) -> tuple[nn.Module, ...]:
        """Return the actor's encoder and the first critic's encoder. The first critic selects the action."""
        return self.actor_encoder, self.critic_encoders[0]

    def actor_parts(self) -> dict[str, nn.Module]:
        """See `ActorCritic`."""
        choosing = {"vae": self.vae, "critic_encoders": self.critic_encoders, "critics": self.critics}
        return super().actor_parts() | choosing

    def choose_action(self, summary: Tensor, deterministic: bool) -> Tensor:
        """Return the perturbed sample of the VAE that has the highest Q_1."""
        pi, q_1 = summary.chunk(2, -1)
        latent = self.vae.latents.expand(*pi.shape[:-1], *self.vae.latents.shape)
        actions = self.perturbed(self.actor, pi, self.vae.decode(pi, latent if deterministic else self.latent(latent)))
        q = self.critics.forward_frozen(q_1.unsqueeze(0), actions, 1)[0]  # (N, 1, S, 1)
        best = q.argmax(-2, keepdim=True).expand(*pi.shape[:-1], 1, self.action_dim)
        return actions.gather(-2, best).squeeze(-2)

    def perturbed(self, actor: nn.Module, summary: Tensor, action: Tensor) -> Tensor:
        """Return `action` (..., [S,] A), moved by at most phi in each dimension and clipped to [-1, 1]."""
        moved: Tensor = action + self.phi * actor(concat_inputs(summary, action))
        return moved.clamp(-1.0, 1.0)

    def latent(self, like: Tensor) -> Tensor:
        """Return clipped normal latent numbers of `like`'s shape."""
        return self.vae.clip(self.noise.normal(like))

    def squashed(self, h: Summaries) -> Tensor:
        """Return the VAE's actions for latent numbers of 0."""
        now = h.v[:, :-1]
        return self.vae.decode(now, now.new_zeros(*now.shape[:-1], self.vae.latent_dim))

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of VAE, critics, perturbation and targets."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        vae_loss = self.vae_loss(h, batch)
        self.vae_optimizer.minimize(vae_loss)
        stats = self.update_critics(h, batch)
        actor_stats = self.update_actor(h, batch)
        self.update_targets()
        return {**stats, **actor_stats, "vae_loss": vae_loss.detach()}

    def vae_loss(self, h: Summaries, batch: Batch) -> Tensor:
        """Return mean (D(o, z) - a)^2 + KL(N(mu, sigma) || N(0, 1)) / 2, where z = mu + sigma noise."""
        mean, log_std = self.vae.encode(h.v[:, :-1], batch.actions)
        z = mean + log_std.exp() * self.noise.normal(mean)
        divergence = -0.5 * (1.0 + 2.0 * log_std - mean.square() - (2.0 * log_std).exp())
        error = self.vae.decode(h.v[:, :-1], z) - batch.actions
        return batch.mean(error.square()) + 0.5 * batch.mean(divergence)

    def critic_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return mean (Q(o, a) - y)^2, and statistics; see `td_loss`.

        y = r + gamma (1 - d) max (lambda min Q' + (1 - lambda) max Q'), where the outer max is over sampled actions.
        """
        with torch.no_grad():
            after = h.v[:, 1:]
            like = after.new_empty(*after.shape[:-1], self.num_samples, self.vae.latent_dim)
            actions = self.perturbed(self.target_actor, h.next_pi, self.vae.decode(after, self.latent(like)))
            next_q = self.target_values(h.target_q[:, :, 1:], actions)  # (N, B, T, S, 1)
            soft = self.lmbda * next_q.amin(0) + (1.0 - self.lmbda) * next_q.amax(0)
            y = self.td_target(batch, soft.amax(-2))
        return self.td_loss(batch, self.critics(h.q, batch.actions), y)

    def actor_loss(self, h: Summaries, batch: Batch) -> tuple[Tensor, Stats]:
        """Return -mean Q_1(o, a + xi(o, a)), where the VAE samples a and xi is the perturbation; no statistics."""
        now = h.v[:, :-1]
        with torch.no_grad():
            action = self.vae.decode(now, self.latent(now.new_empty(*now.shape[:-1], self.vae.latent_dim)))
        return -batch.mean(self.policy_value(h, self.perturbed(self.actor, h.pi, action))), {}
