"""The pendulum in pixels: one grey image, from which the angle can be read and the velocity cannot."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

__all__ = ["PendulumImage", "draw"]

SIZE = 40  # pixels
ROD_LENGTH = 16.0  # pixels
ROD_HALF_WIDTH = 2.0  # pixels
STEPS_PER_PIXEL = 256

_CENTRES = np.arange(SIZE) - (SIZE - 1) / 2
_RIGHT, _DOWN = np.meshgrid(_CENTRES, _CENTRES)


def draw(cosine: float, sine: float) -> NDArray[np.uint8]:
    """Draws the rod, white on black with smooth edges, from the image's centre towards its tip.

    The tip is rounded to 1/256 pixel; IEEE 754 rounds all that follows alike on every machine.

    Args:
        cosine: cos θ; θ = 0 points up.
        sine: sin θ; θ = π/2 points left.

    Returns:
        The frame, (1, 40, 40).
    """
    tip = -np.array([sine, cosine], dtype=np.float64) * ROD_LENGTH
    right, down = np.rint(tip * STEPS_PER_PIXEL) / STEPS_PER_PIXEL
    along = np.clip((_RIGHT * right + _DOWN * down) / (right * right + down * down), 0.0, 1.0)
    distance = np.sqrt(np.square(_RIGHT - along * right) + np.square(_DOWN - along * down))
    coverage = np.clip(ROD_HALF_WIDTH + 0.5 - distance, 0.0, 1.0)
    frame: NDArray[np.uint8] = np.rint(255.0 * coverage).astype(np.uint8)
    return frame[np.newaxis]


class PendulumImage(gym.ObservationWrapper[NDArray[Any], Any, NDArray[Any]], RecordConstructorArgs):
    """Shows a pendulum's angle as an image, uint8 (1, 40, 40), and nothing else.

    Args:
        env: An environment whose observation starts with cos θ and sin θ.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self.observation_space = Box(0, 255, (1, SIZE, SIZE), np.uint8)

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Draws cos θ and sin θ, the first two numbers of `observation`."""
        return draw(observation[0], observation[1])
