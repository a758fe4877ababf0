"""Policies against densities written out in float64."""

import math

import numpy as np
import pytest
import torch

from offpcc.networks import DeterministicActor, FlowActor, GaussianActor, SquashedGaussianActor
from offpcc.networks.actors import LOG_STD_MAX, LOG_STD_MIN, squash

POINTS = np.concatenate([np.linspace(-20, 20, 161), [-1e-3, 1e-3, -1e-6, 1e-6, 0.0]])


def log_density(u, mean, log_std):
    """log of the density of tanh(u): that of u over dtanh/du = 1 / cosh(u)^2, in float64."""
    z = (u - mean) / np.exp(log_std)
    log_cosh = np.abs(u) + np.log1p(np.exp(-2.0 * np.abs(u))) - np.log(2.0)
    return -0.5 * z**2 - log_std - 0.5 * np.log(2.0 * np.pi) + 2.0 * log_cosh


def integral(y, x):
    """By the trapezoidal rule."""
    return (0.5 * (y[1:] + y[:-1]) * np.diff(x)).sum()


@pytest.mark.parametrize("mean", [0.0, -1.5, 4.0])
@pytest.mark.parametrize("log_std", [-2.0, 0.0, 1.3])
@pytest.mark.parametrize("dtype, rtol, atol", [(torch.float64, 1e-9, 1e-8), (torch.float32, 2e-5, 2e-5)])
def test_log_probability_by_change_of_variables(mean, log_std, dtype, rtol, atol):
    noise = ((POINTS - mean) / np.exp(log_std)).astype(np.float64)
    tensors = [torch.tensor(x, dtype=dtype)[:, None] for x in (np.full_like(noise, mean), np.full_like(noise, log_std))]
    tensors = [x.requires_grad_() for x in tensors]
    action, log_prob = squash(*tensors, torch.tensor(noise, dtype=dtype)[:, None])
    np.testing.assert_allclose(action.detach()[:, 0], np.tanh(POINTS), rtol=2e-5, atol=1e-6)
    expected = log_density(POINTS, mean, log_std)
    np.testing.assert_allclose(log_prob.detach()[:, 0], expected, rtol=rtol, atol=atol)
    log_prob.sum().backward()
    # d/du of -log(1 - tanh(u)^2) is 2 tanh(u); u moves by 1 with the mean and by std * noise with log std
    slope = 2.0 * np.tanh(POINTS)
    np.testing.assert_allclose(tensors[0].grad[:, 0], slope, rtol=1e-4, atol=1e-5)
    expected = -1.0 + slope * np.exp(log_std) * noise
    np.testing.assert_allclose(tensors[1].grad[:, 0], expected, rtol=1e-4, atol=1e-4)


def test_log_probabilities_of_dimensions_add_up():
    random = np.random.default_rng(0)
    mean, log_std, noise = random.normal(size=(3, 2, 5, 3))
    _, log_prob = squash(*(torch.from_numpy(x) for x in (mean, log_std, noise)))
    u = mean + np.exp(log_std) * noise
    assert log_prob.shape == (2, 5, 1)
    np.testing.assert_allclose(log_prob[..., 0], log_density(u, mean, log_std).sum(-1), rtol=1e-9)


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (0.8, -1.0), (-1.0, 0.5), (2.0, -0.5)])
def test_density_integrates_to_one_and_has_the_samples_mean(mean, log_std):
    action = np.tanh(np.linspace(-15.0, 15.0, 200_001))
    inside = action[np.abs(action) < 1.0]
    noise = (np.arctanh(inside) - mean) / np.exp(log_std)
    columns = [torch.from_numpy(x)[:, None] for x in (np.full_like(noise, mean), np.full_like(noise, log_std), noise)]
    got, log_prob = squash(*columns)
    density = log_prob[:, 0].exp().numpy()
    np.testing.assert_allclose(got[:, 0], inside, atol=1e-9)
    assert integral(density, inside) == pytest.approx(1.0, abs=1e-4)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    expected = (weights * np.tanh(mean + np.exp(log_std) * nodes)).sum() / weights.sum()
    assert integral(density * inside, inside) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("actor_class", [SquashedGaussianActor, DeterministicActor])
def test_mlp_by_hand(actor_class):
    torch.manual_seed(0)
    actor = actor_class(3, 2, (5, 4)).double()
    summary = np.random.default_rng(1).normal(size=(6, 2, 3))
    x, weights = summary, [p.detach().numpy() for p in actor.parameters()]
    for i in range(0, 6, 2):
        x = x @ weights[i].T + weights[i + 1]
        x = np.maximum(x, 0.0) if i < 4 else x
    tensor = torch.from_numpy(summary)
    if actor_class is DeterministicActor:
        np.testing.assert_allclose(actor(tensor).detach(), np.tanh(x), rtol=1e-12)
        return
    mean, log_std = x[..., :2], x[..., 2:]
    got = actor(tensor)
    np.testing.assert_allclose(got[0].detach(), mean, rtol=1e-10)
    np.testing.assert_allclose(got[1].detach(), log_std, rtol=1e-10)
    np.testing.assert_allclose(actor.choose(tensor, None).detach(), np.tanh(mean), rtol=1e-10)
    noise = np.random.default_rng(2).normal(size=mean.shape)
    action, log_prob = actor.sample(tensor, torch.from_numpy(noise))
    u = mean + np.exp(log_std) * noise
    np.testing.assert_allclose(action.detach(), np.tanh(u), rtol=1e-10)
    np.testing.assert_allclose(log_prob.detach()[..., 0], log_density(u, mean, log_std).sum(-1), rtol=1e-8)
    action, _ = actor.sample(tensor, torch.zeros(6, 2, 2, dtype=torch.float64))
    torch.testing.assert_close(action, actor.choose(tensor, None))


@pytest.mark.parametrize("raw, limit", [(1e4, LOG_STD_MAX), (-1e4, LOG_STD_MIN)])
def test_log_std_is_bounded_and_what_follows_finite(raw, limit):
    actor = SquashedGaussianActor(2, 1, ())
    with torch.no_grad():
        actor.net[0].weight.zero_()
        actor.net[0].bias.copy_(torch.tensor([0.5, raw]))
    summary = torch.zeros(4, 2)
    assert actor(summary)[1].unique().item() == limit
    action, log_prob = actor.sample(summary, torch.tensor([[-5.0], [-1.0], [1.0], [5.0]]))
    (log_prob.sum() + action.sum()).backward()
    assert torch.isfinite(log_prob).all() and all(torch.isfinite(p.grad).all() for p in actor.parameters())
    assert action.abs().max() <= 1.0 and math.isfinite(actor.choose(summary, None).sum().item())


def test_log_probability_of_recorded_actions():
    torch.manual_seed(0)
    actor = SquashedGaussianActor(2, 3, (4,)).double()
    summary, u = torch.randn(5, 2, dtype=torch.float64), np.random.default_rng(0).normal(size=(5, 3))
    mean, log_std = (x.detach().numpy() for x in actor(summary))
    log_prob = actor.log_prob(summary, torch.from_numpy(np.tanh(u)))
    np.testing.assert_allclose(log_prob.detach()[..., 0], log_density(u, mean, log_std).sum(-1), rtol=1e-8)
    border = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64).expand(5, 3)
    moved = np.arctanh((1.0 - 1e-6) * border.numpy())
    expected = log_density(moved, mean, log_std).sum(-1)
    np.testing.assert_allclose(actor.log_prob(summary, border).detach()[..., 0], expected, rtol=1e-8)
    actor.float().log_prob(summary.float(), border.float()).sum().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().max() > 0 for p in actor.parameters())


def test_a_gaussian_that_is_not_squashed_has_one_spread():
    torch.manual_seed(0)
    actor = GaussianActor(2, 3, (4,), (-5.0, 2.0)).double()
    with torch.no_grad():
        actor.log_std.copy_(torch.tensor([-0.5, 0.0, 0.7], dtype=torch.float64))
    summary, noise = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    mean, log_std = actor(summary)
    assert torch.equal(actor.choose(summary, None), mean) and mean.abs().max() < 1.0
    torch.testing.assert_close(actor.choose(summary, noise), (mean + log_std.exp() * noise).clamp(-1.0, 1.0))
    action = np.array([1.0, -1.0, 0.3])
    z = (action - mean.detach().numpy()) / np.exp([-0.5, 0.0, 0.7])
    expected = (-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi)).sum(-1) - 0.2
    np.testing.assert_allclose(actor.log_prob(summary, torch.from_numpy(action)).detach()[:, 0], expected, rtol=1e-9)


def test_the_one_step_policy_of_a_flow_acts_by_its_clipped_output():
    actor, h = FlowActor(3, 2, (16,)), torch.randn(50, 1, 3)
    noise = 20.0 * torch.randn(50, 1, 2)
    free = actor.net(torch.cat([h, noise], -1)).detach().numpy()
    assert 0.1 < (np.abs(free) > 1.0).mean() < 0.9
    np.testing.assert_allclose(actor.choose(h, noise).detach(), free.clip(-1.0, 1.0), atol=1e-6)
    mode = actor.net(torch.cat([h, torch.zeros(50, 1, 2)], -1)).clamp(-1.0, 1.0)
    torch.testing.assert_close(actor.choose(h, None), mode)
    mirror = actor.mirror()
    np.testing.assert_allclose(mirror(h[:, 0].numpy(), noise[:, 0].numpy()), free[:, 0].clip(-1.0, 1.0), atol=1e-5)
    np.testing.assert_allclose(mirror(h[:, 0].numpy(), None), mode[:, 0].detach(), atol=1e-5)


def test_a_log_standard_deviation_has_no_weight_decay():
    parameters = dict(GaussianActor(3, 2, (8,), (-5.0, 2.0)).named_parameters())
    assert [name for name, one in parameters.items() if getattr(one, "no_decay", False)] == ["log_std"]
