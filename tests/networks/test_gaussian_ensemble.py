"""Ensembles of Gaussian networks: losses, bounds, and choices of members."""

import math

import pytest
import torch

from offpcc.networks.gaussian_ensemble import MANY_ROWS, GaussianEnsemble


def test_the_loss_is_the_gaussians_negative_log_likelihood():
    torch.manual_seed(0)
    net = GaussianEnsemble(3, 4, 2, (8,)).double()
    x, y = torch.randn(3, 5, 4).double(), torch.randn(3, 5, 2).double()
    predicted = net(x)
    normal = torch.distributions.Normal(predicted.mean, (0.5 * predicted.log_variance).exp())
    likelihood = -2 * normal.log_prob(y) - math.log(2 * math.pi)
    bounds = 0.01 * (net.high.sum() - net.low.sum())
    torch.testing.assert_close(net.loss(predicted, y), likelihood.mean((1, 2)).sum() + bounds)


def test_the_log_variance_stays_within_its_bounds():
    net = GaussianEnsemble(2, 1, 1, (4,))
    with torch.no_grad():
        net.net[-1].bias[..., 1] = torch.tensor([[1e3], [-1e3]])
    log_variance = net(torch.zeros(2, 1, 1)).log_variance
    assert log_variance[0].item() == pytest.approx(0.5, abs=1e-3)
    assert log_variance[1].item() == pytest.approx(-10.0, abs=1e-3)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_members_are_chosen_by_their_weights(layer_norm):
    net = GaussianEnsemble(4, 3, 2, (8, 8), layer_norm=layer_norm, num_logits=1)
    with torch.no_grad():  # as learning would move the bounds
        net.low.copy_(10.0 * torch.arange(4.0).view(4, 1, 1))
        net.high.copy_(net.low + 8.0)
    x = torch.randn(4, 6, 3)
    whole, part = net(x), net(x[[2, 0]], torch.tensor([2, 0]))
    for one, other in zip(whole, part, strict=True):
        torch.testing.assert_close(one[[2, 0]], other)
    assert ((net.low <= whole.log_variance) & (whole.log_variance <= net.high + 1e-3)).all()


def test_many_rows_give_the_predictions_and_gradients_of_few():
    """On a CPU, many rows pass through member by member, and few layer by layer."""
    net, x = GaussianEnsemble(3, 4, 2, (8, 8)).double(), torch.randn(3, 2 * MANY_ROWS, 4, dtype=torch.float64)
    members = torch.tensor([2, 0])
    few = [net(part) for part in x.split(MANY_ROWS // 2, 1)]
    torch.testing.assert_close(net(x)[:2], tuple(torch.cat(parts, 1) for parts in list(zip(*few, strict=True))[:2]))
    torch.testing.assert_close(net(x[members], members).mean, net(x).mean[members])
    target, gradients = torch.randn(3, 2 * MANY_ROWS, 2, dtype=torch.float64), []
    for parts in (1, 4):
        loss = sum(net.loss(net(a), b) for a, b in zip(x.chunk(parts, 1), target.chunk(parts, 1), strict=True)) / parts
        gradients.append(torch.autograd.grad(loss, [*net.parameters()]))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("activation, layer_norm", [("relu", False), ("silu", False), ("relu", True)])
@pytest.mark.parametrize("has_gradients", [False, True])
def test_each_row_is_predicted_by_its_own_member(activation, layer_norm, has_gradients):
    """A member with many rows, one with one row, and two without any; means, log variances and logits."""
    net = GaussianEnsemble(5, 4, 2, (8, 8), activation=activation, layer_norm=layer_norm, num_logits=1).double()
    with torch.no_grad():  # as learning would move the bounds
        net.low.copy_(-torch.arange(5.0).view(5, 1, 1))
    x, members = torch.randn(2 * MANY_ROWS, 4, dtype=torch.float64), torch.tensor([3, 1] * MANY_ROWS)
    members[7] = 0
    with torch.set_grad_enabled(has_gradients):
        found, whole, nothing = net(x, members), net(x.expand(5, -1, -1)), net(x[:0], members[:0])
    for one, every, none in zip(found, whole, nothing, strict=True):
        torch.testing.assert_close(one, every[members, torch.arange(len(x))])
        assert none.shape == (0, *one.shape[1:])
