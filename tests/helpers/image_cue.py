"""`image-cue-v0`: a sign is seen in the first image only, and the reward at the end asks for it."""

import gymnasium
import numpy as np


class ImageCue(gymnasium.Env):
    """At the last step, the reward is the action times the sign of the first image.

    Without a memory the best mean return is 0; with one it is 1.
    """

    observation_space = gymnasium.spaces.Box(0, 255, (1, 40, 40), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    length = 5

    def _image(self):
        image = np.full((1, 40, 40), 128, np.uint8)
        if self.t == 0:
            image[:, :, :20] += np.uint8(100) if self.sign > 0 else np.uint8(156)  # 228 or 28
        image[:, :12] = 255 * (self.t == self.length - 1)
        return image

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.sign = 0, float(self.np_random.choice([-1.0, 1.0]))
        return self._image(), {}

    def step(self, action):
        last = self.t == self.length - 1
        reward = self.sign * float(np.clip(action[0], -1.0, 1.0)) if last else 0.0
        self.t += 1
        return self._image(), reward, last, False, {}


gymnasium.register("image-cue-v0", ImageCue)
