"""Updates by hand: what the plain ones give, to rounding, and refused where they cannot."""

import copy
import functools
import pickle
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import offpcc
from offpcc.algorithms import BC, BCQ, CQL, DDPG, IQL, SAC, SACN, TD3, TD3BC
from offpcc.algorithms.agent import Agent, load_actor, save_actor
from offpcc.algorithms.components import Temperature
from offpcc.algorithms.fused.eligibility import classes_of
from offpcc.algorithms.fused.kernels import MLPKernel
from offpcc.algorithms.optim import LinearDecay, Optimizer
from offpcc.algorithms.variants import ConvolutionalSAC, RecurrentSAC, RecurrentTD3Sharing
from offpcc.config import loading
from offpcc.core import Batch, Step
from offpcc.networks import Critics, Identity, Recurrent, SquashedGaussianActor
from offpcc.networks.encoders import Encoder
from offpcc.networks.layers import mlp
from offpcc.utils import edited
from offpcc.utils.edited import edited_module
from offpcc.utils.errors import UserError

VECTORS, IMAGES = Box(-np.inf, np.inf, (5,), np.float32), Box(0, 255, (1, 40, 40), np.uint8)
ACTIONS = Box(-1, 1, (2,), np.float32)
NAN = float("nan")
WITH_PAST = functools.partial(Identity, use_previous_action=True, use_previous_reward=True)


def built(cls, fused=True, **options):
    return cls(VECTORS, ACTIONS, fused=fused, **{"hidden_dims": (32, 24), "lr": 1e-3, "polyak": 0.9, **options})


def batch(seed, num_rows=16, num_steps=1, complete=True):
    """Transitions, or rows of which every third ends after a step, with NaN as padding."""
    draw = torch.Generator().manual_seed(seed)
    observations = torch.randn(num_rows, num_steps + 1, 5, generator=draw)
    actions = 2.0 * torch.rand(num_rows, num_steps, 2, generator=draw) - 1.0
    rewards = torch.randn(num_rows, num_steps, 1, generator=draw)
    terminations = (torch.rand(num_rows, num_steps, 1, generator=draw) < 0.2).float()
    before = torch.randn(num_rows, 2, generator=draw), torch.randn(num_rows, 1, generator=draw)
    real, mask = torch.ones(num_rows, num_steps + 1, 1), torch.ones(num_rows, num_steps, 1)
    if not complete:
        real[::3, 2:] = 0.0
        mask[::3, 1:] = 0.0
        mask[1] = 0.0
        observations = observations.where(real > 0, NAN)
        actions, rewards, terminations = (x.where(real[:, 1:] > 0, NAN) for x in (actions, rewards, terminations))
    return Batch(observations, actions, rewards, terminations, real, mask, *before, complete=complete)


def weights(agent):
    """Of all networks and moments, by name."""
    found = {}
    for name, part in vars(agent).items():
        if isinstance(part, torch.nn.Module):
            found |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
        if isinstance(part, Optimizer):
            for number, group in enumerate(part.groups):
                for key in ("means", "squares", "steps"):
                    found |= {f"{name}.{number}.{key}.{place}": x for place, x in enumerate(getattr(group, key))}
    return {name: value.detach().clone() for name, value in found.items()}


def assert_near(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if torch.equal(ours[name], expected):  # infinite ones, too
            continue
        error = torch.linalg.vector_norm((ours[name] - expected).double())
        assert error <= tolerance * torch.linalg.vector_norm(expected.double()) + 1e-8, f"{name}: {error}"


def assert_same_updates(fused, plain, batches, tolerance=1e-4):
    for given in batches:
        ours, theirs = fused.update_networks(given), plain.update_networks(given)
        assert ours.keys() == theirs.keys()
        for name, expected in theirs.items():
            assert ours[name].dim() == 0 and not ours[name].requires_grad
            torch.testing.assert_close(ours[name], expected, rtol=tolerance, atol=1e-5)
    assert_near(weights(fused), weights(plain), tolerance)
    torch.testing.assert_close(fused.noise.generator.get_state(), plain.noise.generator.get_state(), rtol=0, atol=0)
    for name, part in vars(plain).items():
        if isinstance(part, Optimizer):
            ours = getattr(fused, name)
            assert ours.num_updates == part.num_updates
            assert [group.latest_rate for group in ours.groups] == [group.latest_rate for group in part.groups]


# The same as the plain updates --------------------------------------------------------------------------------------

FUSED = [SAC, SACN, DDPG, TD3, TD3BC, IQL, BC]
OPTIONS = [
    {},
    {"num_critics": 1},
    {"num_critics": 5},
    {"hidden_dims": (16,)},
    {"hidden_dims": (8, 16, 24)},
    {"max_grad_norm": 0.1},
    {"normalize_observations": True},
    {"encoder": WITH_PAST},
    {"lr": LinearDecay(1e-3, 0.0, 30), "actor_lr": LinearDecay(3e-3, 1e-4, 40)},
    {"gamma": 0.7, "reward_scale": 0.3, "reward_shift": -1.0},
    {"target_update_interval": 3, "polyak": 0.0},
]
OF_SAC = [
    {"autotune": False, "alpha": 0.3},
    {"autotune": False, "alpha": 0.0},
    {"target_entropy": 1.0, "alpha": 0.2, "alpha_lr": LinearDecay(1e-2, 0.0, 30)},
]
OF_TD3 = [{"policy_delay": 1}, {"policy_delay": 3, "target_noise": 0.7, "noise_clip": 0.3}]
OF_IQL = [{"expectile": 0.9, "beta": 10.0, "max_advantage_weight": 2.0}, {"expectile": 0.5, "beta": 0.0}]
OF_TD3_BC = [{"bc_alpha": 0.0}, {"bc_alpha": 7.0, "normalize_observations": False}]
CASES = [(cls, options) for cls in FUSED for options in OPTIONS]
CASES += [(SAC, options) for options in OF_SAC] + [(TD3, options) for options in OF_TD3]
CASES += [(TD3BC, options) for options in OF_TD3_BC] + [(IQL, options) for options in OF_IQL]


def told(value):
    return value.__name__ if isinstance(value, type) else ",".join(value)


@pytest.mark.parametrize("cls, options", CASES, ids=told)
def test_updates_give_what_the_plain_ones_give(cls, options):
    fused, plain = built(cls, **options), built(cls, False, **options)
    before = weights(fused)
    # Adam's first step divides each gradient by its size, so the rounding of tiny gradients shows in the weights.
    assert_same_updates(fused, plain, [batch(0)], 3e-5)
    assert_same_updates(fused, plain, [batch(seed) for seed in range(1, 12 if options else 50)], 1e-4)
    after = weights(fused)
    assert all(not torch.equal(after[name], before[name]) for name in before if name.startswith(("actor.", "critics.")))


@pytest.mark.parametrize("cls", FUSED)
@pytest.mark.parametrize("n_step, complete", [(1, False), (3, False), (2, True)])
def test_of_several_steps_and_of_padding(cls, n_step, complete):
    fused, plain = (built(cls, fused, n_step=n_step) for fused in (True, False))
    batches = [batch(seed, num_steps=3, complete=complete) for seed in range(20)]
    assert_same_updates(fused, plain, batches)
    assert all(torch.isfinite(value).all() for value in weights(fused).values())


def test_the_log_standard_deviation_is_bounded():
    """Beyond its bounds it has no gradient."""
    fused, plain = built(SAC), built(SAC, False)
    for agent in (fused, plain):
        with torch.no_grad():
            agent.actor.net[-1].bias[2:] = torch.tensor([2.0, -25.0])  # about half above, all below
    # Adam's first step divides each gradient by its size, so the rounding of tiny gradients shows in the weights.
    assert_same_updates(fused, plain, [batch(0)], 3e-5)
    gradient = fused.actor.net[-1].bias.grad
    assert gradient[2] != 0 and gradient[3] == 0
    assert_same_updates(fused, plain, [batch(seed) for seed in range(1, 20)])


def clamp_has_a_gradient_on_its_bounds():
    """It has one before PyTorch 2.14, and none since then."""
    x = torch.zeros(1, requires_grad=True)
    x.clamp(0.0, 1.0).backward()
    return x.grad.item() == 1.0


@pytest.mark.parametrize(
    "log_std, moves", [(1.9, True), (2.0, True), (2.1, False), (-4.9, True), (-5.0, True), (-5.1, False)]
)
def test_a_log_standard_deviation_for_all_observations_is_bounded(log_std, moves):
    """Beyond its bounds it has no gradient."""
    if log_std in (2.0, -5.0) and not clamp_has_a_gradient_on_its_bounds():
        pytest.skip("on the bounds, the plain update does not move with this version of PyTorch")
    fused, plain = built(IQL), built(IQL, False)
    for agent in (fused, plain):
        agent.actor.log_std.data.fill_(log_std)
    assert_same_updates(fused, plain, [batch(seed) for seed in range(3)])
    assert (fused.actor.log_std != log_std).all() == moves


def test_critics_that_agree_share_the_gradient():
    fused, plain = built(SAC), built(SAC, False)
    for agent in (fused, plain):
        for part in (agent.critics, agent.target_critics):
            for parameter in part.parameters():
                parameter.data[1] = parameter.data[0]
    assert_same_updates(fused, plain, [batch(seed) for seed in range(5)], 1e-5)


def test_actions_at_the_border_are_no_trouble():
    fused, plain = built(SAC), built(SAC, False)
    for agent in (fused, plain):
        with torch.no_grad():
            agent.actor.net[-1].bias[:2] = torch.tensor([40.0, -40.0])
    assert_same_updates(fused, plain, [batch(seed) for seed in range(5)])
    assert all(torch.isfinite(value).all() for value in weights(fused).values())


@pytest.mark.parametrize("cls", [SAC, TD3])
def test_batches_may_change_their_size(cls):
    batches = [batch(seed, num_rows) for seed, num_rows in enumerate([16, 4, 4, 32, 1, 16])]
    assert_same_updates(built(cls), built(cls, False), batches)


@pytest.mark.parametrize("cls", FUSED)
def test_statistics_and_gradients_are_not_overwritten_by_the_next_update(cls):
    agent = built(cls, policy_delay=1) if cls is TD3 else built(cls)
    stats = agent.update_networks(batch(0))
    before = {name: value.clone() for name, value in stats.items()}
    agent.update_networks(batch(1))
    assert stats == before


@pytest.mark.parametrize("cls", FUSED)
@pytest.mark.parametrize("fused", [True, None])
def test_it_is_the_fused_update_that_runs(cls, fused, monkeypatch):
    agent, plain, calls = built(cls, fused), built(cls, False), []
    update = cls.fused_update.update
    monkeypatch.setattr(cls.fused_update, "update", lambda *given: calls.append(1) or update(*given))
    agent.update_networks(batch(0))
    plain.update_networks(batch(0))
    assert len(calls) == 1


# Saved, copied, put elsewhere ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", FUSED)
@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_of_one_goes_on_in_the_other(cls, first):
    started, reference = built(cls, first), built(cls, False)
    other = built(cls, not first, seed=9)
    assert_same_updates(started, reference, [batch(seed) for seed in range(5)])
    other.update_networks(batch(7))
    other.load_state_dict(copy.deepcopy(started.state_dict()))
    assert_same_updates(other, reference, [batch(seed) for seed in range(5, 15)])


@pytest.mark.parametrize("cls", FUSED)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))])
def test_a_copy_has_its_own_weights(cls, copied):
    agent, reference = built(cls), built(cls, False)
    assert_same_updates(agent, reference, [batch(seed) for seed in range(4)])
    other, before = copied(agent), weights(agent)
    assert_same_updates(other, copy.deepcopy(reference), [batch(seed) for seed in range(4, 8)])
    assert_near(weights(agent), before, 0.0)
    assert_same_updates(agent, reference, [batch(seed) for seed in range(8, 12)])


def test_weights_that_were_put_elsewhere_are_found():
    agent, reference = built(SAC), built(SAC, False)
    agent.update_networks(batch(0)), reference.update_networks(batch(0))
    for parameter in agent.critics.parameters():
        parameter.data = parameter.data.clone()
    assert_same_updates(agent, reference, [batch(seed) for seed in range(1, 5)])


def test_weights_that_no_longer_fit_are_refused():
    agent = built(SAC)
    agent.update_networks(batch(0))
    agent.actor.double()
    with pytest.raises(UserError, match=r"SAC\.fused is True, but weights are torch\.float64 on cpu"):
        agent.update_networks(batch(1))


@pytest.mark.parametrize("cls", [SAC, TD3])
def test_a_saved_actor_acts_as_its_agent(cls, tmp_path):
    agent = built(cls)
    agent.update_networks(batch(0)), agent.update_networks(batch(1))
    save_actor(agent, tmp_path / "actor.pt")
    step = Step(batch(0).observations[:3, 0].numpy(), np.zeros((3, 2)), np.zeros((3, 1)), np.ones(3))
    ours, theirs = (one.act(step, deterministic=True)[0] for one in (agent, load_actor(tmp_path / "actor.pt")))
    np.testing.assert_array_equal(ours, theirs)


# What does not fit ----------------------------------------------------------------------------------------------------


class OwnLoss(SAC):
    def critic_loss(self, h, batch):
        return super().critic_loss(h, batch)


class OwnUpdate(TD3):
    def inner_update(self, batch):
        return super().inner_update(batch)


class OwnError(SAC):
    def td_loss(self, batch, q, y):
        loss, stats = super().td_loss(batch, q, y)
        return 2.0 * loss, stats


class OwnCloning(TD3BC):
    def actor_loss(self, h, batch):
        return super().actor_loss(h, batch)


class OwnBackup(SAC):
    def td_target(self, batch, next_value):
        return super().td_target(batch, next_value) + 1.0


class OtherActor(SAC):
    def build_actor(self, summary_dim, hidden_dims):
        class Actor(SquashedGaussianActor):
            pass

        return Actor(summary_dim, self.action_dim, hidden_dims)


class OtherActivation(DDPG):
    def build_actor(self, summary_dim, hidden_dims):
        actor = super().build_actor(summary_dim, hidden_dims)
        actor.net[1] = torch.nn.Tanh()
        return actor


class OtherCritics(SAC):
    def build_heads(self, summary_dim, hidden_dims):
        class Own(Critics):
            pass

        self.critics = Own(2, summary_dim, self.action_dim, hidden_dims)


class OwnValue(IQL):
    def build_heads(self, summary_dim, hidden_dims):
        self.value = torch.nn.Sequential(mlp([summary_dim, 8]), torch.nn.Tanh(), mlp([8, 1]))


class Learned(Encoder):
    def __init__(self, shape):
        super().__init__(shape)
        self.dim, self.net = 4, mlp([5, 4])

    def forward(self, inputs, state=None):
        return self.net(inputs.observation), None


@pytest.mark.parametrize(
    "cls, options, words",
    [
        (SAC, {"layer_norm": True}, "the critics are not plain MLPs (layer_norm, for example)"),
        (SAC, {"encoder": Learned}, "the encoder Learned has weights or a memory"),
        (TD3, {"shared_encoder": Learned}, "the encoder Learned has weights or a memory"),
        (SAC, {"precision": "bfloat16"}, "precision is 'bfloat16'"),
        (RecurrentSAC, {}, "the encoder Recurrent has weights or a memory"),
        (RecurrentTD3Sharing, {}, "the encoder Recurrent has weights or a memory"),
        (ConvolutionalSAC, {}, "the encoder Convolutional has weights or a memory"),
        (CQL, {}, "CQL has its own update_critics"),
        (OwnCloning, {}, "OwnCloning has its own actor_loss"),
        (OwnLoss, {}, "OwnLoss has its own critic_loss"),
        (OwnUpdate, {}, "OwnUpdate has its own inner_update"),
        (OwnError, {}, "OwnError has its own td_loss"),
        (OtherActor, {}, "the actor is not a SquashedGaussianActor with a plain MLP"),
        (OtherActivation, {}, "the actor is not a DeterministicActor with a plain MLP"),
        (OtherCritics, {}, "the critics are not plain MLPs"),
        (IQL, {"layer_norm": True}, "the critics are not plain MLPs (layer_norm, for example)"),
        (OwnValue, {}, "value is not a plain MLP"),
        (BCQ, {}, "BCQ has no fused update"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_what_does_not_fit_is_refused_in_one_line(cls, options, words):
    with pytest.raises(UserError) as caught:
        cls(IMAGES if cls is ConvolutionalSAC else VECTORS, ACTIONS, fused=True, hidden_dims=(4,), **options)
    message = caught.value.message
    assert message.startswith(f"{cls.__name__}.fused is True, but {words}") and "\n" not in message
    assert message.endswith("; remove this setting")


class OwnTemperature(SAC):
    """Its loss is another one."""

    def __init__(self, *arguments, **options):
        class Lower(Temperature):
            def loss(self, entropy):
                return super().loss(entropy - 1.0)

        super().__init__(*arguments, **options)
        self.temperature.__class__ = Lower


class Late(SAC):
    """Changes what it was built with, which is seen when it learns."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.actor.net[1] = torch.nn.Tanh()


@pytest.mark.parametrize(
    "cls",
    [
        OwnLoss,
        OwnError,
        OwnUpdate,
        OwnCloning,
        OtherActor,
        OtherActivation,
        OtherCritics,
        OwnValue,
        Late,
        OwnTemperature,
        CQL,
    ],
)
def test_what_does_not_fit_is_left_to_its_plain_update_by_default(cls):
    ours, plain = built(cls, None, hidden_dims=(8,)), built(cls, False, hidden_dims=(8,))
    assert_same_updates(ours, plain, [batch(seed) for seed in range(3)], 0.0)
    assert all(torch.equal(value, weights(plain)[name]) for name, value in weights(ours).items())


def test_an_agent_is_looked_at_again_when_its_weights_move_or_a_hook_is_hung_on():
    agent, plain, called = built(SAC, None), built(SAC, False), []
    assert_same_updates(agent, plain, [batch(0)])
    handle = agent.actor.net[0].register_forward_hook(lambda *_: called.append(1))
    assert_same_updates(agent, plain, [batch(1)])
    assert called
    handle.remove()
    called.clear()
    assert_same_updates(agent, plain, [batch(2)])
    assert not called
    for one in (agent, plain):
        one.actor.double()
    with pytest.raises(RuntimeError):  # of the plain update, whose critics are float32 still
        agent.update_networks(batch(3))


def patched_forward(agent):
    layer = agent.actor.net[0]
    layer.forward = lambda x: torch.nn.functional.linear(x, 0.5 * layer.weight, layer.bias)


def other_layer(agent):
    agent.actor.net[1] = torch.nn.Tanh()


def hooked_weight(agent):
    agent.critics.net[0].weight.register_hook(lambda gradient: 0.1 * gradient)


def other_minimize(agent):
    optimizer = agent.actor_optimizer
    optimizer.minimize = lambda loss, made=None: type(optimizer).minimize(optimizer, 2.0 * loss, made)


def other_weight(agent):
    layer = agent.critics.net[0]
    layer.weight = torch.nn.Parameter(0.5 * layer.weight.detach())


def other_optimizer(agent):
    class Doubled(Optimizer):
        def minimize(self, loss, made=None):
            super().minimize(2.0 * loss, made)

    agent.actor_optimizer = Doubled([(agent.actor.parameters(), 1e-3)])


def other_class_of_layer(agent):
    class Negative(torch.nn.ReLU):
        def forward(self, x):
            return -super().forward(x)

    agent.actor.net[1].__class__ = Negative


def hook_after_another(agent):
    """A weight that once had a hook."""
    weight = agent.critics.net[0].weight
    weight.register_hook(lambda gradient: gradient).remove()
    agent.update_networks(batch(7))
    weight.register_hook(lambda gradient: 0.1 * gradient)


def hooked_network(agent):
    agent.actor.register_forward_hook(lambda module, given, made: tuple(0.5 * part for part in made))


def hooked_target(agent):
    agent.target_critics.register_forward_hook(lambda module, given, made: made + 1.0)


def patched_target(agent):
    forward = agent.target_critics.forward
    agent.target_critics.forward = lambda *given: forward(*given) + 1.0


CHANGES = [
    hook_after_another,
    hooked_network,
    hooked_target,
    patched_target,
    patched_forward,
    other_layer,
    hooked_weight,
    other_minimize,
]
CHANGES += [other_weight, other_optimizer, other_class_of_layer]
CHANGES += [lambda agent: setattr(agent, "policy_delay", 2), lambda agent: setattr(agent, "target_subset", 1)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("num_updates", [0, 2])
def test_what_is_changed_by_hand_counts(change, num_updates):
    ours, plain = built(SAC, None), built(SAC, False)
    assert_same_updates(ours, plain, [batch(seed) for seed in range(num_updates)])
    for agent in (ours, plain):
        change(agent)
    assert_same_updates(ours, plain, [batch(seed) for seed in range(2, 5)])
    assert not ours._fused._fits


@pytest.mark.parametrize("order", [(2, 0, 4), (4,)])
@pytest.mark.parametrize("num_updates", [0, 2])
def test_an_optimizer_of_v_in_another_order_or_of_a_part_counts(order, num_updates):
    ours, plain = built(IQL, None), built(IQL, False)
    assert_same_updates(ours, plain, [batch(seed) for seed in range(num_updates)])
    for agent in (ours, plain):
        agent.value_optimizer = Optimizer([(agent.value[number].parameters(), 1e-2) for number in order])
    assert_same_updates(ours, plain, [batch(seed) for seed in range(2, 5)])


@pytest.mark.parametrize("cls", [BC, IQL])
def test_another_v_or_a_hook_that_is_taken_off_again(cls):
    ours, plain = built(cls, None), built(cls, False)
    handles = [agent.actor.net.register_forward_hook(lambda module, given, made: 0.5 * made) for agent in (ours, plain)]
    assert_same_updates(ours, plain, [batch(0)])
    for agent, handle in zip((ours, plain), handles, strict=True):
        handle.remove()
        if cls is IQL:
            with torch.random.fork_rng():
                torch.manual_seed(1)
                agent.value = mlp([5, 7, 1])
    assert_same_updates(ours, plain, [batch(1)])
    assert ours._fused._fits == (cls is BC)


@pytest.mark.parametrize("num_updates", [0, 2])
def test_a_loss_put_into_an_agent_is_asked(num_updates):
    agent, insisting = built(SAC, None), built(SAC)
    for seed in range(num_updates):
        agent.update_networks(batch(seed)), insisting.update_networks(batch(seed))
    loss, called = agent.critic_loss, []
    agent.critic_loss = lambda *given: called.append(1) or loss(*given)
    agent.update_networks(batch(8))
    assert called
    insisting.critic_loss = loss
    with pytest.raises(UserError, match="SAC has its own critic_loss"):
        insisting.update_networks(batch(8))


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_loss_put_into_the_class_is_asked(wrapped, monkeypatch):
    loss, called = SAC.critic_loss, []

    def other(*given):
        called.append(1)
        return loss(*given)

    monkeypatch.setattr(SAC, "critic_loss", functools.wraps(loss)(other) if wrapped else other)
    built(SAC, None).update_networks(batch(0))
    assert called
    with pytest.raises(UserError, match="SAC has its own critic_loss"):
        built(SAC)


def test_a_child_that_changes_what_is_called_fits():
    fused, plain = built(OwnBackup), built(OwnBackup, False)
    assert_same_updates(fused, plain, [batch(seed) for seed in range(5)])
    other = built(SAC)
    other.update_networks(batch(0))
    assert not torch.equal(other.critics.net[0].weight, built(SAC).critics.net[0].weight)


def test_gin_chooses_it():
    loading.load_gin_config(None, ["SAC.fused=True"])
    assert SAC(VECTORS, ACTIONS, hidden_dims=(4,))._fused.is_wanted
    assert not TD3(VECTORS, ACTIONS, hidden_dims=(4,))._fused.is_wanted
    loading.load_gin_config(None, ["SAC.fused=False"])
    assert SAC(VECTORS, ACTIONS, hidden_dims=(4,))._fused is None


# Passes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [1, 7])
@pytest.mark.parametrize("num_zero", [0, 1, 5])
@pytest.mark.parametrize("sizes", [(3, 2), (3, 40, 2), (30, 5, 20, 1)])
def test_gradients_are_those_of_autograd(sizes, num_rows, num_zero):
    net, x = mlp(sizes), torch.randn(num_rows, sizes[0])
    gradient = torch.randn(num_rows, sizes[-1])
    gradient[1 : 1 + num_zero] = 0.0  # of 7 rows, 5 are omitted
    parameters, x_with = list(net.parameters()), x.clone().requires_grad_()
    expected = torch.autograd.grad(net(x_with), [*parameters, x_with], gradient)
    passes = MLPKernel(parameters)
    torch.testing.assert_close(passes.forward(x)[0], net(x).detach())
    with torch.no_grad():
        passes.backward(x, gradient.unsqueeze(0))
        of_inputs = passes.backward_to_inputs(gradient.unsqueeze(0), 2)
    torch.testing.assert_close(passes.gradients, list(expected[:-1]))
    torch.testing.assert_close(of_inputs, expected[-1][:, -2:])


EDIT = """
import sys
sys.path[:0] = [FOLDER, TESTS]
from test_fused import ACTIONS, VECTORS, batch
import numpy, torch
from offpcc.algorithms import SAC
from offpcc.algorithms.agent import Agent

for fused in (None, False):
    agent = SAC(VECTORS, ACTIONS, fused=fused, hidden_dims=(32,))
    before = agent.actor.net[0].weight.clone()
    agent.update_networks(batch(0))
    print(bool((agent.actor.net[0].weight != before).any()))
    with torch.no_grad():
        print(float(agent.actor.choose(torch.ones(1, 5), None).abs().sum()))
    print(float(abs(Agent(agent).act(numpy.ones(5))).sum()))
"""


@pytest.mark.slow
def test_an_edited_loss_or_network_is_the_one_that_counts(tmp_path):
    root = Path(offpcc.__file__).parent
    shutil.copytree(root, tmp_path / "offpcc", ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in (
        ("algorithms/sac.py", "loss = batch.mean(self.temperature()", "loss = 0.0 * batch.mean(self.temperature()"),
        ("networks/actors.py", "return torch.tanh(", "return 0.0 * torch.tanh("),
    ):
        path = tmp_path / "offpcc" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    code = EDIT.replace("FOLDER", repr(str(tmp_path))).replace("TESTS", repr(str(Path(__file__).parent)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["False", "0.0", "0.0"] * 2, done.stderr
    assert "the source of offpcc.algorithms.sac has changed: the plain update is used" in done.stderr


def test_a_module_is_edited_if_its_source_is_not_the_known_one(monkeypatch, capsys):
    known = classes_of(SAC, SAC.fused_update)
    assert edited_module(known) == "" and {cls.__module__ for cls in known} > {"offpcc.algorithms.sac"}
    assert edited_module([Batch, int]) == "", "others have no digest"
    monkeypatch.setitem(edited.DIGESTS, "algorithms.sac", "0" * 16)
    caches = edited._is_edited, edited.warn_of_edit
    try:
        for cache in caches:
            cache.cache_clear()
        plain = built(SAC, fused=None)
        assert not plain._fused.fits(plain) and not built(SAC, fused=None)._fused.fits(plain)
        message = "offpcc: the source of offpcc.algorithms.sac has changed: the plain update is used"
        assert capsys.readouterr().err.count(message) == 1
        with pytest.raises(UserError, match=r"fused is True, but the source of offpcc\.algorithms\.sac has changed"):
            built(SAC)
        built(TD3)
    finally:
        for cache in caches:
            cache.cache_clear()


@pytest.mark.parametrize("cell", ["gru", "lru"])
def test_an_edited_memory_acts_by_pytorch(cell, monkeypatch, capsys):
    memory = functools.partial(Recurrent, cell=cell, hidden_dim=4, num_layers=1)
    agent = SAC(VECTORS, ACTIONS, encoder=memory, hidden_dims=(8,))
    expected = Agent(agent).act(np.ones(5, np.float32))
    assert agent._mirror is not None
    monkeypatch.setitem(edited.DIGESTS, f"networks.cells.{cell}", "0" * 16)
    edited._is_edited.cache_clear()
    edited.warn_of_edit.cache_clear()
    try:
        np.testing.assert_allclose(Agent(agent).act(np.ones(5, np.float32)), expected, atol=1e-5)
        assert agent._mirror is None and "acting uses PyTorch" in capsys.readouterr().err
    finally:
        edited._is_edited.cache_clear()
        edited.warn_of_edit.cache_clear()


def test_a_digest_is_of_the_code_with_its_indentation_and_not_of_comments(tmp_path, monkeypatch):
    def digest_of(text):
        (tmp_path / "page.py").write_text(text)
        monkeypatch.setitem(sys.modules, "page", types.SimpleNamespace(__file__=str(tmp_path / "page.py")))
        return edited.digest("page")

    first = digest_of("if a:\n    # why\n    b()\n\n    c()\n")
    assert digest_of("if a:\n    b()\n    c()\n") == first
    assert digest_of("if a:\n    b()\nc()\n") != first != digest_of("if a:\n    b()\n    d()\n")
