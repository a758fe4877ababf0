"""Recorded data in memory: episodes against a plain model, parts, and rows for buffers."""

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recordings import flags, following, recorded, texts

from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.datasets import columns
from offpcc.data.datasets.dataset import Dataset, DatasetInfo
from offpcc.utils.errors import UserError

# Episodes against a plain model -----------------------------------------------------------------------------------


@st.composite
def recordings(draw):
    num_steps = draw(st.integers(1, 20))
    terminations = draw(st.lists(st.booleans(), min_size=num_steps, max_size=num_steps))
    truncations = draw(st.lists(st.booleans(), min_size=num_steps, max_size=num_steps))
    jumps = draw(st.lists(st.booleans(), min_size=num_steps, max_size=num_steps))
    return np.array(terminations), np.array(truncations), np.array(jumps), draw(st.booleans())


def model(observations, next_observations, terminations, truncations):
    """Transitions of each episode, as tuples, told step by step."""
    count = len(observations)
    episodes = [[]]
    for t in range(count):
        episodes[-1].append(t)
        jumps = next_observations is not None and t + 1 < count and (next_observations[t] != observations[t + 1]).any()
        if t + 1 < count and (terminations[t] or truncations[t] or jumps):
            episodes.append([])
    lasts = [episode[-1] for episode in episodes]
    if next_observations is None:
        unknown = [t for t in lasts if not terminations[t]]
    else:
        cuts = [t for t in lasts if truncations[t] and not terminations[t]]
        followed = [t for t in lasts if t + 1 < count and (truncations[t] or terminations[t])]
        reset = [t for t in followed if (next_observations[t] == observations[t + 1]).all()]
        judged = [t for t in followed if t in cuts]
        if len(judged) < 10:
            judged = followed
        is_habit = any(t in reset for t in judged) and sum(t in reset for t in judged) / len(judged) >= 0.1
        unknown = cuts if is_habit else [t for t in reset if t in cuts]

    def after(t):
        if next_observations is not None:
            return next_observations[t]
        return observations[t if t in lasts else t + 1]

    return [[(t, tuple(after(t)), bool(terminations[t])) for t in episode if t not in unknown] for episode in episodes]


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
        assert rows.actions[a : b - 1].tolist() == given["actions"][steps].tolist()
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
    assume(any(model(given["observations"], given["next_observations"], terminations, truncations)))
    whole = Dataset.from_arrays(**given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK_BYTES", 8 * rows)
        pieces = Dataset.from_arrays(**given)
    assert pieces.stops.tolist() == whole.stops.tolist()
    assert pieces.final_observations.tolist() == whole.final_observations.tolist()


# Parts ------------------------------------------------------------------------------------------------------------


def three_episodes():
    """Of 3, 2 and 5 steps, the last of which was cut off by the recording's end."""
    given = recorded(10, terminations=flags(10, 2), truncations=flags(10, 4))
    given["next_observations"] = following(given["observations"])
    given["next_observations"][[2, 4]] += 0.5
    return Dataset.from_arrays(**given)


def test_a_part_says_that_what_was_counted_is_of_the_whole():
    data = Dataset.from_arrays(**recorded(10, terminations=flags(10, 2), truncations=flags(10, 4, 7)))
    (told,) = texts(data)
    assert "of 3 of 4 episodes" in told
    half = data.fraction(0.5)
    assert half.num_episodes == 2
    assert texts(half) == [f"{told} (counted in the whole dataset, of which this is a part)"]
    assert texts(half.select([0])) == texts(half)
    assert texts(data.fraction(1.0)) == texts(data.select([3, 1, 2, 0])) == [told]


def test_selected_episodes_keep_their_ends():
    data = three_episodes().select([2, 0])
    assert data.is_whole.tolist() == [False, True]
    assert data.lengths.tolist() == [5, 3]
    assert data.observations[:, 0].tolist() == [5, 6, 7, 8, 9, 0, 1, 2]
    assert data.next_observations[:, 0].tolist() == [6, 7, 8, 9, 10, 1, 2, 3.5]
    assert data.num_transitions == 8
    assert data.returns.tolist() == [40, 6]


def test_the_first_steps_cut_the_last_episode():
    data = three_episodes().first_steps(4)
    assert data.lengths.tolist() == [3, 1] and data.is_whole.tolist() == [True, False]
    assert data.next_observations[:, 0].tolist() == [1, 2, 3.5, 4]
    assert data.num_transitions == 4 and data.truncations[-1] and not data.terminations[-1]


def test_episodes_of_joined_data_keep_their_ends():
    one = three_episodes()
    both = one + one.select([2, 0])
    assert both.lengths.tolist() == [3, 2, 5, 5, 3] and both.is_whole.tolist() == [True, True, False, False, True]
    assert both.next_observations[:, 0].tolist() == [
        *one.next_observations[:, 0],
        *one.select([2, 0]).next_observations[:, 0],
    ]


def test_neighbours_are_selected_without_a_copy():
    data = three_episodes()
    part = data.select([1, 2])
    assert np.shares_memory(part.observations, data.observations)
    assert part.lengths.tolist() == [2, 5]
    assert part.final_observations[:, 0].tolist() == [5.5, 10]


@pytest.mark.parametrize("wanted", [[], [3], [-1], [0, 99]])
def test_episodes_that_there_are_not_are_refused(wanted):
    with pytest.raises(UserError, match="there are 3, numbered from 0"):
        three_episodes().select(wanted)


@pytest.mark.parametrize("part, lengths", [(0.01, [3]), (0.3, [3]), (0.31, [3, 2]), (0.5, [3, 2]), (1.0, [3, 2, 5])])
def test_a_fraction_is_of_whole_episodes_from_the_start(part, lengths):
    data = three_episodes()
    assert data.fraction(part).lengths.tolist() == lengths
    assert data.fraction(part).observations[0, 0] == 0


@pytest.mark.parametrize("part", [0.0, -0.1, 1.1, float("nan"), "a"])
def test_what_is_no_fraction_is_refused(part):
    with pytest.raises(UserError, match="above 0 and at most 1"):
        three_episodes().fraction(part)


@pytest.mark.parametrize("part, kept", [(1e-9, [1]), (0.5, [1]), (0.99, [1]), (1.0, [0, 1, 2])])
def test_the_best_episodes_are_those_of_the_largest_returns(part, kept):
    """Of whole ones: the last is cut, and its return is the largest."""
    data = three_episodes()
    assert data.best(part).returns.tolist() == data.returns[kept].tolist()
    alone = data.select([2])
    assert alone.best(part).returns.tolist() == [40], "if none is whole, they are compared"


def test_the_best_episodes_stay_in_order_and_count_as_floats_should():
    rewards = np.repeat(np.random.default_rng(0).permutation(100), 2)
    data = Dataset.from_arrays(
        observations=np.zeros((200, 1)),
        actions=np.zeros((200, 1)),
        rewards=rewards,
        terminations=np.arange(200) % 2 == 1,
        truncations=np.zeros(200, bool),
    )
    best = data.best(0.29)  # 0.29 * 100 is below 29
    assert best.returns.tolist() == [2 * x for x in rewards[::2] if x >= 71]


@pytest.mark.parametrize("part", [0.0, -0.1, 1.1, float("nan"), "a"])
def test_what_is_no_best_fraction_is_refused(part):
    with pytest.raises(UserError, match=r"best fraction of .* a number above 0 and at most 1"):
        three_episodes().best(part)


# Whole episodes ---------------------------------------------------------------------------------------------------


def test_returns_of_whole_episodes_are_without_the_piece_that_the_recordings_end_cut():
    data = three_episodes()
    assert data.is_whole.tolist() == [True, True, False]
    assert (data.returns.tolist(), data.whole_returns.tolist()) == ([6, 9, 40], [6, 9])
    alone = data.select([2])
    assert alone.whole_returns.tolist() == [40]


def test_what_an_own_recording_tells_of_its_end_wins_over_the_flag_there():
    given = {key: np.asarray(column) for key, column in recorded(10, truncations=flags(10, 4, 7, 9)).items()}
    given["next_observations"] = following(given["observations"])
    for metadata, whole in (
        ({"offpcc": "1.0", "whole_episodes": 2}, [True, True, False]),
        ({"offpcc": "1.0", "whole_episodes": np.int64(0)}, [False, False, False]),
        ({"whole_episodes": 2}, [True, True, True]),
    ):
        data = Dataset.from_columns(given, DatasetInfo("mine", metadata=metadata))
        assert data.is_whole.tolist() == whole
    for odd in ("two", np.arange(2), 1.5):
        with pytest.raises(UserError, match="metadata/whole_episodes is not a whole number"):
            Dataset.from_columns(given, DatasetInfo("mine", metadata={"offpcc": "1.0", "whole_episodes": odd}))


def test_a_place_where_next_observations_jump_is_no_end_of_a_whole_episode():
    given = recorded(6, truncations=flags(6, 5))
    given["next_observations"] = following(given["observations"])
    given["next_observations"][2] += 0.5
    assert Dataset.from_arrays(**given).is_whole.tolist() == [False, True]


# Rows and buffers -------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(recordings())
def test_rows_are_what_buffers_hold_after_every_transition_was_pushed(recording):
    terminations, truncations, jumps, _ = recording
    given = recorded(len(terminations), terminations=terminations, truncations=truncations)
    given["next_observations"] = following(given["observations"]) + jumps[:, None]
    assume(any(model(given["observations"], given["next_observations"], terminations, truncations)))
    data = Dataset.from_arrays(**given)
    flat_names = ("observations", "actions", "rewards", "terminations", "is_start")
    spaces = Box(-np.inf, np.inf, (2,)), Box(-1, 1, (1,))
    flat, whole = ReplayBuffer(*spaces), RecurrentReplayBuffer(*spaces)
    after = data.next_observations
    for start, stop in data.episodes:
        steps = [t for t in range(start, stop) if data.is_transition[t]]
        for t in steps:
            ends = t == steps[-1]
            step = data.observations[t], data.actions[t], data.rewards[t], after[t], data.terminations[t], ends
            flat.push(*step)
            whole.push(*step)
    rows = data.rows()
    assert data.bytes_of_rows() == sum(getattr(rows, name).nbytes for name in flat_names)
    assert len(rows.is_start) == flat.size
    for name in flat_names:
        stored = getattr(flat.storage, name)[: flat.size]
        assert stored.dtype == getattr(rows, name).dtype and stored.tolist() == getattr(rows, name).tolist(), name
    assert len(whole) == len(rows.starts)
    for kept, a, b in zip(whole.episodes, rows.starts, rows.stops, strict=True):
        assert kept.frames.tolist() == rows.observations[a:b].tolist()
        assert kept.actions.tolist() == rows.actions[a : b - 1].tolist()
        assert kept.rewards.tolist() == rows.rewards[a : b - 1].tolist()
        assert kept.terminated == rows.terminations[b - 2, 0]


def test_it_shows_itself_in_one_line_that_tells_what_it_is():
    shown = repr(Dataset.from_arrays(**recorded(1200, truncations=flags(1200, 599)), name="mine"))
    assert "\n" not in shown and len(shown) < 200
    for words in ("'mine'", "arrays", "1,198", "num_episodes=2", "(1200, 2) float32", "(1200, 1) float32"):
        assert words in shown


def test_steps_of_several_environments_get_a_remedy_that_works():
    generator = np.random.default_rng(0)
    rewards = generator.normal(size=(50, 4))
    arrays = {
        "observations": generator.normal(size=(50, 4, 3)),
        "actions": generator.normal(size=(50, 4, 1)),
        "rewards": rewards,
        "terminations": np.zeros((50, 4), bool),
        "truncations": np.zeros((50, 4), bool),
    }
    with pytest.raises(UserError, match=r"actions of shape .* second axis counts environments") as error:
        Dataset.from_arrays(**arrays)
    with pytest.raises(UserError, match=r"rewards of shape .* second axis counts environments"):
        Dataset.from_arrays(**arrays | {"actions": np.zeros((50, 4), np.int64)})
    arrays["truncations"][-1] = True
    arranged = {}
    for name, array in arrays.items():
        arranged[name] = array.swapaxes(0, 1).reshape(-1, *array.shape[2:])
    assert "array.swapaxes(0, 1).reshape(-1, *array.shape[2:])" in str(error.value)
    data = Dataset.from_arrays(**arranged)
    assert data.num_episodes == 4
    np.testing.assert_allclose(data.returns, rewards.sum(0), rtol=1e-5)
