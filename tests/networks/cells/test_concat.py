"""The last inputs side by side."""

import functools

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from offpcc.algorithms.variants import RecurrentSAC, RecurrentSACSharing
from offpcc.core import Step
from offpcc.envs.wrappers import Concatenate
from offpcc.networks import InputShape, Recurrent
from offpcc.networks.cells import Concat
from offpcc.networks.sequences import is_empty

VECTORS, ACTIONS = Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)


def drawn(rows, steps, width):
    return torch.randn(rows, steps, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("num_steps", [1, 2, 4, 9])
def test_a_summary_is_the_last_inputs_oldest_first(num_steps):
    cell, x = Concat(3, 5, 2, num_steps=num_steps), drawn(2, 6, 3)
    h, state = cell(x)
    assert cell.dim == 3 * num_steps and state.shape == (2, num_steps - 1, 3)
    padded = torch.cat([torch.zeros(2, num_steps - 1, 3), x], 1)
    for t in range(6):
        assert torch.equal(h[:, t], padded[:, t : t + num_steps].flatten(1))


@pytest.mark.parametrize("num_steps", [1, 2, 4, 9])
def test_the_same_values_however_it_is_fed(num_steps):
    cell, x = Concat(3, 5, 2, num_steps=num_steps), drawn(2, 6, 3)
    expected, last = cell(x)
    for sizes in ([1] * 6, [2, 4], [5, 1]):
        state, parts = None, []
        for part in x.split(sizes, 1):
            h, state = cell(part, state)
            parts.append(h)
        assert torch.equal(torch.cat(parts, 1), expected) and torch.equal(state, last)
    mirror, state = cell.mirror(), None
    for t in range(6):
        h, state = mirror(x[:, t].numpy(), state)
        np.testing.assert_array_equal(h, expected[:, t])
    np.testing.assert_array_equal(state, last)
    assert h.dtype == state.dtype == np.float32


def test_it_is_what_the_wrapper_shows():
    import gymnasium

    class Drawn(gymnasium.Env):
        observation_space, action_space = Box(-9, 9, (3,), np.float32), ACTIONS
        shown = drawn(1, 6, 3)[0].numpy()

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return self.shown[0], {}

        def step(self, action):
            self.t += 1
            return self.shown[self.t], 0.0, False, False, {}

    env = Concatenate(Drawn(), 4)
    seen = [env.reset()[0], *(env.step(None)[0] for _ in range(5))]
    np.testing.assert_array_equal(Concat(3, 1, 1, num_steps=4)(torch.from_numpy(Drawn.shown)[None])[0][0], seen)


@pytest.mark.parametrize("cls, name", [(RecurrentSAC, "encoder"), (RecurrentSACSharing, "shared_encoder")])
def test_agents_with_it_are_built_with_separate_and_with_shared_encoders(cls, name):
    memory = functools.partial(Recurrent, cell=functools.partial(Concat, num_steps=4))
    agent = cls(VECTORS, ACTIONS, hidden_dims=(4,), **{name: memory})
    assert is_empty(agent.actor_encoder) and is_empty(agent.shared_encoder) and not agent.memoryless
    assert len(agent.critic_encoders) == 1 and agent.actor_encoder.dim == 12
    assert agent.unused_parameters()["encoder_lr"] == "no encoder has parameters"
    step = Step(np.ones((2, 3), np.float32), np.zeros((2, 2)), np.zeros((2, 1)), np.ones(2))
    action, memory = agent.act(step)
    again, _ = agent.act(step._replace(is_first=np.array([1.0, 0.0])), memory, deterministic=True)
    first, _ = agent.act(step, deterministic=True)
    assert action.shape == (2, 2)
    np.testing.assert_array_equal(again[0], first[0])
    assert not np.array_equal(again[1], first[1])


def test_it_says_what_changes_nothing():
    shape, inputs = InputShape((3,), 1), drawn(1, 4, 3)
    assert Concat(3, 1, 1).unused_parameters().keys() == {"hidden_dim", "num_layers"}
    for one, other in ((1, 7), (256, 2)):
        assert torch.equal(Concat(3, one, other)(inputs)[0], Concat(3, 5, 5)(inputs)[0])
    assert Recurrent(shape, cell="concat", hidden_dim=3).dim == 30
