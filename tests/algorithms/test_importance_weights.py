"""Importance weights of a batch: the critics' losses against a loop over steps, and the errors for priorities."""

import numpy as np
import pytest
import torch
from references import build, data
from test_losses import drawn
from test_losses import reference as online_reference
from test_offline_losses import COMMON, REFERENCES, Draws

from offpcc.algorithms import ALGORITHMS, BC, BCQ, CQL, QRDQN, SAC, TD3, TQC
from offpcc.algorithms.variants import TABLE
from offpcc.training.metrics import AverageStats

# Name of --algo, and the encoders that `references` has for it.
AGENTS = {
    "ddpg": "memoryless",
    "td3": "memoryless",
    "sac": "memoryless",
    "rsac": "recurrent",
    "rsac_s": "shared",
    "rcql": "burn-in",
    "cql": "memoryless",
    "iql": "memoryless",
    "bcq": "memoryless",
    "td3_bc": "memoryless",
    "awac": "memoryless",
    "edac": "memoryless",
    "rebrac": "memoryless",
    "fql": "memoryless",
    "tqc": "memoryless",
}
every_agent = pytest.mark.parametrize("name", AGENTS)


def agent_of(name, **options):
    cls = ALGORITHMS[name].__mro__[1] if TABLE[name].memory else ALGORITHMS[name]
    few = {CQL: {"num_samples": 3}} | COMMON
    return build(cls, AGENTS[name], **{"num_critics": 3, **few.get(cls, {}), **options})


def weighted(batch, seed=0):
    weights = torch.rand(len(batch.actions), 1, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return batch._replace(weights=weights + 0.5)


def in_float32(batch):
    return type(batch)(*(x.float() if isinstance(x, torch.Tensor) else x for x in batch))


def update_in_float32(agent, batch):
    for part in vars(agent).values():
        if isinstance(part, torch.nn.Module):
            part.float()
    return agent.update_networks(in_float32(batch))


@every_agent
def test_weights_multiply_the_squared_errors_of_their_row(name):
    """Q and y are read from a loss of which each other row weighs nothing."""
    agent = agent_of(name, seed=1)
    _, batch = data(AGENTS[name], 1)
    batch = weighted(agent.prepare(batch))
    h = agent.summarize(batch)
    state = agent.noise.generator.get_state()

    def loss(weights):
        agent.noise.generator.set_state(state)
        value, stats = agent.critic_loss(h, batch._replace(weights=weights))
        return value.detach().numpy(), stats

    ones, zeros = torch.ones_like(batch.weights), torch.zeros_like(batch.weights)
    rest, _ = loss(zeros)
    assert (rest != 0.0) == (name in ("cql", "rcql", "edac")), "the gap and the similarity have no weights"
    rows = [loss(zeros.index_fill(0, torch.tensor([i]), 1.0))[0] - rest for i in range(len(ones))]
    expected = sum(weight * row for weight, row in zip(batch.weights.flatten().numpy(), rows, strict=True))
    np.testing.assert_allclose(loss(batch.weights)[0] - rest, expected, rtol=1e-9)
    np.testing.assert_allclose(loss(ones)[0], loss(None)[0], rtol=1e-12)
    assert loss(None)[1].keys() == loss(ones)[1].keys() - {"td_error"}
    assert min(rows) > 0.0
    td_error, mask = loss(batch.weights)[1]["td_error"], batch.loss_mask
    assert td_error.shape == mask.shape and not td_error.requires_grad and (td_error[mask == 0] == 0).all()
    assert torch.isfinite(td_error).all() and (td_error[mask > 0] > 0).all()


@pytest.mark.parametrize("num_critics", [1, 3])
@pytest.mark.parametrize("name", ["td3", "sac", "rsac", "rcql", "cql", "iql", "bcq"])
def test_the_weighted_loss_and_the_errors_are_the_papers(name, num_critics):
    """References in float64, one step at a time; of CQL the part of Bellman."""
    agent = agent_of(name, num_critics=num_critics, **({"conservative_weight": 0.0} if "cql" in name else {}))
    cls = next(c for c in type(agent).__mro__ if c in REFERENCES or c is SAC or c is TD3)
    rows, batch = data(AGENTS[name], 1)
    batch = weighted(batch)
    draws, (noises, members) = Draws(agent, batch), drawn(agent, batch)
    num_steps = sum(len(row.counted) for row in rows)
    expected, squares = 0.0, []
    for i in range(len(rows)):  # the mean over all counted steps, from those of single rows
        only = [row._replace(counted=row.counted if k == i else range(0)) for k, row in enumerate(rows)]
        draws.generator.set_state(agent.noise.generator.get_state())
        if cls in REFERENCES:
            loss = REFERENCES[cls](agent, only, draws)["critic"].item()
        else:
            loss = online_reference(agent, only, list(noises), members)[0].item()
        squares.append(loss * len(rows[i].counted))
        expected += batch.weights[i].item() * squares[i] / num_steps
    given = agent.prepare(batch)
    h = agent.summarize(given)
    if cls is BCQ:
        agent.vae_loss(h, given)  # draws first
    loss, stats = agent.critic_loss(h, given)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-9)
    if num_critics == 1:
        np.testing.assert_allclose(stats["td_error"].square().sum((1, 2)), squares, rtol=1e-9)


@pytest.mark.parametrize("cls", [SAC, TQC, QRDQN])
def test_errors_are_those_of_means_over_quantiles_averaged_over_critics(cls, monkeypatch):
    agent = build(cls, "recurrent", **{SAC: {"num_critics": 3}, TQC: {"num_critics": 3}}.get(cls, {}))
    batch = weighted(agent.prepare(data("recurrent", 1, discrete=cls is QRDQN)[1]))
    draw, steps = torch.Generator().manual_seed(0), batch.rewards.shape[:2]
    num = 1 if cls is SAC else agent.num_quantiles
    q, y = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((3, *steps, num), (*steps, num)))

    def loss(weights):
        given = batch._replace(weights=weights)
        if cls is QRDQN:
            return agent.quantile_loss(q[0].unsqueeze(-2).expand(-1, -1, agent.action_dim, -1), None, given)
        return agent.td_loss(given, q, y) if cls is SAC else agent.quantile_loss(given, q, y)

    monkeypatch.setattr(agent, "target", lambda h, batch: y)
    total, stats = loss(batch.weights)
    asked = q[:1] if cls is QRDQN else q
    expected = np.abs(asked.numpy().mean(-1) - y.numpy().mean(-1)).mean(0)[..., None] * batch.loss_mask.numpy()
    np.testing.assert_allclose(stats["td_error"], expected, rtol=1e-9)
    assert (expected == 0.0).any()
    np.testing.assert_allclose(stats["q"], asked.mean(-1)[:, batch.loss_mask[..., 0] > 0].mean(), rtol=1e-9)
    alone = [loss(one.view(-1, 1, 1))[0] for one in torch.eye(len(y), dtype=torch.float64)]
    np.testing.assert_allclose(total, sum(w * one for w, one in zip(batch.weights.flatten(), alone, strict=True)))


@pytest.mark.parametrize("fused", [None, False])
@every_agent
def test_updates_return_the_errors_only_of_weighted_batches(name, fused):
    agent = agent_of(name, **({} if fused is None else {"fused": fused}))
    _, batch = data(AGENTS[name], 1)
    stats = update_in_float32(agent, weighted(batch))
    assert stats["td_error"].shape == batch.loss_mask.shape and torch.isfinite(stats["td_error"]).all()
    assert not stats["td_error"].requires_grad
    assert "td_error" not in update_in_float32(agent, batch)
    averages, stats = AverageStats(), dict(stats)
    stats.pop("td_error")
    averages.add(stats)
    assert all(np.isfinite(value) for value in averages.means().values() if value is not None)


@pytest.mark.parametrize("name", ["sac", "td3", "iql"])
def test_a_fused_agent_updates_weighted_batches_by_its_page(name):
    fused, plain = agent_of(name, fused=None), agent_of(name, fused=False)
    _, batch = data(AGENTS[name], 1)
    ours, theirs = (update_in_float32(agent, weighted(batch)) for agent in (fused, plain))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours), "the same code"


@pytest.mark.parametrize("name", ["sac", "rsac", "cql"])
def test_a_skipped_update_of_a_weighted_batch(name):
    agent = agent_of(name, nonfinite="skip")
    _, batch = data(AGENTS[name], 1)
    batch = weighted(batch)
    assert update_in_float32(agent, batch)["skipped"] == 0
    rewards = batch.rewards.clone()
    rewards[0, -1] = torch.inf
    stats = update_in_float32(agent, batch._replace(rewards=rewards))
    assert stats["skipped"] == 1 and stats["td_error"].shape == batch.loss_mask.shape
    assert stats["td_error"].isnan().all(), "no priority may come from it"


@pytest.mark.parametrize("name", ["sac", "td3", "cql", "iql", "bcq"])
def test_a_critics_loss_may_have_statistics_of_its_own(name):
    agent = agent_of(name, fused=False) if name != "cql" and name != "bcq" else agent_of(name)
    loss = agent.critic_loss
    own = {"gap": torch.zeros(())} if name == "cql" else {}  # which its multiplier needs
    agent.critic_loss = lambda h, given: (loss(h, given)[0], {"mine": torch.ones(()), **own})
    stats = update_in_float32(agent, data("memoryless", 1)[1])
    assert stats["mine"] == 1.0 and "q" not in stats and stats["critic_loss"].isfinite()


def test_an_algorithm_without_critics_has_no_errors():
    agent = build(BC)
    _, batch = data("memoryless", 1)
    assert "td_error" not in update_in_float32(agent, weighted(batch))


def test_a_bad_weight_is_named():
    agent = agent_of("sac")
    _, batch = data("memoryless", 1)
    batch = weighted(batch)
    batch.weights[2] = torch.nan
    with pytest.raises(Exception, match=r"the batch's weights is nan at \[2, 0, 0\]"):
        update_in_float32(agent, batch)
