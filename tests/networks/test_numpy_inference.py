"""Mirrors: when there is one; what they compute is tested with the agents that act by them."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from offpcc.algorithms.components import RunningNormalization
from offpcc.networks import DeterministicActor, Identity, InputShape, Recurrent
from offpcc.networks.actors import ValueActor
from offpcc.networks.cells import CELLS, GPT, LRU, LSTM, MinGRU, linear
from offpcc.networks.critics import DiscreteCritics
from offpcc.networks.layers import mlp
from offpcc.networks.numpy_inference import mirror_of, sigmoid
from offpcc.networks.states import map_state


def test_a_mirror_is_over_the_memory_of_the_weights():
    net = mlp([3, 4, 2])
    mirror, x = mirror_of(net), torch.randn(5, 3)
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_()
        np.testing.assert_allclose(mirror(x.numpy()), net(x), rtol=1e-5, atol=1e-6)


def test_a_linear_layer_without_bias():
    layer, x = nn.Linear(3, 2, bias=False), torch.randn(4, 3)
    np.testing.assert_allclose(mirror_of(layer)(x.numpy()), layer(x).detach(), rtol=1e-5, atol=1e-6)


class Doubled(Recurrent):
    def forward(self, inputs, state=None):
        h, state = super().forward(inputs, state)
        return 2.0 * h, state


class Bold(DeterministicActor):
    def choose(self, summary, noise):
        return super().choose(summary, noise).sign()


class Masked(DiscreteCritics):
    def forward(self, summary, members=None):
        return super().forward(summary, members) - torch.tensor([0.0, 1e9])


class Squared(DiscreteCritics):
    def quantiles(self, summary):
        return super().quantiles(summary).square()


def test_a_child_that_computes_something_else_has_none():
    shape = InputShape((3,), 1)
    assert mirror_of(Recurrent(shape)) is not None
    assert mirror_of(Doubled(shape)) is None
    assert mirror_of(DeterministicActor(3, 1, (4,))) is not None
    assert mirror_of(Bold(3, 1, (4,))) is None
    assert mirror_of(Recurrent(shape, feature_extractor=Fronted)) is None
    assert mirror_of(ValueActor(DiscreteCritics(1, 3, 2, (4,)))) is not None
    assert mirror_of(ValueActor(Masked(1, 3, 2, (4,)))) is mirror_of(ValueActor(Squared(1, 3, 2, (4,)))) is None


class Fronted(Identity):
    def forward(self, inputs, state=None):
        return super().forward(inputs, state)


def test_other_layers_and_modules_with_hooks_have_none():
    assert mirror_of(nn.Sequential(nn.Linear(2, 2), nn.Dropout())) is None
    hooked = nn.Linear(2, 2)
    assert mirror_of(hooked) is not None
    hooked.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    assert mirror_of(hooked) is None
    for layer in (nn.Linear(2, 2), LSTM(2, 2, 1), linear.Linear(2, 2)):
        assert mirror_of(layer) is not None
        name = "weight" if hasattr(layer, "weight") else "weight_hh_l0"
        assert mirror_of(nn.utils.parametrizations.weight_norm(layer, name)) is None
    assert mirror_of(nn.LayerNorm(2)) is not None
    for norm in (nn.LayerNorm(2, elementwise_affine=False), nn.LayerNorm(2, bias=False), nn.LayerNorm((3, 2))):
        assert mirror_of(norm) is None


def test_what_is_not_on_the_cpu_has_none():
    """Here "meta" stands for a GPU, whose memory NumPy cannot read either."""
    for module in (nn.Linear(2, 2), RunningNormalization((2,))):
        assert mirror_of(module) is not None
        assert mirror_of(module.to("meta")) is None, "weights or statistics, it is all the same"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_sigmoid_is_finite_anywhere(dtype):
    x = np.array([-np.inf, -1e30, -80.0, -1.0, 0.0, 1.0, 80.0, 1e30, np.inf], dtype)
    before = x.copy()
    found = sigmoid(x)
    assert found.dtype == dtype and np.array_equal(x, before)
    np.testing.assert_allclose(found, torch.sigmoid(torch.from_numpy(x)), rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_sigmoid_of_a_gate_that_is_nearly_shut_has_all_its_digits(dtype):
    x = np.linspace(-80.0, 80.0, 10_001).astype(dtype)
    expected = 1.0 / (1.0 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(sigmoid(x), expected, rtol=4.0 * np.finfo(dtype).eps, atol=0)


def far(cell, dtype, steps=5_000):
    """How far the mirror, fed step by step, comes from one pass, in the sizes of summaries and of the state."""
    torch.manual_seed(0)
    cell = cell(num_in=3, hidden_dim=8, num_layers=2).to(dtype)
    x, mirror, state, seen = torch.randn(1, steps, 3, dtype=dtype), mirror_of(cell), None, []
    with torch.no_grad():
        h, last = cell(x)
    for x_t in x.numpy().swapaxes(0, 1):
        summary, state = mirror(x_t, state)
        seen.append(summary)
    found, expected = [np.stack(seen, 1)], [h]
    map_state(found.append, state)
    map_state(expected.append, last)
    return max((abs(f - e.numpy()).max() / e.abs().max()).item() for f, e in zip(found, expected, strict=True))


FORGETTING = {"lstm", "gru", "rnn", "gpt", "concat"}  # within some steps, as they are built
REMEMBERING = {"mingru": functools.partial(MinGRU, horizon=1_000), "lru": LRU}  # for 1,000 steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CELLS)
def test_5000_steps_one_by_one_come_to_where_one_pass_does(name, dtype):
    """By as many roundings as are remembered: an LRU's one pass in float32 is itself 3e-6 off from one in float64."""
    assert {*CELLS} == FORGETTING | REMEMBERING.keys()
    cell = functools.partial(GPT, context_length=8) if name == "gpt" else REMEMBERING.get(name, CELLS[name])
    allowed = 1e-12 if dtype == torch.float64 else 1e-6 if name in FORGETTING else 1e-5
    assert far(cell, dtype) < allowed
