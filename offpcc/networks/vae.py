"""The variational autoencoder of actions in BCQ."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

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
