"""The perceptrons that are differentiated by hand, against PyTorch's own layers."""

import copy
import itertools

import pytest
import torch
from torch import nn

from offpcc.networks import Critics, mlp_kernels
from offpcc.networks.layers import MLP, EnsembleLayerNorm, EnsembleLinear, mlp

DOUBLE = torch.float64
SIZES = (5, 7, 6, 3)


def networks(num, sizes=SIZES, dtype=DOUBLE, has_norm=False):
    torch.manual_seed(0)
    layers = [EnsembleLinear(num, a, b).to(dtype) for a, b in itertools.pairwise(sizes)]
    norms = [EnsembleLayerNorm(num, size).to(dtype) for size in sizes[1:-1]] if has_norm else []
    for norm in norms:
        for parameter in norm.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    pairs = itertools.zip_longest(layers, norms)
    ordered = [layer for pair in pairs for layer in pair if layer is not None]
    return ordered, [parameter for layer in ordered for parameter in (layer.weight, layer.bias)]


def by_layers(layers, x):
    for number, layer in enumerate(layers):
        is_linear = isinstance(layer, EnsembleLinear)
        x = torch.baddbmm(layer.bias, x, layer.weight) if is_linear else normalised(x) * layer.weight + layer.bias
        is_last = number == len(layers) - 1 or isinstance(layers[number + 1], EnsembleLayerNorm)
        x = x if is_last else x.relu()
    return x


def normalised(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()


@pytest.mark.parametrize("sizes", [SIZES, (4, 6, 1), (3, 2)])
@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_values_and_gradients_are_those_of_layers(num, block, sizes, has_norm, share, monkeypatch):
    """Rows in several blocks, the last of them smaller, or in one; a gradient in none, some or all of them."""
    monkeypatch.setattr(mlp_kernels, "BLOCK", block * max(sizes[1:]))
    layers, parameters = networks(num, sizes, has_norm=has_norm)
    x = torch.randn(num, 11, sizes[0], dtype=DOUBLE, requires_grad=True)
    weights = torch.randn(num, 11, sizes[-1], dtype=DOUBLE) * (torch.rand(num, 11, 1) < share)
    found, expected = mlp_kernels.perceptrons(x, parameters, has_norm), by_layers(layers, x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for wanted in ([x, *parameters], parameters, [x]):
        ours = torch.autograd.grad((found * weights).sum(), wanted, retain_graph=True)
        theirs = torch.autograd.grad((expected * weights).sum(), wanted, retain_graph=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("has_norm", [False, True])
def test_gradients_are_those_of_finite_differences(has_norm):
    _, parameters = networks(2, (3, 4, 2), has_norm=has_norm)
    x = torch.randn(2, 5, 3, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *p: mlp_kernels.perceptrons(x, p, has_norm), (x, *parameters))


@pytest.mark.parametrize("has_norm", [False, True])
def test_rows_without_a_gradient_are_omitted(has_norm, monkeypatch):
    numbers = []
    whole = mlp_kernels._backward_of_rows
    monkeypatch.setattr(
        mlp_kernels, "_backward_of_rows", lambda down, *rest: (numbers.append(len(down)), whole(down, *rest))[1]
    )
    _, parameters = networks(3, (4, 6, 1), has_norm=has_norm)
    x = torch.randn(1, 50, 4, dtype=DOUBLE, requires_grad=True)
    mlp_kernels.perceptrons(x.expand(3, -1, -1), parameters, has_norm).amin(0).sum().backward()
    assert sum(numbers) == 50


def test_fixed_weights_get_no_gradient():
    _, parameters = networks(2)
    x = torch.randn(2, 4, 5, dtype=DOUBLE, requires_grad=True)
    mlp_kernels.perceptrons(x, [parameter.detach() for parameter in parameters]).sum().backward()
    assert x.grad is not None and all(parameter.grad is None for parameter in parameters)


def test_columns_of_a_wider_array_and_a_gradient_that_is_one_number_many_times():
    """Rows that do not lie side by side in memory, and what `sum` hands down."""
    layers, parameters = networks(2)
    x = torch.randn(2, 9, 8, dtype=DOUBLE)[:, ::2, 1:6]
    ours = torch.autograd.grad(mlp_kernels.perceptrons(x, parameters).sum(), parameters)
    theirs = torch.autograd.grad(by_layers(layers, x).sum(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.fixture
def small_blocks(monkeypatch):
    """So that 4 rows of 6 features take the way of many."""
    monkeypatch.setattr(mlp_kernels, "BLOCK", 3 * 6)
    used = []
    for module in ("layers", "critics"):
        monkeypatch.setattr(
            f"offpcc.networks.{module}.perceptrons", lambda *a: (used.append(1), mlp_kernels.perceptrons(*a))[1]
        )
    return used


def test_an_mlp_of_many_rows_is_one_of_few(small_blocks):
    torch.manual_seed(0)
    net = mlp([4, 6, 5, 2]).double()
    x = torch.randn(2, 5, 4, dtype=DOUBLE, requires_grad=True)
    wanted = [x, *net.parameters()]
    expected = torch.stack([net(row) for row in x.flatten(0, 1).split(1)]).view(2, 5, 2)
    assert not small_blocks
    found = net(x)
    assert len(small_blocks) == 1
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), wanted),
        torch.autograd.grad(expected.square().sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert a.stride() == b.stride() or b.numel() == 0


@pytest.mark.parametrize("layer_norm", [False, True])
def test_critics_of_many_rows_are_those_of_few(small_blocks, layer_norm):
    torch.manual_seed(0)
    critics = Critics(3, 4, 2, (6, 5), layer_norm).double()
    summary, action = torch.randn(1, 8, 1, 4, dtype=DOUBLE), torch.randn(8, 1, 2, dtype=DOUBLE, requires_grad=True)
    found = critics(summary, action)
    assert len(small_blocks) == 1
    rows = [critics(summary[:, i : i + 1], action[i : i + 1]) for i in range(8)]
    torch.testing.assert_close(found, torch.cat(rows, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [2, 8])
@pytest.mark.parametrize("num", [None, 1])
def test_what_a_policy_learns_from_reaches_its_actions_alone(small_blocks, num, rows):
    torch.manual_seed(0)
    critics = Critics(3, 4, 2, (6, 5)).double()
    summary = torch.randn(3, rows, 1, 4, dtype=DOUBLE, requires_grad=True)
    action = torch.randn(rows, 1, 2, dtype=DOUBLE, requires_grad=True)
    found, expected = critics.forward_frozen(summary, action, num), critics(summary, action)[:num]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad(found.sum(), [action, summary, *critics.parameters()], allow_unused=True)
    torch.testing.assert_close(ours[0], torch.autograd.grad(expected.sum(), action)[0], rtol=1e-12, atol=1e-12)
    assert all(gradient is None for gradient in ours[1:])


def test_layers_that_something_hangs_on_to_are_used_themselves(small_blocks):
    net, x = mlp([4, 6, 2]), torch.randn(9, 4)
    net(x)
    assert len(small_blocks) == 1
    seen = []
    net[0].register_forward_hook(lambda *_: seen.append(1))
    net(x)
    assert seen and len(small_blocks) == 1
    MLP(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))(x)
    MLP(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 2))(x)
    other = mlp([4, 6, 2])
    other[2].register_forward_pre_hook(lambda *_: seen.append(2))
    other(x)
    assert 2 in seen
    assert len(small_blocks) == 1
    assert torch.equal(copy.deepcopy(net)(x), net(x))


def test_another_layer_in_the_critics_counts():
    critics, summary, action = Critics(2, 4, 2, (6,)), torch.randn(1, 3, 1, 4), torch.randn(3, 1, 2)
    before = critics(summary, action)
    critics.net[1] = nn.Tanh()
    assert not torch.allclose(critics(summary, action), before)
