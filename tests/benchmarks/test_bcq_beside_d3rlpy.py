"""BCQ's imitation loss is d3rlpy's on equal weights, but for the tanh of the decoder, which d3rlpy's leaves out."""

import pytest
import torch
from torch.nn import functional

from benchmarks.cases import Sizes
from benchmarks.libraries import load, offpcc_agents
from benchmarks.recorded import transitions
from offpcc.networks.layers import concat_inputs

SIZES = Sizes(hidden_dims=(64, 64), batch_size=256, num_samples=10)


@pytest.mark.slow
def test_the_imitation_loss(monkeypatch):
    pytest.importorskip("d3rlpy")
    from d3rlpy.models.torch.imitators import compute_vae_error

    torch.manual_seed(0)
    module, _ = load("d3rlpy")
    agent = module.CONFIGS["bcq"](SIZES).create(device=False)
    agent.build_with_dataset(module.dataset(transitions(4_000)))
    theirs, ours = agent.impl.modules, offpcc_agents.algorithm("bcq", SIZES, normalize_observations=False).vae
    *hidden, mean, mean_bias, log_std, log_std_bias = theirs.vae_encoder.parameters()
    encoder = [*hidden, torch.cat([mean, log_std]), torch.cat([mean_bias, log_std_bias])]
    with torch.no_grad():
        theirs.vae_decoder._fc.weight.mul_(50.0)  # outputs far from 0, as after training on raw observations
        for mine, weights in ((ours.encoder, encoder), (ours.decoder, theirs.vae_decoder.parameters())):
            for one, other in zip(mine.parameters(), weights, strict=True):
                one.copy_(other)
    data = transitions(SIZES.batch_size)
    seen, acted = (torch.from_numpy(x[: SIZES.batch_size]) for x in (data.observations, data.actions))
    monkeypatch.setattr(torch.distributions.Normal, "rsample", lambda self: self.mean + 0.3 * self.stddev)
    wanted = compute_vae_error(theirs.vae_encoder, theirs.vae_decoder, seen, acted, 0.5)
    center, log = ours.encode(seen, acted)
    latent = center + 0.3 * log.exp()
    divergence = -0.5 * (1.0 + 2.0 * log - center.square() - (2.0 * log).exp()).mean()
    linear = functional.mse_loss(ours.decoder(concat_inputs(seen, latent)), acted) + 0.5 * divergence
    torch.testing.assert_close(linear, wanted)
    squashed = functional.mse_loss(ours.decode(seen, latent), acted) + 0.5 * divergence
    assert squashed < 0.9 * wanted
