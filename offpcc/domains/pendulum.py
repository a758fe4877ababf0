"""Pendulum: swing a rod up and hold it there, with a torque too weak to do it in one go."""

from __future__ import annotations

import os

from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.envs.registration import WrapperSpec

from offpcc.domains.screen import has_screen
from offpcc.domains.table import PREVIOUS_ACTION, Environment, concatenate, keep

__all__ = ["ENVIRONMENTS", "Pendulum"]

IMAGE = WrapperSpec("PendulumImage", "offpcc.domains.pendulum_image:PendulumImage", {})


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
        if render_mode == "rgb_array" and not has_screen():
            # Pygame opens a video device even to draw in memory.
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        super().__init__(render_mode=render_mode, g=g)


def _rows() -> tuple[Environment, ...]:
    def row(suffix: str, hidden: str, shape: tuple[int, ...], *wrappers: WrapperSpec) -> Environment:
        return Environment(
            name=f"pendulum{suffix}-v0",
            family="pendulum",
            hidden=hidden,
            entry_point="offpcc.domains.pendulum:Pendulum",
            max_episode_steps=200,
            observation_shape=shape,
            action_size=1,
            wrappers=wrappers,
        )

    p, v, a = keep(0, 1), keep(2), PREVIOUS_ACTION
    return (
        row("", "nothing", (3,)),
        row("-p", "angular velocity", (2,), p),
        row("-v", "angle", (1,), v),
        row("-va", "angle", (2,), v, a),
        row("-p-concat5", "angular velocity; last 5 angles shown", (10,), p, concatenate(5)),
        row("-v-concat10", "angle; last 10 velocities shown", (10,), v, concatenate(10)),
        row("-va-concat10", "angle; last 10 velocities and torques shown", (20,), v, a, concatenate(10)),
        row("-img", "angular velocity; angle shown as an image", (1, 40, 40), IMAGE),
    )


ENVIRONMENTS = _rows()
