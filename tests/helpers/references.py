"""The papers' equations, written out for one row and one step at a time, and small agents to hold to them.

The reference knows no masks and no batches: it walks over the steps that exist, applies the networks' weights by
hand, and draws the noise that the algorithm drew. Whatever lies in padding is NaN.
"""

import functools
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from offpcc.core import Batch
from offpcc.networks import Identity, Recurrent
from offpcc.networks.layers import EnsembleLayerNorm, EnsembleLinear, ResidualBlock

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
    next_action: torch.Tensor | None  # (A,), after the last step, where the data has one
    returns: list  # of pairs: the discounted sum of rewards from each step on, and that of ones; 0 and 0: unknown

    def after(self, t):
        """The action after step t; None where the data has none."""
        return self.actions[t + 1] if t + 1 < len(self.actions) else self.next_action


def random_row(draw, length, terminated=False, burn_in=0, num_counted=None, mid_episode=False, goes_on=False):
    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    stop = length if num_counted is None else burn_in + num_counted
    own = torch.Generator().manual_seed(length)
    next_action = torch.tanh(torch.randn(ACTION_DIM, generator=own, dtype=torch.float64)) if goes_on else None
    known = terminated or length % 2 == 1
    returns = [
        (3.0 * torch.randn(1, generator=own).item(), 1.0 + 2.0 * t) if known else (0.0, 0.0) for t in range(length)
    ]
    return Row(
        normal(length + 1, OBSERVATION_DIM),
        torch.tanh(normal(length, ACTION_DIM)),
        normal(length).tolist(),
        [False] * (length - 1) + [terminated],
        torch.tanh(normal(ACTION_DIM)) * mid_episode,
        normal(1).item() * mid_episode,
        burn_in,
        range(burn_in, stop),
        next_action,
        returns,
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
        next_actions=torch.full((size, steps, ACTION_DIM), NAN, **kind),
        has_next_action=torch.zeros(size, steps, 1, **kind),
        returns_to_go=torch.full((size, steps, 1), NAN, **kind),
        discounts_to_go=torch.full((size, steps, 1), NAN, **kind),
    )
    for i, row in enumerate(rows):
        begin = burn_in - row.burn_in
        end = begin + len(row.actions)
        batch.observations[i, begin : end + 1] = row.observations
        batch.actions[i, begin:end] = row.actions
        batch.rewards[i, begin:end, 0] = torch.tensor(row.rewards, **kind)
        batch.terminations[i, begin:end, 0] = torch.tensor(row.terminations, **kind)
        batch.valid[i, begin : end + 1] = 1.0
        returns = torch.tensor(row.returns, **kind)
        batch.returns_to_go[i, begin:end], batch.discounts_to_go[i, begin:end] = returns[:, :1], returns[:, 1:]
        for t in range(len(row.actions)):
            if row.after(t) is not None:
                batch.next_actions[i, begin + t], batch.has_next_action[i, begin + t] = row.after(t), 1.0
        batch.loss_mask[i, begin + row.counted.start : begin + row.counted.stop] = 1.0
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
        before, state = lstm(encoder.cell, xs[: row.burn_in], None)
    return before + lstm(encoder.cell, xs[row.burn_in :], state)[0]


def normalised(x):
    return (x - x.mean()) / torch.sqrt(x.var(correction=0) + 1e-5)


def output(layers, h):
    for layer in layers:
        if isinstance(layer, ResidualBlock):
            h = h + output(layer, h)
        elif isinstance(layer, torch.nn.LayerNorm):
            h = normalised(h) * layer.weight + layer.bias
        else:
            h = layer.weight @ h + layer.bias if isinstance(layer, torch.nn.Linear) else h.clamp(min=0)
    return h


def actor_output(actor, h):
    return output(actor.net, h)


def q_value(critics, number, h, action):
    """The Q function of this number, a 0-d tensor: the mean, where critics give quantiles."""
    return quantiles_of(critics, number, h, action).mean()


def quantiles_of(critics, number, h, action):
    """What the critic of this number gives, (K,)."""
    return member_output(critics.net, number, torch.cat([h, action]))


def member_output(layers, number, x):
    """The output of one network of an ensemble."""
    for layer in layers:
        if isinstance(layer, ResidualBlock):
            x = x + member_output(layer, number, x)
        elif isinstance(layer, EnsembleLinear):
            x = x @ layer.weight[number] + layer.bias[number, 0]
        elif isinstance(layer, EnsembleLayerNorm):
            x = normalised(x) * layer.weight[number, 0] + layer.bias[number, 0]
        else:
            x = x.clamp(min=0)
    return x


def gaussian(actor, h, noise):
    """SAC's action, and its log-probability by the change of variables."""
    mean, log_std = actor_output(actor, h).chunk(2)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + normal.stddev * noise
    action = torch.tanh(u)
    return action, (normal.log_prob(u) + 2 * torch.log(torch.cosh(u))).sum()  # 1 - tanh(u)^2 = 1 / cosh(u)^2


def n_step_target(row, values, t, n, scale=1.0, shift=0.0):
    """n rewards, or those up to the row's end, then the value of where they lead, unless the task has ended."""
    total, discount = 0.0, 1.0
    for k in range(t, min(t + n, len(row.actions))):
        total += discount * (scale * row.rewards[k] + shift)
        discount *= GAMMA
        if row.terminations[k]:
            return total
    return total + discount * values[k]


class Read(NamedTuple):
    """What the networks make of one row: summaries of its observations 1 ... L+1."""

    row: Row
    place: int  # of the row in the batch
    begin: int  # of the row's first step
    pi: list
    next_pi: list
    qs: list  # one list for each critic's encoder
    target_qs: list


def rows_read(agent, rows):
    place = max(row.burn_in for row in rows)  # a row's first counted step stands here in the batch
    for i, row in enumerate(rows):
        shared = read(agent.shared_encoder, row.observations, row)
        if not agent.has_critics:
            yield Read(row, i, place - row.burn_in, read(agent.actor_encoder, shared, row), [], [], [])
            continue
        below = shared if agent.acts_by_values else [h.detach() for h in shared]
        pi = read(agent.actor_encoder, below, row)
        qs = [pi] if agent.acts_by_values else [read(encoder, shared, row) for encoder in agent.critic_encoders]
        with torch.no_grad():
            below = read(agent.target_shared_encoder, row.observations, row)
            next_pi = read(agent.target_actor_encoder, below, row) if agent.has_target_actor else pi
            target_qs = [read(encoder, below, row) for encoder in agent.target_critic_encoders]
        yield Read(row, i, place - row.burn_in, pi, next_pi, qs, target_qs)


def mean(terms):
    return torch.stack(list(terms)).mean()


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


def data(kind, n_step, discrete=False):
    rows, batch = numbers(kind, n_step)
    if not discrete:
        return rows, batch
    rows = [
        row._replace(
            actions=one_hot(row.actions), first_action=one_hot(row.first_action) * bool(row.first_action.any())
        )
        for row in rows
    ]
    return rows, padded(rows, batch.burn_in)


def one_hot(numbers):
    return (numbers == numbers.amax(-1, keepdim=True)).double()


def numbers(kind, n_step):
    draw = torch.Generator().manual_seed(3)
    if kind.startswith("memoryless"):
        lengths = [n_step, n_step, n_step, max(n_step - 1, 1), 1]  # a window ends early where its episode does
        ends = [False, True, False, False, True]
        rows = [
            random_row(draw, n, end, num_counted=1, goes_on=i in (0, 2))
            for i, (n, end) in enumerate(zip(lengths, ends, strict=True))
        ]
        return rows, padded(rows)
    if kind.startswith("burn-in"):  # from an episode's start; from its middle; the last step of an episode
        rows = [
            random_row(draw, 2, goes_on=True),
            random_row(draw, 5, burn_in=2, mid_episode=True),
            random_row(draw, 3, True, burn_in=2),
        ]
        return rows, padded(rows, burn_in=2)
    rows = [
        random_row(draw, 4, True),
        random_row(draw, 1, goes_on=True),
        random_row(draw, 3),
        random_row(draw, 1, True),
    ]
    return rows, padded(rows)


def build(cls, kind="memoryless", **options):
    settings = {"gamma": GAMMA, "hidden_dims": (5, 4), "seed": 1, **ENCODERS[kind], **options}
    agent = cls(SPACES[0], Discrete(ACTION_DIM) if cls.is_discrete else SPACES[1], **settings)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():  # in double precision, and with targets that differ from their sources
        for part in vars(agent).values():
            if isinstance(part, torch.nn.Module):
                for parameter in part.double().parameters():
                    parameter += 0.4 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    return agent


def gradients(loss, parameters):
    grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)]


def assert_same(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


def assert_same_losses(agent, batch, references):
    """Compare the losses of an agent, and their gradients, with references by name."""
    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    for name, expected in references.items():
        loss = getattr(agent, f"{name}_loss")(h, batch)
        loss = loss[0] if isinstance(loss, tuple) else loss
        assert_same(loss, expected)
        own = getattr(agent, f"{name}_optimizer").parameters
        assert_same(gradients(loss, own), gradients(expected, own))
        assert any(g.abs().max() > 1e-7 for g in gradients(loss, own))
