"""Columns, and episodes, put together: what is refused, and one way that equals the other."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import flags, recorded

from offpcc.data.datasets import columns
from offpcc.data.datasets.dataset import Dataset, DatasetInfo
from offpcc.utils.errors import UserError

# Bad data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"rewards": np.zeros(5)}, "5 rewards, but 6 observations"),
        ({"actions": np.zeros((7, 1))}, "7 actions, but 6 observations"),
        ({"truncations": np.zeros(2)}, "2 truncations, but 6 observations"),
        ({"observations": np.zeros(6)}, "observations of shape (6,)"),
        ({"observations": np.zeros((0, 3))}, "observations of shape (0, 3)"),
        ({"observations": np.zeros((6, 0))}, "observations of shape (6, 0)"),
        ({"actions": np.zeros((6, 1, 1))}, "actions of shape (6, 1, 1)"),
        ({"actions": np.zeros((6, 0))}, "actions of shape (6, 0)"),
        ({"rewards": np.zeros((6, 2))}, "rewards of shape (6, 2)"),
        ({"rewards": np.float32(0)}, "0 rewards, but 6 observations"),
        (
            {"next_observations": np.zeros((6, 3))},
            "next_observations of shape (6, 3), but observations of shape (6, 2)",
        ),
        ({"rewards": np.array([None] * 6)}, "rewards holds object"),
        (
            {"actions": np.zeros((6, 1)).astype(object)},
            "actions holds object, not numbers; every column must be an array of numbers; if the objects are numbers, "
            "convert them by .astype(float)",
        ),
        (
            {"observations": [{"arm": np.zeros(2), "goal": 1}] * 6},
            "observations holds a mapping for each step; give one mapping of arrays, with the keys arm, goal",
        ),
        ({"actions": np.array(["a"] * 6)}, "actions holds <U1"),
        ({"actions": np.zeros((6, 1), complex)}, "actions holds complex128"),
        ({"rewards": [1, 2, np.nan, 4, np.inf, 6]}, "rewards[2] is nan"),
        ({"rewards": [1, 2, 3, 4, 5, -1e39]}, "rewards[5] is -inf (as float32)"),
        ({"observations": np.diag([0, 0, np.inf, 0, 0, 0])}, "observations[2, 2] is inf"),
        ({"actions": np.where(flags(6, 3), np.nan, 0)[:, None]}, "actions[3, 0] is nan"),
        ({"next_observations": np.full((6, 2), np.nan)}, "next_observations[0, 0] is nan"),
        ({"terminations": [0, 1, 2, 0, 0, 0]}, "terminations[2] is 2"),
        ({"truncations": [0, 1, np.nan, 0, 0, 0]}, "truncations[2] is nan"),
    ],
)
def test_bad_arrays_get_one_message(changed, message):
    with pytest.raises(UserError, match=re.escape(f"mine: {message}")):
        Dataset.from_arrays(**recorded(**changed), name="mine")


@pytest.mark.parametrize("name", ["states", "next_states"])
def test_a_nan_in_states_is_told_with_the_name_that_the_user_wrote(name):
    given = {"states": np.zeros((6, 3)), "next_states": np.zeros((6, 3)), "next_observations": np.zeros((6, 2))}
    given[name] = np.where(flags(6, 4)[:, None], np.nan, given[name])
    with pytest.raises(UserError, match=re.escape(f"mine: {name}[4, 0] is nan")):
        Dataset.from_arrays(**recorded(**given), name="mine")


def test_a_nan_in_observations_beside_states_is_told_with_their_name():
    observations = np.where(flags(6, 2)[:, None], np.nan, np.zeros((6, 2)))
    with pytest.raises(UserError, match=re.escape("mine: observations[2, 0] is nan")):
        Dataset.from_arrays(**recorded(observations=observations, states=np.zeros((6, 3))), name="mine")


def test_an_episode_with_two_names_for_its_end_is_refused():
    episode = {"observations": np.zeros((4, 2)), "actions": np.zeros((3, 1)), "rewards": np.zeros(3)}
    with pytest.raises(UserError, match="terminated and terminals are names for the same column; give one"):
        Dataset.from_episodes([{**episode, "terminated": False, "terminals": [0, 0, 1]}])


def test_numbers_of_states_get_the_way_to_one_hot_rows():
    with pytest.raises(UserError, match=r"one of n states \(Discrete\), give one-hot rows: numpy\.eye\(n\)"):
        Dataset.from_arrays(**recorded(observations=np.zeros(6, int)))
    with pytest.raises(UserError, match=r"give observations\[:, None\]$"):
        Dataset.from_arrays(**recorded(observations=np.zeros(6)))


def test_the_first_bad_number_is_told_in_later_blocks_too(monkeypatch):
    monkeypatch.setattr(columns, "BLOCK_BYTES", 16)
    observations = np.zeros((6, 2), np.float64)
    observations[5, 1] = np.nan
    with pytest.raises(UserError, match=re.escape("observations[5, 1] is nan")):
        Dataset.from_arrays(**recorded(observations=observations))


def test_missing_columns_are_named_with_those_found():
    given = recorded()
    del given["terminations"]
    with pytest.raises(UserError, match=r"terminations \(terminals\) missing; found: actions, observations, rewards"):
        Dataset.from_arrays(**given)


def test_two_names_of_the_same_are_refused():
    with pytest.raises(UserError, match="terminations and terminals are two names"):
        Dataset.from_arrays(**recorded(), terminals=np.zeros(6, bool))


def test_what_memory_cannot_hold_is_refused_before_it_is_read(monkeypatch):
    class Huge:
        dtype = np.dtype(np.float64)

        def __init__(self, *shape):
            self.shape = shape

        def __getitem__(self, rows):
            raise AssertionError("it was read")

    declared = {"observations": Huge(10**13, 3), "actions": Huge(10**13, 1)}
    declared |= {key: Huge(10**13) for key in ("rewards", "terminations")}
    monkeypatch.setattr(columns, "available_bytes", lambda: 2**34)
    with pytest.raises(UserError, match=r"10,000,000,000,000 steps take .* bytes of memory are free"):
        Dataset.from_columns(declared, DatasetInfo("huge"))


def test_available_memory_is_told_here():
    available = columns.available_bytes()
    assert available is None or available > 0


# From episodes ----------------------------------------------------------------------------------------------------


def episode(length, terminated=True, first=0.0):
    observations = first + np.arange(length + 1)[:, None] * np.ones((1, 2))
    return observations, np.full((length, 1), 0.5), np.arange(length), terminated


def stepwise(given, after=None):
    """The episode as a mapping with the observations before and after each step; `after` replaces the latter."""
    observations, *others = given
    following = observations[1:] if after is None else np.full_like(observations[1:], after, dtype=type(after))
    named = dict(zip(("actions", "rewards", "terminated"), others, strict=True))
    return {"observations": observations[:-1], "next_observations": following, **named}


def test_observations_may_be_those_before_and_after_each_step():
    whole = [episode(2, False), episode(3, True, 100.0)]
    whole[0][0][1] = np.nan  # no number, but the same in both
    with pytest.raises(UserError, match="nan"):
        Dataset.from_episodes([stepwise(one) for one in whole])
    whole[0][0][1] = 1.0
    data, other = Dataset.from_episodes(whole), Dataset.from_episodes([stepwise(one) for one in whole])
    for name in ("observations", "final_observations", "actions", "rewards", "terminations", "truncations", "stops"):
        np.testing.assert_array_equal(getattr(data, name), getattr(other, name))
    entries = [
        {**one, **{key: {"place": one[key]} for key in ("observations", "next_observations")}}
        for one in map(stepwise, whole)
    ]
    mapped = Dataset.from_episodes(entries)
    assert mapped.observation_space is not None and mapped.lengths.tolist() == [2, 3]
    with pytest.raises(
        UserError, match=r"observations of shape \(2, 2\) .*, but next_observations of shape \(3, 2\) .*; give as many"
    ):
        Dataset.from_episodes([{**stepwise(whole[0]), "next_observations": whole[0][0]}])


def test_episodes_are_joined():
    named = dict(zip(("observations", "actions", "rewards", "terminals"), episode(3, first=100.0), strict=True))
    named["terminals"] = [False, False, True]
    data = Dataset.from_episodes([episode(2, False), named, episode(1, True, 200.0)])
    assert data.lengths.tolist() == [2, 3, 1]
    assert data.terminations.tolist() == flags(6, 4, 5).tolist()
    assert data.truncations.tolist() == flags(6, 1).tolist()
    assert data.final_observations[:, 0].tolist() == [2, 103, 201]
    assert data.num_transitions == 6
    assert data.observations.dtype == data.actions.dtype == data.rewards.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=5))
def test_episodes_equal_their_arrays(given):
    episodes = [episode(length, terminated, 100.0 * i) for i, (length, terminated) in enumerate(given)]
    joined = Dataset.from_episodes(episodes)
    ends = np.cumsum([length for length, _ in given]) - 1
    flat = Dataset.from_arrays(
        observations=np.concatenate([e[0][:-1] for e in episodes]),
        next_observations=np.concatenate([e[0][1:] for e in episodes]),
        actions=np.concatenate([e[1] for e in episodes]),
        rewards=np.concatenate([e[2] for e in episodes]),
        terminals=flags(ends[-1] + 1, *[end for end, (_, terminated) in zip(ends, given, strict=True) if terminated]),
        timeouts=flags(
            ends[-1] + 1, *[end for end, (_, terminated) in zip(ends, given, strict=True) if not terminated]
        ),
    )
    for name, value in vars(flat).items():
        if isinstance(value, np.ndarray):
            assert value.dtype == getattr(joined, name).dtype, name
            assert value.tolist() == getattr(joined, name).tolist(), name


@pytest.mark.parametrize(
    "bad, message",
    [
        ((np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3), True), "3 observations and 3 actions"),
        ((np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3), True), "give next_observations, or use Dataset.from_arrays"),
        (stepwise(episode(3), after=7.0), "next_observations of step 0 are not the observations of step 1"),
        (stepwise(episode(3), after="x"), "next_observations"),
        (
            {**stepwise(episode(3)), "next_observations": episode(4)[0]},
            "observations of shape (3, 2) (float64), but next_observations of shape (5, 2) (float64); give as many",
        ),
        (
            {**stepwise(episode(3)), "observations": episode(3)[0], "next_observations": episode(3)[0][:-1]},
            "next_observations of step 0 are not the observations of step 1",
        ),
        ((np.zeros((1, 2)), np.zeros((0, 1)), np.zeros(0), True), "1 observations and 0 actions"),
        ((np.zeros((3, 2)), np.zeros((2, 1)), np.zeros(3), True), "3 rewards, but 2 observations"),
        ((np.zeros((3, 2)), np.zeros((2, 1)), [0, np.nan], True), "rewards[1] is nan"),
        ((np.zeros((3, 2)), np.zeros((2, 1)), [0, 0], [1, 0]), "terminated is True at step 0 of 2"),
        ((np.zeros((3, 2)), np.zeros((2, 1)), [0, 0]), "3 parts"),
        ((np.zeros((3, 5)), np.zeros((2, 1)), [0, 0], True), "observations of shape (5,)"),
        ((np.zeros((3, 2)), np.zeros((2, 4)), [0, 0], True), "actions of shape (4,)"),
        ({"observations": np.zeros((3, 2)), "actions": np.zeros((2, 1))}, "rewards, terminated missing"),
    ],
)
def test_bad_episodes_are_named(bad, message):
    with pytest.raises(UserError, match=re.escape(message)) as told:
        Dataset.from_episodes([episode(2), bad], name="mine")
    assert told.value.message.startswith("mine, episode 1")


@pytest.mark.parametrize("kind", [dict, list])
def test_an_episode_that_does_not_say_how_it_ended_is_told_what_to_add(kind):
    given = {"observations": np.zeros((3, 2)), "actions": np.zeros((2, 1)), "rewards": np.zeros(2)}
    given = given if kind is dict else list(given.values())
    with pytest.raises(UserError, match=r"Add terminated: True if the task ended the episode, False if a time limit"):
        Dataset.from_episodes([given])


def test_no_episodes_are_refused():
    with pytest.raises(UserError, match="there are no episodes"):
        Dataset.from_episodes([])


def test_one_number_per_observation_needs_an_axis_and_the_message_says_so():
    rows = np.zeros(4)
    with pytest.raises(UserError, match=r"give observations\[:, None\]"):
        Dataset.from_arrays(observations=rows, actions=rows[:, None], rewards=rows, terminations=rows)


@pytest.mark.parametrize(
    ("factor", "dtype", "is_told"), [(0.5, np.float32, True), (1 / 255, np.float32, False), (1, np.uint8, False)]
)
def test_float_images_that_are_not_scaled_are_told(factor, dtype, is_told):
    """Networks divide bytes by 255, and floats by nothing."""
    frames = (np.random.default_rng(0).integers(0, 256, (20, 12, 12, 3)) * factor).astype(dtype)
    data = Dataset.from_arrays(
        observations=frames, actions=np.zeros((20, 1)), rewards=np.zeros(20), terminations=np.arange(20) == 19,
        truncations=np.zeros(20, bool),
    )  # fmt: skip
    assert any("give uint8, which networks divide by 255" in notice.text for notice in data.notices) == is_told
