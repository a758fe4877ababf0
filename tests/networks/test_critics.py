"""The ensemble against N networks of its weights."""

import numpy as np
import pytest
import torch
from torch import nn

from offpcc.networks import Critics
from offpcc.networks import critics as module
from offpcc.networks.critics import DiscreteCritics
from offpcc.networks.layers import Dropout, EnsembleLayerNorm, EnsembleLinear, mlp


def taken_apart(critics):
    """N separate networks with the ensemble's weights."""
    networks = []
    for n in range(critics.num):
        layers = []
        for layer in critics.net:
            if isinstance(layer, EnsembleLinear):
                single = nn.Linear(*layer.weight.shape[1:])
                weights = layer.weight[n].T, layer.bias[n, 0]
            elif isinstance(layer, EnsembleLayerNorm):
                single = nn.LayerNorm(layer.weight.shape[-1])
                weights = layer.weight[n, 0], layer.bias[n, 0]
            else:
                layers.append(nn.ReLU())
                continue
            single.weight.data, single.bias.data = (w.detach().clone() for w in weights)
            layers.append(single)
        networks.append(nn.Sequential(*layers))
    return networks


def made(num, hidden_dims=(7, 5), layer_norm=False, dtype=torch.float64):
    torch.manual_seed(num)
    critics = Critics(num, 4, 2, hidden_dims, layer_norm).to(dtype)
    for layer in critics.net:  # so that scales and shifts matter
        if isinstance(layer, EnsembleLayerNorm):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return critics


@pytest.mark.parametrize("num", [1, 2, 10])
@pytest.mark.parametrize("own_summaries", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("hidden_dims", [(7, 5), ()])
def test_ensemble_is_n_networks(num, own_summaries, layer_norm, hidden_dims):
    critics = made(num, hidden_dims, layer_norm)
    networks = taken_apart(critics)
    kinds = [type(layer) for layer in critics.net]
    assert kinds.count(EnsembleLinear) == len(hidden_dims) + 1 and kinds[-1] is EnsembleLinear
    assert kinds.count(EnsembleLayerNorm) == len(hidden_dims) * layer_norm
    if layer_norm and hidden_dims:
        assert kinds[:3] == [EnsembleLinear, EnsembleLayerNorm, nn.ReLU]
    summary = torch.randn(num if own_summaries else 1, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    action = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    q = critics(summary, action)
    assert q.shape == (num, 3, 5, 1)
    expected = torch.stack(
        [network(torch.cat([summary[n if own_summaries else 0], action], -1)) for n, network in enumerate(networks)]
    )
    torch.testing.assert_close(q, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(q)
    got = torch.autograd.grad((q * weights).sum(), [summary, action, critics.net[0].weight])
    first = [network[0].weight for network in networks]
    reference = torch.autograd.grad((expected * weights).sum(), [summary, action, *first])
    for a, b in zip(got[:2], reference[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(got[2], torch.stack(reference[2:]).mT, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("own_summaries", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("num_rows", [3, 40_000])  # the second is more than one block of `perceptrons`
def test_gradients_of_actions_are_those_of_n_networks(own_summaries, layer_norm, num_rows):
    critics = made(3, layer_norm=layer_norm)
    summary = torch.randn(3 if own_summaries else 1, num_rows, 1, 4, dtype=torch.float64, requires_grad=True)
    action = torch.randn(num_rows, 1, 2, dtype=torch.float64)
    q, gradients = critics.with_action_gradients(summary, action)
    torch.testing.assert_close(q, critics(summary, action), rtol=1e-12, atol=1e-12)
    for n, network in enumerate(taken_apart(critics)):
        own = action.clone().requires_grad_()
        value = network(torch.cat([summary[n if own_summaries else 0], own], -1)).sum()
        torch.testing.assert_close(gradients[n], torch.autograd.grad(value, own)[0], rtol=1e-11, atol=1e-11)
    assert gradients.requires_grad, "a loss may contain it"


@pytest.mark.parametrize("own_summaries", [False, True])
def test_several_actions_of_a_step_are_each_valued_at_its_summary(own_summaries):
    critics = made(2)
    summary = torch.randn(2 if own_summaries else 1, 3, 5, 4, dtype=torch.float64)
    actions = torch.randn(3, 5, 7, 2, dtype=torch.float64)
    q = critics(summary, actions)
    assert q.shape == (2, 3, 5, 7, 1)
    for i in range(7):
        torch.testing.assert_close(q[..., i, :], critics(summary, actions[:, :, i]))


@pytest.mark.parametrize("num_summaries", [1, 4])
def test_some_members_have_the_values_that_they_have_among_all(num_summaries):
    members, h = torch.tensor([3, 1]), torch.randn(num_summaries, 5, 3, 4, dtype=torch.float64)
    critics, action = made(4), torch.randn(5, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(critics(h, action, members), critics(h, action)[members])
    of_choices = DiscreteCritics(4, 4, 3, (7,), num_quantiles=2).double()
    assert torch.equal(of_choices(h, members), of_choices.quantiles(h).mean(-1)[members])


def test_q_of_a_dueling_network_is_the_value_and_what_an_action_is_above_the_mean():
    critics, h = DiscreteCritics(1, 4, 3, (7,), num_quantiles=2, dueling=True), torch.randn(1, 5, 1, 4)
    advantage, value = critics.nets[0](h[0]).view(5, 1, 3, 2), critics.values[0](h[0]).view(5, 1, 1, 2)
    expected = value + advantage - advantage.sum(2, keepdim=True) / 3
    torch.testing.assert_close(critics.quantiles(h)[0], expected)
    torch.testing.assert_close(critics(h)[0], expected.mean(-1))


def test_dropout_keeps_the_mean_and_only_acts_in_learning():
    layer, x = Dropout(0.25), torch.ones(20_000)
    y = layer(x)
    assert set(y.tolist()) == {0.0, np.float32(1.0 / 0.75)} and (y == 0.0).float().mean() == pytest.approx(
        0.25, abs=0.02
    )
    assert layer.eval()(x) is x


def test_members_begin_apart_and_as_a_linear_layer_would():
    torch.manual_seed(0)
    layer = EnsembleLinear(50, 16, 64)
    bound = 0.25
    for values in (layer.weight, layer.bias):
        assert values.abs().max() <= bound and values.abs().max() > 0.98 * bound
        assert values.std().item() == pytest.approx(bound / np.sqrt(3.0), rel=0.03)
    assert not torch.equal(layer.weight[0], layer.weight[1])
    reference = nn.Linear(16, 20_000)
    assert reference.weight.abs().max().item() == pytest.approx(bound, rel=1e-2)
    assert reference.bias.abs().max().item() == pytest.approx(bound, rel=1e-2)


def test_no_member_touches_another():
    critics = made(3)
    q = critics(torch.randn(1, 2, 2, 4).double(), torch.randn(2, 2, 2).double())
    q[1].sum().backward()
    for parameter in critics.parameters():
        assert parameter.grad[[0, 2]].abs().sum() == 0 and parameter.grad[1].abs().sum() > 0


@pytest.mark.parametrize("sizes", [[3, 1], [3, 4, 1], [3, 5, 4, 2]])
def test_mlp_has_relu_between_its_layers_only(sizes):
    kinds = [type(layer) for layer in mlp(sizes)]
    assert kinds == [nn.Linear, nn.ReLU] * (len(sizes) - 2) + [nn.Linear]
    assert [layer.out_features for layer in mlp(sizes) if isinstance(layer, nn.Linear)] == sizes[1:]


@pytest.mark.parametrize(
    ("num", "num_rows", "used"), [(1, 2_048, True), (1, 500, False), (10, 500, True), (2, 500, False)]
)
def test_frozen_critics_take_kernels_where_these_are_faster(num, num_rows, used, monkeypatch):
    """Critics of 128 numbers: 2,048 rows for one, 4,096 for all."""
    taken = []
    original = module.perceptrons
    monkeypatch.setattr(module, "perceptrons", lambda *given: (taken.append(1), original(*given))[1])
    critics = Critics(num, 4, 2, (128, 128))
    action = torch.randn(num_rows, 1, 2, requires_grad=True)
    q = critics.forward_frozen(torch.randn(1, num_rows, 1, 4), action).amin(0)
    gradient = torch.autograd.grad(q.sum(), action)[0]
    assert bool(taken) is used and gradient.abs().sum() > 0.0
