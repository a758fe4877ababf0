"""Whether recorded data fits an environment: what its agent will see of it, and what it could not see."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.wrappers import (
    ClipReward,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    TimeLimit,
    TransformReward,
)
from peaks import with_peak
from recordings import flags, recorded

import offpcc
from offpcc.data.checks import env_fit
from offpcc.data.checks.env_fit import bounds_for, env_notices, fits
from offpcc.data.datasets.dataset import Dataset
from offpcc.envs.wrappers import DropIndices, PreviousAction
from offpcc.utils.findings import FAULT, OK, WARNING


class Cart(gymnasium.Env):
    """Two numbers, or as many as are wanted; it is never played."""

    def __init__(self, size=2):
        self.observation_space, self.action_space = Box(-99, 99, (size,), np.float32), Box(-1, 1, (1,), np.float32)


class Ant(Cart):
    pass


def data(size=2, **metadata):
    given = recorded(20, truncations=flags(20, 9))
    observations = np.random.default_rng(0).normal(size=(20, size)).astype(np.float32)
    return replace(Dataset.from_arrays(**{**given, "observations": observations}), metadata=metadata)


def only(findings, level):
    assert [finding.check for finding in findings] == ["env"]
    assert findings[0].level == level
    return findings[0].found


def test_observations_beyond_the_bounds_of_the_environment_are_told():
    env, recording = Cart(), data()
    env.observation_space = Box(np.array([-np.inf, -0.1], "f"), np.array([9, 0.1], "f"))
    (finding,) = fits(recording, env)
    assert (finding.check, finding.level) == ("env", WARNING)
    assert "1 of 2 numbers of the observations are beyond the bounds of Cart: number 1 reaches" in finding.found
    env.observation_space = Box(-99, 99, (2,), np.float32)
    assert only(fits(recording, env), OK)


@pytest.mark.parametrize(
    ("wrapped", "shape"),
    [
        (lambda env: env, (2,)),
        (lambda env: DropIndices(env, (1,)), (1,)),
        (lambda env: FrameStackObservation(env, 3), (3, 2)),
        (PreviousAction, (3,)),
    ],
)
def test_what_the_agent_will_see_is_told(wrapped, shape):
    found = only(fits(data(), wrapped(Cart())), OK)
    assert f"the agent in Cart sees float32 of shape {shape}, where float32 of shape (2,) was recorded" in found
    assert "its actions have 1 number, as the recorded ones do" in found


def test_data_that_was_recorded_through_the_wrappers_fits_too():
    assert "of shape (1,), where float32 of shape (1,)" in only(fits(data(size=1), DropIndices(Cart(), (1,))), OK)
    told = '["DropIndices(indices=[1])"]'
    assert "of shape (1,)" in only(fits(data(size=1, seen_through=told), DropIndices(Cart(), (1,))), OK)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda: (data(size=4), DropIndices(Cart(), (1,))),
            ["4 numbers", "2 numbers without wrappers", "1 number after"],
        ),
        (lambda: (data(seen_through='["Flicker()"]'), Cart()), ["recorded with Flicker()", "no wrapper"]),
        (lambda: (data(seen_through="Flicker"), Cart()), ["metadata/seen_through is 'Flicker'"]),
        (
            lambda: (data(), NormalizeObservation(Cart())),
            ["NormalizeObservation", "returns other observations when an episode is replayed"],
        ),
        (lambda: (data(size=111), Cart(27)), ["111 numbers", "27 numbers"]),
    ],
)
def test_what_it_could_not_see_is_a_fault(made, words):
    found = only(fits(*made()), FAULT)
    for word in words:
        assert word in found


def test_ants_contact_forces_are_left_away():
    found = only(fits(data(size=111), Ant(27)), OK)
    assert "sees float32 of shape (27,), where float32 of shape (111,) was recorded" in found


def test_actions_of_another_size_are_a_fault_beside_others():
    wide = replace(data(size=3), actions=np.zeros((20, 2), np.float32))
    sizes, actions = [finding.found for finding in fits(wide, Cart())][::-1]
    assert "actions of 2 numbers, but Cart takes 1" in actions and "3 numbers" in sizes
    narrow = replace(data(), actions=wide.actions)
    assert "actions of 2 numbers" in only(fits(narrow, Cart()), FAULT)


def test_the_first_episode_that_has_a_transition_is_shown_and_no_other(monkeypatch):
    given = recorded(9, truncations=flags(9, 0, 5))
    data, shown = Dataset.from_arrays(**given), []
    assert data.last_is_transition.tolist() == [False, False, False]

    def see(env, observations, actions, rewards, starts, stops, **options):
        shown.append((observations[:, 0].tolist(), starts.tolist(), stops.tolist()))
        return observations

    monkeypatch.setattr(env_fit, "transform_observations", see)
    fits(data, Cart())
    monkeypatch.setattr(env_fit, "STEPS", 2)
    fits(data, Cart())
    assert shown == [([1, 2, 3, 4, 5], [0], [5]), ([1, 2, 3], [0], [3])]
    alone = data.select([0])
    assert "its actions" in only(fits(alone, Cart()), OK)
    assert len(shown) == 2


class Picture(Cart):
    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 255, (32, 32, 3), np.uint8)


def test_images_of_later_episodes_are_not_converted():
    """All of them may be more than memory holds: they lose the states, and the axis of channels moves."""
    images = np.zeros((400, 32, 32, 3), np.uint8)
    given = recorded(400, truncations=flags(400, *range(9, 400, 10)))
    recording = Dataset.from_arrays(**{**given, "observations": images}, states=np.zeros((400, 2)))
    found, peak = with_peak(lambda: fits(recording, Picture()))
    assert "sees uint8 of shape (32, 32, 3)" in only(found, OK)
    assert peak < images.nbytes / 3


# Bounds and rewards -----------------------------------------------------------------------------------------------


def test_actions_are_shown_in_the_environments_units(monkeypatch):
    shown = []
    monkeypatch.setattr(
        env_fit, "transform_observations", lambda env, observations, actions, *_, **__: shown.append(actions)
    )
    env = Cart()
    env.action_space = Box(-4, 4, (1,), np.float32)
    fits(data(), env)
    fits(data().with_range((-2, 2)), env)
    recorded_ones = data().actions[:9]
    assert np.allclose(shown[0][:9], recorded_ones / 4) and np.allclose(shown[1][:9], recorded_ones / 2)


def test_bounds_of_another_size_are_none():
    env = Cart()
    assert [bound.tolist() for bound in bounds_for(data(), env)] == [[-1], [1]]
    env.action_space = Box(-1, 1, (2,), np.float32)
    assert bounds_for(data(), env) is None and bounds_for(data(), None) is None


class Cost(gymnasium.RewardWrapper):
    def reward(self, reward):
        return -reward


@pytest.mark.parametrize(
    ("wrapped", "names"),
    [
        (Cost, "Cost"),
        (NormalizeReward, "NormalizeReward"),
        (lambda env: TransformReward(env, abs), "TransformReward"),
        (lambda env: TimeLimit(ClipReward(Cost(env), -1, 1), 5), "ClipReward, Cost"),
        (lambda env: DropIndices(TimeLimit(env, 5), (1,)), None),
        (lambda env: env, None),
    ],
)
def test_wrappers_that_change_rewards_are_told(wrapped, names):
    notices = env_notices(data(), wrapped(Cart()))
    if names is None:
        assert not notices
    else:
        (notice,) = notices
        assert notice.kind == "rewards" and notice.text.startswith(f"{names} of Cart changes rewards in tests")


@pytest.mark.parametrize(
    ("recorded_in", "is_told"),
    [
        ({"env": "Walker2d-v5"}, True),
        ({"env_spec": '{"id": "Walker2d-v5"}'}, True),
        ({"env": "Hopper-v2"}, False),
        ({"env": "HopperBulletEnv-v0"}, False),
        ({"env": "hopper-mujoco-p-v0"}, False),
        ({"env": "mine:Hopper-v5"}, False),
        ({"env": 3}, False),
        ({}, False),
    ],
)
def test_data_of_another_task_are_told(recorded_in, is_told):
    env = Cart()
    env.spec = EnvSpec("hopper-bullet-v0", entry_point=Cart)
    found = [notice.text for notice in env_notices(data(**recorded_in), env)]
    told = ["the data were recorded in Walker2d-v5, but the environment is hopper-bullet-v0"]
    assert found == (told if is_told else [])
    env.spec = None
    assert not env_notices(data(**recorded_in), env), "the name of a class tells nothing"


def test_sticky_actions_of_the_recording_and_of_the_tests():
    pytest.importorskip("ale_py")
    env = offpcc.make("PongNoFrameskip-v4")
    (notice,) = env_notices(data(env="ALE/Pong-v5"), env)
    assert "which by default repeats the last action with a chance of 0.25, but the environment is" in notice.text
    assert notice.text.endswith("PongNoFrameskip-v4, with 0")
    assert env_notices(data(env="PongNoFrameskip-v4"), env) == []
    sticky = offpcc.make("PongNoFrameskip-v4", kwargs={"repeat_action_probability": 0.25})
    assert env_notices(data(env="ALE/Pong-v5"), sticky) == []


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("dmc-walker-walk-v0", "dmc-walker-run-v0", False),
        ("dmc-walker-walk-v0", "dmc-walker-walk-p-v0", True),
        ("dmc-walker-walk-v0", "dm_control/walker-walk-v0", True),
        ("bullet-hopper-medium-v0", "hopper-bullet-v0", True),
        ("bullet-hopper-medium-v0", "bullet-ant-medium-v0", False),
        ("MiniGrid-MemoryS7-v0", "MiniGrid-Empty-5x5-v0", False),
        ("PongNoFrameskip-v4", "ALE/Pong-v5", True),
        ("antmaze-umaze-v2", "AntMaze_UMaze-v5", True),
    ],
)
def test_families_of_tasks_are_told_apart(one, other, is_same):
    env = Cart()
    env.spec = EnvSpec(one, entry_point=Cart)
    assert bool(env_notices(data(env=other), env)) is not is_same
