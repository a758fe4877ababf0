"""What is tried of encoders, on those that break one promise each."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from offpcc.errors import UserError
from offpcc.networks import Convolutional, Encoder, Identity, Recurrent, check_encoder
from offpcc.networks.cells import CELLS, Cell

SMALL = functools.partial(Convolutional, channels=(4, 3), kernels=(3, 3), strides=(2, 1), feature_dim=6)


@pytest.mark.parametrize("cell", CELLS)
def test_our_memories_keep_their_promises(cell):
    check_encoder(functools.partial(Recurrent, cell=cell, hidden_dim=5, use_previous_reward=True))


def test_our_other_encoders_keep_theirs():
    check_encoder(Identity)
    check_encoder(SMALL, observation=(2, 12, 10))
    check_encoder(functools.partial(Recurrent, front=SMALL, hidden_dim=5), observation=(2, 12, 10))


class Mean(Cell):
    """A running mean, and ways to be wrong."""

    fault = ""

    def __init__(self, num_in, hidden_dim, num_layers):
        super().__init__()
        self.dim = num_in

    def forward(self, x, state=None):
        before = torch.full_like(x[:, 0], float(self.fault == "start")) if state is None else state
        rows = []
        for step in x.unbind(1):
            before = 0.5 * before + 0.5 * step
            rows.append(before)
        h = torch.stack(rows, 1)
        if self.fault == "ahead":
            h = h + h.flip(1).cumsum(1).flip(1)
        if self.fault == "rows":
            h = h - h.mean(0)
        if self.fault == "width":
            h = h[..., 1:]
        if self.fault == "forgets":
            before = 0.0 * before
        if self.fault == "random":
            h = h + torch.randn_like(h)
        if self.fault == "layers first":
            before = before.unsqueeze(0)
        return h, None if self.fault == "no state" else before

    def mirror(self):
        if self.fault != "mirror":
            return None
        return lambda x, state: (x, np.zeros(len(x)))


@pytest.mark.parametrize("fault, told", [
    ("", None),
    ("width", r"summaries of Recurrent have the shape \(3, 7, 3\); it has to be \(3, 7, dim\), with Recurrent.dim = 4"),
    ("no state", "Recurrent.memoryless is False, but its state after a step is None"),
    ("ahead", "depend on later steps: by up to "),
    ("rows", "depend on other rows of the batch"),
    ("forgets", "differ when it is fed step by step"),
    ("random", "depend on later steps"),
    ("start", "does not start anew from a state of zeros"),
    ("layers first", "its first axis has to be the batch"),
    ("mirror", "the mirror of Recurrent computes something else"),
])  # fmt: skip
def test_a_memory_that_breaks_a_promise_is_named(fault, told):
    cell = type("Faulty", (Mean,), {"fault": fault})
    build = functools.partial(Recurrent, cell=cell)
    if told is None:
        check_encoder(build)
        return
    with pytest.raises(UserError, match=told):
        check_encoder(build)


class Dropping(Encoder):
    """Memoryless, and random while it trains."""

    def __init__(self, shape):
        super().__init__(shape)
        self.dim, self.drop = shape.observation[0], nn.Dropout()

    def forward(self, inputs, state=None):
        return self.drop(inputs.observation), None


def test_what_is_random_in_training_alone_is_no_fault():
    check_encoder(Dropping)
