"""Push the right bump: tell two equal bumps apart by touch, with a finger whose stiffness is part of the action.

The task "push-r-bump" of Yang & Nguyen 2021 (arXiv:2110.12628). Differs from the paper: simple shapes replace the robot
arm.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.registration import Environment, require
from offpcc.envs.tasks.bumps_scene import BUMP_WIDTH, FINGER_WIDTH, MAX_ANGLE, Scene

__all__ = ["ENVIRONMENTS", "Bumps"]

NAME = "bumps-normal-test-v0"

# Metres.
END_OF_RAIL = 0.4
LIMIT = 0.38
MAX_STEP = 0.05
NOISE = 0.03
NUM_INTERVALS = 5  # intervals of the rail; bumps stand at the boundaries between them
PUSHED = 0.01
MOVED = 0.001
# Least distance between the centres of a finger and a bump, without contact
CLEARANCE = (BUMP_WIDTH + FINGER_WIDTH) / 2 + 0.001

# N m.
SOFT, HARD = 0.007, 0.047


class Bumps(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A finger over a table with two bumps. It must push the right bump to the right and not move the left one.

    Observation, float32 (2,): the finger's y in [-0.4, 0.4] m, and its angle in [-π/3, π/3] rad. The angle is positive
    if the tip is right of the hinge.
    Action, float32 (2,), clipped to [-1, 1]: the finger's movement, scaled to -0.05 to 0.05 m, and its stiffness. The
    stiffness is the torque that holds the finger at angle 0, scaled to 0.007 to 0.047 N m. Below about 0.027 N m, the
    finger bends and passes over a bump. Above, it pushes the bump.
    Reward: 1 if the right bump has moved more than 0.01 m to the right, with the tip of the finger on its left. The
    reward is -1 if the left bump has moved more than 0.001 m, or the right one as far to the left. Else it is 0.

    An episode ends when the reward is not 0, or when the finger leaves [-0.38, 0.38]. Both bumps may stand left of the
    start, or right of it, or one on each side. All random draws use `np_random`. The same draws and actions repeat an
    episode, bit for bit.

    Args:
        render_mode: None or "rgb_array".
        width: Width of a rendered frame, in pixels.
        height: Height of a rendered frame, in pixels.

    Raises:
        gymnasium.error.DependencyNotInstalled: pybullet is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(self, render_mode: str | None = None, width: int = 480, height: int = 240) -> None:
        require("pybullet", NAME)
        self.render_mode = render_mode
        self._width, self._height = width, height
        self._scene = Scene()
        self._start: tuple[float, ...] = ()
        self._actions: list[NDArray[np.float64]] = []
        self._bounds = np.array([END_OF_RAIL, MAX_ANGLE], np.float32)
        self.observation_space = Box(-self._bounds, self._bounds, dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`. `options` is ignored."""
        super().reset(seed=seed)
        self._start = self._draw_start()
        self._begin()
        return self._observe(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move the finger at constant speed for a quarter of a second."""
        self._act(np.clip(np.asarray(action, np.float64), -1.0, 1.0))
        reward = self._reward()
        terminated = reward != 0.0 or abs(self._scene.finger[0]) > LIMIT
        return self._observe(), reward, terminated, False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, (height, width, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        return self._scene.draw(self._width, self._height)

    def close(self) -> None:
        """Free the simulation."""
        self._scene.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_scene"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Bullet cannot export all that it stores about a contact. Replaying the same episode restores it.
        self.__dict__.update(state)
        self._scene = Scene()
        if self._start:
            actions = self._actions
            self._begin()
            for action in actions:
                self._act(action)

    def _draw_start(self) -> tuple[float, float, float]:
        """Draw the y of the finger and of both bumps. Draw again if the finger would start in a bump."""
        boundaries = np.linspace(-END_OF_RAIL, END_OF_RAIL, NUM_INTERVALS + 1)[1:-1]
        while True:
            left = self.np_random.integers(len(boundaries) - 1)
            places = np.array([0.0, boundaries[left], boundaries[left + 1]])
            finger, bump_1, bump_2 = (places + self.np_random.uniform(-NOISE, NOISE, 3)).tolist()
            if min(abs(finger - bump_1), abs(finger - bump_2)) > CLEARANCE:
                return finger, bump_1, bump_2

    def _begin(self) -> None:
        finger, *bumps = self._start
        self._scene.build(finger, bumps)
        self._actions = []

    def _act(self, action: NDArray[np.float64]) -> None:
        self._actions.append(action)
        length, stiffness = action.tolist()
        y = float(np.clip(self._scene.finger[0] + MAX_STEP * length, -END_OF_RAIL, END_OF_RAIL))
        self._scene.move(y, SOFT + (HARD - SOFT) * (stiffness + 1) / 2)

    def _reward(self) -> float:
        _, *starts = self._start
        moved_1, moved_2 = (now - start for now, start in zip(self._scene.bumps, starts, strict=True))
        if abs(moved_1) > MOVED or moved_2 < -MOVED:
            return -1.0
        return float(moved_2 > PUSHED and self._scene.tip < self._scene.bumps[1])

    def _observe(self) -> NDArray[np.float32]:
        return np.clip(np.array(self._scene.finger, np.float32), -self._bounds, self._bounds)


ENVIRONMENTS = (
    Environment(
        name=NAME,
        family="bumps-normal-test",
        hidden="the bumps",
        entry_point="offpcc.envs.tasks.bumps:Bumps",
        max_episode_steps=50,
        observation_shape=(2,),
        action_size=2,
        package="pybullet",
    ),
)
