"""A task whose observations are a Dict: an image shows where the target is on one axis, a vector on the other."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 16  # pixels
NAME = "DictTarget-v0"


class DictTarget(gymnasium.Env[Any, Any]):
    """Move to a target. The image shows its first coordinate, the vector its second, a flag whether to go there.

    With the flag 0, the target is the mirrored point. The reward is minus the distance, per step. So an agent needs
    the image, the vector and the flag.
    """

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
            "place": spaces.Box(-2.0, 2.0, (1,), np.float64),
            "mirrored": spaces.Discrete(2, start=1),
        }
    )
    action_space = spaces.Box(-3.0, 3.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._new()
        return self._observation(), {}

    def _new(self) -> None:
        self.target = self.np_random.uniform(-1.0, 1.0, 2)
        self.mirrored = int(self.np_random.integers(2))

    def _observation(self) -> dict[str, Any]:
        camera = np.zeros((SIZE, SIZE, 3), np.uint8)
        column = int((self.target[0] + 1.0) / 2.0 * (SIZE - 2))
        camera[:, column : column + 2] = 255
        return {"camera": camera, "place": self.target[1:], "mirrored": 1 + self.mirrored}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        goal = self.target * (1 - 2 * self.mirrored)
        reward = -float(np.abs(np.asarray(action) / 3.0 - goal).sum())
        self._new()
        return self._observation(), reward, False, False, {}


gymnasium.register(NAME, entry_point=DictTarget, max_episode_steps=10)
