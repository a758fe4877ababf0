"""Environments of the old gym; `gym` is not installed, so these are made of what its interface was."""

import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import offpcc
from offpcc.envs.check import examine_env
from offpcc.envs.wrappers.old_gym import OldGym
from offpcc.training.loggers import Loggers
from offpcc.utils.errors import UserError
from offpcc.utils.findings import OK, WARNING


class OldBox:
    """gym.spaces.Box as far as its users looked at it."""

    def __init__(self, low, high, shape, dtype=np.float32):
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class OldDrift:
    """A point that noise and the agent push along a line."""

    metadata = {"render.modes": ["rgb_array", "human"], "video.frames_per_second": 25}
    observation_space = OldBox(-np.inf, np.inf, (2,))
    action_space = OldBox(-3.0, 3.0, (1,))

    def __init__(self, length=None, info=None):
        self.length, self.info = length, info or {}
        self.seeds, self.drawn, self.closed = [], [], False
        self.state = np.zeros(2)

    def seed(self, seed=None):
        self.random = np.random.RandomState(seed)
        self.seeds.append(seed)
        return [seed]

    def reset(self):
        self.steps = 0
        self.state[:] = self.random.uniform(-1, 1, 2)
        return self.state

    def step(self, action):
        self.steps += 1
        self.state[:] += 0.1 * action[0] + 0.01 * self.random.standard_normal(2)
        done = self.steps == self.length
        return self.state, np.array([-np.abs(self.state).sum()]), done, dict(self.info) if done else {}

    def render(self, mode="human"):
        self.drawn.append(mode)
        return np.zeros((4, 4, 3), np.uint8) if mode == "rgb_array" else None

    def close(self):
        self.closed = True


PUSH = np.ones(1, np.float32)


def last_step(env, num_steps):
    env.reset(seed=0)
    steps = [env.step(PUSH) for _ in range(num_steps)]
    assert all(step[2:4] == (False, False) for step in steps[:-1])
    return steps[-1]


@pytest.fixture
def register():
    """Registers an old environment as a user does, for the length of a test."""
    name = "old-drift-v0"

    def function(old=OldDrift, **kwargs):
        gymnasium.register(
            name, entry_point=lambda render_mode=None: OldGym(old(), render_mode=render_mode, **kwargs),
            max_episode_steps=20,
        )  # fmt: skip
        return name

    yield function
    gymnasium.registry.pop(name, None)


def test_spaces_are_gymnasiums():
    env = OldGym(OldDrift())
    assert env.observation_space == Box(-np.inf, np.inf, (2,), np.float32)
    assert env.action_space == Box(-3, 3, (1,), np.float32)


def test_spaces_of_one_bound_without_a_type_are_read():
    old = OldDrift()
    old.action_space = type("Space", (), {"low": -2.0, "high": 2.0, "shape": (3,), "dtype": None})()
    assert OldGym(old).action_space == Box(-2, 2, (3,), np.float32)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_a_space_without_bounds_is_refused(name):
    old = OldDrift()
    setattr(old, name, type("Dict", (), {"__repr__": lambda self: "Dict(a)"})())
    with pytest.raises(UserError, match=rf"OldDrift\.{name} is Dict\(a\), .* write a gymnasium\.Env"):
        OldGym(old)
    setattr(old, name, type("MultiBinary", (), {"n": 4, "shape": (4,), "__repr__": lambda self: "MultiBinary(4)"})())
    with pytest.raises(UserError, match=rf"OldDrift\.{name} is MultiBinary\(4\), .* write a gymnasium\.Env"):
        OldGym(old)


class OldDoors(OldDrift):
    """A door to choose, of a room with a number; the door of the room's number is right."""

    observation_space = type("Discrete", (), {"n": 3, "shape": ()})()
    action_space = type("Discrete", (), {"n": np.int64(3), "shape": ()})()

    def reset(self):
        self.steps, self.room = 0, self.random.randint(3)
        return self.room

    def step(self, action):
        self.steps += 1
        reward, self.room = float(action == self.room), self.random.randint(3)
        return self.room, reward, self.steps == 10, {}


def test_choices_of_the_old_gym_are_learned():
    assert OldGym(OldDoors()).action_space == OldGym(OldDoors()).observation_space == Discrete(3)
    small = {"hidden_dims": (32,), "lr": 1e-2, "gamma": 0.5, "buffer": {"batch_size": 32}, "seed": 1}
    learner = offpcc.DQN(lambda: OldGym(OldDoors(), time_limit=10), **small)
    learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=400, update_after=100, num_test_episodes_per_epoch=3)
    assert learner.loop.rows[-1]["test/return"] == 10.0


def test_an_id_of_the_old_gym_is_told_from_an_unknown_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "gym.envs.registration", types.SimpleNamespace(registry={"OldMaze-v0": None}))
    with pytest.raises(UserError, match=r"OldMaze-v0 is registered in the old gym, not in Gymnasium; wrap it"):
        offpcc.make("OldMaze-v0")
    with pytest.raises(UserError, match="OldMaze-v1: there is no such environment"):
        offpcc.make("OldMaze-v1")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_observations_are_copies_in_the_type_of_the_space(dtype):
    old = OldDrift()
    old.state = np.zeros(2, dtype)
    env = OldGym(old)
    first, info = env.reset(seed=0)
    kept = first.copy()
    second, reward, *_ = env.step(PUSH)
    assert first.dtype == second.dtype == np.float32
    np.testing.assert_array_equal(first, kept)
    assert info == {}
    assert type(reward) is float


@pytest.mark.parametrize(
    ("info", "time_limit", "ends"),
    [
        ({}, None, (True, False)),
        ({"TimeLimit.truncated": True}, None, (False, True)),
        ({"TimeLimit.truncated": False}, None, (True, False)),
        ({}, 5, (False, True)),
        ({}, 6, (True, False)),
        ({"TimeLimit.truncated": False}, 5, (True, False)),
    ],
)
def test_done_is_a_termination_unless_it_is_a_time_limit(info, time_limit, ends):
    env = OldGym(OldDrift(length=5, info=info), time_limit=time_limit)
    for _ in range(2):
        assert last_step(env, 5)[2:4] == ends


def test_seeds_reach_the_old_environment_and_each_later_episode_has_its_own():
    old = OldDrift()
    env = OldGym(old)
    for seed in (7, None, None):
        env.reset(seed=seed)
    assert old.seeds[0] == 7
    assert len(set(old.seeds)) == 3
    again = OldDrift()
    env = OldGym(again)
    for seed in (7, None, None):
        env.reset(seed=seed)
    assert again.seeds == old.seeds


def test_rendering_asks_the_old_way():
    old = OldDrift()
    env = OldGym(old, render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (4, 4, 3)
    assert old.drawn == ["rgb_array"]
    assert env.metadata == {"render_modes": ["rgb_array", "human"], "render_fps": 25}
    assert OldGym(old).render() is None


def test_a_window_shows_each_step():
    old = OldDrift()
    last_step(OldGym(old, render_mode="human"), 3)
    assert old.drawn == ["human"] * 4


def test_closing_closes():
    old = OldDrift()
    OldGym(old).close()
    assert old.closed


@pytest.mark.parametrize(
    ("method", "result", "words"),
    [("reset", (np.zeros(2), {}), "returned a tuple"), ("step", (np.zeros(2), 0.0, False, False, {}), "5 values")],
)
def test_a_new_environment_is_named(method, result, words):
    old = OldDrift()
    setattr(old, method, lambda *arguments: result)
    with pytest.raises(UserError, match=words):
        last_step(OldGym(old), 1)


def test_the_doctor_finds_nothing(register):
    assert {finding.level for finding in examine_env(register(), 200).findings} == {OK}


def test_the_doctor_finds_a_generator_that_no_seed_reaches(register):
    class Deaf(OldDrift):
        def __init__(self):
            super().__init__()
            super().seed(0)

        seed = None

    levels = {finding.check: finding.level for finding in examine_env(register(Deaf), 200).findings}
    assert levels["resume"] == WARNING


@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_an_agent_trains_in_it(register, algo):
    learner = offpcc.build(register(), algo, seed=1, algorithm={"hidden_dims": (8,)})
    learner.train(num_epochs=1, num_steps_per_epoch=60, update_after=30, num_test_episodes_per_epoch=1)
    assert learner.loop.num_updates == 30
    learner.close()
