"""Recorded actions: by which bounds they are scaled, and what is told of that."""

import re

import numpy as np
import pytest
from gymnasium import spaces
from recordings import recorded

from offpcc.data import load_dataset
from offpcc.data.datasets import columns
from offpcc.data.datasets.dataset import Dataset, DatasetInfo
from offpcc.utils.errors import UserError

ENV = (np.array([-2.0]), np.array([2.0]))


def data(actions, **options):
    actions = np.asarray(actions, options.pop("dtype", np.float32))
    return Dataset.from_arrays(**recorded(len(actions), actions=actions), **options)


def rows(data, *bounds):
    made = data.rows(*bounds)
    return made.actions[made.is_start].tolist()


TORQUES = [[-2.0], [-1.0], [0.0], [1.0], [1.5], [2.0]] * 2


def test_actions_are_kept_as_they_were_recorded():
    actions = np.array(TORQUES, np.float32)
    kept = data(actions)
    assert np.shares_memory(kept.actions, actions)
    assert kept.action_range is None and [notice.kind for notice in kept.notices] == ["no next observations"]


@pytest.mark.parametrize(
    ("told", "env", "expected"),
    [
        (None, None, [-1, -1, 0, 1, 1]),
        (None, ENV, [-1, -0.5, 0, 0.5, 0.75]),
        ((-4, 4), ENV, [-0.5, -0.25, 0, 0.25, 0.375]),
        ((-4, 4), None, [-0.5, -0.25, 0, 0.25, 0.375]),
        (([0.0], [2.0]), None, [-1, -1, -1, 0, 0.5]),
    ],
)
def test_rows_are_scaled_by_what_is_told_else_by_the_environment_and_clipped(told, env, expected):
    made = data(TORQUES, action_range=told)
    actions = made.rows(env).actions
    assert actions[:5, 0].tolist() == expected
    assert actions.dtype == np.float32
    assert actions[-1].tolist() == [0.0], "the row of a last observation holds no action"
    assert made.actions[:5, 0].tolist() == [-2, -1, 0, 1, 1.5]


def test_each_number_has_bounds_of_its_own():
    actions = [[-2.0, 0.0], [2.0, 10.0], [0.0, 5.0]]
    assert rows(data(actions, action_range=([-2, 0], [2, 10])))[:2] == [[-1, -1], [1, 1]]
    assert rows(data(actions), ([-2, 0], [2, 10]))[:2] == [[-1, -1], [1, 1]]


def test_a_component_that_never_changes_is_zero(tmp_path):
    actions = [[-2.0, 3.0], [2.0, 3.0], [0.0, 3.0], [3.0, 3.0]]
    bounds = np.array([-2.0, 3.0]), np.array([2.0, 3.0])
    made = data(actions, action_range=bounds)
    assert rows(made)[:3] == rows(data(actions), bounds)[:3] == [[-1, 0], [1, 0], [0, 0]]
    assert told(made)["clipped"].startswith("1 of 4 actions lie outside [-2, 2], [3, 3], up to 3,")
    made.save(tmp_path / "data.hdf5")
    loaded = load_dataset(tmp_path / "data.hdf5")
    assert [bound.tolist() for bound in loaded.action_range] == [[-2, 3], [2, 3]]
    assert rows(loaded) == rows(made)


@pytest.mark.parametrize(
    "bounds", [(1, 1), ([1, 2], [1, 2]), (1, -1), (0, np.inf), ([-1, -1, -1], [1, 1, 1]), 3.0, ("a", "b"), (1, 2, 3)]
)
def test_bounds_that_do_not_fit_are_refused(bounds):
    two = recorded(actions=np.zeros((6, 2)))
    for use in (
        lambda: Dataset.from_arrays(**two, action_range=bounds),
        lambda: Dataset.from_arrays(**two).with_range(bounds),
        lambda: Dataset.from_arrays(**two).rows(bounds),
        lambda: Dataset.from_arrays(**two).action_warnings(bounds),
    ):
        with pytest.raises(UserError, match="action_range"):
            use()


@pytest.mark.parametrize("bounds", [((-0.3, 1.2), (-2, 2)), spaces.Box(-2, 2, (2,))])
def test_how_to_give_bounds_of_each_number_is_told(bounds):
    told = re.escape("((-0.3, -2), (1.2, 2)); for a space, (space.low, space.high)")
    with pytest.raises(UserError, match=told):
        Dataset.from_arrays(**recorded(actions=np.zeros((6, 2))), action_range=bounds)


def test_bounds_are_added_where_the_data_has_none():
    made = data(TORQUES)
    assert rows(made.with_range((-2, 2))) == rows(made, ENV)
    assert rows(data(TORQUES, action_range=(-4, 4)).with_range((-2, 2))) == rows(made, (-4, 4))
    assert made.with_range(None) is made and made.action_range is None


# What is told -----------------------------------------------------------------------------------------------------


def told(data, *bounds):
    return {notice.kind: notice.text for notice in data.action_warnings(*bounds)}


def test_the_environments_units_are_told_where_they_are_taken():
    assert told(data(TORQUES), ENV) == {"units": "actions are taken to be in the environment's units, [-2, 2]"}
    assert told(data(TORQUES, action_range=(-2, 2)), ENV) == {}
    assert told(data([[0.5]] * 5), (-1, 1)) == told(data([[0.5]] * 5)) == {}


def test_unlike_bounds_are_told_one_by_one_if_they_are_few():
    low, high = np.zeros(5), np.arange(1, 6)
    assert "[0, 1], [0, 2], [0, 3], ..." in told(data(np.ones((4, 5))), (low, high))["units"]
    assert told(data(np.ones((4, 2))), (low[:2], high[:2]))["units"].endswith("units, [0, 1], [0, 2]")


def test_actions_outside_are_told():
    outside = [[0.5], [1.5], [-3.0], [1.0], [-1.0], [1.000001]]
    text = told(data(outside))["unknown range"]
    assert text.startswith("2 of 6 actions lie outside [-1, 1], up to -3, and their range is unknown; give the")
    text = told(data(outside), ENV)["clipped"]
    assert text == "1 of 6 actions lie outside [-2, 2], up to -3, and are clipped to it"
    assert "1 of 6 actions lie outside [-2, 2]" in told(data(outside, action_range=(-2, 2)))["clipped"]


def mostly_inside(num_outside, size):
    actions = np.linspace(-0.9, 0.9, 1000)[:, None]
    actions[:num_outside] = size
    return data(actions)


@pytest.mark.parametrize(
    ("num_outside", "size", "shown"), [(1, 1.00002, "1.00002"), (1, -1.0003, "-1.0003"), (10, 1.5, "1.5")]
)
def test_a_few_actions_that_lie_a_little_outside_are_clipped(num_outside, size, shown):
    made = mostly_inside(num_outside, size)
    text = f"{num_outside} of 1,000 actions lie outside [-1, 1], up to {shown}, and are clipped to it"
    assert told(made) == {"clipped": text}
    assert max(abs(action) for (action,) in rows(made)) == 1.0


@pytest.mark.parametrize(("num_outside", "size"), [(11, 1.0003), (1, 1.51), (1, -9.0), (500, 1.2)])
def test_more_or_wilder_actions_outside_are_refused(num_outside, size):
    assert list(told(mostly_inside(num_outside, size))) == ["unknown range"]


@pytest.mark.parametrize(("num_outside", "is_first"), [(1, True), (100, True), (101, False), (900, False)])
def test_where_few_are_outside_the_range_from_minus_one_to_one_is_proposed_first(num_outside, is_first):
    text = told(mostly_inside(num_outside, 1.6))["unknown range"]
    proposed = [part.split('"')[0] for part in text.split('"dataset.action_range=')[1:]]
    assert len(proposed) == 2 and (proposed[0] == "(-1, 1)") == is_first and "(-1, 1)" in proposed


def test_a_range_is_proposed_once():
    text = told(data([[-0.999], [0.998], [0.5]], action_range=(-0.1, 0.1)))["unknown range"]
    assert text.endswith(
        'environment, by these actions --gin "dataset.action_range=(-1, 1)"; or give the recorded one with --env'
    )


@pytest.mark.parametrize(
    ("actions", "proposed"),
    [
        ([[-199.2], [187.0]], "(-200, 200)"),
        ([[-1.99992], [1.9]], "(-2, 2)"),
        ([[3.1], [97.3]], "(0, 98)"),
        ([[-0.41], [3.0]], "(-0.41, 3)"),
        ([[-1.1, 2.0, 0.9], [0.9, -2.3, -1.0]], "(-2.3, 2.3)"),
        ([[-200.0, 0.0, 0.0], [200.0, 2.93, 0.0]], "((-200, 0, -1), (200, 3, 1))"),
        ([[-0.3, 1.9], [1.2, -2.0]], "((-0.3, -2), (1.2, 2))"),
        ([[-1.9, -1.2, -0.5, -1.5, -1.0, -1.4, -0.9], [1.9, 0.9, 1.4, 1.2, 0.6, 1.6, 1.3]], "(-1.9, 1.9)"),
    ],
)
def test_the_binding_that_tells_their_range_is_proposed(actions, proposed):
    text = told(data(actions * 3))["unknown range"]
    assert f'--gin "dataset.action_range={proposed}";' in text and '--gin "dataset.action_range=(-1, 1)";' in text
    bounds = eval(proposed)
    assert not told(data(actions * 3, action_range=bounds)), "it is a range, and no action lies outside"


@pytest.mark.parametrize(("num_wild", "kind"), [(2, "clipped"), (3, "unknown range")])
def test_actions_that_mostly_leave_the_environments_bounds_are_in_other_units(num_wild, kind):
    made = data([[30.0]] * num_wild + [[0.5]] * (6 - num_wild))
    text = told(made, ENV)[kind]
    assert text.startswith(f"{num_wild} of 6 actions lie outside")
    assert ("the environment's [-2, 2]" in text and '"dataset.action_range=(-2, 2)"' in text) == (num_wild == 3)
    assert "unknown range" not in told(made.with_range((-2, 2)), ENV), "then it is told"


def test_d4rls_actions_are_in_units_that_are_known():
    outside = [[0.5]] * 5 + [[1.5]]
    assert "unknown range" in told(data(outside, name="mine"))
    assert "clipped" in told(data(outside, name="pen-human-v0"))


def test_the_size_of_blocks_changes_nothing(monkeypatch):
    actions = np.random.default_rng(0).uniform(-3, 3, (100, 2))
    whole = told(data(actions), ENV)
    monkeypatch.setattr(columns, "BLOCK_BYTES", 24)
    assert told(data(actions), ENV) == whole


def test_rounding_beyond_a_bound_is_clipped_without_a_word():
    made = data(np.full((6, 1), 1.0000001))
    assert max(rows(made)) == [1.0] and told(made) == {}


@pytest.mark.parametrize(
    ("most", "bounds", "is_told"),
    [
        (1.0, (-2, 2), True),
        (1.0, (-1.5, 1.5), False),
        (1.1, (-2, 2), False),
        (1.0, (0, 4), True),
        (1.0, (-1, 1), False),
    ],
)
def test_actions_may_have_been_scaled_before(most, bounds, is_told):
    made = data(np.linspace(-most, most, 9)[:, None])
    assert ("scaled" in told(made, bounds)) == is_told
    assert "scaled" not in told(made.with_range((-1, 1)), bounds), "which is what the notice advises"


def test_whole_numbers_outside_of_the_unit_range_may_be_choices():
    made = data([[0.0], [1.0], [2.0], [2.0]], dtype=np.float32)
    (text,) = (text for kind, text in told(made).items() if kind == "unknown range")
    assert "if they are choices, give actions.astype(int); else give the bounds" in text
    assert "choices" not in told(data([[0.5], [1.0], [2.0], [2.0]], dtype=np.float32))["unknown range"]


# Choices ----------------------------------------------------------------------------------------------------------


def test_whole_numbers_are_choices():
    made = data([[0], [1], [2], [3]], dtype=np.int64)
    assert made.discrete_actions
    assert made.actions[:, 0].tolist() == [0, 1, 2, 3]
    assert rows(made) == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], "one-hot"
    assert list(told(made)) == ["choices"]
    assert rows(made, (0, 4))[0] == [1, 0, 0, 0, 0] and told(made, (0, 4)) == {}


@pytest.mark.parametrize("extreme", [10**9, -(10**9)])
def test_a_number_that_is_no_choice_is_named(extreme):
    made = data([[0], [1], [extreme], [3]], dtype=np.int64)
    with pytest.raises(UserError, match=r"its actions would be 1,000,000,0.* choices, from .* give the environment"):
        rows(made)
    assert not made.with_range((-(10**9), 10**9)).discrete_actions


def test_whole_numbers_with_bounds_are_none():
    for made in (
        data([[0], [1], [2], [3]], dtype=np.int64, action_range=(-3, 3)),
        data([[0], [1], [2], [3]], dtype=np.int64).with_range((-3, 3)),
    ):
        assert not made.discrete_actions and told(made) == {}
        assert np.allclose(rows(made), [[0], [1 / 3], [2 / 3]])


@pytest.mark.parametrize("given", [None, (-9.0, 9.0)])
def test_what_the_data_tells_of_its_bounds_wins(given):
    metadata = {"action_low": np.array([-4.0]), "action_high": np.array([4.0])}
    columns = {key: np.asarray(column) for key, column in recorded(actions=np.full((6, 1), 2.0)).items()}
    made = Dataset.from_columns(columns, DatasetInfo("mine", action_range=given, metadata=metadata))
    assert rows(made, ENV) == [[0.5]] * 5
    whole = {**columns, "actions": np.full((6, 1), 2)}
    assert not Dataset.from_columns(whole, DatasetInfo("mine", metadata=metadata)).discrete_actions
