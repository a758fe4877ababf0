"""D4RL's names as environments: ``gymnasium.make("hopper-medium-v2")``, once `offpcc.domains` is imported.

Each is the task that its data was recorded in, and gives that data (see `RecordedTask`). Where today's simulators
differ from D4RL's, the difference is mended here, so that observations, actions and rewards are those of the data:

* Hopper, HalfCheetah and Walker2d are Gymnasium's -v4 as they are; the bullet bodies those of `offpcc.domains`.
* Ant is Gymnasium's -v4 of 27 numbers, followed by 84 zeros (see `NoContactForces`).
* Adroit's hands are those of gymnasium-robotics, with D4RL's rewards and ends (see `AdroitHand`).
* Maze2D and AntMaze are those of gymnasium-robotics in D4RL's mazes and coordinates, with D4RL's starts, goals and
  rewards, and AntMaze's body with D4RL's motors (see `Maze2D` and `AntMaze`).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from offpcc import d4rl_names
from offpcc.data.d4rl import obtain, raw_arrays
from offpcc.domains.bullet_locomotion import BulletLocomotion
from offpcc.domains.mujoco_locomotion import simulator as gymnasiums_simulator
from offpcc.domains.opengl import choose_opengl, require_opengl
from offpcc.domains.table import require
from offpcc.errors import UserError

__all__ = ["AdroitHand", "AntMaze", "Maze2D", "NoContactForces", "RecordedTask", "as_recorded", "simulator"]

Array = NDArray[Any]
Info = dict[str, Any]
Stepped = tuple[Array, SupportsFloat, bool, bool, Info]

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
MAZES = {  # of walls and a goal
    "maze2d-open": "####### #.....# #..G..# #.....# #######",
    "maze2d-umaze": "##### #G..# ###.# #...# #####",
    "maze2d-eval-umaze": "##### #..G# #.### #...# #####",
    "maze2d-medium": "######## #..##..# #..#...# ##...### #..#...# #.#..#.# #...#.G# ########",
    "maze2d-eval-medium": "######## #.....G# #.#.##.# #....#.# ###..### #......# #..##..# ########",
    "maze2d-large": (
        "############ #....#.....# #.##.#.#.#.# #......#...# #.####.###.# #..#.#.....# ##.#.#.#.### "
        "#..#...#.G.# ############"
    ),
    "maze2d-eval-large": (
        "############ #..#...#.G.# ##.###.#.#.# #..#.#.....# #.##.#..##.# #......#...# #.##.#.#.### "
        "#....#.....# ############"
    ),
    "antmaze-umaze": "##### #...# ###.# #G..# #####",
    "antmaze-medium": "######## #..##..# #..#...# ##...### #..#...# #.#..#.# #...#.G# ########",
    "antmaze-large": (
        "############ #....#.....# #.##.#.#.#.# #......#...# #.####.###.# #..#.#.....# ##.#.#.#.### "
        "#..#...#.G.# ############"
    ),
}


def simulator(name: str, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """Makes the simulator of a D4RL name's task, as its package has it but for the walls of mazes.

    Args:
        name: of a data set that has a task.
        render_mode: None, "rgb_array" or "human".
        kwargs: arguments of the simulator's class.

    Raises:
        gymnasium.error.DependencyNotInstalled: its package is not installed, or there is nothing to render with.
    """
    require(d4rl_names.package(name) or "mujoco", name)
    family, body = name.split("-")[:2]
    if family == "bullet":
        return BulletLocomotion(body, render_mode=render_mode, **kwargs)
    if family in GYMNASIUMS:
        return gymnasiums_simulator(GYMNASIUMS[family], render_mode, **kwargs)
    choose_opengl()
    if render_mode is not None:
        require_opengl(name)
    # At its import the package tells that rewards of its hands have changed, which does not hold here.
    with contextlib.redirect_stderr(io.StringIO()):
        creator: Any = load_env_creator(f"gymnasium_robotics.envs.{ROBOTICS[family]}")
    mazes: Any = _ADAPTERS[family]
    if not issubclass(mazes, _Maze):
        hand: gym.Env[Any, Any] = creator(render_mode=render_mode, **kwargs)
        return hand
    maze: gym.Env[Any, Any] = creator(maze_map=mazes.walls(name), render_mode=render_mode, **kwargs)
    Path(maze.get_wrapper_attr("tmp_xml_file_path")).unlink()  # it is read, and would be left behind
    return maze


def as_recorded(env: gym.Env[Any, Any], name: str) -> gym.Env[Any, Any]:
    """Mends what a simulator has otherwise than the data of a D4RL name; most need nothing."""
    adapter = _ADAPTERS.get(name.split("-")[0])
    return env if adapter is None else adapter(env, name)


class RecordedTask(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A task beside the data that was recorded in it, with the methods and attributes of D4RL's environments.

    Args:
        env: the task.
        name: D4RL's, of the data set.

    Attributes:
        dataset_url: where D4RL has the data.
        ref_min_score: the return to which D4RL gives the score 0.
        ref_max_score: the return to which it gives the score 1 (100 where scores are told).

    Raises:
        UserError: D4RL has no data set of this name.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.Wrapper.__init__(self, env)
        references = d4rl_names.reference_returns(name)
        if name not in d4rl_names.FILES or references is None:
            raise UserError(f"{name} is no data set of D4RL's; give the name of one, such as hopper-medium-v2")
        self.dataset_name = name
        self.dataset_url = f"{d4rl_names.ADDRESS}/{d4rl_names.FILES[name]}"
        self.ref_min_score, self.ref_max_score = references

    def get_dataset(self, h5path: str | Path | None = None) -> dict[str, Array]:
        """The data as it was recorded: nothing is clipped, cut or converted (see `offpcc.data.load` for that).

        Args:
            h5path: a file; the data set's own if None, which is looked for and fetched as by `offpcc.data.load`.

        Returns:
            ``observations``, ``actions``, ``rewards`` and ``terminals``, and all else that the file has, such as
            ``timeouts``, ``next_observations``, ``infos/qpos`` or ``metadata/algorithm``.

        Raises:
            UserError: the data is not to be had, not whole, or not of this environment's sizes.
        """
        path = obtain(self.dataset_name) if h5path is None else Path(h5path).expanduser()
        arrays = raw_arrays(path)
        for key, space in (("observations", self.observation_space), ("actions", self.action_space)):
            if arrays[key].shape[1:] != space.shape:
                raise UserError(
                    f"{path}: {key} of shape {arrays[key].shape[1:]}, but {self.dataset_name} has {space.shape}; is it "
                    f"the file of another data set?"
                )
        return arrays

    def get_normalized_score(self, return_: float) -> float:
        """D4RL's score of a return: 0 for its random policy, 1 for its expert (scores are told as 100 times this)."""
        return (return_ - self.ref_min_score) / (self.ref_max_score - self.ref_min_score)


class NoContactForces(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Ant as MuJoCo 2.0 showed it to D4RL: zeros in the place of the contact forces, which it did not compute.

    So the reward has no cost of contacts either, neither in the data nor in Gymnasium's Ant-v4, whose observation
    ends before them. (With ``use_contact_forces`` it would show forces that D4RL's data has never seen.)

    Args:
        env: Gymnasium's Ant-v4.
        name: D4RL's, of the data set.
    """

    NUM_FORCES = 84  # 6 for each of 14 bodies

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.ObservationWrapper.__init__(self, env)
        (size,) = env.observation_space.shape or ()
        self.observation_space = Box(-np.inf, np.inf, (size + self.NUM_FORCES,), np.float64)

    def observation(self, observation: Array) -> Array:
        """Returns the observation, and the zeros."""
        return np.concatenate([observation, np.zeros(self.NUM_FORCES)])


class AdroitHand(gym.Wrapper[Array, Array, Array, Array], RecordConstructorArgs):
    """A hand of Adroit with D4RL's rewards and ends.

    In gymnasium-robotics a pen that was dropped goes on; and since its version 1.2.1 the rewards of the other three
    grow with the distance of the palm from the thing, by which D4RL's fall.

    Args:
        env: gymnasium-robotics's.
        name: D4RL's, of the data set; its first word is the task.
    """

    DROPPED = 0.075  # height of the pen (m)

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.Wrapper.__init__(self, env)
        self._hand = name.split("-")[0]

    def step(self, action: Array) -> Stepped:
        """Takes a step of 5 of the simulator's."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._hand == "pen":
            return observation, reward, terminated or bool(observation[26] < self.DROPPED), truncated, info
        return (
            observation,
            _REWARDS[self._hand](observation, self.get_wrapper_attr("data")),
            terminated,
            truncated,
            info,
        )


def _size(vector: Array) -> float:
    return float(np.linalg.norm(vector))


def _hammer(observation: Array, data: Any) -> float:
    palm, hammer, nail = observation[33:36], observation[36:39], observation[42:45]
    head, board = data.site("tool").xpos, data.site("nail_goal").xpos
    left = _size(nail - board)
    cost = 0.1 * _size(palm - hammer) + _size(head - nail) + 10.0 * left + 0.01 * _size(data.qvel)
    is_lifted = hammer[2] > 0.04 and head[2] > 0.04
    return float(2.0 * is_lifted + 25.0 * (left < 0.02) + 75.0 * (left < 0.01) - cost)


def _door(observation: Array, data: Any) -> float:
    angle, palm_to_handle = float(observation[28]), observation[35:38]
    cost = 0.1 * _size(palm_to_handle) + 0.1 * (angle - 1.57) ** 2 + 1e-5 * _size(data.qvel) ** 2
    return 2.0 * (angle > 0.2) + 8.0 * (angle > 1.0) + 10.0 * (angle > 1.35) - cost


def _relocate(observation: Array, data: Any) -> float:
    palm_to_ball, palm_to_goal, ball_to_goal = (_size(part) for part in np.split(observation[30:], 3))
    is_lifted = data.body("Object").xpos[2] > 0.04
    reward = is_lifted * (1.0 - 0.5 * palm_to_goal - 0.5 * ball_to_goal) - 0.1 * palm_to_ball
    return float(reward + 10.0 * (ball_to_goal < 0.1) + 20.0 * (ball_to_goal < 0.05))


_REWARDS: Mapping[str, Callable[[Array, Any], float]] = {"hammer": _hammer, "door": _door, "relocate": _relocate}


class _Maze(gym.Wrapper[Array, Array, Any, Array], RecordConstructorArgs):
    """A body in a maze of D4RL's that is to come within 0.5 of a goal: its positions, and then its velocities.

    The simulator of gymnasium-robotics has its origin in a maze's middle and its y axis upwards, so it is given the
    walls as they lie in D4RL's coordinates, and the origin of these is subtracted from what it tells.
    """

    REACHED: ClassVar = 0.5

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.Wrapper.__init__(self, env)
        self._cells = _cells(name)
        self._goal_cell = np.argwhere(self._cells == "G")[0].astype(np.float64)
        self._goal = np.zeros(2)
        self._is_dense = "-dense-" in name
        self.observation_space = Box(-np.inf, np.inf, self._state().shape, np.float64)

    @staticmethod
    def walls(name: str) -> list[list[int]]:
        """1 for each wall of the simulator's map, rows from the highest y to the lowest."""
        raise NotImplementedError

    @property
    def _origin(self) -> Array:
        """The place of D4RL's origin in the simulator."""
        raise NotImplementedError

    def _draw(self) -> tuple[Array, Array, Array]:
        """An episode's goal, and the body's positions and velocities, in D4RL's coordinates."""
        raise NotImplementedError

    @property
    def _body(self) -> Any:
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Starts an episode; see `gymnasium.Env.reset`. There are no options."""
        _, info = self.env.reset(seed=seed)
        self._goal, positions, velocities = self._draw()
        positions[:2] += self._origin
        self._body.set_state(positions, velocities)
        simulated: Any = self.unwrapped
        simulated.goal = self._goal + self._origin
        simulated.update_target_site_pos()
        return self._state(), {**info, "success": self._distance() <= self.REACHED}

    def step(self, action: Array) -> Stepped:
        """Takes a step; the reward tells of the place where it ends."""
        _, _, _, truncated, info = self.env.step(action)
        distance = self._distance()
        is_reached = distance <= self.REACHED
        reward = float(np.exp(-distance)) if self._is_dense else float(is_reached)
        return self._state(), reward, self._ends(is_reached), truncated, {**info, "success": is_reached}

    def _ends(self, is_reached: bool) -> bool:
        return False

    def _state(self) -> Array:
        state = np.concatenate([self._body.data.qpos, self._body.data.qvel])
        state[:2] -= self._origin
        return state

    def _distance(self) -> float:
        return _size(self._state()[:2] - self._goal)


class Maze2D(_Maze):
    """A ball of D4RL's Maze2D, whose reward is 1 near the goal, or exp(-distance) if it is dense; it never ends.

    x counts the rows of the maze, y its columns; D4RL's ball is 0.2 away from where these numbers would be the middle
    of a cell. Episodes start in any free cell, and the goal is always the same.

    Args:
        env: gymnasium-robotics's PointMaze, with the walls of this class.
        name: D4RL's, of the data set.
    """

    @staticmethod
    def walls(name: str) -> list[list[int]]:
        """See `_Maze`: a row of D4RL's maze is a column of the simulator's."""
        walls: list[list[int]] = (_cells(name) == "#").astype(int).T[::-1].tolist()
        return walls

    @property
    def _origin(self) -> Array:
        return 0.2 - (np.array(self._cells.shape) - 1) / 2

    @property
    def _body(self) -> Any:
        return self.get_wrapper_attr("point_env")

    def _draw(self) -> tuple[Array, Array, Array]:
        draws = self.np_random
        cell = draws.choice(np.argwhere(self._cells != "#"))
        return self._goal_cell, cell + draws.uniform(-0.1, 0.1, 2), 0.1 * draws.standard_normal(2)


class AntMaze(_Maze):
    """D4RL's AntMaze: an ant that starts at the origin and is rewarded with 1, once, when it reaches the goal.

    The goal of each episode is drawn near the middle of its cell, as in D4RL's -v2; in -v0 and -v1 it was drawn once.
    The ant's motors are a fifth as strong as Gymnasium's, its time step twice as long, and its contacts softer.

    Args:
        env: gymnasium-robotics's AntMaze, with the walls of this class.
        name: D4RL's, of the data set.
    """

    CELL = 4.0  # its side (m)

    @staticmethod
    def walls(name: str) -> list[list[int]]:
        """See `_Maze`: the last row of D4RL's maze has the highest y."""
        walls: list[list[int]] = (_cells(name) == "#").astype(int)[::-1].tolist()
        return walls

    @property
    def _origin(self) -> Array:
        return self.CELL * (1 - (np.array(self._cells.shape[::-1]) - 1) / 2)

    @property
    def _body(self) -> Any:
        return self.get_wrapper_attr("ant_env")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Starts an episode; see `gymnasium.Env.reset`. There are no options."""
        model = self._body.model  # made anew where the simulator was pickled
        model.actuator_gear[:, 0] = 30.0
        model.opt.timestep = 0.02
        model.geom_solref[:] = (0.02, 1.0)
        model.geom_solimp[:, :3] = (0.8, 0.8, 0.01)
        return super().reset(seed=seed, options=options)

    def _draw(self) -> tuple[Array, Array, Array]:
        draws = self.np_random
        goal = self.CELL * (self._goal_cell[::-1] - 1) + draws.uniform(0, 1, 2) + draws.uniform(0, 0.5, 2)
        positions = self._body.init_qpos.copy()
        positions[:2] = 0.0
        velocities = 0.1 * draws.standard_normal(self._body.model.nv)
        return goal, positions + draws.uniform(-0.1, 0.1, len(positions)), velocities

    def _ends(self, is_reached: bool) -> bool:
        return is_reached


def _cells(name: str) -> NDArray[np.str_]:
    """The cells of a D4RL name's maze, (rows, columns)."""
    maze = next(layout for known, layout in MAZES.items() if name.startswith(f"{known}-"))
    return np.array([list(row) for row in maze.split()])


_ADAPTERS: Mapping[str, Callable[[gym.Env[Any, Any], str], gym.Env[Any, Any]]] = {
    "ant": NoContactForces,
    "pen": AdroitHand,
    "hammer": AdroitHand,
    "door": AdroitHand,
    "relocate": AdroitHand,
    "maze2d": Maze2D,
    "antmaze": AntMaze,
}
