"""The episodes of a data set: what each of them follows from, and who acts in it."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from collected import ENV, agent, always_first, run, unit_actions

import offpcc
from offpcc.algorithms.agent import load_actor
from offpcc.core import Step
from offpcc.data.datasets.load import load_dataset
from offpcc.envs.make import make
from offpcc.training.collect import EpsilonGreedyActor, Seeds, play_episode
from offpcc.utils.errors import UserError
from offpcc.utils.spaces import OneHot, random_action


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("env", [ENV, "pendulum-va-concat10-v0", "pendulum-img-v0"])
def test_random_episodes_are_played_as_they_are_recorded(here, env):
    data = load_dataset(run(env=env, seed=7))
    assert data.num_steps == 450 and data.lengths.tolist() == [200, 200, 50]
    assert not data.terminations.any()
    assert np.flatnonzero(data.truncations).tolist() == [199, 399, 449]
    played, after = make(env).env, data.next_observations
    with h5py.File("data.hdf5") as file:
        actions = file["actions"][:]
    for number, (start, stop) in enumerate(data.episodes):
        observation, _ = played.reset(seed=Seeds.of(7, number).reset)
        for i in range(start, stop):
            assert np.array_equal(data.observations[i], observation)
            observation, reward, *_ = played.step(actions[i])
            assert np.array_equal(after[i], observation)
            assert data.rewards[i] == np.float32(reward)
    assert data.observations.dtype == played.observation_space.dtype
    taken = unit_actions(data)
    assert -1 <= taken.min() < -0.95 and 0.95 < taken.max() <= 1
    assert abs(taken.mean()) < 0.1


@pytest.mark.parametrize("algo", ["rsac", "td3"])
def test_an_agent_keeps_its_memory_over_an_episode(here, algo):
    """Its actions are those it takes when it is shown the recorded episode step by step."""
    actor = agent("actor.pt", algo, "brief-v0")
    data = load_dataset(run(env="brief-v0", actor=actor, deterministic=True, steps=50))
    algorithm, taken = load_actor(Path(actor)), unit_actions(data)
    for start, stop in data.episodes:
        memory, action, reward = None, np.zeros((1, 1), np.float32), 0.0
        for i in range(start, stop):
            step = Step(data.observations[i][None], action, np.full((1, 1), reward, np.float32), np.array([i == start]))
            action, memory = algorithm.act(step, memory, deterministic=True)
            assert taken[i] == pytest.approx(action[0], abs=1e-6)
            reward = data.rewards[i]


@pytest.mark.parametrize("algo", ["sac", "ddpg", "rtd3"])
def test_an_agent_explores_unless_it_is_to_be_deterministic(here, algo):
    actor = agent("actor.pt", algo)
    explored = load_dataset(run("explored.hdf5", actor=actor, steps=40))
    decided = load_dataset(run("decided.hdf5", actor=actor, steps=40, deterministic=True))
    assert np.array_equal(explored.observations[0], decided.observations[0])
    assert np.abs(unit_actions(explored)[0] - unit_actions(decided)[0]).item() > 0.01
    assert explored.metadata["algorithm"] == algo


def test_an_episode_follows_from_the_seed_and_its_number_alone(here):
    actor = agent("actor.pt", "rsac", "brief-v0")
    with make("brief-v0") as env:
        algorithm = load_actor(Path(actor))
        for played in (None, algorithm):
            alone = [list(play_episode(env, played, Seeds.of(3, number))) for number in (2, 0)]
            after_others = [list(play_episode(env, played, Seeds.of(3, number))) for number in (0, 1, 2)]
            for one, other in zip(alone, (after_others[2], after_others[0]), strict=True):
                for a, b in zip(one, other, strict=True):
                    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            assert not np.array_equal(after_others[0][0].observation, after_others[1][0].observation)
            assert not np.array_equal(after_others[0][0].action, after_others[1][0].action)
    assert len({*Seeds.of(3, 0), *Seeds.of(3, 1), *Seeds.of(4, 0)}) == 12


def test_everybodys_generators_are_seeded_too(here):
    files = [run(name, env="dicing-v0", steps=25) for name in ("a.hdf5", "b.hdf5")]
    assert files[0].read_bytes() == files[1].read_bytes()
    run("c.hdf5", env="dicing-v0", steps=25, seed=1)
    assert not np.array_equal(load_dataset("a.hdf5").observations, load_dataset("c.hdf5").observations)


@pytest.mark.parametrize("algo, env", [("rdqn", "cartpole-v0"), ("sac", "brief-v0")])
def test_a_share_of_the_actions_is_random_and_the_others_are_the_best(here, algo, env):
    """Each random action is the next of the episode's own draws, so a recording that goes on is the same."""
    actor = agent("actor.pt", algo, env)
    algorithm, played = load_actor(Path(actor)), make(env, scale_actions=True)
    draws, memory, others = np.random.default_rng(Seeds.of(3, 0).actions), None, 0
    transitions = [*play_episode(played, algorithm, Seeds.of(3, 0), epsilon=0.4)]
    action, reward = np.zeros((1, *played.action_space.shape), np.float32), 0.0
    for number, one in enumerate(transitions):
        step = Step(one.observation[None], action, np.full((1, 1), reward, np.float32), np.array([number == 0]))
        best, memory = algorithm.act(step, memory, deterministic=True)
        is_random = draws.random(1)[0] < 0.4
        expected = random_action(played.action_space, draws) if is_random else best[0]
        assert np.allclose(one.action, expected, atol=1e-6)
        others += is_random
        action, reward = one.action[None], one.reward
    assert 0 < others < len(transitions)


def test_the_share_of_random_actions(here):
    algorithm, space = load_actor(Path(agent("actor.pt", "dqn", "cartpole-v0"))), make("cartpole-v0").action_space
    acting = EpsilonGreedyActor(algorithm, 0.3, OneHot(space), np.random.default_rng(0))
    step = Step(np.zeros((20_000, 4), np.float32), np.zeros((20_000, 2)), np.zeros((20_000, 1)), np.ones(20_000, bool))
    best = algorithm.act(step, deterministic=True)[0][0]
    same = (acting.act(step)[0] == best).all(1).mean()
    assert same == pytest.approx(0.7 + 0.3 / 2, abs=0.01)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_recorded_from_python_with_random_actions(here, num_envs):
    learner = always_first()
    data = offpcc.collect("cartpole-v0", learner.algorithm, 2_000, seed=1, epsilon=0.2, num_envs=num_envs)
    assert data.actions.mean() == pytest.approx(0.1, abs=0.03)
    with pytest.raises(UserError, match="epsilon has no effect on random actions"):
        offpcc.collect("cartpole-v0", None, 10, epsilon=0.2)
    with pytest.raises(UserError, match="deterministic has no effect with epsilon"):
        offpcc.collect("cartpole-v0", learner.algorithm, 10, epsilon=0.2, deterministic=True)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_deterministic_recording_has_no_random_actions(here, num_envs):
    learner = always_first(test_epsilon=1.0)
    data = offpcc.collect("cartpole-v0", learner.algorithm, 100, seed=1, deterministic=True, num_envs=num_envs)
    assert not data.actions.any()
    assert learner.algorithm.test_epsilon == 1.0
