"""Losses that are compiled give what the plain ones give; by a backend that needs no compiler."""

import copy
import functools

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from test_fused import assert_near, batch, weights

from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.agent import load_actor, save_actor
from offpcc.core import Step
from offpcc.networks import Recurrent
from offpcc.utils.errors import UserError

VECTORS, ACTIONS = Box(-np.inf, np.inf, (5,), np.float32), Box(-1, 1, (2,), np.float32)


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


def built(name, **options):
    if name.startswith("r"):
        memory = functools.partial(Recurrent, hidden_dim=6, num_layers=1)
        options |= {"shared_encoder" if name.endswith("_s") else "encoder": memory}
    return ALGORITHMS[name](VECTORS, ACTIONS, hidden_dims=(8, 6), **options)


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("td3", "iql", "cql", "bcq", "bc", "awac", "edac", "fql", "rsac_s")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", "rsac", *SLOW])
def test_updates_are_those_of_plain_losses(name):
    compile, plain = built(name, compile=True), built(name, fused=False)
    steps = {"num_steps": 3, "complete": False} if name.startswith("r") else {}
    for seed in range(3):
        ours, theirs = (agent.update_networks(batch(seed, **steps)) for agent in (compile, plain))
        assert ours.keys() == theirs.keys()
        for key, expected in theirs.items():
            torch.testing.assert_close(ours[key], expected, rtol=1e-4, atol=1e-5)
    assert_near(weights(compile), weights(plain), 1e-4)
    assert any(key.endswith("_loss") for key in vars(compile)), "nothing was compiled"


def test_importance_weights():
    compile, plain = built("sac", compile=True), built("sac", fused=False)
    for seed in range(2):
        given = batch(seed, num_steps=2, complete=False)._replace(weights=torch.linspace(0.1, 1.0, 16).view(16, 1, 1))
        ours, theirs = (agent.update_networks(given) for agent in (compile, plain))
        assert ours.keys() == theirs.keys()
        torch.testing.assert_close(ours["td_error"], theirs["td_error"], rtol=1e-4, atol=1e-5)
    assert_near(weights(compile), weights(plain), 1e-4)


def test_a_copy_and_an_actors_file_are_of_their_own(tmp_path):
    agent = built("sac", compile=True)
    agent.update_networks(batch(0))
    other, before = copy.deepcopy(agent), weights(agent)
    other.update_networks(batch(1))
    assert_near(weights(agent), before, 0.0)
    assert not torch.equal(other.critics.net[0].weight, agent.critics.net[0].weight)
    save_actor(agent, tmp_path / "actor.pt")
    step = Step(np.ones((1, 5), np.float32), np.zeros((1, 2)), np.zeros((1, 1)), np.ones(1))
    ours, theirs = (one.act(step, deterministic=True)[0] for one in (agent, load_actor(tmp_path / "actor.pt")))
    np.testing.assert_array_equal(ours, theirs)


def test_what_was_asked_for_twice_is_refused():
    with pytest.raises(UserError, match=r"SAC\.fused is True, but compile is True"):
        built("sac", compile=True, fused=True)
