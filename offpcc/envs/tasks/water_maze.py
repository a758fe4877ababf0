"""Water maze: find a hidden platform, and find it again after each return to the start.

It follows the maze of Morris (1981), in which rats remember the place of a platform that the water hides. This is the
simple variant of Yang & Nguyen 2021 (arXiv:2110.12628).
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.aliases import Array, Info
from offpcc.envs.registration import Environment, concatenate
from offpcc.envs.rendering import paint_disc

POOL_RADIUS = 1.0
PLATFORM_RADIUS = 0.30
PLATFORM_DISTANCE = 0.7  # from the pool's centre, where the agent starts, to the platform's centre
MAX_ACCELERATION = 0.03  # per axis
MAX_VELOCITY = 0.1  # per axis
STEPS_INSIDE = 5  # before the agent returns to the start

FRAME_SIZE = 240  # pixels
FRAME_HALF_WIDTH = 1.05
AGENT_DRAWN_RADIUS = 0.05


class WaterMaze(gym.Env[Array, Array]):
    """A disc of water with radius 1, and a platform at a random place in each episode.

    Observation, float32 (3,) or (5,): the agent's x and y; 1 if it is inside the platform, else 0; and, if shown, the
    platform's centre.
    Action, float32 (2,): acceleration per axis, clipped to [-0.03, 0.03].
    Reward: 1 for each step that ends inside the platform.

    A move that would leave the disc is undone and stops the agent. After five steps inside the platform, the agent
    returns to the origin, at rest. The platform stays, so a memory of its place helps. The observation of that step is
    the origin with a 1. Only a time limit ends an episode.

    Args:
        show_platform: Whether the observation holds the platform's centre.
        render_mode: None or "rgb_array".
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(self, show_platform: bool = False, render_mode: str | None = None) -> None:
        self._show_platform = show_platform
        self.render_mode = render_mode
        platform = [PLATFORM_DISTANCE] * 2 if show_platform else []
        high = np.array([POOL_RADIUS, POOL_RADIUS, 1, *platform], np.float32)
        low = np.array([-POOL_RADIUS, -POOL_RADIUS, 0, *(-bound for bound in platform)], np.float32)
        self.observation_space = Box(low, high, dtype=np.float32)
        self.action_space = Box(-MAX_ACCELERATION, MAX_ACCELERATION, (2,), np.float32)
        self._platform, self._position, self._velocity = np.zeros(2), np.zeros(2), np.zeros(2)
        self._num_steps_inside = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; see `gymnasium.Env.reset`. `options` is ignored."""
        super().reset(seed=seed)
        angle = self.np_random.uniform(-np.pi, np.pi)
        self._platform = PLATFORM_DISTANCE * np.array([np.cos(angle), np.sin(angle)])
        self._return_to_start()
        return self._observe(inside=False), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Swim one step."""
        acceleration = np.clip(np.asarray(action, np.float64), -MAX_ACCELERATION, MAX_ACCELERATION)
        self._velocity = np.clip(self._velocity + acceleration, -MAX_VELOCITY, MAX_VELOCITY)
        moved = self._position + self._velocity
        if np.linalg.norm(moved) <= POOL_RADIUS:
            self._position = moved
        else:
            self._velocity = np.zeros(2)
        inside = bool(np.linalg.norm(self._position - self._platform) <= PLATFORM_RADIUS)
        self._num_steps_inside += inside
        if self._num_steps_inside == STEPS_INSIDE:
            self._return_to_start()
        return self._observe(inside), float(inside), False, False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, (240, 240, 3), seen from above, or None without a render mode."""
        if self.render_mode is None:
            return None
        frame = np.full((FRAME_SIZE, FRAME_SIZE, 3), 255.0)
        for centre, radius, colour in (
            (np.zeros(2), POOL_RADIUS, (166, 206, 227)),
            (self._platform, PLATFORM_RADIUS, (253, 191, 111)),
            (self._position, AGENT_DRAWN_RADIUS, (31, 60, 120)),
        ):
            paint_disc(frame, FRAME_HALF_WIDTH, centre, radius, colour)
        picture: NDArray[np.uint8] = np.rint(frame).astype(np.uint8)
        return picture

    def _return_to_start(self) -> None:
        self._position, self._velocity = np.zeros(2), np.zeros(2)
        self._num_steps_inside = 0

    def _observe(self, inside: bool) -> Array:
        platform = self._platform if self._show_platform else ()
        return np.array([*self._position, inside, *platform], np.float32)


_SIMPLE = Environment(
    name="water-maze-simple-v0",
    family="water-maze-simple",
    hidden="",
    entry_point="offpcc.envs.tasks.water_maze:WaterMaze",
    max_episode_steps=200,
    observation_shape=(),
    action_size=2,
)
_POMDP = _SIMPLE.variant("-pomdp", "the platform, velocity, steps inside", (3,), show_platform=False)
ENVIRONMENTS = (
    _SIMPLE.variant("-mdp", "velocity, steps inside", (5,), show_platform=True),
    _POMDP,
    _POMDP.variant("-concat10", "the platform; last 10 places shown", (30,), concatenate(10)),
)
