import functools

import numpy as np
import pytest
from counting import Counter, action, shown
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import TimeLimit

import offpcc
from offpcc.envs.wrappers import (
    Concatenate,
    DropIndices,
    EpisodeReturn,
    Flicker,
    KeepIndices,
    ObservationNoise,
    PreviousAction,
    ReturnToGo,
    UnitAction,
    num_stacked,
)
from offpcc.utils.errors import UserError


def test_previous_action_is_clipped_and_starts_at_zero():
    env = PreviousAction(Counter())
    assert env.observation_space.shape == (5,)
    np.testing.assert_array_equal(env.observation_space.low, [1, 2, 3, -2, -2])
    np.testing.assert_array_equal(env.observation_space.high, [1000, 2000, 3000, 4, 4])
    np.testing.assert_array_equal(env.reset()[0], [1, 2, 3, 0, 0])
    observation, *_ = env.step(action(9, -9))
    np.testing.assert_array_equal(observation, [11, 12, 13, 4, -2])
    np.testing.assert_array_equal(env.unwrapped.executed, [4, -2])
    np.testing.assert_array_equal(env.step(action(1, 2))[0], [21, 22, 23, 1, 2])
    np.testing.assert_array_equal(env.reset()[0], [1, 2, 3, 0, 0])


def test_previous_action_bounds_contain_the_zeros():
    env = PreviousAction(Counter(low=1.0, high=2.0))
    assert env.reset()[0] in env.observation_space


def test_previous_action_keeps_float32_whatever_the_action_is():
    env = PreviousAction(Counter())
    env.reset()
    observation, *_ = env.step(np.array([0.1, 0.2], dtype=np.float64))
    assert observation.dtype == np.float32
    assert observation in env.observation_space


def test_return_to_go_is_the_target_minus_the_rewards_so_far():
    env = ReturnToGo(Counter(), 10.0)
    assert env.reset()[0].dtype == np.float32
    for _ in range(2):  # an episode forgets the one before
        np.testing.assert_array_equal(env.reset()[0], [1, 2, 3, 10])
        np.testing.assert_array_equal(env.step(action(0, 0))[0], [11, 12, 13, 9])
        observation, *_ = env.step(action(0, 0))
        np.testing.assert_array_equal(observation, [21, 22, 23, 7])
    assert observation in env.observation_space


@pytest.mark.parametrize(
    ("space", "keys"),
    [
        (Box(0, 255, (4, 4, 1), np.uint8), ["observation", "return_to_go"]),
        (Box(0, 9, (3,), np.int64), ["observation", "return_to_go"]),
        (Discrete(4), ["observation", "return_to_go"]),
        (Dict(place=Box(-1, 1, (2,))), ["place", "return_to_go"]),
    ],
)
def test_return_to_go_of_other_observations_is_an_entry_of_a_dict(space, keys):
    class Drawn(Counter):
        def observe(self):
            return self.observation_space.sample()

    env = ReturnToGo(Drawn(space), 10.0)
    env.reset()
    observation, *_ = env.step(action(0, 0))
    assert list(observation) == list(env.observation_space) == keys
    assert observation in env.observation_space
    np.testing.assert_array_equal(observation["return_to_go"], [9])


def test_return_to_go_refuses_what_it_cannot_show():
    with pytest.raises(ValueError, match="target_return must be a finite number, not nan"):
        ReturnToGo(Counter(), float("nan"))
    with pytest.raises(ValueError, match="has the key 'return_to_go' already"):
        ReturnToGo(Counter(Dict(return_to_go=Box(-1, 1, (1,)))), 1.0)


def test_concatenate_is_oldest_first_after_zeros():
    env = Concatenate(Counter(), 3)
    zeros = [0, 0, 0]
    for _ in range(2):  # an episode forgets the one before
        np.testing.assert_array_equal(env.reset()[0], [*zeros, *zeros, 1, 2, 3])
        np.testing.assert_array_equal(env.step(action(0, 0))[0], [*zeros, 1, 2, 3, 11, 12, 13])
        np.testing.assert_array_equal(env.step(action(0, 0))[0], [1, 2, 3, 11, 12, 13, 21, 22, 23])
        np.testing.assert_array_equal(env.step(action(0, 0))[0], [11, 12, 13, 21, 22, 23, 31, 32, 33])


def test_concatenate_bounds_contain_the_zeros():
    env = Concatenate(Counter(), 2)
    np.testing.assert_array_equal(env.observation_space.low, np.zeros(6))
    np.testing.assert_array_equal(env.observation_space.high, [1000, 2000, 3000] * 2)
    assert env.reset()[0] in env.observation_space


def test_concatenated_observations_are_not_shared():
    env = Concatenate(Counter(), 2)
    env.reset()[0][:] = -1
    np.testing.assert_array_equal(env.step(action(0, 0))[0], [1, 2, 3, 11, 12, 13])


def test_concatenate_joins_images_by_channel():
    env = Concatenate(Counter(Box(0, 255, (1, 2, 2), np.uint8)), 3)
    observation, _ = env.reset()
    assert observation.shape == (3, 2, 2) and observation.dtype == np.uint8
    assert observation in env.observation_space
    np.testing.assert_array_equal(observation[2], [[1, 2], [3, 4]])
    assert not observation[:2].any()


def test_concatenate_refuses_none():
    with pytest.raises(ValueError, match="from 1 to 1000, not 0"):
        Concatenate(Counter(), 0)


def test_how_many_frames_are_stacked():
    assert num_stacked(Counter()) == 1
    assert num_stacked(EpisodeReturn(UnitAction(TimeLimit(Concatenate(Counter(), 4), 5)))) == 4
    assert num_stacked(KeepIndices(Concatenate(Counter(), 4), [0])) == 1, "what is shown is no stack any more"


def test_stacked_observations_stay_as_they_were():
    class OneArray(Counter):
        """Writes every observation into the same array."""

        array = np.zeros(3, np.float32)

        def observe(self):
            self.array[:] = super().observe()
            return self.array

    np.testing.assert_array_equal(shown(Concatenate(OneArray(), 3), 5), shown(Concatenate(Counter(), 3), 5))


def test_images_are_stacked_along_their_channels_in_either_order():
    class Pictures(Counter):
        """Shows random images, channels first or last."""

        def __init__(self, is_last):
            super().__init__(Box(0, 255, (30, 28, 3) if is_last else (3, 30, 28), np.uint8))
            self.is_last, self.draw = is_last, np.random.default_rng(0)

        def observe(self):
            image = self.draw.integers(0, 256, (3, 30, 28), np.uint8)
            return np.moveaxis(image, 0, -1) if self.is_last else image

    first, last = (Concatenate(Pictures(is_last), 2) for is_last in (False, True))
    assert first.observation_space == last.observation_space
    assert first.observation_space.shape == (6, 30, 28)
    np.testing.assert_array_equal(shown(first, 4), shown(last, 4))
    agent = offpcc.CSAC(lambda: Pictures(True), make={"wrappers": [functools.partial(Concatenate, num=2)]})
    assert agent.algorithm.space_shape == (6, 30, 28)


def test_a_missing_argument_of_a_wrapper_is_named_with_its_binding():
    with pytest.raises(UserError, match=r"argument: 'num'.*; give functools.partial\(Concatenate, num="):
        offpcc.make("pendulum-v0", wrappers=[Concatenate])
    with pytest.raises(UserError, match=r"'num'.*; bind Concatenate.num, or give functools.partial\(Conc"):
        offpcc.SAC("pendulum-v0", make={"wrappers": [Concatenate]})


def test_keep_indices_keeps_numbers_and_bounds():
    env = KeepIndices(Counter(), [2, 0])
    assert env.observation_space == Box(action(3, 1), action(3000, 1000))
    np.testing.assert_array_equal(env.reset()[0], [3, 1])
    np.testing.assert_array_equal(env.step(action(0, 0))[0], [13, 11])


@pytest.mark.parametrize("indices", [[3], [-1], []])
def test_keep_indices_refuses_places_that_are_not_there(indices):
    with pytest.raises(ValueError, match=r"0 \.\.\. 2"):
        KeepIndices(Counter(), indices)


def test_drop_indices_drops_numbers_and_bounds():
    env = DropIndices(Counter(), [0])
    assert env.observation_space == Box(action(2, 3), action(2000, 3000))
    np.testing.assert_array_equal(env.reset()[0], [2, 3])
    assert env.spec is None and env._saved_kwargs == {"indices": [0]}


@pytest.mark.parametrize("indices", [[3], [-1], [0, 1, 2]])
def test_drop_indices_refuses_places_that_are_not_there_and_leaves_something(indices):
    with pytest.raises(ValueError, match=r"indices"):
        DropIndices(Counter(), indices)


def test_flicker_blanks_as_often_as_it_says():
    plain, flickering = shown(Counter()), shown(Flicker(Counter(), 0.3))
    blank = (flickering == 0).all(1)
    np.testing.assert_array_equal(flickering[~blank], plain[~blank])
    assert 35 < blank.sum() < 85  # 60 of 201 expected, standard deviation 6.5
    assert flickering[blank][0] in Flicker(Counter(), 0.3).observation_space
    np.testing.assert_array_equal(flickering, shown(Flicker(Counter(), 0.3)))
    assert (shown(Flicker(Counter(), 1.0)) == 0).all() and (shown(Flicker(Counter(), 0.0)) == plain).all()


@pytest.mark.parametrize("probability", [-0.1, 1.1])
def test_flicker_refuses_what_is_no_probability(probability):
    with pytest.raises(ValueError, match=r"from 0 to 1"):
        Flicker(Counter(), probability)


def test_noise_has_the_deviation_it_says():
    env = ObservationNoise(Counter(), (0.5, 0.0, 2.0))
    noise = shown(env, 999) - shown(Counter(), 999)
    np.testing.assert_allclose(noise.std(0), [0.5, 0.0, 2.0], rtol=0.1)
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.25)
    assert noise.dtype == np.float32 and env.reset()[0] in env.observation_space
    assert (shown(ObservationNoise(Counter(), 0.5)) != shown(Counter())).all()


@pytest.mark.parametrize("std", [-1.0, (1.0, 1.0), (1.0, -1.0, 1.0)])
def test_noise_refuses_deviations_that_make_no_sense(std):
    with pytest.raises(ValueError, match=r"std"):
        ObservationNoise(Counter(), std)


def test_noise_refuses_bytes():
    with pytest.raises(ValueError, match=r"uint8"):
        ObservationNoise(Counter(Box(0, 255, (3,), np.uint8)), 1.0)


@pytest.mark.parametrize("space", [Discrete(3), Box(0, 255, (1, 4, 4), np.uint8)])
def test_wrappers_of_vectors_refuse_others(space):
    with pytest.raises(ValueError, match="KeepIndices needs a Box with 1 axis"):
        KeepIndices(Counter(space), [0])
    with pytest.raises(ValueError, match="PreviousAction needs a Box with 1 axis"):
        PreviousAction(Counter(space))
