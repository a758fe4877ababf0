"""Recorded episodes seen through wrappers: what is shown is what an agent saw when they were recorded."""

import random
from collections import deque

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers import (
    AddRenderObservation,
    ClipReward,
    DelayObservation,
    FlattenObservation,
    FrameStackObservation,
    MaxAndSkipObservation,
    RescaleObservation,
    StickyAction,
    TimeAwareObservation,
    TimeLimit,
    TransformObservation,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from wandering import LENGTHS, assert_same, noisy, record, refusal, seen, wandering

from offpcc.envs import missing_package, recorded_observations
from offpcc.envs.make import make
from offpcc.envs.recorded_observations import Playback
from offpcc.envs.wrapper_chain import observation_wrappers
from offpcc.envs.wrappers import (
    Concatenate,
    DropIndices,
    Flicker,
    Float32Observation,
    KeepIndices,
    PreviousAction,
    ReturnToGo,
)
from offpcc.networks.noise import Noise
from offpcc.utils.errors import UserError


def part(rows, episodes):
    """Rows of the first so many episodes."""
    stop = rows["stops"][episodes - 1]
    cut = {name: rows[name][:stop] for name in ("observations", "actions", "rewards")}
    return {**cut, "starts": rows["starts"][:episodes], "stops": rows["stops"][:episodes]}


# Exactness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(f"pendulum{twin}-v0" for twin in ("", "-p", "-v", "-va", "-p-concat5", "-v-concat10", "-va-concat10")),
        *(f"{body}-mujoco{twin}-v0" for body in ("hopper", "walker2d", "halfcheetah", "ant") for twin in ("-p", "-v")),
        *(f"{body}-bullet{twin}-v0" for body in ("hopper", "walker2d", "halfcheetah", "ant") for twin in ("-p", "-v")),
        "ant-p-v0",
        *(f"dmc-cartpole-swingup{twin}-v0" for twin in ("-p", "-va", "-p-concat5", "-va-concat10")),
    ],
)
def test_a_recording_is_seen_as_it_was_shown(name):
    if missing_package(name):
        pytest.skip(f"needs {missing_package(name)}")
    env = make(name, scale_actions=True)
    rows, shown = record(env)
    with make(name) as unscaled:
        for one in (env, unscaled):
            assert_same(seen(one, rows), shown)
    env.close()


def test_the_first_27_numbers_of_ant_are_chosen_from_111():
    pytest.importorskip("mujoco")
    env = make("ant-mujoco-p-v0", wrappers=[PreviousAction], scale_actions=True)
    rows, shown = record(env)
    forces = np.random.default_rng(0).normal(size=(len(shown), 84)).astype(np.float32)
    with_forces = {**rows, "observations": np.concatenate([rows["observations"], forces], axis=1)}
    assert_same(seen(env, with_forces), shown)
    bare = make("ant-mujoco-p-v0")
    assert_same(seen(bare, with_forces), np.ascontiguousarray(shown[:, :13]))
    whole = make("ant-mujoco-v0")
    assert_same(seen(whole, with_forces), rows["observations"])
    # Own recordings too tell through what they were seen.
    assert_same(seen(whole, with_forces, recorded_wrappers=[]), rows["observations"])


def test_only_ant_is_cut_to_27():
    rows, _ = record(wandering(size=111))
    assert "111 numbers" in refusal(wandering(PreviousAction, size=27), rows)


def _transformed(env):
    space = Box(-9, 9, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda observation: np.tanh(observation).astype(np.float32), space)


WRAPPERS = {
    "keep": lambda draw: lambda env: KeepIndices(env, [draw % env.observation_space.shape[0], 0]),
    "drop": lambda draw: (
        lambda env: DropIndices(env, [draw % size] if (size := env.observation_space.shape[0]) > 1 else [])
    ),
    "previous action": lambda draw: PreviousAction,
    "concatenate": lambda draw: lambda env: Concatenate(env, 1 + draw % 3),
    "delay": lambda draw: lambda env: DelayObservation(env, draw % 4),
    "time": lambda draw: lambda env: TimeAwareObservation(env, normalize_time=bool(draw % 2)),
    "stack": lambda draw: lambda env: FlattenObservation(FrameStackObservation(env, 1 + draw % 3)),
    "transform": lambda draw: _transformed,
    "rescale": lambda draw: lambda env: RescaleObservation(env, np.float32(-1), np.float32(1 + draw)),
    "limit": lambda draw: lambda env: TimeLimit(env, 5),
    "clip reward": lambda draw: lambda env: ClipReward(env, -0.5, 0.5),
    "reward": lambda draw: ShowReward,
    "float32": lambda draw: Float32Observation,
}


class ShowReward(gym.Wrapper):
    """Appends the last reward."""

    def __init__(self, env):
        super().__init__(env)
        space = env.observation_space
        self.observation_space = Box(np.append(space.low, -100), np.append(space.high, 100), dtype=space.dtype.type)

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        return np.append(observation, 0).astype(self.observation_space.dtype), info

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return np.append(observation, np.float32(reward)).astype(self.observation_space.dtype), reward, *rest


@pytest.mark.filterwarnings("ignore:.*precision lowered", "ignore:overflow encountered in cast")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(WRAPPERS)), st.integers(0, 7)), max_size=5),
    st.sampled_from([np.float32, np.float64]),
)
def test_any_chain_of_wrappers_is_exact(chain, dtype):
    env = wandering(*(WRAPPERS[name](draw) for name, draw in chain), dtype=dtype)
    rows, shown = record(env, lengths=(9, 1, 7))
    # Rewards are recorded as the environment gives them, before any wrapper.
    low, high = np.float32([-2, 0]), np.float32([2, 3])
    rows["rewards"] = np.sum((low + high) / 2 + rows["actions"] * (high - low) / 2, axis=1, keepdims=True)
    assert_same(seen(env, rows, recorded_wrappers=[]), shown)


def test_columns_at_once_are_those_taken_step_by_step(monkeypatch):
    class SlowKeep(KeepIndices):
        def observation(self, observation):
            return super().observation(observation)

    fast = wandering(lambda env: DropIndices(env, [1]), lambda env: KeepIndices(env, [2, 0]), size=4, dtype=np.float64)
    slow = wandering(lambda env: DropIndices(env, [1]), lambda env: SlowKeep(env, [2, 0]), size=4, dtype=np.float64)
    rows, shown = record(fast)
    assert_same(seen(slow, rows), shown)
    monkeypatch.setattr(Playback, "reset", lambda self, **kwargs: pytest.fail("it was played step by step"))
    at_once = seen(fast, rows)
    assert_same(at_once, shown)
    assert at_once.flags.c_contiguous
    with pytest.raises(pytest.fail.Exception):
        seen(slow, rows)


def test_return_to_go_of_a_recording_is_the_return_that_follows():
    env = wandering(lambda env: ReturnToGo(env, 100.0), lambda env: Concatenate(env, 2))
    rows, _ = record(wandering(), lengths=(4, 1, 3))
    result = seen(env, rows, recorded_wrappers=[])
    for start, stop in zip(rows["starts"], rows["stops"], strict=True):
        rewards = rows["rewards"][start : stop - 1, 0].astype(np.float64)
        expected = [rewards[step:].sum() for step in range(len(rewards) + 1)]
        np.testing.assert_allclose(result[start:stop, -1], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(result[start + 1 : stop, 3], result[start : stop - 1, -1])
    np.testing.assert_array_equal(result[:, 4:7], rows["observations"])
    assert env.reset()[0][-1] == 100.0  # and what is asked for again, in the environment


def test_a_recording_of_asked_returns_is_refused():
    env = wandering(lambda env: ReturnToGo(env, 100.0))
    rows, shown = record(env)
    asked = {**rows, "observations": shown}
    message = refusal(env, asked, recorded_wrappers=observation_wrappers(env))
    assert (
        "was recorded with ReturnToGo(target_return=100.0), so it holds the returns that an agent was asked" in message
    )
    assert_same(seen(env, asked), shown)  # no word of the wrappers: the column is the user's own


def test_where_nothing_is_hidden_nothing_is_copied():
    env = wandering(dtype=np.float64)
    rows, _ = record(env)
    assert seen(env, rows) is rows["observations"]


def test_images_stay_bytes():
    env = wandering(lambda env: Concatenate(env, 3), shape=(1, 4, 4), dtype=np.uint8)
    rows, shown = record(env, into=np.uint8)
    assert shown.dtype == np.uint8 and shown.shape[1:] == (3, 4, 4)
    assert_same(seen(env, rows), shown)
    whole = wandering(shape=(1, 4, 4), dtype=np.uint8)
    assert seen(whole, rows) is rows["observations"]


def test_an_image_of_floats_is_not_one_of_bytes():
    env = wandering(shape=(1, 4, 4), dtype=np.uint8)
    rows, _ = record(env, into=np.uint8)
    floats = {**rows, "observations": rows["observations"].astype(np.float32)}
    assert "are float32, but Wandering-v0 has uint8; give uint8 from 0 to 255" in refusal(env, floats)


def test_actions_that_were_recorded_do_not_stick():
    env = wandering(PreviousAction, lambda env: StickyAction(env, 0.5), lambda env: Concatenate(env, 2))
    free = wandering(PreviousAction, lambda env: Concatenate(env, 2))
    rows, shown = record(free)
    assert_same(seen(env, rows), shown)


def test_a_wrapper_may_write_into_what_it_is_given():
    class Overwrite(gym.ObservationWrapper):
        def observation(self, observation):
            observation += 1
            return observation

        def step(self, action):
            action *= 2
            return super().step(action)

    env = Overwrite(wandering())  # outside of UnitAction, which copies
    rows, shown = record(wandering())
    before = {name: array.copy() for name, array in rows.items()}
    np.testing.assert_array_equal(seen(env, rows), shown + 1)
    for name, array in rows.items():
        np.testing.assert_array_equal(array, before[name])


def test_the_last_observation_is_shown_as_the_last():
    class HideTheEnd(gym.Wrapper):
        def step(self, action):
            observation, reward, terminated, truncated, info = self.env.step(action)
            return observation * (not truncated), reward, terminated, truncated, info

    env = wandering(HideTheEnd)
    rows, _ = record(wandering())
    expected = rows["observations"].copy()
    expected[rows["stops"] - 1] = 0
    np.testing.assert_array_equal(seen(env, rows), expected)


def test_the_environment_is_whole_again():
    env = wandering(PreviousAction)
    rows, shown = record(env)
    chain = str(env)
    seen(env, rows)
    assert str(env) == chain
    np.testing.assert_array_equal(record(env)[1], shown)


# Randomness --------------------------------------------------------------------------------------------------------


def flickering(probability=0.3):
    return wandering(lambda env: Flicker(env, probability))


def own_generator():
    class Own(gym.ObservationWrapper):
        def reset(self, *, seed=None, options=None):
            self.generator = np.random.RandomState(seed)  # it takes no seed above 2**32
            return super().reset(seed=seed, options=options)

        def observation(self, observation):
            return observation + np.float32(self.generator.normal())

    return wandering(Own)


def test_flicker_blanks_at_its_rate():
    rows, shown = record(wandering(), lengths=(50,) * 40)
    flickered = seen(flickering(), rows)
    blank = (flickered == 0).all(1)
    assert abs(blank.mean() - 0.3) < 0.05
    np.testing.assert_array_equal(flickered[~blank], shown[~blank])
    starts = blank.reshape(40, 51)
    assert len({row.tobytes() for row in starts}) == 40, "each episode has a draw of its own"


def test_noise_has_its_size():
    rows, shown = record(wandering(), lengths=(50,) * 40)
    noise = seen(noisy(), rows) - shown
    assert abs(noise.std() - 0.5) < 0.02 and abs(noise.mean()) < 0.02


@pytest.mark.parametrize("made", [flickering, noisy, own_generator])
def test_what_is_drawn_comes_from_the_seed_and_the_episodes_number(made):
    rows, _ = record(wandering())
    first = seen(made(), rows, seed=5)
    assert_same(seen(made(), rows, seed=5), first)
    assert (seen(made(), rows, seed=6) != first).any()
    two = part(rows, 2)
    assert_same(seen(made(), two, seed=5), first[: two["stops"][-1]])
    other, _ = record(wandering(), lengths=(3, 1, 12), seed=0)  # its first episode ends earlier
    stop = other["stops"][1]
    other["observations"][stop:] = rows["observations"][rows["starts"][2] :]
    assert_same(seen(made(), other, seed=5)[stop:], first[rows["starts"][2] :])


def test_no_episodes_draws_are_those_of_acting():
    """NumPy pads a seed with zeros, so (seed, 4, 0) would be (seed, 4)."""
    acting = Noise(5, torch.device("cpu")).acting.generator.random(4)
    for episode in range(3):
        drawn = np.random.default_rng(np.random.SeedSequence((5, recorded_observations.STREAM, episode))).random(4)
        assert not np.array_equal(drawn, acting)


# What cannot be played ---------------------------------------------------------------------------------------------


class Skip(gym.Wrapper):
    def step(self, action):
        self.env.step(action)
        return self.env.step(action)


class Stall(gym.Wrapper):
    def step(self, action):
        if random.Random(0).random() >= 0:
            return self.last
        return super().step(action)

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        self.last = observation, 0.0, False, False, info
        return observation, info


class DoNothingFirst(gym.Wrapper):
    def reset(self, **kwargs):
        _, info = self.env.reset(**kwargs)
        return self.env.step(np.zeros(2, np.float32))[0], info


class LookForAStart(gym.Wrapper):
    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        while observation[0] < 10:
            observation, info = self.env.reset()
        return observation, info


class StartAgain(gym.Wrapper):
    def step(self, action):
        _, reward, *rest = self.env.step(action)
        return self.env.reset()[0], reward, *rest


@pytest.mark.parametrize("wrapper", [Skip, Stall, DoNothingFirst, LookForAStart, StartAgain])
def test_a_step_is_one_step(wrapper):
    rows, _ = record(wandering())
    env = wandering(wrapper)
    chain = str(env)
    message = refusal(env, rows)
    assert f"{wrapper.__name__}() does not take one inner step" in message
    assert "use data that was recorded in this environment" in message
    assert str(env) == chain, "the simulator is in its place again"
    assert f"one of {wrapper.__name__}(), PreviousAction() does" in refusal(wandering(wrapper, PreviousAction), rows)


def test_gymnasiums_that_repeat_actions_are_refused():
    if not hasattr(gym.wrappers, "RepeatAction"):
        pytest.skip("needs a later Gymnasium")
    rows, _ = record(wandering())
    message = refusal(wandering(lambda env: gym.wrappers.RepeatAction(env, 2)), rows)
    assert "RepeatAction(num_repeats=2) does not take one inner step" in message


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (lambda env: MaxAndSkipObservation(env, 2), r"MaxAndSkipObservation\(skip=2\) does not take one inner step"),
    ],
)
def test_gymnasiums_that_need_more_are_refused(wrapper, words):
    rows, _ = record(wandering())
    with pytest.raises(UserError, match=words):
        seen(wandering(wrapper), rows)
    # Where the recording comes from above them, they are in no one's way.
    through = observation_wrappers(wandering(wrapper))
    assert seen(wandering(wrapper), rows, recorded_wrappers=through) is rows["observations"]


def test_drawing_is_refused():
    pytest.importorskip("pygame")
    rows, _ = record(make("pendulum-v0"))
    env = gym.make("pendulum-v0", render_mode="rgb_array")
    drawn = KeepIndices(FlattenObservation(AddRenderObservation(env)), [0, 1])
    with pytest.raises(UserError, match=r"AddRenderObservation\(.*a recording cannot be rendered"):
        seen(drawn, rows)
    env.close()


class Statistics(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.count, self.total = 0, 0.0

    def observation(self, observation):
        self.count += 1
        self.total = self.total + observation
        return (observation - self.total / self.count).astype(np.float32)


class GlobalNoise(gym.ObservationWrapper):
    def observation(self, observation):
        return observation + np.float32(random.random())


class OwnNoise(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.generator = np.random.default_rng(0)

    def observation(self, observation):
        return observation + np.float32(self.generator.normal())


class Remembers(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.recent = deque([np.zeros(3, np.float32)], maxlen=2)

    def observation(self, observation):
        self.recent.append(observation)
        return self.recent[0]


@pytest.mark.parametrize("wrapper", [Statistics, GlobalNoise, OwnNoise, Remembers])
@pytest.mark.parametrize("lengths", [LENGTHS, (30,)])
def test_what_depends_on_other_episodes_is_refused(wrapper, lengths):
    rows, _ = record(wandering(), lengths=lengths)
    message = refusal(wandering(wrapper), rows)
    assert f"{wrapper.__name__}() returns other observations when an episode is replayed" in message
    assert "self.np_random" in message


def test_only_the_start_of_a_long_episode_is_played_twice(monkeypatch):
    monkeypatch.setattr(recorded_observations, "NUM_COMPARED", 5)
    taken = []
    step = Playback.step
    monkeypatch.setattr(Playback, "step", lambda self, action: taken.append(1) or step(self, action))
    rows, _ = record(wandering(), lengths=(30, 4))
    seen(flickering(), rows)
    assert len(taken) == 30 + 4 + 4


def test_numbers_that_are_not_there_are_no_difference():
    rows, _ = record(wandering())
    env = wandering(
        lambda env: TransformObservation(env, lambda seen: seen * np.float32(np.nan), env.observation_space)
    )
    assert np.isnan(seen(env, rows)).all()


def test_who_needs_more_than_a_recording_holds_is_named():
    class Cheat(gym.ObservationWrapper):
        def observation(self, observation):
            return np.append(observation, self.unwrapped.secret).astype(np.float32)

    class Draws(gym.ObservationWrapper):
        def observation(self, observation):
            return observation + self.env.render().mean()

    rows, _ = record(wandering())
    message = refusal(wandering(PreviousAction, Cheat, lambda env: Concatenate(env, 2)), rows)
    assert "Cheat()" in message and " cannot process recorded episodes" in message and "secret" in message
    assert "test_recorded_observations.py:" in message
    message = refusal(wandering(PreviousAction, Draws), rows)
    assert "Draws() cannot process" in message and "a recording cannot be rendered" in message


def test_who_breaks_a_promise_is_among_those_who_change_something():
    class Short(gym.ObservationWrapper):
        def observation(self, observation):
            return observation[:2]

    rows, _ = record(wandering())
    message = refusal(wandering(Short), rows)
    assert message.startswith("Short() cannot process") and "shape (2,) into shape (3,)" in message


def test_faults_that_a_wrapper_tells_of_itself_pass():
    class Telling(gym.ObservationWrapper):
        def observation(self, observation):
            raise UserError("told")

    assert refusal(wandering(Telling), record(wandering())[0]) == "told"


def test_no_episodes_are_seen_as_none():
    rows, _ = record(wandering())
    none = {name: array[:0] for name, array in rows.items()}
    assert seen(flickering(), none).shape == (0, 3)
