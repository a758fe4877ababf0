"""Mirrors: when there is one; what they compute is tested with the agents that act by them."""

import numpy as np
import torch
from torch import nn

from offpcc.learning import RunningNormalization
from offpcc.networks import DeterministicActor, Identity, InputShape, Recurrent
from offpcc.networks.cells import LSTM, products
from offpcc.networks.layers import mlp
from offpcc.networks.mirrors import mirror_of, sigmoid


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


def test_a_child_that_computes_something_else_has_none():
    shape = InputShape((3,), 1)
    assert mirror_of(Recurrent(shape)) is not None
    assert mirror_of(Doubled(shape)) is None
    assert mirror_of(DeterministicActor(3, 1, (4,))) is not None
    assert mirror_of(Bold(3, 1, (4,))) is None
    assert mirror_of(Recurrent(shape, front=Fronted)) is None


class Fronted(Identity):
    def forward(self, inputs, state=None):
        return super().forward(inputs, state)


def test_other_layers_and_modules_with_hooks_have_none():
    assert mirror_of(nn.Sequential(nn.Linear(2, 2), nn.Dropout())) is None
    hooked = nn.Linear(2, 2)
    assert mirror_of(hooked) is not None
    hooked.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    assert mirror_of(hooked) is None
    for layer in (nn.Linear(2, 2), LSTM(2, 2, 1), products.Linear(2, 2)):
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


def test_the_sigmoid_is_finite_anywhere():
    x = np.array([-1e30, -80.0, -1.0, 0.0, 1.0, 80.0, 1e30], np.float32)
    np.testing.assert_allclose(sigmoid(x), torch.sigmoid(torch.from_numpy(x)), atol=1e-6)
