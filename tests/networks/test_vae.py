"""The model of recorded actions."""

import torch

from offpcc.networks import VariationalAutoencoder


def test_several_latents_of_a_step_are_each_decoded_at_its_summary():
    torch.manual_seed(0)
    vae = VariationalAutoencoder(4, 2, (6,), 20).double()
    summary, latent = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(3, 5, 7, 4, dtype=torch.float64)
    actions = vae.decode(summary, latent)
    assert actions.shape == (3, 5, 7, 2) and actions.abs().max() < 1.0
    for i in range(7):
        torch.testing.assert_close(actions[:, :, i], vae.decode(summary, latent[:, :, i]))
    assert [x.shape for x in vae.encode(summary, actions[:, :, 0])] == [(3, 5, 4), (3, 5, 4)]
    assert vae.latents.shape == (20, 4) and vae.latents.abs().max() <= 0.5
