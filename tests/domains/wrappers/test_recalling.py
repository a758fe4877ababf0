import numpy as np
import pytest
from counting import Counter, action, shown
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

from offpcc.domains.wrappers import Concatenate, EpisodeReturn, KeepIndices, PreviousAction, UnitAction, num_stacked


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


def test_images_whose_channels_come_last_are_not_stacked():
    with pytest.raises(ValueError, match=r"\(channels, height, width\)"):
        Concatenate(Counter(Box(0, 255, (40, 40, 3), np.uint8)), 2)
    assert Concatenate(Counter(Box(0, 255, (3, 40, 40), np.uint8)), 2).observation_space.shape == (6, 40, 40)
