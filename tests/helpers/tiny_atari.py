"""`TinyBreakout-v0`: an environment with the spaces of an Atari game, frames of which the newest is at the end."""

import gymnasium
import numpy as np
from atari_shards import SIDE, frames
from gymnasium import spaces

ID = "TinyBreakout-v0"


class TinyBreakout(gymnasium.Env):
    """Episodes of 5 steps with stacks of 4 frames; action 1 gives 1, the others nothing."""

    def __init__(self, num_actions=4, num_frames=4):
        self.observation_space = spaces.Box(0, 255, (num_frames, SIDE, SIDE), np.uint8)
        self.action_space = spaces.Discrete(num_actions)
        self.seen, self.step_number, self.num_frames = frames(9), 0, num_frames

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self.seen[: self.num_frames].copy(), {}

    def step(self, action):
        self.step_number += 1
        seen = self.seen[self.step_number : self.step_number + self.num_frames].copy()
        return seen, float(action == 1), self.step_number == 5, False, {}


for _name, _number in ((ID, 4), ("TinyPong-v0", 6)):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=TinyBreakout, kwargs={"num_actions": _number})
