"""Corridor: a cue at the first step says which way to turn at the last step.

This task tests only memory. It follows the T-maze of Bakker 2002 ("Reinforcement learning with long short-term
memory"), in the passive form of Ni et al. 2023 (arXiv:2307.03864). That form separates memory from exploration and from
long-term credit assignment. Differs from it: actions are continuous.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.aliases import Array, Info
from offpcc.envs.registration import Environment
from offpcc.envs.rendering import paint_disc
from offpcc.utils.errors import UserError

ANY_LENGTH = "corridor-v0"  # corridor-N-v0 for any N, which is the argument `length`
LENGTHS = (10, 30, 100, 300, 1000)  # lengths with their own id
SHORTEST = 2

FRAME_SIZE = 240  # pixels
START, JUNCTION = -0.85, 0.6  # x coordinates; frames reach from -1 to 1 on both axes
ARM = 0.7  # length of each arm of the T
HALF_WIDTH = 0.2
CUE_RADIUS = 0.15
AGENT_RADIUS = 0.11

_CENTRES = (np.arange(FRAME_SIZE) + 0.5) / FRAME_SIZE * 2 - 1
_RIGHT, _UP = np.meshgrid(_CENTRES, -_CENTRES)
_CORRIDOR = (_RIGHT > START - HALF_WIDTH) & (_RIGHT < JUNCTION + HALF_WIDTH) & (np.abs(_UP) < HALF_WIDTH)
_ARMS = (np.abs(_RIGHT - JUNCTION) < HALF_WIDTH) & (np.abs(_UP) < ARM + HALF_WIDTH)


class Corridor(gym.Env[Array, Array]):
    """A corridor of `length` steps with a turn to the left or to the right at its end.

    Observation, float32 (2,): the cue, and 1 at the junction, else 0. The cue is -1 or 1 with equal probability at the
    first step, and 0 afterwards.
    Action, float32 (1,), clipped to [-1, 1]: which way to turn, and how far.
    Reward: at the junction, the cue times the action; else 0.

    The agent advances by one step at a time, whatever the actions are. So there is nothing to explore, no reward is
    delayed, and no action leaves a trace that could replace a memory. After `length` steps the agent sees the junction,
    and its next action ends the episode. So an episode lasts `length` + 1 steps, and the cue is `length` steps old when
    it is needed.

    With a memory, the best mean return is 1: turn fully to the side of the cue. Without a memory, it is 0, because the
    action is then independent of the cue, and both cues are equally likely. An agent whose input includes the previous
    action has a memory: it can pass on the cue from action to action.

    ``info["state"]``, float32 (2,): the cue, and the share of the corridor that lies behind the agent.

    Args:
        length: Steps from the cue to the junction, 2 or more.
        render_mode: None or "rgb_array".
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(self, length: int = 100, render_mode: str | None = None) -> None:
        if not isinstance(length, int | np.integer) or length < SHORTEST:
            raise UserError(f"Corridor.length is {length!r}; it has to be a whole number, {SHORTEST} or more")
        self._length = int(length)
        self.render_mode = render_mode
        self.observation_space = Box(np.array([-1, 0], np.float32), np.ones(2, np.float32), dtype=np.float32)
        self.state_space = Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32), dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self._cue, self._turn, self._num_steps = 0.0, 0.0, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; see `gymnasium.Env.reset`. `options` is ignored."""
        super().reset(seed=seed)
        self._cue = float(self.np_random.choice([-1.0, 1.0]))
        self._turn, self._num_steps = 0.0, 0
        return self._observe(), self._info()

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Advance by one step, or turn at the junction."""
        is_last, reward = self._num_steps == self._length, 0.0
        self._num_steps += 1
        if is_last:
            self._turn = float(np.clip(action, -1.0, 1.0)[0])
            reward = self._cue * self._turn
        return self._observe(), reward, is_last, False, self._info()

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, (240, 240, 3), seen from above, or None without a render mode.

        The disc at the end of an arm shows where to turn. It is red at the first step, the only one at which the agent
        sees the cue.
        """
        if self.render_mode is None:
            return None
        frame = np.full((FRAME_SIZE, FRAME_SIZE, 3), 255.0)
        frame[_CORRIDOR | _ARMS] = (222, 222, 222)
        cue_colour = (253, 191, 111) if self._num_steps else (227, 26, 28)
        paint_disc(frame, 1.0, (JUNCTION, -ARM * self._cue), CUE_RADIUS, cue_colour)
        place = START + (JUNCTION - START) * min(self._num_steps / self._length, 1.0)
        paint_disc(frame, 1.0, (place, -ARM * self._turn), AGENT_RADIUS, (31, 60, 120))
        picture: NDArray[np.uint8] = np.rint(frame).astype(np.uint8)
        return picture

    def _info(self) -> Info:
        return {"state": np.array([self._cue, self._num_steps / self._length], np.float32)}

    def _observe(self) -> Array:
        # Multiplying the cue by zero would leave its sign, as -0.0.
        return np.array([self._cue if self._num_steps == 0 else 0.0, self._num_steps == self._length], np.float32)


ENVIRONMENTS = tuple(
    Environment(
        name=f"corridor-{length}-v0",
        family="corridor",
        hidden="the cue, after the first step",
        entry_point="offpcc.envs.tasks.corridor:Corridor",
        max_episode_steps=length + 1,
        observation_shape=(2,),
        action_size=1,
        kwargs={"length": length},
    )
    for length in LENGTHS
)
