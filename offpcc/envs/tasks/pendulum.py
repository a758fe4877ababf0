"""Pendulum: swing a rod up and hold it there, with a torque too weak to do it in one swing.

The image version shows one grey image, which contains the angle but not the velocity.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.envs.registration import WrapperSpec
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from offpcc.envs.registration import PREVIOUS_ACTION, Environment, concatenate, keep
from offpcc.envs.rendering import draw_without_screen

IMAGE = WrapperSpec("PendulumImage", "offpcc.envs.tasks.pendulum:PendulumImage", {})


class Pendulum(PendulumEnv):
    """Gymnasium's Pendulum-v1, which also renders ``rgb_array`` frames without a screen.

    Observation, float32 (3,): cos θ, sin θ (θ = 0 is upright), angular velocity in [-8, 8] rad/s.
    Action, float32 (1,): torque in N m, clipped to [-2, 2].
    Reward: -(θ² + 0.1 θ̇² + 0.001 torque²). A step lasts 0.05 s; only a time limit ends an episode.

    Args:
        render_mode: None, "rgb_array" or "human".
        g: Acceleration of gravity, m/s².
    """

    def __init__(self, render_mode: str | None = None, g: float = 10.0) -> None:
        draw_without_screen(render_mode)
        super().__init__(render_mode=render_mode, g=g)


_FULL = Environment(
    name="pendulum-v0",
    family="pendulum",
    hidden="nothing",
    entry_point="offpcc.envs.tasks.pendulum:Pendulum",
    max_episode_steps=200,
    observation_shape=(3,),
    action_size=1,
)
_P, _V, _A = keep(0, 1), keep(2), PREVIOUS_ACTION
ENVIRONMENTS = (
    _FULL,
    _FULL.variant("-p", "angular velocity", (2,), _P),
    _FULL.variant("-v", "angle", (1,), _V),
    _FULL.variant("-va", "angle", (2,), _V, _A),
    _FULL.variant("-p-concat5", "angular velocity; last 5 angles shown", (10,), _P, concatenate(5)),
    _FULL.variant("-v-concat10", "angle; last 10 velocities shown", (10,), _V, concatenate(10)),
    _FULL.variant("-va-concat10", "angle; last 10 velocities and torques shown", (20,), _V, _A, concatenate(10)),
    _FULL.variant("-img", "angular velocity; angle shown as an image", (1, 40, 40), IMAGE),
)


SIZE = 40  # pixels
ROD_LENGTH = 16.0  # pixels
ROD_HALF_WIDTH = 2.0  # pixels
STEPS_PER_PIXEL = 256

_CENTRES = np.arange(SIZE) - (SIZE - 1) / 2
_RIGHT, _DOWN = np.meshgrid(_CENTRES, _CENTRES)


def draw_rod(cosine: float, sine: float) -> NDArray[np.uint8]:
    """Draw the rod, (1, 40, 40), white on black with smooth edges, from the image's centre towards its tip.

    An angle of 0 points up, and of π/2 to the left. The tip is rounded to 1/256 pixel. IEEE 754 defines the rounding of
    all later steps, so the image is the same on every machine.
    """
    tip = -np.array([sine, cosine], dtype=np.float64) * ROD_LENGTH
    right, down = np.rint(tip * STEPS_PER_PIXEL) / STEPS_PER_PIXEL
    along = np.clip((_RIGHT * right + _DOWN * down) / (right * right + down * down), 0.0, 1.0)
    distance = np.sqrt(np.square(_RIGHT - along * right) + np.square(_DOWN - along * down))
    coverage = np.clip(ROD_HALF_WIDTH + 0.5 - distance, 0.0, 1.0)
    frame: NDArray[np.uint8] = np.rint(255.0 * coverage).astype(np.uint8)
    return frame[np.newaxis]


class PendulumImage(gym.ObservationWrapper[NDArray[Any], Any, NDArray[Any]], RecordConstructorArgs):
    """Shows only a pendulum's angle, as an image, uint8 (1, 40, 40)."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self.observation_space = Box(0, 255, (1, SIZE, SIZE), np.uint8)

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Return an image of cos θ and sin θ, the first two numbers of `observation`."""
        return draw_rod(observation[0], observation[1])
