"""`offpcc.q_values`: what a learner's critics say about recorded steps."""

import dataclasses
import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import offpcc
from offpcc.algorithms.r2d2 import rescaled
from offpcc.networks import Inputs
from offpcc.training.analysis import policy_evaluation

LENGTHS = (5, 1, 3, 7)
NETWORKS = {"hidden_dims": (16,), "seed": 3}
MEMORY = {**NETWORKS, "hidden_dim": 8, "num_layers": 1, "use_previous_action": True, "use_previous_reward": True}


def recording(is_discrete=False, lengths=LENGTHS, seed=0):
    draw, num = np.random.default_rng(seed), sum(lengths)
    last = np.zeros(num, bool)
    last[np.cumsum(lengths) - 1] = True
    terminations = last & (draw.random(num) < 0.5)
    observations, ends = draw.normal(2.0, 3.0, (2, num, 3)).astype(np.float32)
    return offpcc.Dataset.from_arrays(
        observations=observations,
        next_observations=np.where(last[:, None], ends, np.roll(observations, -1, 0)),
        actions=draw.integers(0, 4, num) if is_discrete else draw.uniform(-1, 1, (num, 2)).astype(np.float32),
        rewards=draw.normal(size=num).astype(np.float32),
        terminations=terminations,
        truncations=last & ~terminations,
    )


def one_hot(actions):
    return np.eye(4, dtype=np.float32)[np.asarray(actions, int).reshape(-1)]


@pytest.mark.parametrize("name", ["TD3BC", "IQL", "SACN", "RLPD", "TQC", "BCQ", "FQL", "DQN", "QRDQN", "DiscreteSAC"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_critics_without_memory_read_each_step_alone(name, n_step, monkeypatch):
    monkeypatch.setattr(policy_evaluation, "SIDE_BY_SIDE", 3)
    is_discrete = name in ("DQN", "QRDQN", "DiscreteSAC")
    data = recording(is_discrete)
    learner = getattr(offpcc, name)(dataset=data, n_step=n_step, **NETWORKS)
    algorithm, seen = learner.algorithm, torch.from_numpy(data.observations)
    seen = seen if algorithm.normalization is None else algorithm.normalization(seen)
    with torch.no_grad():
        if is_discrete:
            q = algorithm.critics(seen[None, :, None])[:, :, 0].gather(
                2, torch.from_numpy(data.actions.reshape(1, -1, 1)).long().expand(algorithm.critics.num, -1, 1)
            )[..., 0]
        else:
            q = algorithm.critics(seen[None, :, None], torch.from_numpy(data.actions)[:, None])[:, :, 0, 0]
    found = offpcc.q_values(learner)
    assert found.shape == (algorithm.critics.num, sum(LENGTHS)) and found.dtype == np.float32
    np.testing.assert_allclose(found, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["RIQL", "RTD3", "RCQL", "RDQN", "R2D2", "RDSAC", "RSAC_S", "RTD3_BC_S"])
def test_critics_with_memory_read_the_history_of_the_episode(name, monkeypatch):
    """Each episode is read step by step here, with the previous recorded action and reward as inputs."""
    monkeypatch.setattr(policy_evaluation, "EPISODES_AT_ONCE", 3)
    is_discrete = name in ("RDQN", "R2D2", "RDSAC")
    data = recording(is_discrete)
    learner = getattr(offpcc, name)(dataset=data, **MEMORY)
    algorithm, expected, start = learner.algorithm, [], 0
    actions = one_hot(data.actions) if is_discrete else data.actions
    own = [algorithm.actor_encoder] if algorithm.acts_by_values else list(algorithm.critic_encoders)
    for length in LENGTHS:
        shared_state, states = None, [None] * len(own)
        for t in range(start, start + length):
            is_first, seen = t == start, torch.from_numpy(data.observations[t])[None, None]
            seen = seen if algorithm.normalization is None else algorithm.normalization(seen)
            action = torch.from_numpy(np.zeros_like(actions[t]) if is_first else actions[t - 1])[None, None]
            reward = torch.full((1, 1, 1), 0.0 if is_first else float(data.rewards[t - 1]))
            with torch.no_grad():
                inputs = Inputs(seen, action, reward)
                features, shared_state = algorithm.shared_encoder(inputs, shared_state)
                read = [
                    one(inputs._replace(observation=features), state) for one, state in zip(own, states, strict=True)
                ]
                states = [state for _, state in read]
                h, now = torch.stack([summary for summary, _ in read]), torch.from_numpy(actions[t])[None, None]
                q = (algorithm.critics(h) * now).sum(-1) if is_discrete else algorithm.critics(h, now)[..., 0]
            expected.append(q[:, 0, 0])
        start += length
    found = torch.from_numpy(offpcc.q_values(learner))
    if name == "R2D2":  # its network gives h(Q)
        found = rescaled(found, algorithm.rescaling)
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["TD3", "RTD3", "DQN", "RDQN"])
def test_actions_of_the_policy(name):
    """They are those that the agent takes along each recorded episode; no network reads previous actions here."""
    settings = {**MEMORY, "use_previous_action": False} if name[0] == "R" else NETWORKS
    is_discrete = "DQN" in name
    data = recording(is_discrete)
    learner = getattr(offpcc, name)(dataset=data, **settings)
    agent, actions, start = offpcc.Agent(learner.algorithm), [], 0
    for length in LENGTHS:
        agent.reset()
        for t in range(start, start + length):
            reward = 0.0 if t == start else float(data.rewards[t - 1])
            actions.append(agent.act(data.observations[t], previous_reward=reward))
        start += length
    actions = np.array(actions).reshape(np.shape(data.actions))
    found = offpcc.q_values(learner, of_policy=True)
    np.testing.assert_allclose(
        found, offpcc.q_values(learner, dataclasses.replace(data, actions=actions)), rtol=1e-4, atol=1e-5
    )
    assert not np.allclose(found, offpcc.q_values(learner))


def test_without_a_discount_values_are_rewards():
    draw = np.random.default_rng(1)
    observations, actions = (draw.uniform(-1, 1, (600, 1)).astype(np.float32) for _ in range(2))
    rewards = (observations * actions)[:, 0]
    ends = np.arange(1, 601) % 20 == 0
    data = offpcc.Dataset.from_arrays(
        observations=observations, actions=actions, rewards=rewards, terminations=ends, truncations=np.zeros(600, bool)
    )
    learner = offpcc.TD3BC(dataset=data, gamma=0.0, hidden_dims=(32, 32), lr=3e-3, reward_scale=2.0, seed=1)
    before = offpcc.q_values(learner)
    learner.train(num_epochs=1, num_steps_per_epoch=600)
    found = offpcc.q_values(learner)
    assert np.abs(found - 2.0 * rewards).mean() < 0.1 < np.abs(before - 2.0 * rewards).mean()


class Cart(gymnasium.Env):
    observation_space, action_space = Box(-9, 9, (3,), np.float32), Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        return self.np_random.normal(size=3).astype(np.float32), float(action[0]), False, self.steps == 5, {}


class Steps(Cart):
    action_space = Discrete(4)

    def step(self, action):
        return super().step([action])


@pytest.mark.parametrize("make", [Cart, Steps])
def test_of_a_learner_that_acts_data_are_shown_by_its_environment(make):
    """Wrappers hide a column of recorded data, and actions are scaled as in training."""
    hides = {"wrappers": [functools.partial(offpcc.envs.wrappers.DropIndices, indices=(1,))]}
    build = offpcc.DQN if make is Steps else offpcc.TD3
    learner = build(make, make=hides, **NETWORKS)
    data = offpcc.collect(make, None, 12)
    with pytest.raises(offpcc.UserError, match="the learner has no recorded data; give a"):
        offpcc.q_values(learner)
    seen = torch.from_numpy(data.observations[:, [0, 2]])[None, :, None]
    with torch.no_grad():
        if make is Steps:
            q = (learner.algorithm.critics(seen)[:, :, 0] * torch.from_numpy(one_hot(data.actions))).sum(-1)
        else:
            q = learner.algorithm.critics(seen, torch.from_numpy(data.actions / 2.0)[:, None].float())[:, :, 0, 0]
    np.testing.assert_allclose(offpcc.q_values(learner, data), q, rtol=1e-5, atol=1e-6)


class Telling(Cart):
    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"state": self.np_random.normal(size=4).astype(np.float32)}

    def step(self, action):
        return *super().step(action)[:4], {"state": self.np_random.normal(size=4).astype(np.float32)}


@pytest.mark.parametrize("sees", ["state", "history+state"])
def test_critics_may_see_a_state(sees):
    offpcc.configure(None, "make.state = 'info'")
    data = offpcc.collect(Telling, None, 12)
    offpcc.configure(None)
    learner = offpcc.TD3(Telling, make={"state": "info"}, critic_inputs=sees, **NETWORKS)
    observations, states = learner.algorithm.privileged.split_state(data.observations)
    seen = torch.from_numpy(states if sees == "state" else np.concatenate([observations, states], 1))[None, :, None]
    with torch.no_grad():
        q = learner.algorithm.critics(seen, torch.from_numpy(data.actions / 2.0)[:, None].float())[:, :, 0, 0]
    np.testing.assert_allclose(offpcc.q_values(learner, data), q, rtol=1e-5, atol=1e-6)
    assert offpcc.q_values(learner, data, of_policy=True).shape == q.shape


def test_errors():
    for name, is_discrete, other in (("BC", False, "iql"), ("DiscreteBC", True, "dcql")):
        with pytest.raises(offpcc.UserError, match=f"BC has no critics; choose another algorithm, such as {other}"):
            offpcc.q_values(getattr(offpcc, name)(dataset=recording(is_discrete), **NETWORKS))
    learner = offpcc.IQL(dataset=recording(), **NETWORKS)
    with pytest.raises(offpcc.UserError, match=r"actions have 1 number, but their bounds .* have 2"):
        offpcc.q_values(learner, recording(is_discrete=True))
    with pytest.raises(offpcc.UserError, match=r"give a learner, such as .*FOLDER.*: an agent holds no critics"):
        offpcc.q_values(offpcc.Agent(learner.algorithm))
    with pytest.raises(offpcc.UserError, match=r"a learner of .* alone; leave the dataset out"):
        offpcc.q_values(dataclasses.replace(learner, spec=None), recording())
    wide = offpcc.Dataset.from_arrays(
        observations=np.zeros((3, 5)), actions=np.zeros((3, 2)), rewards=np.zeros(3), terminations=[0, 0, 1]
    )
    with pytest.raises(offpcc.UserError, match="but the actor was trained with"):
        offpcc.q_values(learner, wide)
