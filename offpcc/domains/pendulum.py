"""Pendulum: swing a rod up and hold it there, with a torque too weak to do it in one go."""

from __future__ import annotations

import os
import sys

from gymnasium.envs.classic_control.pendulum import PendulumEnv

__all__ = ["Pendulum"]


class Pendulum(PendulumEnv):
    """Gymnasium's Pendulum-v1, which draws ``rgb_array`` frames also where there is no screen.

    Observation, float32 (3,): cos θ, sin θ (θ = 0 is upright), angular velocity in [-8, 8] rad/s.
    Action, float32 (1,): torque in [-2, 2] N m, clipped to it.
    Reward: -(θ² + 0.1 θ̇² + 0.001 torque²). A step lasts 0.05 s; only a time limit ends an episode.

    Args:
        render_mode: None, "rgb_array" or "human".
        g: Acceleration of gravity, m/s².
    """

    def __init__(self, render_mode: str | None = None, g: float = 10.0) -> None:
        screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if render_mode == "rgb_array" and sys.platform == "linux" and not screen:
            # Pygame opens a video device even to draw in memory.
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        super().__init__(render_mode=render_mode, g=g)
