"""Ant with D4RL's 111 numbers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

__all__ = ["NoContactForces"]

Array = NDArray[Any]


class NoContactForces(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Ant as D4RL recorded it: zeros replace the contact forces, which MuJoCo 2.0 did not compute.

    So there is no cost of contacts in the reward, neither in the data nor in Gymnasium's Ant-v4, whose observation ends
    before the forces. (With ``use_contact_forces`` it would show forces that D4RL's data does not have.)

    Args:
        env: Gymnasium's Ant-v4.
        name: D4RL's name of the dataset.
    """

    NUM_FORCES = 84  # 6 for each of 14 bodies

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.ObservationWrapper.__init__(self, env)
        (size,) = env.observation_space.shape or ()
        self.observation_space = Box(-np.inf, np.inf, (size + self.NUM_FORCES,), np.float64)

    def observation(self, observation: Array) -> Array:
        """Return the observation, followed by the zeros."""
        return np.concatenate([observation, np.zeros(self.NUM_FORCES)])
