"""The episodes of a data set: what each of them follows from, and who acts in it."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from collected import ENV, agent, run, unit_actions

from offpcc.algorithms.agent import load_actor
from offpcc.core import Step
from offpcc.data.datasets.load import load
from offpcc.envs.make import make
from offpcc.training.collect import Seeds, play


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("env", [ENV, "pendulum-va-concat10-v0", "pendulum-img-v0"])
def test_random_episodes_are_played_as_they_are_recorded(here, env):
    data = load(run(env=env, seed=7))
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
    data = load(run(env="brief-v0", actor=actor, deterministic=True, steps=50))
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
    explored = load(run("explored.hdf5", actor=actor, steps=40))
    decided = load(run("decided.hdf5", actor=actor, steps=40, deterministic=True))
    assert np.array_equal(explored.observations[0], decided.observations[0])
    assert np.abs(unit_actions(explored)[0] - unit_actions(decided)[0]).item() > 0.01
    assert explored.metadata["algorithm"] == algo


def test_an_episode_follows_from_the_seed_and_its_number_alone(here):
    actor = agent("actor.pt", "rsac", "brief-v0")
    with make("brief-v0") as env:
        algorithm = load_actor(Path(actor))
        for played in (None, algorithm):
            alone = [list(play(env, played, Seeds.of(3, number))) for number in (2, 0)]
            after_others = [list(play(env, played, Seeds.of(3, number))) for number in (0, 1, 2)]
            for one, other in zip(alone, (after_others[2], after_others[0]), strict=True):
                for a, b in zip(one, other, strict=True):
                    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            assert not np.array_equal(after_others[0][0].observation, after_others[1][0].observation)
            assert not np.array_equal(after_others[0][0].action, after_others[1][0].action)
    assert len({*Seeds.of(3, 0), *Seeds.of(3, 1), *Seeds.of(4, 0)}) == 12


def test_everybodys_generators_are_seeded_too(here):
    assert (
        run("a.hdf5", env="dicing-v0", steps=25).read_bytes() == run("b.hdf5", env="dicing-v0", steps=25).read_bytes()
    )
    run("c.hdf5", env="dicing-v0", steps=25, seed=1)
    assert not np.array_equal(load("a.hdf5").observations, load("c.hdf5").observations)
