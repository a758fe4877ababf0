"""Recorded data in memory: episodes, cuts, checks, and rows for buffers."""

import re

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from offpcc.data import RecurrentReplayBuffer, ReplayBuffer, columns
from offpcc.data.datasets import Dataset
from offpcc.errors import UserError


def recorded(num_steps=6, **changed):
    """Steps whose observation t is (t, 10 t); the arguments of `from_arrays`."""
    t = np.arange(num_steps, dtype=np.float32)
    given = {
        "observations": np.stack([t, 10 * t], 1),
        "actions": np.linspace(-1, 1, num_steps, dtype=np.float32)[:, None],
        "rewards": t + 1,
        "terminations": np.zeros(num_steps, bool),
        "truncations": np.zeros(num_steps, bool),
    }
    return {**given, **changed}


def flags(num_steps, *true):
    return np.isin(np.arange(num_steps), true)


def following(observations):
    """Next observations of data without ends."""
    return np.concatenate([observations[1:], observations[-1:] + 1])


# Episodes against a plain model -----------------------------------------------------------------------------------


@st.composite
def recordings(draw):
    num_steps = draw(st.integers(1, 14))
    terminations = draw(st.lists(st.booleans(), min_size=num_steps, max_size=num_steps))
    truncations = draw(st.lists(st.booleans(), min_size=num_steps, max_size=num_steps))
    jumps = draw(st.lists(st.booleans(), min_size=num_steps, max_size=num_steps))
    return np.array(terminations), np.array(truncations), np.array(jumps), draw(st.booleans())


def model(observations, next_observations, terminations, truncations):
    """Transitions of each episode, as tuples, step by step."""
    episodes, episode = [], []
    for t in range(len(observations)):
        last = t == len(observations) - 1
        following = None if last else observations[t + 1]
        ends = last or terminations[t] or truncations[t]
        if next_observations is not None:
            after = next_observations[t]
            ends = ends or (after != following).any()
        else:
            after = (observations[t] if terminations[t] else None) if ends else following
        if after is not None:
            episode.append((t, tuple(after), bool(terminations[t])))
        if ends:
            episodes.append(episode)
            episode = []
    return episodes


@settings(max_examples=300, deadline=None)
@given(recordings())
def test_episodes_and_cuts_are_those_of_a_plain_model(recording):
    terminations, truncations, jumps, has_next = recording
    given = recorded(len(terminations), terminations=terminations, truncations=truncations)
    observations, after = given["observations"], None
    if has_next:
        after = following(observations) + np.where(jumps, 0.5, 0.0)[:, None].astype(np.float32)
        given["next_observations"] = after
    expected = model(observations, after, terminations, truncations)
    transitions = [one for episode in expected for one in episode]
    if not transitions:
        with pytest.raises(UserError, match="cut after one step"):
            Dataset.from_arrays(**given)
        return
    data = Dataset.from_arrays(**given)
    assert data.num_episodes == len(expected)
    assert data.num_transitions == len(transitions)
    assert data.lengths.sum() == data.num_steps == len(terminations)
    assert np.flatnonzero(data.is_transition).tolist() == [t for t, _, _ in transitions]
    assert data.returns.tolist() == [given["rewards"][a:b].sum() for a, b in data.episodes]
    for t, next_observation, terminated in transitions:
        assert tuple(data.next_observations[t]) == next_observation
        assert data.terminations[t] == terminated

    rows = data.rows()
    kept = [episode for episode in expected if episode]
    assert len(rows.starts) == len(kept)
    for (a, b), episode in zip(zip(rows.starts, rows.stops, strict=True), kept, strict=True):
        steps = [t for t, _, _ in episode]
        assert rows.observations[a : b - 1].tolist() == observations[steps].tolist()
        assert tuple(rows.observations[b - 1]) == episode[-1][1]
        assert rows.actions[a : b - 1].tolist() == data.actions[steps].tolist()
        assert rows.rewards[a : b - 1, 0].tolist() == given["rewards"][steps].tolist()
        assert rows.terminations[a : b - 1, 0].tolist() == [terminated for _, _, terminated in episode]
        assert rows.is_start[a:b].tolist() == [True] * len(steps) + [False]
    assert rows.stops[-1] == len(rows.observations) == len(rows.rewards)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3), recordings())
def test_the_size_of_blocks_changes_nothing(rows, recording):
    terminations, truncations, jumps, _ = recording
    given = recorded(len(terminations), terminations=terminations, truncations=truncations)
    given["next_observations"] = following(given["observations"]) + jumps[:, None]
    whole = Dataset.from_arrays(**given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK_BYTES", 8 * rows)
        pieces = Dataset.from_arrays(**given)
    assert pieces.stops.tolist() == whole.stops.tolist()
    assert pieces.final_observations.tolist() == whole.final_observations.tolist()


# Ends -------------------------------------------------------------------------------------------------------------


def test_no_next_observation_lies_across_an_end():
    given = recorded(9, terminations=flags(9, 2), truncations=flags(9, 5))
    given["observations"][3:] += 1000
    given["observations"][6:] += 1000
    data = Dataset.from_arrays(**given)
    step = np.abs(data.next_observations - data.observations)[data.is_transition, 0]
    assert step.max() == 1.0
    assert data.num_transitions == 7  # neither the one that timed out nor the last
    assert any("2 of 3 episodes" in notice for notice in data.notices)


def test_a_time_limit_is_no_termination_and_a_step_that_is_both_is_one():
    data = Dataset.from_arrays(**recorded(6, terminations=flags(6, 1), truncations=flags(6, 1, 3)))
    assert data.terminations.tolist() == flags(6, 1).tolist()
    assert data.last_is_transition.tolist() == [True, False, False]
    assert data.rows().terminations[:, 0].sum() == 1


def test_returns_count_the_last_step_which_is_no_transition():
    data = Dataset.from_arrays(**recorded(6, truncations=flags(6, 2)))
    assert data.num_transitions == 4
    assert data.returns.tolist() == [1 + 2 + 3, 4 + 5 + 6]
    assert data.lengths.tolist() == [3, 3]


def test_where_nothing_follows_a_terminal_its_own_observation_stands():
    data = Dataset.from_arrays(**recorded(4, terminations=flags(4, 1)))
    assert data.final_observations.tolist() == [[1, 10], [3, 30]]
    assert data.rows().observations[:, 0].tolist() == [0, 1, 1, 2, 3]


def test_next_observations_at_ends_are_the_recorded_ones():
    given = recorded(4, truncations=flags(4, 1))
    given["next_observations"] = following(given["observations"])
    given["next_observations"][1] = [77, 78]
    data = Dataset.from_arrays(**given)
    assert data.final_observations.tolist() == [[77, 78], [4, 31]]
    assert data.num_transitions == 4
    assert not data.notices


@pytest.mark.parametrize(
    "size, relative, jumps", [(1.0, 1e-6, 0), (1.0, 1e-3, 1), (1e-6, 1e-6, 0), (1e-6, 1e-3, 1), (1e6, 1e-6, 0)]
)
def test_a_jump_is_told_from_rounding_at_every_scale(size, relative, jumps):
    observations = np.random.default_rng(0).uniform(1.0, 2.0, (50, 3)).astype(np.float32) * np.float32(size)
    after = following(observations)
    after[20] += np.float32(relative * size)
    data = Dataset.from_arrays(**recorded(50, observations=observations, next_observations=after))
    assert data.truncations.sum() == jumps
    assert data.num_episodes == 1 + jumps
    assert len([notice for notice in data.notices if "first at step 20:" in notice]) == jumps


def test_one_value_of_an_image_makes_a_jump():
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    after = np.concatenate([images[1:], images[:1]])
    after[2, 0, 0, 0] += 1
    data = Dataset.from_arrays(**recorded(6, observations=images, next_observations=after))
    assert data.observations.dtype == data.final_observations.dtype == data.rows().observations.dtype == np.uint8
    assert data.stops.tolist() == [3, 6]


def test_without_truncations_a_time_limit_can_be_given():
    given = recorded(9, terminations=flags(9, 1))
    del given["truncations"]
    data = Dataset.from_arrays(**given, max_episode_steps=3)
    assert data.lengths.tolist() == [2, 3, 3, 1]
    assert data.truncations.tolist() == flags(9, 4, 7).tolist()
    assert "3 steps" in data.notices[0]
    ended = Dataset.from_arrays(**{**given, "terminations": flags(9, 2)}, max_episode_steps=3)
    assert ended.truncations.tolist() == flags(9, 5, 8).tolist()
    joined = Dataset.from_arrays(**given)
    assert joined.lengths.tolist() == [2, 7]
    assert "max_episode_steps" in joined.notices[0]


def test_a_time_limit_is_not_counted_where_truncations_are_given():
    data = Dataset.from_arrays(**recorded(6, truncations=flags(6, 4)), max_episode_steps=2)
    assert data.lengths.tolist() == [5, 1]


# Actions ----------------------------------------------------------------------------------------------------------


def test_actions_outside_are_clipped_once_and_told():
    actions = np.array([[0.5], [1.5], [-3.0], [1.0], [-1.0], [1.000001]], np.float32)
    data = Dataset.from_arrays(**recorded(actions=actions))
    assert data.actions[:, 0].tolist() == [0.5, 1.0, -1.0, 1.0, -1.0, 1.0]
    assert actions[2, 0] == -3.0
    (notice,) = [notice for notice in data.notices if "clipped" in notice]
    assert "2 of 6 actions" in notice and "up to 3" in notice and "action_range" in notice


def test_rounding_beyond_one_is_clipped_without_a_word():
    data = Dataset.from_arrays(**recorded(actions=np.full((6, 1), 1.0000001, np.float32)))
    assert data.actions.max() == 1.0
    assert not any("clipped" in notice for notice in data.notices)


def test_actions_of_other_bounds_are_scaled():
    actions = np.array([[-2.0, 0.0], [2.0, 10.0], [0.0, 5.0]] * 2)
    data = Dataset.from_arrays(**recorded(actions=actions), action_range=([-2, 0], [2, 10]))
    assert data.actions[:3].tolist() == [[-1, -1], [1, 1], [0, 0]]
    assert not any("clipped" in notice for notice in data.notices)


@pytest.mark.parametrize("bounds", [(1, -1), (0, np.inf), ([-1, -1, -1], [1, 1, 1])])
def test_bounds_that_do_not_fit_are_refused(bounds):
    with pytest.raises(UserError, match="action_range"):
        Dataset.from_arrays(**recorded(actions=np.zeros((6, 2))), action_range=bounds)


def test_whole_numbers_are_discrete_actions():
    data = Dataset.from_arrays(**recorded(actions=np.array([0, 1, 2, 3, 0, 1])))
    assert data.discrete_actions
    assert data.actions[:, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert any("discrete" in notice for notice in data.notices)


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

    from offpcc.data.datasets import assemble

    declared = {"observations": Huge(10**13, 3), "actions": Huge(10**13, 1)}
    declared |= {key: Huge(10**13) for key in ("rewards", "terminations")}
    monkeypatch.setattr(columns, "available_bytes", lambda: 2**34)
    with pytest.raises(UserError, match=r"10,000,000,000,000 steps take .* bytes of memory are free"):
        assemble(declared, name="huge")


def test_available_memory_is_told_here():
    available = columns.available_bytes()
    assert available is None or available > 0


# Parts ------------------------------------------------------------------------------------------------------------


def three_episodes():
    """Of 3, 2 and 5 steps, the last of which was cut off by the recording's end."""
    given = recorded(10, terminations=flags(10, 2), truncations=flags(10, 4))
    given["next_observations"] = following(given["observations"])
    return Dataset.from_arrays(**given)


def test_selected_episodes_keep_their_ends():
    data = three_episodes().select([2, 0])
    assert data.lengths.tolist() == [5, 3]
    assert data.observations[:, 0].tolist() == [5, 6, 7, 8, 9, 0, 1, 2]
    assert data.next_observations[:, 0].tolist() == [6, 7, 8, 9, 10, 1, 2, 3]
    assert data.num_transitions == 8
    assert data.returns.tolist() == [40, 6]


def test_neighbours_are_selected_without_a_copy():
    data = three_episodes()
    part = data.select([1, 2])
    assert np.shares_memory(part.observations, data.observations)
    assert part.lengths.tolist() == [2, 5]
    assert part.final_observations[:, 0].tolist() == [5, 10]


@pytest.mark.parametrize("wanted", [[], [3], [-1], [0, 99]])
def test_episodes_that_there_are_not_are_refused(wanted):
    with pytest.raises(UserError, match="there are 3, numbered from 0"):
        three_episodes().select(wanted)


@pytest.mark.parametrize("part, lengths", [(0.01, [3]), (0.3, [3]), (0.31, [3, 2]), (0.5, [3, 2]), (1.0, [3, 2, 5])])
def test_a_fraction_is_of_whole_episodes_from_the_start(part, lengths):
    data = three_episodes()
    assert data.fraction(part).lengths.tolist() == lengths
    assert data.fraction(part).observations[0, 0] == 0


@pytest.mark.parametrize("part", [0.0, -0.1, 1.1, float("nan")])
def test_what_is_no_fraction_is_refused(part):
    with pytest.raises(UserError, match="above 0 and at most 1"):
        three_episodes().fraction(part)


# Rows and buffers -------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(recordings())
def test_rows_are_what_buffers_hold_after_every_transition_was_pushed(recording):
    terminations, truncations, jumps, _ = recording
    given = recorded(len(terminations), terminations=terminations, truncations=truncations)
    given["next_observations"] = following(given["observations"]) + jumps[:, None]
    data = Dataset.from_arrays(**given)
    spaces = Box(-np.inf, np.inf, (2,)), Box(-1, 1, (1,))
    flat, whole = ReplayBuffer(*spaces), RecurrentReplayBuffer(*spaces)
    after, ends = data.next_observations, np.isin(np.arange(data.num_steps) + 1, data.stops)
    for t in range(data.num_steps):
        step = data.observations[t], data.actions[t], data.rewards[t], after[t], data.terminations[t], ends[t]
        flat.push(*step)
        whole.push(*step)
    rows = data.rows()
    assert len(rows.is_start) == flat.size
    for name in ("observations", "actions", "rewards", "terminations", "is_start"):
        stored = getattr(flat, name)[: flat.size]
        assert stored.dtype == getattr(rows, name).dtype and stored.tolist() == getattr(rows, name).tolist(), name
    assert len(whole) == len(rows.starts)
    for kept, a, b in zip(whole.episodes, rows.starts, rows.stops, strict=True):
        assert kept.observations.tolist() == rows.observations[a:b].tolist()
        assert kept.actions.tolist() == rows.actions[a : b - 1].tolist()
        assert kept.rewards.tolist() == rows.rewards[a : b - 1].tolist()
        assert kept.terminated == rows.terminations[b - 2, 0]


# From episodes ----------------------------------------------------------------------------------------------------


def episode(length, terminated=True, first=0.0):
    observations = first + np.arange(length + 1)[:, None] * np.ones((1, 2))
    return observations, np.full((length, 1), 0.5), np.arange(length), terminated


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
        ((np.zeros((1, 2)), np.zeros((0, 1)), np.zeros(0), True), "1 observations and 0 actions"),
        ((np.zeros((3, 2)), np.zeros((2, 1)), np.zeros(3), True), "3 rewards, but 2 observations"),
        ((np.zeros((3, 2)), np.zeros((2, 1)), [0, np.nan], True), "rewards[1] is nan"),
        ((np.zeros((3, 2)), np.zeros((2, 1)), [0, 0], [1, 0]), "terminated at step 0 of 2"),
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


def test_no_episodes_are_refused():
    with pytest.raises(UserError, match="there are no episodes"):
        Dataset.from_episodes([])
