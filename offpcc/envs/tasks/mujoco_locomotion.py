"""Hopper, Walker2d, HalfCheetah and Ant in MuJoCo, with full observations, or only positions or velocities.

The tasks are Gymnasium's, version 5 (Todorov et al. 2012; https://gymnasium.farama.org/environments/mujoco). Its
documentation describes the rewards and what counts as a fall. Ant has no contact forces in its observation.
"""

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from offpcc.envs.registration import FLOAT32, Environment, keep, require
from offpcc.envs.rendering import choose_opengl, require_opengl


def make_mujoco_simulator(entry_point: str, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one of Gymnasium's MuJoCo environments, able to render without a screen."""
    name = entry_point.split(":")[1]
    require("mujoco", name)
    choose_opengl()
    if render_mode is not None:
        require_opengl(name)
    import mujoco

    # Newer versions of MuJoCo warn about some of Gymnasium's models. They would also write the warning to a file in the
    # current folder.
    warn = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        creator: Any = load_env_creator(f"gymnasium.envs.mujoco.{entry_point}")
        env: gym.Env[Any, Any] = creator(render_mode=render_mode, **kwargs)
    finally:
        mujoco.set_mju_user_warning(warn)
    return env


def _rows(
    body: str, num_positions: int, num_velocities: int, action_size: int, **kwargs: Any
) -> tuple[Environment, ...]:
    """Return the rows of a body, whose observation starts with its positions and ends with its velocities."""
    size = num_positions + num_velocities
    full = Environment(
        name=f"{body}-mujoco-v0",
        family=f"{body}-mujoco",
        hidden="nothing",
        entry_point="offpcc.envs.tasks.mujoco_locomotion:make_mujoco_simulator",
        max_episode_steps=1000,
        observation_shape=(size,),
        action_size=action_size,
        kwargs=kwargs,
        wrappers=(FLOAT32,),
        package="mujoco",
    )
    return (
        full,
        full.variant("-p", "velocities", (num_positions,), keep(*range(num_positions))),
        full.variant("-v", "positions", (num_velocities,), keep(*range(num_positions, size))),
    )


ENVIRONMENTS = (
    *_rows("hopper", 5, 6, 3, entry_point="hopper_v5:HopperEnv"),
    *_rows("walker2d", 8, 9, 6, entry_point="walker2d_v5:Walker2dEnv"),
    *_rows("halfcheetah", 8, 9, 6, entry_point="half_cheetah_v5:HalfCheetahEnv"),
    *_rows("ant", 13, 14, 8, entry_point="ant_v5:AntEnv", include_cfrc_ext_in_observation=False),
)
