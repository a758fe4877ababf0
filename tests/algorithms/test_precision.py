"""Learning with products in bfloat16: near what float32 gives, and kept in float32."""

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offpcc.algorithms import ALGORITHMS
from offpcc.core import Batch, Step
from offpcc.networks import Inputs, InputShape, Recurrent
from offpcc.networks.cells import GPT, LRU, MinGRU, lru

SPACES = spaces.Box(-np.inf, np.inf, (5,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)
NAMES = ["sac", "td3", "td3_bc", "iql", "bc", "cql", "bcq", "awac", "edac", "fql", "tqc"]
NAMES += ["rsac", "rsac_s", "rtd3", "riql"]


def built(name, precision):
    memory = functools.partial(Recurrent, hidden_dim=32, num_layers=1)
    where = {"shared_encoder": memory} if name.endswith("_s") else {"encoder": memory} if name[0] == "r" else {}
    return ALGORITHMS[name](*SPACES, precision=precision, lr=1e-3, hidden_dims=(32, 32), **where)


def batch(name, seed):
    draw = torch.Generator().manual_seed(seed)
    rows, steps = (16, 6) if name[0] == "r" else (64, 1)
    observations = torch.randn(rows, steps + 1, 5, generator=draw)
    actions = torch.randn(rows, steps, 2, generator=draw).clamp(-0.9, 0.9)
    ones = torch.ones(rows, steps + 1, 1)
    rewards = observations[:, 1:, :1] + actions[..., :1]
    nothing = torch.zeros(rows, 2), torch.zeros(rows, 1)
    return Batch(observations, actions, rewards, 0.0 * rewards, ones, ones[:, 1:], *nothing)


def gradients(agent):
    return torch.cat([p.grad.flatten() for part in agent.networks() for p in part.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_losses_are_near_those_of_float32(name):
    agents = [built(name, precision) for precision in ("float32", "bfloat16")]
    stats = [agent.update_networks(batch(name, 0)) for agent in agents]
    full, less = (gradients(agent) for agent in agents)
    error = ((less - full).norm() / full.norm()).item()
    assert 1e-4 < error < 0.05  # 8 bits tell numbers apart by 0.4 %; were it float32 after all, there would be none
    assert stats[0].keys() == stats[1].keys()
    for key, value in stats[1].items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, stats[0][key], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_moments_stay_in_float32(name):
    agent = built(name, "bfloat16")
    for number in range(3):
        agent.update_networks(batch(name, number))
    for part in agent.networks():
        assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in part.parameters())
    for group in agent.actor_optimizer.groups:
        assert all(x.dtype == torch.float32 for x in (*group.means, *group.squares))


@pytest.mark.parametrize("name", [name for name in NAMES if ALGORITHMS[name].has_critics])
def test_last_layers_are_of_float32(name):
    """A quantile of 8 bits is wrong by up to 4 at a return of 1,000."""
    agent, data = built(name, "bfloat16"), batch(name, 0)
    prepared = agent.prepare(data)
    with torch.no_grad(), agent.execution.autocast(agent.device):
        h = agent.summarize(prepared)
        found = [agent.critics(h.q, prepared.actions), agent.critics.forward_frozen(h.q, prepared.actions)]
        found += [agent.critics.quantiles(h.q, prepared.actions)] if hasattr(agent.critics, "quantiles") else []
    for values in found:
        assert values.dtype == torch.float32
        assert not torch.equal(values, values.bfloat16().float())


def test_acting_is_of_float32():
    agents = [built("rsac", precision) for precision in ("float32", "bfloat16")]
    step = Step(np.ones((1, 5), np.float32), np.zeros((1, 2)), np.zeros((1, 1)), [True])
    actions = [agent.act(step, deterministic=True)[0] for agent in agents]
    np.testing.assert_array_equal(*actions)


def test_an_update_sees_the_weights_of_its_own_steps():
    """What autocast keeps would show the actor the critics from before their step."""
    agent = built("sac", "bfloat16")
    seen = []
    values = agent.critics._values
    agent.critics._values = lambda *arguments: (seen.append(values(*arguments)), seen[-1])[1]
    for group in agent.critic_optimizer.groups:
        group.rate = 0.5  # a step that nobody can overlook
    data = batch("sac", 0)
    agent.update_networks(data)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False), torch.no_grad():
        summary = data.observations[None, :, :1]
        now = values(summary, data.actions, list(agent.critics.net.parameters()))
    before, forward_frozen = seen[0], seen[1]
    assert (forward_frozen.mean() - now.mean()).abs() < 0.5 * (before.mean() - now.mean()).abs()


@pytest.mark.parametrize("name", ["rsac", "rsac_s", "rbcq"])
def test_noise_is_drawn_in_float32(name, monkeypatch):
    """Or its numbers were coarse, and others than those of float32."""
    agent, drawn = built(name, "bfloat16"), []
    normal = agent.noise.normal
    monkeypatch.setattr(agent.noise, "normal", lambda like: (drawn.append(like.dtype), normal(like))[1])
    agent.update_networks(batch(name, 0))
    assert set(drawn) == {torch.float32}


def forgetful(cell):
    """Two of each memory in one: as it is, and with gates that keep for a thousand steps and more."""
    torch.manual_seed(0)
    built = {"mingru": functools.partial(MinGRU, horizon=1_000), "lru": functools.partial(LRU, r_max=0.9999)}
    encoder = Recurrent(InputShape((5,), 2), cell=built.get(cell, cell), hidden_dim=32, num_layers=1)
    if cell == "gru":
        with torch.no_grad():
            encoder.cell.bias_ih_l0[32:64] += 6.0  # z, of what is kept
    return encoder


@pytest.mark.parametrize("cell", ["mingru", "lru", "gru"])
def test_a_long_memory_does_not_lose_what_it_keeps(cell):
    """A cue at the first step, then nothing: what it left would be lost by the rounding of gates alone."""
    encoder = forgetful(cell)
    observations = torch.zeros(2, 500, 5)
    observations[:, 0] = torch.randn(2, 5)
    inputs = Inputs(observations, torch.zeros(2, 500, 2), torch.zeros(2, 500, 1))
    with torch.no_grad():
        expected = encoder(inputs)[0]
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            found = encoder(inputs)[0]
    error = (found - expected)[:, -50:].norm() / expected[:, -50:].norm()
    assert error < 0.02


def test_gru_learns_in_float32_where_products_are_of_bfloat16():
    encoder = Recurrent(InputShape((5,), 2), cell="gru", hidden_dim=8, num_layers=2)
    inputs = Inputs(torch.randn(3, 20, 5), torch.zeros(3, 20, 2), torch.zeros(3, 20, 1))
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            encoder.zero_grad()
            encoder(inputs)[0].square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in encoder.parameters()]))
    torch.testing.assert_close(*found, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("burn_in", [8, 257])
def test_a_transformer_on_convolutions_counts_beyond_256_steps(burn_in):
    """What convolutions give is of 8 bits; a count of 8 bits would turn queries by other steps than their keys."""
    torch.manual_seed(0)
    cell = GPT(6, 16, 1, context_length=300)
    with torch.no_grad():
        cell.blocks[0].project.weight *= 4.0
    features = torch.randn(2, 300, 6).bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        at_once = cell(features)[0]
        _, state = cell(features[:, :burn_in])
        after = cell(features[:, burn_in:], state)[0]
    error = (after - at_once[:, burn_in:]).norm() / at_once[:, burn_in:].norm()
    assert error < 0.03


def test_linear_recurrent_units_take_products_of_bfloat16(monkeypatch):
    """As those on a GPU are; of such there are no complex numbers."""
    cell = LRU(5, 8, 2)
    x = torch.randn(2, 30, 5)
    expected = cell(x)[0]
    linear = lru.linear
    monkeypatch.setattr(lru, "linear", lambda *arguments: linear(*arguments).bfloat16())
    torch.testing.assert_close(cell(x)[0], expected, rtol=0.05, atol=0.05)


def test_what_a_last_layer_learns_is_of_float32():
    agent = built("sac", "bfloat16")
    agent.update_networks(batch("sac", 0))
    gradient = agent.actor.net[-1].weight.grad
    assert not torch.equal(gradient, gradient.bfloat16().float())
