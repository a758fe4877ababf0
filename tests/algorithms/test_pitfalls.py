"""Traps that the field's libraries fell into, each with data on which falling in shows.

They concern the way from an environment through the loop and a buffer to an update; the traps inside a loss are in
test_losses.py, those of every single algorithm in test_contract.py.
"""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

from offpcc.algorithms import ALGORITHMS, SAC
from offpcc.core import Step
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.networks import Recurrent
from offpcc.training.evaluation import Evaluation, run_episodes
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import Loggers
from offpcc.training.run_fns import train

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (1,), np.float32), Box(-1, 1, (1,), np.float32)
Memory = functools.partial(Recurrent, cell="gru", hidden_dim=8, num_layers=1)
KnowingMemory = functools.partial(Memory, use_previous_action=True, use_previous_reward=True)
MEMORYLESS, OWN, SHARED = ["ddpg", "td3", "sac"], ["rdpg", "rtd3", "rsac"], ["rdpg_s", "rtd3_s", "rsac_s"]


class Walk(gymnasium.Env):
    """A random walk that the action pushes; the reward is its place. An episode terminates after `length` steps.

    A length of None never ends, and a list gives the lengths of successive episodes.
    """

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self, length=None):
        self.lengths = length if isinstance(length, list) else [length]
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t, self.place = 0, self.np_random.standard_normal()
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.t += 1
        self.place = 0.9 * self.place + float(action[0]) + 0.1 * self.np_random.standard_normal()
        over = self.t == self.lengths[self.episode % len(self.lengths)]
        return np.array([self.place], np.float32), self.place, over, False, {}


def build(name, **options):
    encoder = {"shared_encoder": KnowingMemory} if name.endswith("_s") else {"encoder": KnowingMemory}
    settings = {"hidden_dims": (16,), "lr": 3e-3, "seed": 1, **(encoder if name.startswith("r") else {}), **options}
    return ALGORITHMS[name](OBSERVATIONS, ACTIONS, **settings)


def storage(agent, **options):
    if agent.memoryless:
        return ReplayBuffer(OBSERVATIONS, ACTIONS, **{"batch_size": 16, "num_steps": agent.n_step, **options})
    return RecurrentReplayBuffer(OBSERVATIONS, ACTIONS, **{"batch_size": 4, **options})


def learn(agent, make_env, num_steps, *, update_after, buffer=None, tests=None, num_epochs=1, watch=None, **settings):
    """Train by the real loop; `watch`, if given, is called with the interaction and the buffer at each update."""
    buffer = storage(agent) if buffer is None else buffer
    interaction = Interaction(LocalEnvironments(make_env, [0]), agent, buffer)
    if watch:
        update = agent.update_networks
        agent.update_networks = lambda batch: (watch(interaction, buffer), update(batch))[1]
    train(
        agent, buffer, interaction, tests, Loggers([]),
        num_epochs=num_epochs, num_steps_per_epoch=num_steps // num_epochs, update_after=update_after,
        num_test_episodes_per_epoch=2, num_test_envs=2, **settings,
    )  # fmt: skip
    return interaction, buffer


def parameters(agent):
    return {
        f"{name}.{key}": value.clone()
        for name, part in vars(agent).items()
        if isinstance(part, torch.nn.Module)
        for key, value in part.state_dict().items()
    }


def replayed(agent, episode):
    """The memory after each of an episode's steps, from an empty one."""
    memory, memories = None, []
    for t in range(len(episode.actions)):
        previous_action = episode.actions[t - 1] if t else np.zeros(1, np.float32)
        previous_reward = episode.rewards[t - 1] if t else np.zeros(1, np.float32)
        step = Step(episode.frames[None, t], previous_action[None], previous_reward[None], np.array([t == 0]))
        _, memory = agent.act(step, memory, deterministic=True)
        memories.append(memory)
    return memories


def assert_equal(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


# Ends of episodes -----------------------------------------------------------------------------------------------


class OneState(gymnasium.Env):
    """Nothing changes, and every step brings 1; it may end by itself after 5 steps."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self, mortal):
        self.mortal = mortal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.ones(1, np.float32), 1.0, self.mortal and self.t == 5, False, {}


@pytest.mark.parametrize(
    ("name", "mortal", "value"),
    [
        ("ddpg", False, 10.0),  # 1 / (1 - gamma)
        ("td3", False, 10.0),
        ("sac", False, 10.0),
        ("rsac", False, 10.0),
        ("rdpg_s", False, 10.0),
        ("ddpg", True, 1 / (1 - 0.9 * 0.8)),  # one step in five is the last, and without a memory all look alike
    ],
)
def test_a_time_limit_is_no_end(name, mortal, value):
    """gym#1230, stable-baselines3#829, cleanrl#457: the value of a step goes on beyond the time limit."""
    options = {"alpha": 0.0, "autotune": False} if name.endswith("sac") else {}
    agent = build(name, gamma=0.9, polyak=0.8, lr=1e-2, **options)
    buffer = storage(agent, batch_size=64 if agent.memoryless else 4)
    learn(agent, lambda: TimeLimit(OneState(mortal), 5), 450, update_after=50, buffer=buffer)
    batch = buffer.sample()
    with torch.no_grad():
        q = agent.critics(agent.summarize(agent.prepare(batch)).q, batch.actions)
    assert q.mean().item() == pytest.approx(value, rel=0.08)


@pytest.mark.parametrize("name", ["sac", "rsac"])
@pytest.mark.parametrize("terminated", [False, True])
def test_what_is_over_and_cut_at_once_is_over(name, terminated):
    """stable-baselines3#1276."""
    agent = build(name, reward_scale=3.0)
    buffer = storage(agent)
    observation = np.ones(1, np.float32)
    buffer.push(observation, np.zeros(1), 2.0, observation, terminated, True)
    batch = agent.prepare(buffer.sample())
    assert (batch.terminations == terminated).all()
    y = agent.td_target(batch, torch.full_like(batch.rewards, 100.0))
    torch.testing.assert_close(y, torch.full_like(y, 6.0 + 99.0 * (not terminated)))


class CutEarly(gymnasium.Wrapper):
    """Truncates after 3 steps, without a word in `info` or in the environment's spec."""

    def reset(self, **kwargs):
        self.left = 3
        return self.env.reset(**kwargs)

    def step(self, action):
        observation, reward, terminated, _, _ = self.env.step(action)
        self.left -= 1
        return observation, reward, terminated, self.left == 0, {}


@pytest.mark.parametrize("length", [2, 3, 200])
def test_any_wrapper_may_cut_an_episode(length):
    def make_env():
        return CutEarly(TimeLimit(Walk(length), 200))

    agent = build("rsac")
    _, buffer = learn(agent, make_env, 12, update_after=12, updates_per_step=0)
    assert {len(episode.actions) for episode in buffer.episodes} == {min(length, 3)}
    assert {episode.terminated for episode in buffer.episodes} == {length <= 3}

    _, buffer = learn(build("sac"), make_env, 12, update_after=12, updates_per_step=0)
    starts = buffer.storage.is_start[: buffer.size]
    assert buffer.num_transitions == 12 and buffer.size == 12 + 12 // min(length, 3)
    ends = starts[:-1] & ~starts[1:]  # rows whose step was an episode's last
    np.testing.assert_array_equal(buffer.storage.terminations[: buffer.size - 1][ends], length <= 3)
    assert not buffer.storage.terminations[: buffer.size - 1][~ends].any()


@pytest.mark.parametrize("name", MEMORYLESS + OWN + SHARED)
@pytest.mark.parametrize("options", [{}, {"segment_len": 2}, {"segment_len": 2, "burn_in": 3}], ids=str)
def test_episodes_of_any_length(name, options):
    """pomdp-baselines#12, d3rlpy#127: episodes of a single step, also when there are no others."""
    for lengths in ([1], [2], [1, 2, 3, 4, 5, 6]):
        agent = build(name, n_step=2)
        buffer = storage(agent, **({} if agent.memoryless else options))
        learn(agent, functools.partial(Walk, lengths), 30, update_after=6, buffer=buffer)
        assert all(torch.isfinite(value).all() for value in parameters(agent).values())
        assert agent.critic_optimizer.num_updates == 24


# Memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN + SHARED)
def test_episodes_side_by_side_go_as_they_go_alone(name):
    """An environment that begins its next episode in mid-batch brings nothing along from its last."""
    agent = build(name)
    lengths, seeds = [3, 6, 2, 5], [10, 11, 12, 13, 14]
    together = run_episodes(agent, [Walk(length) for length in lengths[:2]], seeds)
    envs = [Walk(length) for length in lengths[:2]]
    played = iter(together)
    # the environment whose turn it was: 3 ends before 6, then takes the third, which ends with the second, ...
    order, free = [], {0: 0, 1: 0}
    for _ in seeds:
        env = min(free, key=lambda number: (free[number], number))
        order.append(env)
        free[env] += lengths[env]
    for seed, number in zip(seeds, order, strict=True):
        (alone,) = run_episodes(agent, [envs[number]], [seed])
        beside = next(played)
        assert beside.length == alone.length
        assert beside.episode_return == pytest.approx(alone.episode_return, abs=1e-5)


CUE_LENGTH = 8


def cue_loss(segment_len, burn_in, num_updates=300):
    """Mean squared error of the last step's Q after training; the reward there is the cue, shown at step 1 alone."""
    draw = np.random.default_rng(0)
    agent = build("rdpg", gamma=0.0, lr=1e-2)
    options = {} if segment_len is None else {"segment_len": segment_len, "burn_in": burn_in}
    buffer = storage(agent, batch_size=32, **options)
    for _ in range(64):
        cue = float(draw.choice([-1.0, 1.0]))
        for t in range(CUE_LENGTH):
            seen, then = (np.array([cue * (at == 0)], np.float32) for at in (t, t + 1))
            last = t == CUE_LENGTH - 1
            buffer.push(seen, draw.uniform(-1, 1, 1), cue * last, then, last, False)
    for _ in range(num_updates):
        batch = agent.prepare(buffer.sample())
        agent.critic_optimizer.minimize(agent.critic_loss(agent.summarize(batch), batch)[0])
    errors = []
    for _ in range(5):
        batch = agent.prepare(buffer.sample())
        with torch.no_grad():
            q = agent.critics(agent.summarize(batch).q, batch.actions)[0]
        last = batch.terminations > 0
        errors.append((q - batch.rewards)[last].square())
    return torch.cat(errors).mean().item()


@pytest.mark.slow
def test_what_was_seen_before_the_window_needs_burn_in():
    """R2D2, dreamer#24: without it, segments that start in mid-episode cannot know, and whole episodes can.

    After 300 updates, those with enough of it have 0.36.
    """
    assert cue_loss(segment_len=2, burn_in=0) > 0.5  # a coin's variance is 1
    assert cue_loss(segment_len=2, burn_in=3) > 0.5
    assert cue_loss(segment_len=2, burn_in=CUE_LENGTH - 1, num_updates=800) < 0.1
    assert cue_loss(segment_len=None, burn_in=0) < 0.1


@pytest.mark.parametrize("name", OWN + SHARED)
def test_the_memory_is_warm_when_the_policy_takes_over(name):
    """Random exploration passes through the memory, too, with the actions that were executed."""
    agent = build(name)
    buffer = storage(agent)
    interaction = Interaction(LocalEnvironments(functools.partial(Walk, 9), [0]), agent, buffer)
    memories = []
    for t in range(9):
        interaction.step(explore_at_random=t < 5)
        memories.append(interaction.memory)
    assert_equal(memories, replayed(agent, buffer.episodes[0]))
    (hidden,) = [part for part in memories[5] if part is not None]
    assert np.abs(hidden).max() > 0.01


@pytest.mark.parametrize("name", OWN + SHARED)
def test_networks_with_memory_rest_during_an_episode(name):
    """What the memory holds at an episode's end is what today's networks make of that episode: no drift."""
    over, drifts, seen = [], [], set()

    def watch(interaction, buffer):
        over.append(bool(interaction.over.any()))
        if len(buffer.episodes) not in seen:  # the first update after an episode
            seen.add(len(buffer.episodes))
            expected = replayed(agent, buffer.episodes[-1])[-1]
            (ours,), (theirs,) = ([part for part in m if part is not None] for m in (interaction.memory, expected))
            drifts.append(np.abs(np.subtract(ours, theirs)).max().item())

    agent = build(name)
    learn(agent, functools.partial(Walk, [4, 7, 1, 5]), 70, update_after=10, watch=watch)
    assert len(over) == 60  # one per step, and what was owed at the end is paid
    unfinished = 70 - 4 * 17  # four episodes take 17 steps
    assert all(over[:-unfinished]) and not any(over[-unfinished:])
    assert len(drifts) == 15 and max(drifts) == 0.0


def test_networks_without_memory_learn_at_every_step():
    steps = []
    learn(build("sac"), functools.partial(Walk, 7), 30, update_after=10, watch=lambda i, b: steps.append(len(b)))
    assert steps == list(range(11, 31))


# Targets and sharing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMORYLESS + OWN + SHARED)
def test_targets_depend_on_no_network_that_learns(name, monkeypatch):
    """Only SAC's next action does: it is the policy's own."""
    agent = build(name)
    _, buffer = learn(agent, functools.partial(Walk, [3, 5]), 20, update_after=20, updates_per_step=0)
    batch = agent.prepare(buffer.sample())
    targets, backup, state = [], agent.td_target, agent.noise.state_dict()
    monkeypatch.setattr(agent, "td_target", lambda b, v: (targets.append(backup(b, v)), targets[-1])[1])

    def perturbed(*names):
        with torch.no_grad():
            for network in names:
                for parameter in getattr(agent, network).parameters():
                    parameter += 0.3 * torch.randn(parameter.shape)
        agent.noise.load_state_dict(state)
        agent.critic_loss(agent.summarize(batch), batch)

    perturbed()
    perturbed("critics", "critic_encoders")
    assert_equal(targets[1], targets[0])
    if isinstance(agent, SAC):
        perturbed("actor")
        assert not torch.allclose(targets[2], targets[0])
    else:
        perturbed("actor", "actor_encoder", "shared_encoder")
        assert_equal(targets[2], targets[0])
        perturbed("target_actor")
        assert not torch.allclose(targets[3], targets[0])


@pytest.mark.parametrize("name", SHARED)
def test_the_actor_teaches_the_shared_memory_nothing(name):
    agent = build(name)
    _, buffer = learn(agent, functools.partial(Walk, [3, 5]), 20, update_after=20, updates_per_step=0)
    batch = agent.prepare(buffer.sample())
    loss, _ = agent.actor_loss(agent.summarize(batch), batch)
    memory, actor = list(agent.shared_encoder.parameters()), list(agent.actor.parameters())
    grads = torch.autograd.grad(loss, memory + actor, allow_unused=True)
    assert all(grad is None for grad in grads[: len(memory)])
    assert all(grad is not None for grad in grads[len(memory) :])


# Tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMORYLESS + OWN)
def test_two_tests_in_a_row_are_the_same_and_leave_no_trace(name):
    agent = build(name)
    interaction, _ = learn(agent, functools.partial(Walk, [3, 5]), 22, update_after=10)
    tests = Evaluation(lambda: TimeLimit(Walk(), 6))
    state, before = agent.noise.state_dict(), parameters(agent)
    training = interaction.environments.envs[0].unwrapped.np_random.bit_generator.state
    first = tests.run(agent, 5, 2)
    assert first == tests.run(agent, 5, 2)
    assert len({result.episode_return for result in first}) == 5
    assert_equal(agent.noise.state_dict()["state"], state["state"])
    assert agent.noise.state_dict()["acting"] == state["acting"]
    assert_equal(parameters(agent), before)
    assert interaction.environments.envs[0].unwrapped.np_random.bit_generator.state == training


@pytest.mark.parametrize("name", ["td3", "sac", "rtd3", "rsac"])
def test_training_goes_the_same_way_with_and_without_tests(name):
    """Also when a test falls into the middle of an episode."""

    def trained(tests):
        agent = build(name)
        learn(agent, functools.partial(Walk, [3, 5]), 40, update_after=10, tests=tests, num_epochs=4)
        return parameters(agent)

    assert_equal(trained(Evaluation(functools.partial(Walk, 4))), trained(None))


def test_a_run_may_end_before_its_first_episode_does():
    agent = build("rsac")
    learn(agent, functools.partial(Walk, 50), 20, update_after=10)
    assert agent.critic_optimizer.num_updates == 0
