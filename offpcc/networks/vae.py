"""The variational autoencoder of actions in BCQ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offpcc.networks.layers import concat_inputs, mlp

LOG_STD_MIN, LOG_STD_MAX = -4.0, 15.0
LARGEST_LATENT = 0.5  # of samples


class VariationalAutoencoder(nn.Module):
    """Actions from latent numbers and a summary, and back, with the bounds of BCQ's authors (arXiv:1812.02900).

    Args:
        summary_dim: H.
        action_dim: A; there are twice as many latent numbers.
        hidden_dims: widths of the encoding and of the decoding MLP.
        num_latents: of which a deterministic policy makes its samples.
    """

    latents: Tensor  # (num_latents, 2A)

    def __init__(self, summary_dim: int, action_dim: int, hidden_dims: Sequence[int], num_latents: int) -> None:
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.encoder = mlp([summary_dim + action_dim, *hidden_dims, 2 * self.latent_dim])
        self.decoder = mlp([summary_dim + self.latent_dim, *hidden_dims, action_dim])
        self.register_buffer("latents", self.clip(torch.randn(num_latents, self.latent_dim)))

    def encode(self, summary: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of the latent numbers, (..., 2A) each, of (..., H) and (..., A)."""
        mean, log_std = self.encoder(concat_inputs(summary, action)).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def decode(self, summary: Tensor, latent: Tensor) -> Tensor:
        """Actions (..., [S,] A) of `summary` (..., H) and `latent` (..., [S,] 2A)."""
        return torch.tanh(self.decoder(concat_inputs(summary, latent)))

    @staticmethod
    def clip(latent: Tensor) -> Tensor:
        """Latent numbers that samples are made of: near the middle, where recorded actions are."""
        return latent.clamp(-LARGEST_LATENT, LARGEST_LATENT)
