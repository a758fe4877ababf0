"""The pendulum's image: what it shows, what it hides, and that its bytes are the same everywhere."""

import zlib

import gymnasium
import numpy as np
import pytest

import offpcc.envs  # noqa: F401
from offpcc.envs.tasks.pendulum import PendulumImage, draw_rod


def observe(angle, velocity):
    """The image of a state, (1, 40, 40)."""
    env = gymnasium.make("pendulum-img-v0").env
    env.unwrapped.state = np.array([angle, velocity])
    return PendulumImage(env).observation(env.unwrapped._get_obs())


def test_a_frame_is_uint8_with_one_channel():
    env = gymnasium.make("pendulum-img-v0")
    observation, _ = env.reset(seed=0)
    assert observation.shape == (1, 40, 40)
    assert observation.dtype == np.uint8
    assert observation.max() == 255 and observation.min() == 0


def test_frames_change_as_it_moves():
    env = gymnasium.make("pendulum-img-v0")
    before, _ = env.reset(seed=0)
    for _ in range(10):
        after, *_ = env.step(np.array([2.0], dtype=np.float32))
        assert (before != after).any()
        before = after


def test_the_velocity_is_hidden_and_the_angle_is_not():
    np.testing.assert_array_equal(observe(0.4, -8.0), observe(0.4, 5.0))
    images = {observe(angle, 0.0).tobytes() for angle in np.linspace(-np.pi, np.pi, 200, endpoint=False)}
    assert len(images) == 200


@pytest.mark.parametrize("angle", [0.0, 0.3, 1.2, np.pi / 2, 2.5, np.pi, -0.7, -2.0])
def test_the_angle_can_be_read_from_the_image(angle):
    weight = draw_rod(np.cos(angle), np.sin(angle))[0].astype(float)
    place = np.arange(40) - 19.5
    up = -(weight.sum(axis=1) * place).sum()
    left = -(weight.sum(axis=0) * place).sum()
    error = np.arctan2(left, up) - angle
    assert abs(np.angle(np.exp(1j * error))) < 0.02


def test_edges_are_smooth():
    image = draw_rod(np.cos(0.3), np.sin(0.3))
    assert ((image > 0) & (image < 255)).sum() > 20


def test_mirrored_angles_give_mirrored_images():
    np.testing.assert_array_equal(draw_rod(0.6, 0.8)[0], draw_rod(0.6, -0.8)[0, :, ::-1])
    np.testing.assert_array_equal(draw_rod(0.6, 0.8)[0], draw_rod(-0.6, 0.8)[0, ::-1])
    np.testing.assert_array_equal(draw_rod(0.6, 0.8)[0], draw_rod(0.8, 0.6)[0].T)


def test_a_rounding_error_changes_no_byte():
    np.testing.assert_array_equal(draw_rod(0.6, 0.8), draw_rod(np.float32(0.6), np.float32(0.8)))


@pytest.mark.parametrize(("cosine", "sine", "checksum"), [(0.6, 0.8, 2853056436), (-0.96, 0.28, 1893428475)])
def test_the_bytes_are_these_on_every_machine(cosine, sine, checksum):
    assert zlib.crc32(draw_rod(cosine, sine).tobytes()) == checksum
