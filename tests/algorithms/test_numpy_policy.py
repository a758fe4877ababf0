"""Acting in NumPy is acting by the networks: the same actions and memories, also after updates, and for a copy."""

import copy
import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offpcc.algorithms import ALGORITHMS, acting
from offpcc.core import Step
from offpcc.networks import Recurrent, Residual
from offpcc.networks.cells import CELLS
from offpcc.networks.states import map_state
from offpcc.utils.rng import NumpyGenerator

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)
STARTS = [[0], [0, 3], [0, 1, 5]]
MEMORYLESS = ["ddpg", "td3", "sac", "bc", "td3_bc", "iql", "cql"]


def built(name, cell="lstm", **arguments):
    memory = functools.partial(
        Recurrent, cell=cell, hidden_dim=6, num_layers=2, use_previous_action=True, use_previous_reward=True
    )
    if name.endswith("_s"):
        arguments |= {"shared_encoder": memory}
    elif name.startswith("r"):
        arguments |= {"encoder": memory}
    return ALGORITHMS[name](OBSERVATIONS, ACTIONS, hidden_dims=(7, 5), **{"normalize_observations": True, **arguments})


def played(agent, rows, deterministic, steps=8):
    """Actions and memories, each as arrays, of `rows` environments side by side."""
    draws, memory, found = np.random.default_rng(1), None, []
    agent.noise.acting = NumpyGenerator(5)
    for t in range(steps):
        first = np.array([t in starts for starts in STARTS[:rows]])
        drawn = [draws.normal(size=(3, width)).astype(np.float32)[:rows] for width in (3, 2, 1)]
        step = Step(drawn[0], drawn[1] * ~first[:, None], drawn[2] * ~first[:, None], first)
        action, memory = agent.act(step, memory, deterministic=deterministic)
        assert action.shape == (rows, 2) and action.dtype == np.float32
        found.append((action, map_state(np.asarray, memory)))
    return found


def assert_same(found, expected):
    for (action, memory), (other_action, other_memory) in zip(found, expected, strict=True):
        np.testing.assert_allclose(action, other_action, atol=1e-5)
        map_state(lambda _: None, memory)
        for part, other in zip(leaves(memory), leaves(other_memory), strict=True):
            assert part.shape == other.shape and part.dtype == other.dtype
            np.testing.assert_allclose(part, other, atol=1e-5)


def leaves(memory):
    if isinstance(memory, tuple):
        return [leaf for part in memory for leaf in leaves(part)]
    return [] if memory is None else [memory]


HEADS = {
    "residual": {"heads": Residual(actor_width=5, actor_blocks=2, critic_width=4, critic_blocks=1)},
    "layer norm and dropout": {"actor_layer_norm": True, "actor_dropout": 0.4, "dropout": 0.2},
    "scaled observations": {"normalize_observations": "scale"},
}


def by_networks(agent, monkeypatch, *arguments):
    with monkeypatch.context() as context:
        context.setattr(acting, "MOST_MIRRORED", 0)
        return played(agent, *arguments)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("name", "cell"),
    [*((name, "lstm") for name in MEMORYLESS), *((name, cell) for name in ("rsac", "rtd3_s") for cell in CELLS)],
)
def test_the_mirror_acts_as_the_networks_do(name, cell, rows, deterministic, monkeypatch):
    agent = built(name, cell)
    assert_acts_the_same(agent, rows, deterministic, monkeypatch)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("name", "cell"), [("td3", None), ("iql", None), *(("rsac", cell) for cell in CELLS)])
def test_the_mirror_knows_every_head(name, cell, heads, monkeypatch):
    agent = built(name, cell, **HEADS[heads])
    for module in agent.actor.modules():
        module.train()
    assert_acts_the_same(agent, 3, False, monkeypatch)


def assert_acts_the_same(agent, rows, deterministic, monkeypatch):
    agent.normalization.set_statistics([0.5, -0.2, 0.0], [2.0, 0.5, 1.0])
    found = played(agent, rows, deterministic)
    assert agent._mirror is not None
    assert_same(found, by_networks(agent, monkeypatch, rows, deterministic))
    assert np.std([action for action, _ in found]) > 0.01


@pytest.mark.parametrize("name", ["sac", "rsac"])
def test_the_mirror_follows_what_changes_the_weights(name, monkeypatch):
    agent = built(name)
    before = played(agent, 1, True)
    for weight in agent.actor.parameters():
        weight.data = torch.randn_like(weight)  # elsewhere: what the next episode finds
    agent.normalization.set_statistics([0.5, -0.2, 0.0], [2.0, 0.5, 1.0])
    after = played(agent, 1, True)
    assert_same(after, by_networks(agent, monkeypatch, 1, True))
    assert not np.allclose(before[0][0], after[0][0], atol=1e-3)
    other = built(name, seed=3)
    played(other, 1, True)
    other.load_state_dict(agent.state_dict())
    assert_same(played(other, 1, True), after)


def test_a_copy_has_a_mirror_of_its_own():
    agent = built("rsac")
    expected = played(agent, 1, True)
    other = copy.deepcopy(agent)
    with torch.no_grad():
        for weight in agent.actor.parameters():
            weight.zero_()
    assert_same(played(other, 1, True), expected)


def test_an_agent_that_chooses_otherwise_acts_by_its_networks(monkeypatch):
    agent = built("sac")
    monkeypatch.setattr(type(agent), "choose_action", lambda self, h, deterministic: h.new_full((len(h), 1, 2), 0.25))
    assert all((action == 0.25).all() for action, _ in played(agent, 1, True))


@pytest.mark.parametrize("rows", [1, 9])
def test_an_agent_that_acts_otherwise_on_tensors_has_no_mirror(rows):
    class Still(ALGORITHMS["sac"]):
        def act_on_tensors(self, inputs, memory, deterministic):
            action, memory = super().act_on_tensors(inputs, memory, deterministic)
            return 0.0 * action, memory

    sizes = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
    step = Step(*(np.ones((rows, size), np.float32) for size in (3, 2, 1)), np.ones(rows, bool))
    assert not Still(*sizes, hidden_dims=(8,)).act(step)[0].any()


def test_a_memory_goes_from_one_way_of_acting_to_the_other(monkeypatch):
    """As when a run is resumed: what was saved is of tensors."""
    agent = built("rsac")
    first, later = (
        Step(np.full((1, 3), x, np.float32), np.zeros((1, 2)), np.zeros((1, 1)), [x == 0.0]) for x in (0.0, 1.0)
    )
    _, memory = agent.act(first)
    expected, _ = agent.act(later, memory, deterministic=True)
    again, _ = agent.act(later, map_state(torch.as_tensor, memory), deterministic=True)
    np.testing.assert_array_equal(again, expected)
    monkeypatch.setattr(acting, "MOST_MIRRORED", 0)
    np.testing.assert_allclose(agent.act(later, memory, deterministic=True)[0], expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (3, 5, 5)])
@pytest.mark.parametrize("cell", [None, *CELLS])
def test_bytes_that_are_no_images_are_numbers(cell, shape, monkeypatch):
    encoder = functools.partial(Recurrent, cell=cell, hidden_dim=6) if cell else None
    space = spaces.Box(0, 255, shape, np.uint8)
    agent = ALGORITHMS["bc"](space, ACTIONS, encoder=encoder, hidden_dims=(7,))
    seen = np.random.default_rng(0).integers(0, 9, (6, 1, *shape)).astype(np.uint8)

    def actions():
        memory, found = None, []
        for t, observation in enumerate(seen):
            step = Step(observation, np.zeros((1, 2)), np.zeros((1, 1)), [t == 0])
            action, memory = agent.act(step, memory, deterministic=True)
            found.append(action)
        return np.stack(found)

    ours = actions()
    assert agent._mirror is not None
    monkeypatch.setattr(acting, "MOST_MIRRORED", 0)
    np.testing.assert_allclose(ours, actions(), atol=1e-5)


def test_weights_that_are_put_elsewhere_are_found_at_the_next_episode():
    agent = built("rsac")
    step = Step(np.ones((1, 3), np.float32), np.zeros((1, 2)), np.zeros((1, 1)), [True])
    before, _ = agent.act(step, deterministic=True)
    weights = torch.nn.utils.parameters_to_vector(agent.actor.parameters())
    torch.nn.utils.vector_to_parameters(weights + 1.0, agent.actor.parameters())
    after, _ = agent.act(step, deterministic=True)
    assert np.abs(after - before).max() > 0.01
