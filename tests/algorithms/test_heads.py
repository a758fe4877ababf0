"""Residual heads, dropout, random subsets of critics and delayed actors, in every algorithm."""

import gin
import numpy as np
import pytest
import torch
from references import ENCODERS, SPACES, assert_same, build, data
from test_contract import CASES, Case, act_along, assert_equal, parameters

from offpcc.algorithms import DDPG, IQL, RLPD, SAC, TD3
from offpcc.algorithms.agent import load_actor, save_actor
from offpcc.config import loading
from offpcc.networks import Critics, QuantileCritics, Residual
from offpcc.networks.layers import EnsembleLinear, HiddenLayers, ResidualBlock, head
from offpcc.training.build import build as build_experiment
from offpcc.utils.errors import UserError

HEADS = Residual(actor_width=6, actor_blocks=2, critic_width=5, critic_blocks=3)
# What an encoder tells is all that the heads know of it.
ENCODED = ("rtd3-lstm", "riql_s-lstm", "ccql", "crsac_s-lstm", "rbcq-lstm", "r2d2-lstm", "rdqn-lstm", "cdbcq")
HEADED = [case for case in CASES if not (case.cell or case.images) or str(case) in ENCODED]


# Networks -------------------------------------------------------------------------------------------------------


def normalised(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def by_hand(weights, x):
    """Linear, blocks, layer norm, linear; weights as matrices (in, out) and vectors, in this order."""
    take = iter(weights)
    x = x @ next(take) + next(take)
    while len(rest := list(take)) > 4:
        scale, shift, widen, of_widen, narrow, of_narrow, *rest = rest
        inner = np.maximum((normalised(x) * scale + shift) @ widen + of_widen, 0.0)
        x, take = x + inner @ narrow + of_narrow, iter(rest)
    scale, shift, last, of_last = rest
    return (normalised(x) * scale + shift) @ last + of_last


def test_a_residual_network_is_its_equations():
    torch.manual_seed(0)
    net = head(3, HiddenLayers((6, 6), residual=True), 2).double()
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    weights = [p.detach().numpy().T for p in net.parameters()]
    assert [w.shape for w in weights if w.ndim == 2] == [(3, 6), (6, 24), (24, 6), (6, 24), (24, 6), (6, 2)]
    np.testing.assert_allclose(net(x).detach(), by_hand(weights, x.numpy()), rtol=1e-12)
    assert torch.autograd.gradcheck(net, x.requires_grad_())


def test_residual_critics_are_their_equations_whichever_way_they_are_asked():
    torch.manual_seed(0)
    critics = Critics(4, 3, 2, HiddenLayers((5, 5), residual=True)).double()
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    summary = torch.randn(4, 6, 2, 3, dtype=torch.float64, requires_grad=True)
    action = torch.randn(6, 2, 2, dtype=torch.float64, requires_grad=True)
    q = critics(summary, action)
    for number in range(4):
        weights = [
            p[number].detach().numpy().reshape(p.shape[-2:] if p.shape[1] > 1 else -1) for p in critics.parameters()
        ]
        weights[-2] = critics.net[-1].weight[number].detach().numpy()
        x = torch.cat([summary[number], action], -1).detach().numpy()
        np.testing.assert_allclose(q[number].detach(), by_hand(weights, x), rtol=1e-11)
    members = torch.tensor([3, 1])
    torch.testing.assert_close(critics(summary, action, members), q[members], rtol=1e-12, atol=0)
    shared = critics(summary[:1], action)
    torch.testing.assert_close(critics(summary[:1], action, members), shared[members], rtol=1e-12, atol=0)
    frozen = critics.forward_frozen(summary, action)
    torch.testing.assert_close(frozen, q, rtol=1e-12, atol=0)
    expected = torch.autograd.grad(q.sum(), action, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(frozen.sum(), action)[0], expected, rtol=1e-12, atol=1e-14)
    of_actions = critics.with_action_gradients(summary, action)[1]
    torch.testing.assert_close(of_actions.sum(0), expected, rtol=1e-10, atol=1e-12)
    second = torch.autograd.grad(of_actions.square().sum(), critics.net[0].weight)[0]
    assert second.abs().max() > 1e-3, "EDAC's loss has second derivatives"


def test_a_value_is_the_mean_of_the_quantiles_whichever_way_critics_are_asked():
    critics = QuantileCritics(3, 4, 2, (8,), 5).double()
    summary, action = torch.randn(3, 6, 2, 4).double(), torch.randn(6, 2, 2, dtype=torch.float64, requires_grad=True)
    q = critics.quantiles(summary, action).mean(-1, keepdim=True)
    values, gradients = critics.with_action_gradients(summary, action)
    frozen, members = critics.forward_frozen(summary, action), torch.tensor([2, 0])
    for found in (critics(summary, action), frozen, values):
        torch.testing.assert_close(found, q, rtol=1e-12, atol=0)
    torch.testing.assert_close(critics(summary, action, members), q[members], rtol=1e-12, atol=0)
    expected = torch.autograd.grad(q.sum(), action)[0]
    for found in (gradients.sum(0), torch.autograd.grad(frozen.sum(), action)[0]):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


# Algorithms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", HEADED, ids=lambda case: f"{case}-")
def test_every_algorithm_learns_with_residual_heads(case, tmp_path):
    agent = case.build(1, heads=HEADS, weight_decay=0.01)
    trained = [agent.actor, *([agent.critics] if agent.has_critics else []), getattr(agent, "value", agent.actor)]
    assert all(sum(isinstance(m, ResidualBlock) for m in part.modules()) >= 2 for part in trained)
    before = parameters(agent)
    for number in range(2 * case.delay):
        stats = agent.update_networks(case.batch(number))
    assert all(value.isfinite().all() for value in stats.values())
    still = [name for name, value in parameters(agent).items() if torch.equal(value, before[name])]
    assert not [name for name in still if name.startswith(("actor.", "critics.", "value."))]
    assert {"hidden_dims", "layer_norm", "dropout"} & agent.unused_parameters().keys()
    save_actor(agent, tmp_path / "actor.pt")
    np.testing.assert_array_equal(act_along(load_actor(tmp_path / "actor.pt"), case), act_along(agent, case))


def test_layer_norm_is_for_critics_and_actors_alone():
    agent = build(IQL, layer_norm=True, actor_layer_norm=True)
    parts = (agent.critics, agent.actor, agent.value)
    assert [any("LayerNorm" in type(m).__name__ for m in part.modules()) for part in parts] == [True, True, False]


@pytest.mark.parametrize("name", ["sac", "iql"])
def test_dropout_is_for_updates_and_acting_has_none(name):
    case = Case(name, None)
    agent = case.build(actor_dropout=0.5, dropout=0.5)
    for part in (agent.actor, agent.critics):
        assert sum(isinstance(m, torch.nn.Dropout) for m in part.modules()) == 2
    agent.update_networks(case.batch())
    batch = agent.prepare(case.batch())
    h = agent.summarize(batch)
    assert not torch.equal(*(agent.critics(h.q, batch.actions) for _ in range(2)))
    assert not torch.equal(*(agent.actor.choose(h.pi, None) for _ in range(2)))
    assert torch.equal(*(agent.target_critics(h.target_q[:, :, 1:], batch.actions) for _ in range(2)))
    np.testing.assert_array_equal(*(act_along(agent, case) for _ in range(2)))
    agent.prepare(case.batch(), learns=False)
    assert torch.equal(*(agent.actor.choose(h.pi, None) for _ in range(2)))
    agent.prepare(case.batch())
    step = next(case.steps(0, 1, agents=9))  # more than the NumPy mirror takes
    np.testing.assert_array_equal(*(agent.act(step, deterministic=True)[0] for _ in range(2)))


@pytest.mark.parametrize("kind", ["memoryless", "recurrent", "shared"])
def test_targets_ask_a_new_subset_each_time(kind):
    agent = build(SAC, kind, num_critics=6, target_subset=2)
    batch = agent.prepare(data(kind, 1)[1])
    h, asked = agent.summarize(batch), []
    subset = agent.noise.subset
    agent.noise.subset = lambda *sizes: asked.append(subset(*sizes)) or asked[-1]
    values = [agent.target_values(h.target_q[:, :, 1:], batch.actions) for _ in range(30)]
    every = agent.target_critics(h.target_q[:, :, 1:], batch.actions)
    for members, value in zip(asked, values, strict=True):
        assert_same(value, every[members])
    assert {number for members in asked for number in members.tolist()} == set(range(6))
    assert all(len(set(members.tolist())) == 2 for members in asked)


@pytest.mark.parametrize("name", ["sac", "rlpd"])
def test_a_delayed_actor_learns_in_every_kth_update(name):
    case = Case(name, None)
    agent = case.build(num_critics=2, target_subset=1, policy_delay=3)
    moved = []
    for number in range(7):
        before = parameters(agent)
        stats = agent.update_networks(case.batch(number))
        after = {key for key, value in parameters(agent).items() if not torch.equal(value, before[key])}
        assert any(key.startswith("target_critics.") for key in after) and "critic_loss" in stats
        moved.append(any(key.startswith("actor.") for key in after))
        assert moved[-1] == any(key.startswith("temperature") for key in after) == ("actor_loss" in stats)
    assert moved == [False, False, True, False, False, True, False]
    assert (agent.critic_optimizer.num_updates, agent.actor_optimizer.num_updates) == (7, 2)


@pytest.mark.parametrize("kind", ENCODERS)
def test_rlpd_without_entropy_backs_up_q_alone(kind):
    agents = [build(RLPD, kind, num_critics=3, target_subset=1, alpha=a, backup_entropy=False) for a in (0.1, 5.0)]
    batch = data(kind, 1)[1]
    targets = [agent.target(agent.summarize(agent.prepare(batch)), agent.prepare(batch)) for agent in agents]
    assert_equal(*targets)
    other = build(RLPD, kind, num_critics=3, target_subset=1, alpha=5.0)
    assert not torch.allclose(other.target(other.summarize(other.prepare(batch)), other.prepare(batch)), targets[0])


# What is refused, and what is not used ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        (SAC, {"num_critics": 1, "target_subset": 2}, "SAC.target_subset is 2, but num_critics is 1; .* or less"),
        (DDPG, {"target_subset": 2}, "DDPG.target_subset is 2, but num_critics is 1"),
        (RLPD, {"num_critics": 1}, "RLPD.target_subset is 2, but num_critics is 1"),
        (SAC, {"fused": True, "policy_delay": 2}, "fused is True, but policy_delay is 2, .* needs 1; remove"),
        (SAC, {"fused": True, "actor_q": "mean"}, "actor_q is 'mean', and the fused update needs 'min'"),
        (TD3, {"fused": True, "target_subset": 1}, "target_subset is 1, and the fused update needs None"),
        (TD3, {"fused": True, "heads": HEADS}, "the actor is not a DeterministicActor with a plain MLP"),
        (IQL, {"fused": True, "actor_dropout": 0.1}, "the actor is not a GaussianActor with a plain MLP"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(cls, options, words):
    with pytest.raises(UserError, match=words) as caught:
        cls(*SPACES, hidden_dims=(4,), **options)
    assert "\n" not in caught.value.message


def test_a_subset_of_all_critics_is_all_critics():
    """So a fused update stays possible."""
    assert SAC(*SPACES, hidden_dims=(4,), target_subset=2, fused=True).target_subset is None
    assert DDPG(*SPACES, hidden_dims=(4,), target_subset=1, actor_q="mean", fused=True).actor_q == "first"


def test_an_actor_file_keeps_the_kind_of_normalisation(tmp_path):
    for given in (True, False, "scale"):
        agent = IQL(*SPACES, hidden_dims=(4,), normalize_observations=given)
        save_actor(agent, tmp_path / "actor.pt")
        loaded = load_actor(tmp_path / "actor.pt")
        assert (loaded.normalization is not None) == bool(given)
        assert not given or loaded.normalization.shifts == (given is True)


# Configs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["simba", "redq", "rlpd", "rlpd_antmaze", "rlpd_adroit"])
@pytest.mark.parametrize("memory", [False, True])
def test_the_papers_settings_reach_the_agent(name, memory):
    loading.load_gin_config(f"algorithms/{name}.gin", ["Recurrent.hidden_dim=4", "Recurrent.num_layers=1"])
    algo = name.partition("_")[0] if "rlpd" in name else "sac"
    experiment = build_experiment("pendulum-p-v0", f"r{algo}_s" if memory else algo)
    agent = experiment.algorithm
    assert agent.temperature.target_entropy == -0.5
    assert agent._targets.polyak == 0.995 and agent.gamma == 0.99
    if name == "simba":
        assert (agent.critics.num, agent.weight_decay, agent.lr) == (2, 0.01, 1e-4)
        assert agent.alpha_optimizer.groups[0].weight_decay == 0.0 and agent.temperature().item() == pytest.approx(0.01)
        assert agent.critics.net[0].weight.shape[-1] == 512 and len(agent.critics.net) == 5
        assert agent.actor.net[0].out_features == 128 and len(agent.actor.net) == 4
        assert agent.normalization.shifts and gin.query_parameter("train.updates_per_step") == 2.0
    else:
        subset = 1 if "antmaze" in name else 2
        assert (agent.critics.num, agent.target_subset, agent.actor_q, agent.policy_delay) == (10, subset, "mean", 20)
        assert gin.query_parameter("train.updates_per_step") == 20.0
        num_linear = sum(isinstance(layer, EnsembleLinear) for layer in agent.critics.net)
        assert num_linear == (4 if name.startswith("rlpd_") else 3)
    if algo == "rlpd":
        assert agent.backup_entropy == (name == "rlpd") and agent.reward_shift == -float("antmaze" in name)
    experiment.close()


def test_the_settings_of_tqc_are_the_papers():
    loading.load_gin_config("algorithms/tqc.gin", ["TQC.hidden_dims=(8,8)"])
    experiment = build_experiment("pendulum-p-v0", "tqc")
    agent = experiment.algorithm
    assert (agent.critics.num, agent.num_quantiles, agent.top_quantiles_to_drop, agent.actor_q) == (5, 25, 2, "mean")
    assert (agent.gamma, agent._targets.polyak, agent.lr) == (0.99, 0.995, 3e-4)
    assert agent.temperature.target_entropy == -1.0 and experiment.buffer.batch_size == 256
    experiment.close()
