import numpy as np
import pytest
from counting import Counter, action, shown
from gymnasium.spaces import Box

from offpcc.envs.wrappers import DropIndices, Flicker, KeepIndices, ObservationNoise


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
