"""MinAtar (Young & Tian 2019, arXiv:1903.03176): five games of Atari on a grid of 10 x 10."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete

from offpcc.envs.aliases import Array, Info
from offpcc.envs.registration import require

ENTRY_POINT, THEIR_ENTRY_POINT = "offpcc.envs.tasks.minatar:MinAtar", "minatar.gym:BaseEnv"
LONGEST_GAME = 10_000  # steps; MinAtar has no limit, and an agent that never loses would play forever
PIXELS = 16  # width of a cell in pictures
MAX_SEED = 2**32


class MinAtar(gym.Env[Array, Any]):
    """A game of the package minatar.

    Observation, uint8 (channels, 10, 10): a channel for each kind of object, 255 where there is one, 0 elsewhere.
    Action: an index of the actions that the game has. Reward: that of the game.

    Differs from `minatar.gym.BaseEnv`: observations are images of bytes with channels first instead of booleans with
    channels last. Each episode draws from `np_random` and begins without an action to repeat. So a resumed run can
    repeat it.

    Args:
        game: The name of the game, such as "space_invaders".
        use_minimal_action_set: Whether to leave out actions without an effect; else each game has 6.
        sticky_action_prob: Probability that a step repeats the action of the step before it.
        difficulty_ramping: Whether the game becomes harder with time, if it can.
        render_mode: None or "rgb_array".
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(
        self,
        game: str,
        *,
        use_minimal_action_set: bool = True,
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
        render_mode: str | None = None,
    ) -> None:
        require("minatar", f"MinAtar's {game}")
        import minatar

        self._game = minatar.Environment(game, sticky_action_prob, difficulty_ramping)
        height, width, num_channels = self._game.state_shape()
        self._actions = list(self._game.minimal_action_set()) if use_minimal_action_set else [*range(6)]
        self.observation_space = Box(0, 255, (num_channels, height, width), np.uint8)
        self.action_space = Discrete(len(self._actions))
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start a game; see `gymnasium.Env.reset`. `options` is ignored."""
        super().reset(seed=seed)
        self._game.seed(int(self.np_random.integers(MAX_SEED)))
        self._game.last_action = 0
        self._game.reset()
        return self._observe(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, Info]:
        """Take an action, or with `sticky_action_prob` the last one."""
        reward, is_over = self._game.act(self._actions[action])
        return self._observe(), float(reward), bool(is_over), False, {}

    def render(self) -> Array | None:
        """Return a picture (160, 160, 3) with a colour for each kind of object, or None without a render mode."""
        if self.render_mode is None:
            return None
        import matplotlib

        kinds = len(self._observe())
        colours = matplotlib.colormaps["cubehelix"](np.linspace(0.0, 0.9, kinds + 1))[:, :3]
        shown = np.max(self._game.state() * np.arange(1, kinds + 1), -1)  # a later kind hides an earlier one
        picture: Array = (255.0 * colours[shown]).astype(np.uint8)
        return picture.repeat(PIXELS, 0).repeat(PIXELS, 1)

    def _observe(self) -> Array:
        planes: Array = np.moveaxis(self._game.state(), -1, 0).astype(np.uint8)
        return planes * np.uint8(255)


def own_spec(spec: EnvSpec) -> EnvSpec:
    """Return the spec of a game as `MinAtar` instead of the package's own class, with a time limit."""
    made = copy.copy(spec)
    made.entry_point, made.max_episode_steps = ENTRY_POINT, spec.max_episode_steps or LONGEST_GAME
    return made
