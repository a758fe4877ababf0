"""Every loss and its gradients against the papers' equations, written out for one row and one step at a time.

The reference knows no masks and no batches: it walks over the steps that exist, applies the networks' weights by
hand, and draws the noise that the algorithm drew. Whatever lies in padding is NaN.
"""

import copy
import functools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from offpcc.algorithms import DDPG, SAC, TD3
from offpcc.core import Batch
from offpcc.data import ReplayBuffer
from offpcc.networks import Identity, Recurrent
from offpcc.networks.layers import EnsembleLayerNorm, EnsembleLinear

OBSERVATION_DIM, ACTION_DIM = 3, 2
SPACES = Box(-np.inf, np.inf, (OBSERVATION_DIM,), np.float32), Box(-1, 1, (ACTION_DIM,), np.float32)
GAMMA, NAN = 0.9, float("nan")


# Data -----------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One sub-trajectory of L steps, without padding."""

    observations: torch.Tensor  # (L+1, O)
    actions: torch.Tensor  # (L, A)
    rewards: list  # L numbers
    terminations: list  # L booleans
    first_action: torch.Tensor  # (A,)
    first_reward: float
    burn_in: int  # leading steps that only warm a memory up
    counted: range  # steps that count in losses


def random_row(draw, length, terminated=False, burn_in=0, num_counted=None, mid_episode=False):
    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    stop = length if num_counted is None else burn_in + num_counted
    return Row(
        normal(length + 1, OBSERVATION_DIM),
        torch.tanh(normal(length, ACTION_DIM)),
        normal(length).tolist(),
        [False] * (length - 1) + [terminated],
        torch.tanh(normal(ACTION_DIM)) * mid_episode,
        normal(1).item() * mid_episode,
        burn_in,
        range(burn_in, stop),
    )


def padded(rows, burn_in=0):
    """The batch of these rows; whatever is not theirs is NaN."""
    steps = max(burn_in - row.burn_in + len(row.actions) for row in rows)
    size, kind = len(rows), {"dtype": torch.float64}
    batch = Batch(
        torch.full((size, steps + 1, OBSERVATION_DIM), NAN, **kind),
        torch.full((size, steps, ACTION_DIM), NAN, **kind),
        torch.full((size, steps, 1), NAN, **kind),
        torch.full((size, steps, 1), NAN, **kind),
        torch.zeros(size, steps + 1, 1, **kind),
        torch.zeros(size, steps, 1, **kind),
        torch.stack([row.first_action for row in rows]),
        torch.tensor([[row.first_reward] for row in rows], **kind),
        burn_in,
    )
    for i, row in enumerate(rows):
        begin = burn_in - row.burn_in
        end = begin + len(row.actions)
        batch.observations[i, begin : end + 1] = row.observations
        batch.actions[i, begin:end] = row.actions
        batch.rewards[i, begin:end, 0] = torch.tensor(row.rewards, **kind)
        batch.terminations[i, begin:end, 0] = torch.tensor(row.terminations, **kind)
        batch.real[i, begin : end + 1] = 1.0
        batch.mask[i, begin + row.counted.start : begin + row.counted.stop] = 1.0
    return batch


# The reference --------------------------------------------------------------------------------------------------


def lstm(cells, xs, state):
    """LSTM equations for one row: the last layer's outputs, and the states of all layers."""
    outputs, after = list(xs), []
    for layer in range(cells.num_layers):
        weights = [getattr(cells, f"{name}_l{layer}") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
        h, c = state[layer] if state else (torch.zeros(cells.hidden_size, dtype=torch.float64),) * 2
        inputs, outputs = outputs, []
        for x in inputs:
            gates = weights[0] @ x + weights[1] + weights[2] @ h + weights[3]
            i, f, g, o = gates.chunk(4)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        after.append((h, c))
    return outputs, after


def read(encoder, features, row):
    """Summaries of a row's observations 1 ... L+1; the burn-in without gradient."""
    actions, rewards = [row.first_action, *row.actions], [row.first_reward, *row.rewards]
    xs = []
    for feature, action, reward in zip(features, actions, rewards, strict=True):
        x = [feature]
        if encoder.use_previous_action:
            x.append(action)
        if encoder.use_previous_reward:
            x.append(torch.tensor([reward], dtype=torch.float64))
        xs.append(torch.cat(x))
    if not isinstance(encoder, Recurrent):
        return xs
    with torch.no_grad():
        before, state = lstm(encoder.cells, xs[: row.burn_in], None)
    return before + lstm(encoder.cells, xs[row.burn_in :], state)[0]


def actor_output(actor, h):
    for layer in actor.net:
        h = layer.weight @ h + layer.bias if isinstance(layer, torch.nn.Linear) else h.clamp(min=0)
    return h


def q_value(critics, number, h, action):
    """The Q function of this number, a 0-d tensor."""
    x = torch.cat([h, action])
    for layer in critics.net:
        if isinstance(layer, EnsembleLinear):
            x = x @ layer.weight[number] + layer.bias[number, 0]
        elif isinstance(layer, EnsembleLayerNorm):
            x = (x - x.mean()) / torch.sqrt(x.var(correction=0) + 1e-5)
            x = x * layer.weight[number, 0] + layer.bias[number, 0]
        else:
            x = x.clamp(min=0)
    return x[0]


def gaussian(actor, h, noise):
    """SAC's action, and its log-probability by the change of variables."""
    mean, log_std = actor_output(actor, h).chunk(2)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + normal.stddev * noise
    action = torch.tanh(u)
    return action, (normal.log_prob(u) - torch.log(1 - action**2)).sum()


def n_step_target(row, values, t, n, scale=1.0, shift=0.0):
    """n rewards, or those up to the row's end, then the value of where they lead, unless the task has ended."""
    total, discount = 0.0, 1.0
    for k in range(t, min(t + n, len(row.actions))):
        total += discount * (scale * row.rewards[k] + shift)
        discount *= GAMMA
        if row.terminations[k]:
            return total
    return total + discount * values[k]


def reference(agent, rows, noises):
    """Critic loss, actor loss and entropy (None for DDPG and TD3), each the mean of a list."""
    squares, actor_terms, log_probs = [], [], []
    stochastic = isinstance(agent, SAC)
    numbers = range(agent.critics.num)
    next_noise = noises.pop(0) if noises else None
    noise = noises.pop(0) if noises else None
    place = max(row.burn_in for row in rows)  # a row's first counted step stands here in the batch
    for i, row in enumerate(rows):
        begin = place - row.burn_in
        shared = read(agent.shared_encoder, row.observations, row)
        pi = read(agent.actor_encoder, [h.detach() for h in shared], row)
        qs = [read(encoder, shared, row) for encoder in agent.critic_encoders]
        with torch.no_grad():
            target_shared = read(agent.target_shared_encoder, row.observations, row)
            target_qs = [read(encoder, target_shared, row) for encoder in agent.target_critic_encoders]
            next_pi = pi if stochastic else read(agent.target_actor_encoder, target_shared, row)
            values = []
            for t in range(len(row.actions)):
                if stochastic:
                    action, log_prob = gaussian(agent.actor, next_pi[t + 1], next_noise[i, begin + t])
                else:
                    action = torch.tanh(actor_output(agent.target_actor, next_pi[t + 1]))
                if isinstance(agent, TD3):
                    smoothing = (agent.target_noise * next_noise[i, begin + t]).clamp(
                        -agent.noise_clip, agent.noise_clip
                    )
                    action = (action + smoothing).clamp(-1, 1)
                candidates = [
                    q_value(agent.target_critics, n, target_qs[n % len(target_qs)][t + 1], action) for n in numbers
                ]
                value = torch.stack(candidates).min()
                values.append(value - agent.temperature() * log_prob if stochastic else value)
        for t in row.counted:
            y = n_step_target(row, values, t, agent.n_step, agent.reward_scale, agent.reward_shift)
            squares.append(
                sum((q_value(agent.critics, n, qs[n % len(qs)][t], row.actions[t]) - y) ** 2 for n in numbers)
            )
            if stochastic:
                action, log_prob = gaussian(agent.actor, pi[t], noise[i, begin + t])
                log_probs.append(log_prob)
            else:
                action = torch.tanh(actor_output(agent.actor, pi[t]))
            candidates = [q_value(agent.critics, n, qs[n % len(qs)][t].detach(), action) for n in numbers]
            if stochastic:
                actor_terms.append(agent.temperature() * log_prob - torch.stack(candidates).min())
            else:
                actor_terms.append(-candidates[0])
    entropy = -torch.stack(log_probs).mean().detach() if stochastic else None
    return torch.stack(squares).mean(), torch.stack(actor_terms).mean(), entropy


# Agents and their data ------------------------------------------------------------------------------------------

Memory = functools.partial(Recurrent, hidden_dim=4, num_layers=2)
KnowingMemory = functools.partial(Memory, use_previous_action=True, use_previous_reward=True)

ENCODERS = {
    "memoryless": {},
    "memoryless with previous action": {"encoder": functools.partial(Identity, use_previous_action=True)},
    "recurrent": {"encoder": KnowingMemory},
    "shared": {"shared_encoder": KnowingMemory},
    "shared and own": {"shared_encoder": Memory, "encoder": KnowingMemory},
    "burn-in": {"encoder": KnowingMemory},
    "burn-in, shared": {"shared_encoder": KnowingMemory},
}


def data(kind, n_step):
    draw = torch.Generator().manual_seed(3)
    if kind.startswith("memoryless"):
        lengths = [n_step, n_step, n_step, max(n_step - 1, 1), 1]  # a window ends early where its episode does
        ends = [False, True, False, False, True]
        rows = [random_row(draw, n, end, num_counted=1) for n, end in zip(lengths, ends, strict=True)]
        return rows, padded(rows)
    if kind.startswith("burn-in"):  # from an episode's start; from its middle; the last step of an episode
        rows = [
            random_row(draw, 2),
            random_row(draw, 5, burn_in=2, mid_episode=True),
            random_row(draw, 3, True, burn_in=2),
        ]
        return rows, padded(rows, burn_in=2)
    rows = [random_row(draw, 4, True), random_row(draw, 1), random_row(draw, 3), random_row(draw, 1, True)]
    return rows, padded(rows)


def build(cls, kind="memoryless", **options):
    agent = cls(*SPACES, gamma=GAMMA, hidden_dims=(5, 4), seed=1, **ENCODERS[kind], **options)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():  # in double precision, and with targets that differ from their sources
        for part in vars(agent).values():
            if isinstance(part, torch.nn.Module):
                for parameter in part.double().parameters():
                    parameter += 0.4 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    return agent


def drawn(agent, batch):
    """The numbers that the agent's noise is about to give, none of them taken away."""
    if type(agent) is DDPG:
        return []
    noise = copy.deepcopy(agent.noise.generator.get_state())
    generator = torch.Generator()
    generator.set_state(noise)
    return [torch.randn(batch.actions.shape, generator=generator, dtype=torch.float64) for _ in range(2)]


def gradients(loss, parameters):
    grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)]


def assert_same(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


VARIATIONS = {
    "one critic": {"num_critics": 1},
    "two critics": {"num_critics": 2},
    "three critics, layer norm": {"num_critics": 3, "layer_norm": True},
    "three steps, rewards scaled": {"n_step": 3, "reward_scale": 0.5, "reward_shift": -0.25},
}


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("cls", [DDPG, TD3, SAC])
def test_losses_and_gradients_are_the_papers(cls, kind, variation):
    agent = build(cls, kind, **VARIATIONS[variation], **({"alpha": 0.3} if cls is SAC else {}))
    rows, batch = data(kind, agent.n_step)
    critic_reference, actor_reference, entropy_reference = reference(agent, rows, drawn(agent, batch))

    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    critic_loss = agent.critic_loss(h, batch)[0]
    actor_loss = agent.actor_loss(h, batch)
    if cls is SAC:
        actor_loss, entropy = actor_loss
        assert_same(entropy, entropy_reference)

    assert_same(critic_loss, critic_reference)
    assert_same(actor_loss, actor_reference)
    for optimizer, ours, expected in [
        (agent.critic_optimizer, critic_loss, critic_reference),
        (agent.actor_optimizer, actor_loss, actor_reference),
    ]:
        assert_same(gradients(ours, optimizer.parameters), gradients(expected, optimizer.parameters))
        assert any(g.abs().max() > 1e-4 for g in gradients(ours, optimizer.parameters))


@pytest.mark.parametrize("kind", ["memoryless", "recurrent", "burn-in"])
def test_the_temperatures_loss_weighs_counted_steps_alone(kind):
    """J(alpha) = mean of -log alpha (log pi + target) (eq. 18 on log alpha), over steps that exist."""
    agent = build(SAC, kind, alpha=0.3, target_entropy=-1.5)
    rows, batch = data(kind, agent.n_step)
    log_alpha = torch.tensor(math.log(0.3) + 0.1, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        agent.temperature.log_alpha.copy_(log_alpha)
    _, _, entropy = reference(agent, rows, drawn(agent, batch))

    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    agent.critic_loss(h, batch)
    loss = agent.temperature.loss(agent.actor_loss(h, batch)[1])
    expected = log_alpha * (entropy + 1.5)
    assert_same(loss, expected)
    assert_same(gradients(loss, [agent.temperature.log_alpha]), gradients(expected, [log_alpha]))


def test_the_only_mean_is_over_counted_steps():
    draw = torch.Generator().manual_seed(0)
    rows = [random_row(draw, 3, burn_in=1), random_row(draw, 1)]
    batch = padded(rows, burn_in=1)
    x = torch.randn(2, *batch.actions.shape, generator=draw, dtype=torch.float64)  # (N, B, T, A)
    counted = [x[:, 0, 1], x[:, 0, 2], x[:, 1, 1]]
    assert_same(batch.mean(x), torch.cat(counted, -1).mean(-1))


@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_backup_is_a_plain_loop(n_step):
    """With truncation in the middle of a row, termination in the middle and at the end, and the row's end."""
    agent = build(DDPG, n_step=n_step, reward_scale=2.0, reward_shift=0.5)
    draw = torch.Generator().manual_seed(0)
    rows = [random_row(draw, 7), random_row(draw, 3), random_row(draw, 4, True), random_row(draw, 1, True)]
    rows += [random_row(draw, 7, True), random_row(draw, 1)]
    rows.append(random_row(draw, 7)._replace(terminations=[t == 3 for t in range(7)]))
    batch = padded(rows).without_padding()
    values = torch.randn(batch.rewards.shape, generator=draw, dtype=torch.float64)
    y = agent.backup(batch, values)
    for i, row in enumerate(rows):
        for t in range(len(row.actions)):
            expected = n_step_target(row, values[i, :, 0], t, n_step, 2.0, 0.5)
            assert y[i, t, 0].item() == pytest.approx(float(expected), rel=1e-9)


def test_backup_bootstraps_after_a_time_limit_but_not_after_the_end():
    agent = build(DDPG)
    draw = torch.Generator().manual_seed(0)
    batch = padded([random_row(draw, 1), random_row(draw, 1, True)]).without_padding()
    y = agent.backup(batch, torch.full((2, 1, 1), 10.0, dtype=torch.float64))
    assert_same(y, batch.rewards + GAMMA * torch.tensor([10.0, 0.0], dtype=torch.float64).view(2, 1, 1))


@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_backup_of_sampled_windows_stays_inside_the_episode(n_step):
    """From the buffer's ring, overwritten several times, to the target: against loops over the episodes."""
    episodes = [(4, False), (1, True), (7, True), (2, False), (1, False), (6, False), (3, True)] * 3
    buffer = ReplayBuffer(*SPACES, capacity=40, batch_size=256, num_steps=n_step)
    rows, draw = {}, torch.Generator().manual_seed(5)
    for length, terminated in episodes:
        row = random_row(draw, length, terminated)
        observations = row.observations.float().numpy()
        for t in range(length):
            over = t == length - 1
            buffer.push(
                observations[t], row.actions[t].numpy(), row.rewards[t], observations[t + 1],
                over and terminated, over and not terminated,
            )  # fmt: skip
            rows[observations[t].tobytes()] = row, t
    agent = build(DDPG, n_step=n_step)
    batch = agent.prepare(buffer.sample())
    values = batch.observations[:, 1:, :1].double()  # a value that only the right observation has
    y = agent.backup(batch, values)
    seen = set()
    for i, observation in enumerate(batch.observations[:, 0].numpy()):
        row, t = rows[observation.tobytes()]
        expected = n_step_target(row, row.observations[1:, 0].float().double(), t, n_step)
        assert y[i, 0, 0].item() == pytest.approx(float(expected), abs=1e-5)
        seen.add((id(row), t))
    assert len(seen) > 20
