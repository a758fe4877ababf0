"""Adroit with D4RL's rewards and ends of episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

__all__ = ["AdroitHand"]

Array = NDArray[Any]
Info = dict[str, Any]
Stepped = tuple[Array, SupportsFloat, bool, bool, Info]


class AdroitHand(gym.Wrapper[Array, Array, Array, Array], RecordConstructorArgs):
    """A hand of Adroit with D4RL's rewards and ends of episodes.

    In gymnasium-robotics, an episode continues after the pen was dropped. Since its version 1.2.1, the rewards of the
    other three hands increase with the distance of the palm from the object, while D4RL's decrease.

    Args:
        env: The environment of gymnasium-robotics.
        name: D4RL's name of the dataset; its first word is the task.
    """

    DROPPED = 0.075  # height of the pen (m)

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.Wrapper.__init__(self, env)
        self._hand = name.split("-")[0]

    def step(self, action: Array) -> Stepped:
        """Take an environment step, which is 5 steps of the simulator."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._hand == "pen":
            return observation, reward, terminated or bool(observation[26] < self.DROPPED), truncated, info
        return (
            observation,
            _REWARDS[self._hand](observation, self.get_wrapper_attr("data")),
            terminated,
            truncated,
            info,
        )


def _size(vector: Array) -> float:
    return float(np.linalg.norm(vector))


def _hammer(observation: Array, data: Any) -> float:
    palm, hammer, nail = observation[33:36], observation[36:39], observation[42:45]
    head, board = data.site("tool").xpos, data.site("nail_goal").xpos
    left = _size(nail - board)
    cost = 0.1 * _size(palm - hammer) + _size(head - nail) + 10.0 * left + 0.01 * _size(data.qvel)
    is_lifted = hammer[2] > 0.04 and head[2] > 0.04
    return float(2.0 * is_lifted + 25.0 * (left < 0.02) + 75.0 * (left < 0.01) - cost)


def _door(observation: Array, data: Any) -> float:
    angle, palm_to_handle = float(observation[28]), observation[35:38]
    cost = 0.1 * _size(palm_to_handle) + 0.1 * (angle - 1.57) ** 2 + 1e-5 * _size(data.qvel) ** 2
    return 2.0 * (angle > 0.2) + 8.0 * (angle > 1.0) + 10.0 * (angle > 1.35) - cost


def _relocate(observation: Array, data: Any) -> float:
    palm_to_ball, palm_to_goal, ball_to_goal = (_size(part) for part in np.split(observation[30:], 3))
    is_lifted = data.body("Object").xpos[2] > 0.04
    reward = is_lifted * (1.0 - 0.5 * palm_to_goal - 0.5 * ball_to_goal) - 0.1 * palm_to_ball
    return float(reward + 10.0 * (ball_to_goal < 0.1) + 20.0 * (ball_to_goal < 0.05))


_REWARDS: Mapping[str, Callable[[Array, Any], float]] = {"hammer": _hammer, "door": _door, "relocate": _relocate}
