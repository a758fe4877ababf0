"""PyTorch's own memories: what is put in front of them."""

import functools

import torch

from offpcc.networks import InputShape, Recurrent
from offpcc.networks.cells import LSTM
from offpcc.networks.encoders import rebuilds


def test_the_forget_bias_is_added_to_the_forget_gates_alone():
    torch.manual_seed(0)
    plain = LSTM(3, 4, 2)
    torch.manual_seed(0)
    keeping = LSTM(3, 4, 2, forget_bias=2.0)
    for name, weight in plain.named_parameters():
        expected = weight.detach().clone()
        if name.startswith("bias_ih"):
            expected[4:8] += 2.0
        torch.testing.assert_close(keeping.get_parameter(name).detach(), expected)


def test_with_it_more_is_kept_for_longer():
    torch.manual_seed(0)
    x = torch.zeros(1, 30, 3)
    x[:, 0] = 5.0
    kept = []
    for bias in (0.0, 3.0):
        torch.manual_seed(1)
        _, (_, c) = LSTM(3, 8, 1, forget_bias=bias)(x)
        kept.append(c.abs().mean().item())
    assert kept[1] > 2.0 * kept[0]


def test_an_encoder_with_it_is_described():
    encoder = Recurrent(InputShape((3,), 1), cell=functools.partial(LSTM, forget_bias=1.0), hidden_dim=4, num_layers=1)
    assert rebuilds(encoder)["arguments"]["cell"]["arguments"] == {"forget_bias": 1.0}
