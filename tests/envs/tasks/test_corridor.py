"""The corridor: what it shows and when, that remembering is worth 1 and all else 0, and that nothing else remembers."""

import gymnasium
import numpy as np
import pytest

import offpcc.envs  # noqa: F401
from offpcc.envs.make import make
from offpcc.envs.tasks.corridor import Corridor
from offpcc.utils.errors import UserError


def play(env, choose, seed=None):
    """Observations (T + 1, 2) and rewards (T,) of an episode with the actions `choose(observations so far)`."""
    observations, rewards, over = [env.reset(seed=seed)[0]], [], False
    while not over:
        action = np.full(1, choose(observations), np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        over = terminated or truncated
    assert terminated
    return np.array(observations), np.array(rewards)


def cue_of(seed):
    return make("corridor-10-v0").reset(seed=seed)[0][0]


SEEDS = {cue: [seed for seed in range(60) if cue_of(seed) == cue][:10] for cue in (-1.0, 1.0)}


@pytest.mark.parametrize("length", [2, 3, 57])
def test_the_cue_is_shown_first_and_the_junction_last(length):
    observations, rewards = play(gymnasium.make("corridor-v0", length=length), lambda seen: 0.5, seed=0)
    cue = observations[0, 0]
    assert abs(cue) == 1 and observations[0, 1] == 0
    assert not observations[1:, 0].any()
    np.testing.assert_array_equal(observations[:, 1], np.arange(length + 2) == length)
    np.testing.assert_array_equal(rewards, 0.5 * cue * (np.arange(length + 1) == length))


@pytest.mark.parametrize("name", ["corridor-10-v0", "corridor-30-v0", "corridor-100-v0"])
def test_remembering_is_worth_1(name):
    env = make(name)
    returns = [play(env, lambda seen: seen[0][0], seed)[1].sum() for seed in range(20)]
    assert returns == [1.0] * 20
    assert play(env, lambda seen: -seen[0][0])[1].sum() == -1.0


@pytest.mark.parametrize("choose", [lambda seen: 1.0, lambda seen: -0.3, lambda seen: seen[-1][0] - seen[-1][1]])
def test_without_a_memory_nothing_is_worth_anything(choose):
    """What an agent sees last is the same for both cues, and so is then what it does."""
    env = make("corridor-10-v0")
    returns = {cue: [play(env, choose, seed)[1].sum() for seed in seeds] for cue, seeds in SEEDS.items()}
    assert len(set(returns[1.0])) == len(set(returns[-1.0])) == 1
    assert returns[1.0][0] == -returns[-1.0][0] != 0.0


def test_both_cues_are_as_likely():
    env = Corridor(2)
    env.reset(seed=0)
    cues = [env.reset()[0][0] for _ in range(1_000)]
    assert set(cues) == {-1.0, 1.0}
    assert abs(np.mean(cues)) < 0.13  # 4 deviations


def test_the_cue_is_nowhere_but_in_the_first_observation():
    """To the last bit, the sign of a zero included, whatever the agent does on its way."""
    env, seen = Corridor(6), {}
    for cue, seeds in SEEDS.items():
        draw = np.random.default_rng(0)
        observations, rewards = play(env, lambda seen, draw=draw: draw.uniform(-1, 1), seeds[0])
        assert observations[0, 0] == cue
        seen[cue] = observations[1:].tobytes() + rewards[:-1].tobytes()
    assert seen[1.0] == seen[-1.0]


def test_actions_on_the_way_change_nothing():
    env = make("corridor-10-v0")
    draw = np.random.default_rng(0)
    wandering = play(env, lambda seen: draw.uniform(-1, 1) if len(seen) <= 10 else 0.7, seed=3)
    straight = play(env, lambda seen: 0.0 if len(seen) <= 10 else 0.7, seed=3)
    for one, other in zip(wandering, straight, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_turn_is_clipped():
    for action, turned in ((3.0, 1.0), (-3.0, -1.0), (0.25, 0.25)):
        env = Corridor(2)
        observations, rewards = play(env, lambda seen, action=action: action, seed=0)
        assert rewards[-1] == observations[0, 0] * turned


@pytest.mark.parametrize("length", [10, 1000])
def test_an_episode_lasts_as_long_as_the_table_says(length):
    env = make(f"corridor-{length}-v0")
    assert len(play(env, lambda seen: 0.0, seed=0)[1]) == length + 1 == env.spec.max_episode_steps


def test_any_length_ends_by_itself():
    env = make("corridor-v0", kwargs={"length": 1234})
    assert env.spec.max_episode_steps is None
    assert len(play(env, lambda seen: 0.0)[1]) == 1235
    assert len(play(make("corridor-v0"), lambda seen: 0.0)[1]) == 101


@pytest.mark.parametrize("length", [1, 0, -3, 10.0, "10", True, None])
def test_other_lengths_are_refused(length):
    with pytest.raises(UserError, match=r"^Corridor\.length is .*; it has to be a whole number, 2 or more$"):
        Corridor(length)
    assert len(play(Corridor(np.int64(2)), lambda seen: 0.0, seed=0)[1]) == 3


def test_frames_show_the_cue_the_walk_and_the_turn():
    env = Corridor(10, render_mode="rgb_array")
    frames = {}
    for cue, seeds in SEEDS.items():
        env.reset(seed=seeds[0])
        frames[cue] = [env.render()]
        for _ in range(11):
            env.step(np.ones(1, np.float32))
            frames[cue].append(env.render())
    left, right = frames[-1.0], frames[1.0]
    assert left[0].shape == (240, 240, 3) and left[0].dtype == np.uint8
    np.testing.assert_array_equal(left[0], right[0][::-1])  # the cue -1 is above: to the left of who walks to the right
    column, upper, lower = 192, 36, 203
    assert tuple(left[0][upper, column]) == (227, 26, 28) != tuple(left[1][upper, column])
    assert (left[1][upper, column] != left[1][lower, column]).any()
    for frame in left[:-1]:
        assert (frame[lower, column] == left[0][lower, column]).all()
    assert tuple(left[-1][lower, column]) == tuple(right[-1][lower, column]) == (31, 60, 120)
    assert Corridor(2).render() is None


def test_frames_change_at_each_step_of_a_long_walk():
    env = Corridor(1000, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    for _ in range(5):
        env.step(np.zeros(1, np.float32))
        now = env.render()
        assert (now != before).any()
        before = now
