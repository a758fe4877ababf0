"""Makes the environments of D4RL's dataset names."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from offpcc.envs.d4rl import catalog
from offpcc.envs.d4rl.adroit import AdroitHand
from offpcc.envs.d4rl.locomotion import NoContactForces
from offpcc.envs.d4rl.mazes import AntMaze, Maze2D
from offpcc.envs.registration import require
from offpcc.envs.rendering import choose_opengl, require_opengl
from offpcc.envs.tasks.mujoco_locomotion import simulator as gymnasiums_simulator
from offpcc.envs.tasks.pybullet_locomotion import BulletLocomotion

__all__ = ["as_recorded", "simulator"]

GYMNASIUMS = {
    "halfcheetah": "half_cheetah_v4:HalfCheetahEnv",
    "hopper": "hopper_v4:HopperEnv",
    "walker2d": "walker2d_v4:Walker2dEnv",
    "ant": "ant_v4:AntEnv",
}
ROBOTICS = {
    "pen": "adroit_hand.adroit_pen:AdroitHandPenEnv",
    "hammer": "adroit_hand.adroit_hammer:AdroitHandHammerEnv",
    "door": "adroit_hand.adroit_door:AdroitHandDoorEnv",
    "relocate": "adroit_hand.adroit_relocate:AdroitHandRelocateEnv",
    "maze2d": "maze.point_maze:PointMazeEnv",
    "antmaze": "maze.ant_maze_v5:AntMazeEnv",
}
MAZES: Mapping[str, type[Maze2D | AntMaze]] = {"maze2d": Maze2D, "antmaze": AntMaze}
ADAPTERS: Mapping[str, Callable[[gym.Env[Any, Any], str], gym.Env[Any, Any]]] = {
    "ant": NoContactForces,
    **dict.fromkeys(("pen", "hammer", "door", "relocate"), AdroitHand),
    **MAZES,
}


def simulator(name: str, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make the simulator of a D4RL name's task, unchanged except for the walls of mazes.

    Args:
        name: of a dataset that has a task.
        render_mode: None, "rgb_array" or "human".
        kwargs: arguments of the simulator's class.

    Raises:
        gymnasium.error.DependencyNotInstalled: its package is not installed, or there is nothing to render with.
    """
    require(catalog.package(name) or "mujoco", name)
    family, body = name.split("-")[:2]
    if family == "bullet":
        return BulletLocomotion(body, render_mode=render_mode, **kwargs)
    if family in GYMNASIUMS:
        return gymnasiums_simulator(GYMNASIUMS[family], render_mode, **kwargs)
    choose_opengl()
    if render_mode is not None:
        require_opengl(name)
    # At import, the package prints that the rewards of its hands have changed. That does not apply here.
    with contextlib.redirect_stderr(io.StringIO()):
        creator: Any = load_env_creator(f"gymnasium_robotics.envs.{ROBOTICS[family]}")
    if family in MAZES:
        kwargs["maze_map"] = MAZES[family].walls(name)
    env: gym.Env[Any, Any] = creator(render_mode=render_mode, **kwargs)
    if family in MAZES:
        Path(env.get_wrapper_attr("tmp_xml_file_path")).unlink()  # already read; the package does not delete it
    return env


def as_recorded(env: gym.Env[Any, Any], name: str) -> gym.Env[Any, Any]:
    """Correct the differences between a simulator and the data of a D4RL name; most simulators have none."""
    adapter = ADAPTERS.get(name.split("-")[0])
    return env if adapter is None else adapter(env, name)
