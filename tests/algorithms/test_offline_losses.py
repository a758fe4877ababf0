"""Every loss of the offline algorithms and its gradients against the papers' equations, and the traps inside them."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from references import (
    ACTION_DIM,
    ENCODERS,
    SPACES,
    actor_output,
    assert_same,
    assert_same_losses,
    build,
    data,
    gaussian,
    gradients,
    mean,
    n_step_target,
    output,
    q_value,
    rows_read,
)
from torch.distributions import Normal, kl_divergence

from offpcc.algorithms import AWAC, BC, BCQ, COMBO, CQL, CRR, EDAC, FQL, IQL, TD3BC, CalQL, DiscreteCRR, ReBRAC
from offpcc.algorithms.agent import load_actor, save_actor
from offpcc.algorithms.bcq import VariationalAutoencoder
from offpcc.algorithms.components import LagrangeMultiplier
from offpcc.core import Batch, Step
from offpcc.networks import Inputs, Recurrent
from offpcc.utils.errors import UserError

DOUBLE = {"dtype": torch.float64}
IMAGINED = (1, 2)  # rows of a batch of COMBO


# The reference --------------------------------------------------------------------------------------------------


class Draws:
    """The numbers that the agent's noise is about to give, none of them taken away."""

    def __init__(self, agent, batch):
        self.generator, self.steps = torch.Generator(), batch.actions.shape[:2]
        self.generator.set_state(agent.noise.generator.get_state())

    def normal(self, *shape):
        return torch.randn(*self.steps, *shape, generator=self.generator, **DOUBLE)

    def uniform(self, *shape):
        return 2.0 * torch.rand(*self.steps, *shape, generator=self.generator, **DOUBLE) - 1.0


def all_q(agent, seen, t, action):
    numbers = range(agent.critics.num)
    return torch.stack([q_value(agent.critics, n, seen.qs[n % len(seen.qs)][t], action) for n in numbers])


def all_target_q(agent, seen, t, action):
    numbers, qs = range(agent.critics.num), seen.target_qs
    return torch.stack([q_value(agent.target_critics, n, qs[n % len(qs)][t], action) for n in numbers])


def squared_errors(agent, seen, values):
    """Of the counted steps, summed over critics."""
    row = seen.row
    for t in row.counted:
        y = n_step_target(row, values, t, agent.n_step, agent.reward_scale, agent.reward_shift)
        yield ((all_q(agent, seen, t, row.actions[t]) - y) ** 2).sum()


def bc_reference(agent, rows, draws):
    terms = []
    for seen in rows_read(agent, rows):
        for t in seen.row.counted:
            action = torch.tanh(actor_output(agent.actor, seen.pi[t]))
            terms.append(((action - seen.row.actions[t]) ** 2).mean())
    return {"actor": mean(terms)}


def td3_bc_reference(agent, rows, draws):
    smoothing = draws.normal(ACTION_DIM)
    errors, q_terms, imitation = [], [], []
    for seen in rows_read(agent, rows):
        values = []
        for t in range(len(seen.row.actions)):
            with torch.no_grad():
                noise = (agent.target_noise * smoothing[seen.place, seen.begin + t]).clamp(
                    -agent.noise_clip, agent.noise_clip
                )
                action = torch.tanh(actor_output(agent.target_actor, seen.next_pi[t + 1])) + noise
                values.append(all_target_q(agent, seen, t + 1, action.clamp(-1, 1)).min())
        errors += squared_errors(agent, seen, values)
        for t in seen.row.counted:
            action = torch.tanh(actor_output(agent.actor, seen.pi[t]))
            q_terms.append(q_value(agent.critics, 0, seen.qs[0][t].detach(), action))
            imitation.append(((action - seen.row.actions[t]) ** 2).mean())
    weight = agent.bc_alpha / mean(abs(q.item()) * torch.ones((), **DOUBLE) for q in q_terms)
    return {"critic": mean(errors), "actor": mean(imitation) - weight * mean(q_terms)}


def rebrac_reference(agent, rows, draws):
    smoothing = draws.normal(ACTION_DIM)
    errors, q_terms, imitation = [], [], []
    for seen in rows_read(agent, rows):
        values = []
        for t in range(len(seen.row.actions)):
            with torch.no_grad():
                noise = agent.target_noise * smoothing[seen.place, seen.begin + t]
                action = torch.tanh(actor_output(agent.target_actor, seen.next_pi[t + 1]))
                action = (action + noise.clamp(-agent.noise_clip, agent.noise_clip)).clamp(-1, 1)
                value = all_target_q(agent, seen, t + 1, action).min()
                if (recorded := seen.row.after(t)) is not None:
                    value = value - agent.critic_bc_coef * ((action - recorded) ** 2).sum()
                values.append(value)
        errors += squared_errors(agent, seen, values)
        for t in seen.row.counted:
            action = torch.tanh(actor_output(agent.actor, seen.pi[t]))
            heads = seen.qs * agent.critics.num if len(seen.qs) == 1 else seen.qs
            own = [q_value(agent.critics, n, h[t].detach(), action) for n, h in enumerate(heads)]
            q_terms.append(torch.stack(own).min())
            imitation.append(((action - seen.row.actions[t]) ** 2).sum())
    scale = mean(q.detach().abs() for q in q_terms) if agent.normalize_q else 1.0
    return {"critic": mean(errors), "actor": agent.actor_bc_coef * mean(imitation) - mean(q_terms) / scale}


def iql_reference(agent, rows, draws):
    errors, v_terms, actor_terms = [], [], []
    for seen in rows_read(agent, rows):
        v = [output(agent.value, h.detach())[0] for h in seen.pi]
        errors += squared_errors(agent, seen, [x.detach() for x in v[1:]])
        for t in seen.row.counted:
            action = seen.row.actions[t]
            with torch.no_grad():
                u = all_target_q(agent, seen, t, action).min() - v[t]
            error = (u + v[t].detach() - v[t]) ** 2
            v_terms.append(error * (agent.expectile if u > 0 else 1 - agent.expectile))
            weight = min(math.exp(agent.beta * u), agent.max_advantage_weight)
            policy = Normal(torch.tanh(actor_output(agent.actor, seen.pi[t])), agent.actor.log_std.exp())
            actor_terms.append(-weight * policy.log_prob(action).sum())
    return {"value": mean(v_terms), "actor": mean(actor_terms), "critic": mean(errors)}


def cql_reference(agent, rows, draws):
    num = agent.num_samples
    if agent.max_q_backup or not agent.backup_entropy:
        next_noise = draws.normal(num if agent.max_q_backup else 1, ACTION_DIM)
    else:
        next_noise = draws.normal(ACTION_DIM).unsqueeze(-2)
    noises = draws.normal(num, ACTION_DIM), draws.normal(num, ACTION_DIM)
    uniform, actor_noise = draws.uniform(num, ACTION_DIM), draws.normal(ACTION_DIM)
    errors, soft_maxima, raised, log_probs, aims = [], [], [], [], []
    multiplier = agent.multiplier.log_alpha.exp().item()
    imitating = agent.critic_optimizer.num_updates <= agent.bc_steps
    for seen in rows_read(agent, rows):
        values = []
        for t in range(len(seen.row.actions)):
            with torch.no_grad():
                drawn = [gaussian(agent.actor, seen.pi[t + 1], x) for x in next_noise[seen.place, seen.begin + t]]
                best = torch.stack([all_target_q(agent, seen, t + 1, action) for action, _ in drawn]).amax(0).min()
                entropy = -drawn[0][1] if agent.backup_entropy and not agent.max_q_backup else 0.0
                values.append(best + agent.temperature() * entropy)
        errors += squared_errors(agent, seen, values)
        for t in seen.row.counted:
            at = seen.place, seen.begin + t
            total, weight = seen.row.returns[t]
            limit = agent.reward_scale * total + agent.reward_shift * weight
            is_limited = isinstance(agent, CalQL) and weight > 0
            ratios = [all_q(agent, seen, t, action).exp() / 0.5**ACTION_DIM for action in uniform[at]]
            for h, noise in zip((seen.pi[t], seen.pi[t + 1]), noises, strict=True):
                for x in noise[at]:
                    action, log_prob = (part.detach() for part in gaussian(agent.actor, h, x))
                    q = all_q(agent, seen, t, action)
                    q = torch.stack([max(one, torch.full_like(one, limit)) for one in q]) if is_limited else q
                    ratios.append(q.exp() / log_prob.exp())
            powers = torch.stack(ratios) ** (1.0 / agent.softmax_temperature)
            soft_maxima.append(agent.softmax_temperature * powers.sum(0).log())
            is_recorded = not (isinstance(agent, COMBO) and seen.place in IMAGINED)
            if is_recorded:
                raised.append(all_q(agent, seen, t, seen.row.actions[t]))
            action, log_prob = gaussian(agent.actor, seen.pi[t], actor_noise[at])
            if imitating:
                center, log_std = actor_output(agent.actor, seen.pi[t]).chunk(2)
                recorded = seen.row.actions[t]
                density = Normal(center, log_std.clamp(-20, 2).exp()).log_prob(torch.atanh(recorded))
                value = (density - torch.log(1 - recorded**2)).sum()
            else:
                heads = enumerate(seen.qs * agent.critics.num if len(seen.qs) == 1 else seen.qs)
                value = torch.stack([q_value(agent.critics, n, h[t].detach(), action) for n, h in heads]).min()
            log_probs.append(agent.temperature() * log_prob)
            if is_recorded or not imitating:
                aims.append(value)
    gap = torch.stack(soft_maxima).mean(0) - torch.stack(raised).mean(0)
    excess = agent.conservative_weight * gap - agent.multiplier.threshold
    return {"critic": mean(errors) + multiplier * excess.sum(), "actor": mean(log_probs) - mean(aims)}


def awac_reference(agent, rows, draws):
    next_noise, noises = draws.normal(1, ACTION_DIM), draws.normal(agent.num_samples, ACTION_DIM)
    errors, actor_terms = [], []

    def policy(h):
        return Normal(torch.tanh(actor_output(agent.actor, h)), agent.actor.log_std.clamp(-6, 2).exp())

    def drawn(h, noise):
        return (policy(h).mean + policy(h).stddev * noise).clamp(-1, 1)

    for seen in rows_read(agent, rows):
        values = []
        for t in range(len(seen.row.actions)):
            with torch.no_grad():
                next_action = drawn(seen.pi[t + 1], next_noise[seen.place, seen.begin + t, 0])
                if agent.reads_next_actions and seen.row.after(t) is not None:
                    next_action = seen.row.after(t)
                values.append(all_target_q(agent, seen, t + 1, next_action).min())
        errors += squared_errors(agent, seen, values)
        for t in seen.row.counted:
            action = seen.row.actions[t]
            with torch.no_grad():
                own = [drawn(seen.pi[t], noise) for noise in noises[seen.place, seen.begin + t]]
                values = [all_q(agent, seen, t, other).min() for other in own]
                baseline = max(values) if getattr(agent, "advantage_type", "mean") == "max" else mean(values)
                advantage = (all_q(agent, seen, t, action).min() - baseline).item()
            weight = min(math.exp(advantage / agent.advantage_temperature), agent.max_advantage_weight)
            if getattr(agent, "weight_type", "exp") == "binary":
                weight = 1.0 if advantage > 0.0 else 0.0
            actor_terms.append(-weight * policy(seen.pi[t]).log_prob(action).sum())
    return {"critic": mean(errors), "actor": mean(actor_terms)}


def edac_reference(agent, rows, draws):
    next_noise, noise = draws.normal(ACTION_DIM), draws.normal(ACTION_DIM)
    errors, cosines, actor_terms, num = [], [], [], agent.critics.num
    for seen in rows_read(agent, rows):
        values = []
        for t in range(len(seen.row.actions)):
            with torch.no_grad():
                action, log_prob = gaussian(agent.actor, seen.pi[t + 1], next_noise[seen.place, seen.begin + t])
                least = all_target_q(agent, seen, t + 1, action).min()
                values.append(least - agent.temperature() * log_prob)
        errors += squared_errors(agent, seen, values)
        for t in seen.row.counted:
            recorded, slopes = seen.row.actions[t].clone().requires_grad_(), []
            for q in all_q(agent, seen, t, recorded):
                (slope,) = torch.autograd.grad(q, recorded, create_graph=True)
                slopes.append(slope / torch.sqrt((slope**2).sum()) if slope.any() else slope)
            pairs = [slopes[i] @ slopes[j] for i in range(num) for j in range(num) if i != j]
            cosines.append(torch.stack(pairs).sum() / (num - 1))
            action, log_prob = gaussian(agent.actor, seen.pi[t], noise[seen.place, seen.begin + t])
            heads = enumerate(seen.qs * num if len(seen.qs) == 1 else seen.qs)
            q = torch.stack([q_value(agent.critics, n, h[t].detach(), action) for n, h in heads]).min()
            actor_terms.append(agent.temperature() * log_prob - q)
    return {"critic": mean(errors) + agent.eta * mean(cosines), "actor": mean(actor_terms)}


def fql_reference(agent, rows, draws):
    next_noise, start, time = draws.normal(ACTION_DIM), draws.normal(ACTION_DIM), 0.5 * (draws.uniform(1) + 1.0)
    noise, number = draws.normal(ACTION_DIM), agent.flow_steps
    errors, flow_terms, distances, q_terms = [], [], [], []

    def one_step(h, z):
        return actor_output(agent.actor, torch.cat([h, z]))

    def velocity(h, point, t):
        return output(agent.actor.velocity_net, torch.cat([h, point, t]))

    for seen in rows_read(agent, rows):
        values = []
        for t in range(len(seen.row.actions)):
            with torch.no_grad():
                action = one_step(seen.pi[t + 1], next_noise[seen.place, seen.begin + t]).clamp(-1, 1)
                q = all_target_q(agent, seen, t + 1, action)
                values.append(q.mean() if agent.q_agg == "mean" else q.min())
        errors += squared_errors(agent, seen, values)
        for t in seen.row.counted:
            at, recorded, h = (seen.place, seen.begin + t), seen.row.actions[t], seen.pi[t]
            between = start[at] + time[at] * (recorded - start[at])
            flow_terms.append(((velocity(h, between, time[at]) + start[at] - recorded) ** 2).mean())
            point = noise[at]
            with torch.no_grad():
                for k in range(number):
                    point = point + velocity(h, point, torch.full((1,), k / number, **DOUBLE)) / number
            action = one_step(h, noise[at])
            distances.append(((action - point.clamp(-1, 1)) ** 2).mean())
            heads = enumerate(seen.qs * agent.critics.num if len(seen.qs) == 1 else seen.qs)
            own = [q_value(agent.critics, n, x[t].detach(), action.clamp(-1, 1)) for n, x in heads]
            q_terms.append(torch.stack(own).mean())
    scale = mean(q.detach().abs() for q in q_terms) if agent.normalize_q_loss else 1.0
    actor = mean(flow_terms) + agent.alpha * mean(distances) - mean(q_terms) / scale
    return {"critic": mean(errors), "actor": actor}


def perturbed(actor, h, action, phi):
    return (action + phi * torch.tanh(actor_output(actor, torch.cat([h, action])))).clamp(-1, 1)


def decoded(vae, h, z):
    return torch.tanh(output(vae.decoder, torch.cat([h, z])))


def bcq_reference(agent, rows, draws):
    latent_dim, vae = 2 * ACTION_DIM, agent.vae
    encoding, sampling = draws.normal(latent_dim), draws.normal(agent.num_samples, latent_dim).clamp(-0.5, 0.5)
    acting = draws.normal(latent_dim).clamp(-0.5, 0.5)
    errors, vae_terms, actor_terms, weight = [], [], [], agent.lmbda
    for seen in rows_read(agent, rows):
        values = []
        for t in range(len(seen.row.actions)):
            with torch.no_grad():
                candidates = []
                for z in sampling[seen.place, seen.begin + t]:
                    action = decoded(vae, seen.pi[t + 1], z)
                    action = perturbed(agent.target_actor, seen.next_pi[t + 1], action, agent.phi)
                    q = all_target_q(agent, seen, t + 1, action)
                    candidates.append(weight * q.min() + (1 - weight) * q.max())
                values.append(torch.stack(candidates).max())
        errors += squared_errors(agent, seen, values)
        for t in seen.row.counted:
            at, recorded, h = (seen.place, seen.begin + t), seen.row.actions[t], seen.pi[t].detach()
            center, log_std = output(vae.encoder, torch.cat([h, recorded])).chunk(2)
            posterior = Normal(center, log_std.clamp(-4, 15).exp())
            again = decoded(vae, h, center + posterior.stddev * encoding[at])
            prior = Normal(torch.zeros_like(center), torch.ones_like(center))
            divergence = kl_divergence(posterior, prior).mean()
            vae_terms.append(((again - recorded) ** 2).mean() + 0.5 * divergence)
            action = perturbed(agent.actor, seen.pi[t], decoded(vae, h, acting[at]).detach(), agent.phi)
            actor_terms.append(-q_value(agent.critics, 0, seen.qs[0][t].detach(), action))
    return {"vae": mean(vae_terms), "critic": mean(errors), "actor": mean(actor_terms)}


# Losses and gradients -------------------------------------------------------------------------------------------

REFERENCES = {
    BC: bc_reference,
    TD3BC: td3_bc_reference,
    IQL: iql_reference,
    CQL: cql_reference,
    CalQL: cql_reference,
    COMBO: cql_reference,
    BCQ: bcq_reference,
    AWAC: awac_reference,
    CRR: awac_reference,
    EDAC: edac_reference,
    ReBRAC: rebrac_reference,
    FQL: fql_reference,
}
COMMON = {
    TD3BC: {"normalize_observations": False},
    BCQ: {"vae_hidden_dims": (6,), "hidden_dims": (9, 8)},
    CQL: {"num_samples": 3},
    CalQL: {"num_samples": 3},
    COMBO: {"num_samples": 3},
}
STEPS = {"n_step": 3, "reward_scale": 0.5, "reward_shift": -0.25}
VARIATIONS = [
    (BC, {}),
    (TD3BC, {}),
    (TD3BC, {"bc_alpha": 0.7, "num_critics": 1, **STEPS}),
    (IQL, {}),
    (IQL, {"expectile": 0.9, "beta": 10.0, "max_advantage_weight": 2.0, "num_critics": 3, **STEPS}),
    (CQL, {"alpha": 0.3}),
    (CQL, {"alpha": 0.3, "temperature": 0.5, "lagrange_threshold": 2.0, "max_q_backup": True, **STEPS}),
    (CQL, {"alpha": 0.3, "backup_entropy": True, "num_critics": 3, "conservative_weight": 0.5}),
    (CalQL, {"alpha": 0.3}),
    (CalQL, {"alpha": 0.3, "temperature": 0.5, "lagrange_threshold": 2.0, "num_critics": 3, **STEPS}),
    (COMBO, {"alpha": 0.3}),
    (COMBO, {"alpha": 0.3, "conservative_weight": 0.5, "lagrange_threshold": 2.0, "num_critics": 3, **STEPS}),
    (FQL, {}),
    (FQL, {"alpha": 3.0, "normalize_q_loss": False, "q_agg": "min", "flow_steps": 3, "num_critics": 3, **STEPS}),
    (BCQ, {}),
    (BCQ, {"phi": 0.4, "lmbda": 0.6, "num_samples": 3, "num_critics": 3, **STEPS}),
    (AWAC, {}),
    (CRR, {}),
    (CRR, {"weight_type": "binary", "num_samples": 2, "num_critics": 1, **STEPS}),
    (CRR, {"sarsa_target": True}),
    (CRR, {"sarsa_target": True, **STEPS}),
    (CRR, {"advantage_type": "max", "temperature": 0.3, "max_advantage_weight": 0.9}),
    (ReBRAC, {"actor_bc_coef": 0.4, "critic_bc_coef": 0.7}),
    (ReBRAC, {"normalize_q": False, "layer_norm": False, "critic_bc_coef": 2.0, "num_critics": 3, **STEPS}),
    (EDAC, {"alpha": 0.3, "num_critics": 4}),
    (EDAC, {"alpha": 0.3, "num_critics": 2, "eta": 50.0, "layer_norm": True, **STEPS}),
    (AWAC, {"temperature": 0.2, "max_advantage_weight": 1.5, "num_samples": 3, "num_critics": 3, **STEPS}),
]


@pytest.mark.parametrize(
    "cls, options, made",  # updates made: CQL imitates in its first ones
    [(cls, options, made) for cls, options in VARIATIONS for made in ((0, 1) if issubclass(cls, CQL) else (0,))],
    ids=lambda x: x.__name__ if isinstance(x, type) else str(x),
)
@pytest.mark.parametrize("kind", ENCODERS)
def test_losses_and_gradients_are_the_papers(cls, options, kind, made):
    agent = build(cls, kind, **COMMON.get(cls, {}), **options)
    if made:
        agent.critic_optimizer.num_updates = made
    rows, batch = data(kind, agent.n_step)
    if cls is COMBO:
        is_imagined = torch.tensor([place in IMAGINED for place in range(len(batch.actions))])
        batch = batch._replace(imagined=is_imagined.float()[:, None, None])
    references = REFERENCES[cls](agent, rows, Draws(agent, batch))
    assert_same_losses(agent, batch, references)


# Recorded actions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", REFERENCES)
@pytest.mark.parametrize("border", [-1.0, 1.0])
def test_recorded_actions_at_the_border_leave_all_finite(cls, border):
    """ray#15814, garage#2129: atanh(1) is infinite."""
    agent = cls(*SPACES, hidden_dims=(5,), seed=1, **({"bc_steps": 10} if cls is CQL else {}))
    _, batch = data("memoryless", 1)
    batch = batch.without_padding()._replace(actions=torch.full_like(batch.actions, border))
    batch = type(batch)(*(x.float() if isinstance(x, torch.Tensor) else x for x in batch))
    for _ in range(4):
        assert all(torch.isfinite(value) for value in agent.update_networks(batch).values())
    for part in agent.networks():
        assert all(torch.isfinite(parameter).all() for parameter in part.parameters())


# TD3+BC ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memoryless", "recurrent"])
def test_td3_bc_divides_the_scale_of_q_out(kind):
    """sfujim/TD3_BC#5: lambda is detached, and ten times the Q leaves the actor's gradient as it was."""
    agent = build(TD3BC, kind, normalize_observations=False)
    _, batch = data(kind, 1)
    batch = agent.prepare(batch)
    own = agent.actor_optimizer.parameters
    before = gradients(agent.actor_loss(agent.summarize(batch), batch)[0], own)
    with torch.no_grad():
        for parameter in agent.critics.net[-1].parameters():
            parameter *= 10.0
    assert_same(gradients(agent.actor_loss(agent.summarize(batch), batch)[0], own), before)
    agent.bc_alpha = 0.0  # what is left is imitation
    h = agent.summarize(batch)
    imitation = batch.mean((agent.actor(h.pi) - batch.actions).square())
    assert_same(gradients(agent.actor_loss(h, batch)[0], own), gradients(imitation, own))


def test_td3_bc_reads_one_critic():
    agent = build(TD3BC, normalize_observations=False)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    before = agent.actor_loss(h, batch)[0]
    for number, same in ((1, True), (0, False)):
        with torch.no_grad():
            for parameter in agent.critics.net[-1].parameters():
                parameter[number] *= -1.0
        assert torch.equal(agent.actor_loss(h, batch)[0], before) == same


@pytest.mark.parametrize("cls", [TD3BC, IQL])
def test_statistics_of_a_data_set_are_saved_with_the_actor_and_stay(cls, tmp_path):
    agent = cls(*SPACES, hidden_dims=(5,), seed=1, **({} if cls is TD3BC else {"normalize_observations": True}))
    middle, std = np.array([1.0, -2.0, 300.0]), np.array([0.5, 0.0, 20.0])
    agent.normalization.set_statistics(middle, std)
    observations = middle + (std + 1e-3) * np.array([[0.5, -3.0, 2.0], [0.0, 1.0, -1.0]])
    expected = (observations - middle) / (std + 1e-3) * [1.0, 0.0, 1.0]  # the second never changes in the data
    before = agent.normalization(torch.from_numpy(observations))
    np.testing.assert_allclose(before, expected, rtol=1e-3, atol=1e-4)
    _, batch = data("memoryless", 1)
    for _ in range(2):
        agent.update_networks(type(batch)(*(x.float() if isinstance(x, torch.Tensor) else x for x in batch)))
    assert torch.equal(agent.normalization(torch.from_numpy(observations)), before)
    step = Step(observations.astype(np.float32), np.zeros((2, ACTION_DIM)), np.zeros((2, 1)), np.ones(2))
    action, _ = agent.act(step, deterministic=True)
    bare = torch.tanh(agent.actor.net(before.float()))
    np.testing.assert_allclose(action, bare.detach(), atol=1e-5)
    save_actor(agent, tmp_path / "actor.pt")
    np.testing.assert_array_equal(load_actor(tmp_path / "actor.pt").act(step, deterministic=True)[0], action)
    other = cls(*SPACES, hidden_dims=(5,), seed=2, **({} if cls is TD3BC else {"normalize_observations": True}))
    other.load_state_dict(agent.state_dict())
    assert torch.equal(other.normalization(torch.from_numpy(observations)), before)


# IQL ------------------------------------------------------------------------------------------------------------


def test_the_expectile_of_a_half_is_half_the_squared_error():
    agent = build(IQL, expectile=0.5)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    error = agent.recorded_value(h, batch) - agent.value(h.v[:, :-1])
    assert_same(agent.value_loss(h, batch)[0], 0.5 * batch.mean(error.square()))


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
def test_v_comes_to_the_expectile_of_recorded_values(tau):
    """Of the minimum of the *target* critics: the point that weighs what is above it tau to 1 - tau."""
    agent = IQL(*SPACES, expectile=tau, hidden_dims=(4,), lr=0.02, seed=1)
    recorded = torch.tensor([0.0, 1.0, 2.0, 5.0]).view(4, 1, 1)
    agent.target_critics = lambda summary, action: torch.stack([recorded, recorded + 1.0])
    _, batch = data("memoryless", 1)
    batch = type(batch)(*(x[:4].float() if isinstance(x, torch.Tensor) else x for x in batch))
    batch = batch._replace(observations=torch.zeros(4, 2, 3), loss_mask=torch.ones(4, 1, 1), valid=torch.ones(4, 2, 1))
    for _ in range(600):
        h = agent.summarize(batch)
        agent.value_optimizer.minimize(agent.value_loss(h, batch)[0])
    grid = np.linspace(0, 5, 50_001)[:, None]
    above = np.array([[0.0, 1.0, 2.0, 5.0]]) - grid
    expected = grid[(np.where(above > 0, tau, 1 - tau) * above**2).sum(1).argmin(), 0]
    assert agent.value(torch.zeros(3)).item() == pytest.approx(expected, abs=0.05)


def test_weights_of_recorded_actions_are_bounded():
    agent = build(IQL, beta=1000.0)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    with torch.no_grad():
        agent.target_critics.net[-1].bias += 100.0
    loss, stats = agent.actor_loss(h, batch)
    assert stats["weight"] == 100.0
    assert_same(loss, -100.0 * batch.mean(agent.actor.log_prob(h.pi, batch.actions)))
    agent.beta = 0.0
    assert agent.actor_loss(h, batch)[1]["weight"] == 1.0


@pytest.mark.parametrize("kind", ["memoryless", "recurrent"])
def test_iql_never_asks_for_the_value_of_an_action_of_its_own(kind):
    agent = build(IQL, kind)
    _, batch = data(kind, 1)
    batch = agent.prepare(batch)
    h = agent.summarize(batch)

    def changed(by):
        before = agent.critic_loss(h, batch)[0], agent.value_loss(h, batch)[0]
        with torch.no_grad():
            for parameter in by.parameters():
                parameter += 0.1
        after = agent.critic_loss(h, batch)[0], agent.value_loss(h, batch)[0]
        return [not torch.equal(*pair) for pair in zip(before, after, strict=True)]

    assert changed(agent.actor) == [False, False]
    assert changed(agent.target_critics) == [False, True]
    assert changed(agent.critics) == [True, False]
    assert changed(agent.value) == [True, True]


def test_iqls_policy_is_not_squashed_but_for_its_mean():
    """implicit_q_learning#9: one standard deviation for all observations, within its bounds."""
    agent = build(IQL)
    h = torch.randn(5, 3, **DOUBLE)
    center, log_std = agent.actor(h)
    assert center.abs().max() < 1.0 and log_std.shape == (ACTION_DIM,)
    density = Normal(center, log_std.exp()).log_prob(torch.ones(5, ACTION_DIM, **DOUBLE)).sum(-1, keepdim=True)
    assert_same(agent.actor.log_prob(h, torch.ones(5, ACTION_DIM, **DOUBLE)), density)
    with torch.no_grad():
        agent.actor.log_std.copy_(torch.tensor([-50.0, 50.0]))
    assert agent.actor(h)[1].tolist() == [-5.0, 2.0]
    assert agent.actor.choose(h, torch.full((5, ACTION_DIM), 9.0, **DOUBLE)).abs().max() <= 1.0


# CQL ------------------------------------------------------------------------------------------------------------


def integrable(width, center):
    """Two Q functions of a 1-d action, from the summary's place 0 as well, and the log of the integral of exp Q."""
    action = np.linspace(-1.0, 1.0, 200_001)
    density = np.exp(-((action - center) ** 2) / (2 * width**2))
    log_integral = np.log((0.5 * (density[1:] + density[:-1]) * np.diff(action)).sum())

    def critics(summary, actions):
        q = -(actions[..., :1] - center).square() / (2 * width**2)
        return torch.stack([q, q + 1.0]) + summary.unsqueeze(-2)[..., :1]

    return critics, log_integral


@pytest.mark.parametrize("width, center", [(0.5, 0.2), (0.3, -0.6), (2.0, 0.0)])
@pytest.mark.parametrize("num", [20_000, 40_000])
def test_the_soft_maximum_is_the_log_of_the_integral(width, center, num):
    """Of exp Q at o, whatever the three policies are; number and order of samples and rows do not matter."""
    space = SPACES[1].__class__(-1, 1, (1,), np.float32)
    agent = CQL(SPACES[0], space, num_samples=num, hidden_dims=(4,), seed=1)
    agent.critics, log_integral = integrable(width, center)
    draw = torch.Generator().manual_seed(0)
    _, batch = data("memoryless", 1)
    batch = type(batch)(*(x.float() if isinstance(x, torch.Tensor) else x for x in batch))
    batch = batch._replace(observations=torch.randn(batch.observations.shape, generator=draw))
    h = agent.summarize(batch)
    for order in (slice(None), [4, 2, 0, 1, 3]):
        ordered = h._replace(pi=h.pi[order], next_pi=h.next_pi[order], q=h.q[:, order])
        got = agent.q_and_soft_maximum(ordered, batch._replace(actions=batch.actions[order, ..., :1]))[1] - math.log(
            3 * num
        )
        at_o = batch.observations[order][:, :1, :1]
        integrals = torch.exp(torch.tensor([0.0, 1.0]) + log_integral).view(2, 1, 1, 1).float()
        torch.testing.assert_close((got - at_o).exp() / integrals, torch.ones_like(got), rtol=0.02, atol=0.0)


def test_a_sharp_soft_maximum_is_the_maximum():
    agent = build(CQL, temperature=1e-3, num_samples=5)
    _, batch = data("memoryless", 1)
    h = agent.summarize(agent.prepare(batch))
    agent.critics = lambda summary, actions: torch.zeros(2, *actions.shape[:-1], 1, **DOUBLE)
    draws = Draws(agent, batch)
    noises = [draws.normal(5, ACTION_DIM) for _ in range(2)]
    largest = torch.full_like(batch.rewards, ACTION_DIM * math.log(2.0))  # minus the least log-density
    for i, t in np.ndindex(*batch.rewards.shape[:2]):
        for summary, noise in zip((h.pi, h.next_pi), noises, strict=True):
            found = [-gaussian(agent.actor, summary[i, t], x)[1] for x in noise[i, t]]
            largest[i, t] = torch.stack([largest[i, t, 0], *found]).max()
    torch.testing.assert_close(agent.q_and_soft_maximum(h, batch)[1][0], largest, rtol=0, atol=0.01)


@pytest.mark.parametrize("excess, direction", [(-0.5, -1), (0.5, 1), (0.0, 0)])
def test_the_multiplier_rises_while_the_gap_is_above_its_threshold(excess, direction):
    agent = CQL(*SPACES, lagrange_threshold=3.0, conservative_weight=2.0, hidden_dims=(4,), seed=1)
    for _ in range(3):
        before = agent.multiplier().item()
        gap = torch.tensor((3.0 + excess) / 2.0)
        agent.multiplier_optimizer.minimize(agent.multiplier.loss(agent.excess(gap)))
        assert np.sign(agent.multiplier().item() - before) == direction


def test_the_multiplier_falls_again_from_its_largest_value():
    multiplier = LagrangeMultiplier(1.0)
    with torch.no_grad():
        multiplier.log_alpha.fill_(13.8)
    optimizer = torch.optim.SGD(multiplier.learned_parameters(), lr=1e-6)
    for excess, expected in ((2.0, 1e6), (2.0, 1e6), (-1.0, math.exp(-1.0) * 1e6)):
        multiplier.loss(torch.tensor(excess)).backward()
        optimizer.step()
        optimizer.zero_grad()
        multiplier.bound()
        assert multiplier().item() == pytest.approx(expected, rel=1e-5)


def test_the_multiplier_is_bounded_fixed_without_threshold_and_moved_by_its_loss_alone():
    multiplier = LagrangeMultiplier(1.0)
    for number, expected in ((1e3, 1e6), (-1e3, 0.0), (0.0, 1.0)):
        with torch.no_grad():
            multiplier.log_alpha.fill_(number)
        assert multiplier().item() == expected and not multiplier().requires_grad
    assert multiplier.loss(torch.tensor(2.0)).item() == -2.0
    assert LagrangeMultiplier(None).learned_parameters() == [] and LagrangeMultiplier(None)().item() == 1.0

    agent = build(CQL, lagrange_threshold=1.0, num_samples=2)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    agent.critic_loss(agent.summarize(batch), batch)[0].backward()
    assert agent.multiplier.log_alpha.grad is None
    assert all(parameter.grad is None for parameter in agent.actor.parameters())
    learner = CQL(*SPACES, hidden_dims=(4,), lagrange_threshold=1.0, num_samples=2)
    with torch.no_grad():
        learner.multiplier.log_alpha.fill_(20.0)
    learner.update_networks(Batch(*(x.float() if isinstance(x, torch.Tensor) else x for x in batch)))
    assert learner.multiplier.log_alpha.item() == pytest.approx(math.log(1e6))


@pytest.mark.parametrize("backup_entropy", [False, True])  # without effect
def test_the_maximal_backup_is_each_critics_own_and_then_the_least(backup_entropy):
    """As the authors' code: max over next actions first; of critics that disagree, both orders differ."""
    agent = build(CQL, max_q_backup=True, num_samples=6, backup_entropy=backup_entropy)
    _, batch = data("memoryless", 1)
    h = agent.summarize(agent.prepare(batch))
    agent.target_critics = lambda summary, actions: torch.stack([actions[..., :1], -actions[..., :1]])
    state = agent.noise.state_dict()
    value = agent.next_value(h)
    agent.noise.load_state_dict(state)
    first = agent.samples(h.next_pi, 6)[0][..., :1]
    assert_same(value, torch.minimum(first.amax(-2), -first.amin(-2)))


def test_cql_is_sac_where_it_is_not_conservative():
    agent = build(CQL, conservative_weight=0.0, backup_entropy=True, num_samples=2)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    h, state = agent.summarize(batch), agent.noise.state_dict()
    ours = agent.critic_loss(h, batch)[0]
    agent.noise.load_state_dict(state)
    assert_same(ours, super(CQL, agent).critic_loss(h, batch)[0])


# Cal-QL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memoryless", "recurrent", "burn-in"])
def test_cal_ql_lowers_no_action_of_the_policy_below_its_return(kind):
    """An unreachable return leaves Q of uniform actions only; without returns, and with low ones, it is CQL."""
    agent = build(CalQL, kind, num_samples=4, reward_scale=2.0, reward_shift=-1.0)
    _, batch = data(kind, 1)
    batch = agent.prepare(batch)
    q = torch.randn(2, *batch.rewards.shape[:2], 12, 1, **DOUBLE)
    known = torch.ones_like(batch.rewards)

    def limited(total, ones):
        return agent.sampled_values(q, batch._replace(returns_to_go=total * known, discounts_to_go=ones * known))

    high = limited(100.0, 10.0)
    assert torch.equal(high[..., :4, :], q[..., :4, :]) and (high[..., 4:, :] == 190.0).all()
    middle = limited(5.0, 10.0)
    assert torch.equal(middle[..., 4:, :], q[..., 4:, :].clamp(min=0.0)) and (middle[..., :4, :] < 0).any()
    assert torch.equal(limited(-100.0, 10.0), q) and torch.equal(limited(0.0, 0.0), q)


def test_cal_ql_without_returns_in_the_batch_says_so():
    agent = build(CalQL, num_samples=2)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch._replace(returns_to_go=None, discounts_to_go=None))
    with pytest.raises(UserError, match="the batch has no returns of the recorded steps"):
        agent.critic_loss(agent.summarize(batch), batch)


# ReBRAC ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memoryless", "recurrent", "burn-in"])
def test_rebracs_target_has_its_penalty_where_there_is_a_next_action(kind):
    agent = build(ReBRAC, kind, critic_bc_coef=0.0)
    _, batch = data(kind, 1)
    batch = agent.prepare(batch)
    h, state, targets = agent.summarize(batch), agent.noise.state_dict(), []
    agent.td_loss = lambda given, q, y: (targets.append(y), (y.mean(), {}))[1]
    for coefficient in (0.0, 1.0):
        agent.critic_bc_coef = coefficient
        agent.noise.load_state_dict(state)
        agent.critic_loss(h, batch)
    lower = targets[0] > targets[1]
    assert (
        torch.equal(lower, (batch.has_next_action > 0) & (batch.terminations == 0)) and lower.any() and not lower.all()
    )


def test_rebrac_is_td3_without_its_two_terms():
    agent = build(ReBRAC, critic_bc_coef=0.0, actor_bc_coef=0.0, normalize_q=False, num_critics=1)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    h, state = agent.summarize(batch), agent.noise.state_dict()
    ours = agent.critic_loss(h, batch)[0], agent.actor_loss(h, batch)[0]
    agent.noise.load_state_dict(state)
    theirs = super(ReBRAC, agent).critic_loss(h, batch)[0], super(ReBRAC, agent).actor_loss(h, batch)[0]
    assert_same(ours, theirs)


# FQL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha, least, most", [(0.1, 0.95, 1.0), (100.0, 0.3, 0.7)])
def test_fql_learns_two_modes_and_by_alpha_leaves_the_worse_one(alpha, least, most):
    """Recorded actions are -0.6 or 0.6, whose mean nobody took, with rewards of -1 and 1."""
    agent = FQL(*SPACES, hidden_dims=(64, 64), lr=3e-3, gamma=0.0, alpha=alpha, seed=1)
    draw = torch.Generator().manual_seed(0)

    def batch():
        mode = 2.0 * torch.randint(0, 2, (64, 1, 1), generator=draw) - 1.0
        one, none = torch.ones(64, 2, 1), torch.zeros(64, 1, 1)
        recorded = 0.6 * mode.expand(64, 1, ACTION_DIM)
        ends = none, one, one[:, :1], none.expand(64, 1, ACTION_DIM)[:, 0], none[:, 0]
        return Batch(torch.zeros(64, 2, 3), recorded, mode, *ends, complete=True)

    for _ in range(300):
        agent.update_networks(batch())
    summary, noise = torch.zeros(400, 1, 3), torch.randn(400, 1, ACTION_DIM, generator=draw)
    with torch.no_grad():
        flow, policy = agent.actor.flow(summary, noise, 10), agent.actor.choose(summary, noise)
    near = ((flow.abs() - 0.6).abs() < 0.2).all(-1)
    assert near.float().mean() > 0.7 and 0.3 < (flow[..., 0] > 0).float().mean() < 0.7, "the flow has both modes"
    assert least <= (policy[..., 0] > 0).float().mean() <= most


def test_both_networks_of_fqls_policy_have_the_actors_hidden_layers():
    agent = FQL(*SPACES, hidden_dims=(6,), actor_layer_norm=True, actor_dropout=0.1)
    for net in (agent.actor.net, agent.actor.velocity_net):
        assert [type(layer).__name__ for layer in net] == ["Linear", "LayerNorm", "ReLU", "Dropout", "Linear"]


@pytest.mark.parametrize("cls", [CRR, DiscreteCRR])
def test_binary_weights_are_those_of_better_actions_alone(cls):
    weights = build(cls, weight_type="binary").weight(torch.tensor([-1e-9, 0.0, 1e-9]))
    assert weights.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(("cls", "least"), [(AWAC, -6.0), (CRR, -6.0), (IQL, -5.0)])
def test_a_standard_deviation_for_all_observations_has_the_bounds_of_its_page(cls, least):
    actor = build(cls).actor
    with torch.no_grad():
        actor.log_std.copy_(torch.tensor([-9.0, 9.0]))
    assert actor(torch.zeros(1, 1, SPACES[0].shape[0], **DOUBLE))[1].flatten().tolist() == [least, 2.0]


def test_crr_has_more_samples_and_smaller_weights_than_awac():
    found = [(agent.num_samples, agent.max_advantage_weight) for agent in map(build, (AWAC, CRR))]
    assert found == [(1, 100.0), (4, 20.0)]


def test_fqls_critics_value_actions_in_the_box_alone(monkeypatch):
    agent, seen = build(FQL), []
    with torch.no_grad():
        for parameter in agent.actor.net[-1].parameters():
            parameter *= 20.0

    def record(values, h, action):
        seen.append(action.abs().max().item())
        return values(h, action)

    for name in ("target_values", "policy_value"):
        monkeypatch.setattr(agent, name, functools.partial(record, getattr(agent, name)))
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    agent.critic_loss(h, batch)
    agent.actor_loss(h, batch)
    assert seen == [1.0, 1.0]


@pytest.mark.parametrize("normalizes", [True, False])
def test_fql_divides_the_scale_of_q_out_if_it_is_asked_to(normalizes):
    agent = build(FQL, normalize_q_loss=normalizes)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    own, state, found = agent.actor_optimizer.parameters, agent.noise.state_dict(), []
    for factor in (1.0, 10.0):
        with torch.no_grad():
            for parameter in agent.critics.net[-1].parameters():
                parameter *= factor
        agent.noise.load_state_dict(state)
        found.append(gradients(agent.actor_loss(agent.summarize(batch), batch)[0], own))
    same = all(torch.allclose(*pair, rtol=1e-9) for pair in zip(*found, strict=True))
    assert same is normalizes


# EDAC -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_gradient_of_edacs_similarity_is_its_slope(layer_norm):
    """The second derivative of Q, against central differences of each critic's weights."""
    agent = build(EDAC, num_critics=3, layer_norm=layer_norm, hidden_dims=(5, 4))
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    h, weights = agent.summarize(batch), list(agent.critics.parameters())

    def similarity():
        return batch.mean(agent.similarity(agent.critics.with_action_gradients(h.q, batch.actions)[1]))

    ours = torch.autograd.grad(similarity(), weights, allow_unused=True, materialize_grads=True)
    assert ours[0].abs().max() > 1e-3
    step = 1e-6
    for weight, gradient in zip(weights, ours, strict=True):
        for place in np.ndindex(*weight.shape):
            with torch.no_grad():
                weight[place] += step
            above = similarity().item()
            with torch.no_grad():
                weight[place] -= 2 * step
            below = similarity().item()
            with torch.no_grad():
                weight[place] += step
            assert gradient[place].item() == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-8)


def test_the_similarity_of_equal_gradients_is_n_and_of_opposite_ones_negative():
    agent = build(EDAC, num_critics=4)
    slope = torch.randn(1, 3, 2, ACTION_DIM, **DOUBLE)
    scales = torch.tensor([1.0, 2.0, 30.0, 0.1], **DOUBLE).view(4, 1, 1, 1)
    assert_same(agent.similarity(slope * scales), torch.full((3, 2, 1), 4.0, **DOUBLE))  # 4 x 3 pairs / 3
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], **DOUBLE).view(4, 1, 1, 1)
    assert_same(agent.similarity(slope * signs), torch.full((3, 2, 1), -4.0 / 3.0, **DOUBLE))
    assert torch.isfinite(agent.similarity(0.0 * slope * scales)).all(), "a critic without slope"


def test_edac_without_diversity_is_sac():
    agent = build(EDAC, eta=0.0, num_critics=3)
    _, batch = data("memoryless", 1)
    batch = agent.prepare(batch)
    h, state = agent.summarize(batch), agent.noise.state_dict()
    ours = agent.critic_loss(h, batch)[0]
    agent.noise.load_state_dict(state)
    assert_same(ours, super(EDAC, agent).critic_loss(h, batch)[0])


# BCQ ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [0.0, 0.05, 3.0])
def test_perturbations_are_bounded_and_stay_in_the_box(phi):
    agent = build(BCQ, phi=phi, vae_hidden_dims=(6,))
    draw = torch.Generator().manual_seed(0)
    h, z = torch.randn(7, 1, 3, generator=draw, **DOUBLE), torch.randn(7, 1, 50, 4, generator=draw, **DOUBLE)
    action = agent.vae.decode(h, 10.0 * z)
    moved = agent.perturbed(agent.actor, h, action)
    assert action.shape == moved.shape == (7, 1, 50, ACTION_DIM)
    assert moved.abs().max() <= 1.0 and (moved - action).abs().max() <= phi + 1e-12
    assert torch.equal(moved, action) == (phi == 0.0)


def test_latent_numbers_are_clipped_and_their_spread_is_bounded():
    agent = build(BCQ, vae_hidden_dims=(6,))
    latent = agent.latent(torch.empty(100, 1, 4))
    assert latent.max() == 0.5 and latent.min() == -0.5 and ((latent > -0.5) & (latent < 0.5)).sum() > 100
    assert agent.vae.latents.shape == (100, 4) and agent.vae.latents.abs().max() == 0.5
    with torch.no_grad():
        for number, bound in ((1e6, 15.0), (-1e6, -4.0)):
            agent.vae.encoder[-1].bias.fill_(number)
            assert (agent.vae.encode(torch.zeros(1, 3, **DOUBLE), torch.zeros(1, 2, **DOUBLE))[1] == bound).all()


@pytest.mark.parametrize("deterministic", [True, False])
def test_bcq_acts_by_the_sample_that_the_first_critic_likes_best(deterministic):
    agent = build(BCQ, num_acting_samples=30, vae_hidden_dims=(6,))
    agent.critics = SimpleNamespace(
        forward_frozen=lambda summary, actions, num: torch.stack([actions[..., :1], -actions[..., :1]])[:num]
    )
    h = torch.randn(4, 1, 3, **DOUBLE)
    state = agent.noise.state_dict()
    chosen = agent.choose_action(torch.cat([h, h], -1), deterministic)
    agent.noise.load_state_dict(state)
    latents = agent.vae.latents.expand(4, 1, 30, 4)
    latents = latents if deterministic else agent.latent(latents)
    samples = agent.perturbed(agent.actor, h, agent.vae.decode(h, latents))
    assert chosen.shape == (4, 1, ACTION_DIM)
    assert_same(chosen[..., 0], samples[..., 0].amax(-1))


def test_bcq_with_memory_acts_by_a_sample_at_the_actors_summary():
    agent = BCQ(*SPACES, hidden_dims=(8,), vae_hidden_dims=(8,), num_acting_samples=5, encoder=Recurrent, seed=1)
    seen = torch.randn(1, 1, *SPACES[0].shape)
    inputs = Inputs(seen, torch.zeros(1, 1, *SPACES[1].shape), torch.zeros(1, 1, 1))
    with torch.no_grad():
        pi = agent.actor_encoder(inputs)[0]
        samples = agent.perturbed(agent.actor, pi, agent.vae.decode(pi, agent.vae.latents.view(1, 1, 5, -1)))
    nothing = np.zeros((1, *SPACES[1].shape), np.float32), np.zeros((1, 1), np.float32), np.ones(1)
    action, _ = agent.act(Step(seen[0].numpy(), *nothing), deterministic=True)
    assert (samples[0, 0] - torch.from_numpy(action)).abs().amax(-1).min() < 1e-6


def test_several_latents_of_a_step_are_each_decoded_at_its_summary():
    torch.manual_seed(0)
    vae = VariationalAutoencoder(4, 2, (6,), 20).double()
    summary, latent = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(3, 5, 7, 4, dtype=torch.float64)
    actions = vae.decode(summary, latent)
    assert actions.shape == (3, 5, 7, 2) and actions.abs().max() < 1.0
    for i in range(7):
        torch.testing.assert_close(actions[:, :, i], vae.decode(summary, latent[:, :, i]))
    assert [x.shape for x in vae.encode(summary, actions[:, :, 0])] == [(3, 5, 4), (3, 5, 4)]
    assert vae.latents.shape == (20, 4) and vae.latents.abs().max() <= 0.5
