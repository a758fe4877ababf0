"""Targets: when they move; in users' networks, batch norm's statistics follow, and dropout is off."""

import copy
import functools

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.optim.swa_utils import AveragedModel

import offpcc
from offpcc.algorithms import BCQ, CQL, DDPG, FUSED_UPDATES, IQL, SAC, TD3
from offpcc.algorithms.optim import PolyakAverage
from offpcc.core import Batch, Step
from offpcc.networks import Recurrent
from offpcc.networks.encoders import Encoder
from offpcc.networks.layers import mlp

BOXES = Box(-np.inf, np.inf, (3,), np.float32), Box(-1, 1, (2,), np.float32)
NAN = float("nan")


class Normed(Encoder):
    """A user's encoder."""

    def __init__(self, shape):
        super().__init__(shape)
        self.dim = 6
        self.net = nn.Sequential(mlp([3, 6]), nn.BatchNorm1d(6), nn.Dropout(0.5))

    def forward(self, inputs, state=None):
        x = inputs.observation
        return self.net(x.flatten(0, 1)).view(*x.shape[:2], -1), None


def batch(seed=0):
    draw = torch.Generator().manual_seed(seed)
    parts = torch.randn(8, 2, 3, generator=draw), torch.rand(8, 1, 2, generator=draw), torch.randn(8, 1, 1)
    return Batch(
        *parts, torch.zeros(8, 1, 1), torch.ones(8, 2, 1), torch.ones(8, 1, 1), *map(torch.zeros, ((8, 2), (8, 1))),
        complete=True,
    )  # fmt: skip


def buffers(module):
    return [buffer.clone() for buffer in module.buffers()]


@pytest.mark.parametrize("clips", [False, True])
def test_clipped_rewards_are_signs_also_where_memories_read_them(clips):
    agent = SAC(*BOXES, hidden_dims=(8,), clip_rewards=clips)
    given = batch()._replace(first_reward=torch.linspace(-2.0, 2.0, 8).unsqueeze(1))
    found = agent.prepare(given, learns=False)
    for name in ("rewards", "first_reward"):
        value = getattr(given, name)
        assert torch.equal(getattr(found, name), value.sign() if clips else value)
    reads = functools.partial(MEMORY, use_previous_reward=True)
    acting = SAC(*BOXES, hidden_dims=(8,), clip_rewards=clips, encoder=reads)
    nothing = np.ones((1, 3), np.float32), np.zeros((1, 2), np.float32)
    steps = [Step(*nothing, np.full((1, 1), reward, np.float32), np.ones(1, np.bool_)) for reward in (0.5, 1.0)]
    one, other = (acting.act(step, deterministic=True)[0] for step in steps)
    assert np.array_equal(one, other) == clips


@pytest.mark.parametrize("where", ["encoder", "shared_encoder"])
@pytest.mark.parametrize("cls", [SAC, TD3, CQL])
def test_targets_copy_the_statistics_of_batch_norm_and_have_no_dropout(cls, where):
    agent = cls(*BOXES, hidden_dims=(8,), **{where: Normed})
    pairs = [(agent.target_shared_encoder, agent.shared_encoder), (agent.target_critic_encoders, agent.critic_encoders)]
    first = [buffers(source) for _, source in pairs]
    for seed in range(4):
        agent.update_networks(batch(seed))
    for (target, source), start in zip(pairs, first, strict=True):
        ours, theirs = buffers(target), buffers(source)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert not ours or any(not torch.equal(a, b) for a, b in zip(ours, start, strict=True))
        assert not any(module.training for module in target.modules())
    prepared = agent.prepare(batch())
    one, other = (agent.summarize(prepared) for _ in range(2))
    assert torch.equal(one.target_q, other.target_q), "no dropout"
    assert not torch.equal(one.q, other.q)


def made_of(agent):
    """Copies of the critics' weights, and those of their targets."""
    networks = (agent.critic_encoders, agent.critics), (agent.target_critic_encoders, agent.target_critics)
    return ([p.clone() for part in parts for p in part.parameters()] for parts in networks)


def equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


MEMORY = functools.partial(Recurrent, hidden_dim=4, num_layers=1)


@pytest.mark.parametrize("options", [{"fused": True}, {"fused": False}, {"encoder": MEMORY}], ids=",".join)
@pytest.mark.parametrize("cls", [DDPG, TD3, SAC, IQL, CQL, BCQ])
def test_targets_are_copied_in_each_third_update(cls, options):
    """Also after a state was saved and loaded in between."""
    if options.get("fused") and cls not in FUSED_UPDATES:
        options = {}  # the plain update
    delay = {"policy_delay": 1} if cls is TD3 else {}
    agent, resumed = (
        cls(*BOXES, hidden_dims=(8,), polyak=0.0, target_update_interval=3, **delay, **options) for _ in range(2)
    )
    for number in range(1, 8):
        given, (_, before) = batch(number), made_of(agent)
        agent.update_networks(given)
        critics, targets = made_of(agent)
        assert equal(targets, critics if number % 3 == 0 else before) and not equal(critics, before)
        if number == 4:
            resumed.load_state_dict(copy.deepcopy(agent.state_dict()))
        if number > 4:
            resumed.update_networks(given)
            assert all(map(equal, made_of(resumed), (critics, targets)))


@pytest.mark.parametrize(("cls", "expected"), [(TD3, [6, 12]), (SAC, [3, 6, 9, 12])])
def test_targets_that_wait_for_the_actor_wait_for_both(cls, expected):
    """Those of SAC do not wait for it."""
    agent, moved = cls(*BOXES, hidden_dims=(8,), target_update_interval=3, policy_delay=2), []
    for number in range(1, 13):
        _, before = made_of(agent)
        agent.update_networks(batch(number))
        _, targets = made_of(agent)
        moved += [] if equal(targets, before) else [number]
    assert moved == expected


def test_it_is_what_pytorchs_average_does():
    source = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    target = copy.deepcopy(source)
    reference = AveragedModel(copy.deepcopy(source), avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new)
    reference.n_averaged.fill_(1)  # else the first update copies
    average = PolyakAverage([(target, source)], 0.9)
    for _ in range(3):
        source(torch.randn(16, 3))
        with torch.no_grad():
            for parameter in source.parameters():
                parameter += torch.randn_like(parameter)
        average.update()
        reference.update_parameters(source)
    for ours, theirs in zip(target.state_dict().values(), reference.module.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_skipped_update_leaves_the_statistics_of_targets(is_awaited):
    agent = SAC(*BOXES, hidden_dims=(8,), shared_encoder=Normed, nonfinite="skip")
    agent.nonfinite_guard.is_awaited = is_awaited
    agent.update_networks(batch())
    before = buffers(agent.shared_encoder) + buffers(agent.target_shared_encoder)
    bad = batch(1)
    bad.observations[0, 0, 0] = NAN
    agent.update_networks(bad)
    after = buffers(agent.shared_encoder) + buffers(agent.target_shared_encoder)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(torch.isfinite(buffer).all() for buffer in after)


@offpcc.configurable
class Pretrained(Normed):
    """Its network is frozen in one of two ways, or learns with constant statistics."""

    def __init__(self, shape, *, how="requires_grad"):
        super().__init__(shape)
        self.how, self.last = how, nn.Linear(6, 6)
        self.net.requires_grad_(how != "requires_grad")

    def train(self, mode=True):
        super().train(mode)
        if self.how == "train":
            self.net.eval()
        return self

    def forward(self, inputs, state=None):
        return self.last(super().forward(inputs)[0]), None


@pytest.mark.parametrize("how", ["requires_grad", "train"])
@pytest.mark.parametrize(
    "inside", [lambda build: build, lambda build: functools.partial(MEMORY, feature_extractor=build)]
)
def test_frozen_weights_have_constant_statistics_and_no_dropout(how, inside):
    """Also inside of a memory, with weight decay and clipping; an encoder's own method `train` decides, too."""
    build = inside(functools.partial(Pretrained, how=how))
    agent = SAC(*BOXES, hidden_dims=(8,), encoder=build, weight_decay=0.1, max_grad_norm=0.1)
    net = next(part for part in agent.actor_encoder.modules() if isinstance(part, Pretrained)).net
    statistics, weights = buffers(net), [weight.clone() for weight in net.parameters()]
    agent.update_networks(batch())
    assert not (net[1].training or net[2].training) and equal(buffers(net), statistics)
    assert equal(net.parameters(), weights) == (how == "requires_grad")
    agent.prepare(batch(), learns=False)
    net.requires_grad_(True)  # learns from now on
    agent.update_networks(batch(1))
    assert equal(buffers(net), statistics) == (how == "train")
