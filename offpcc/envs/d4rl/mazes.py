"""D4RL's Maze2D and AntMaze: their mazes, starts, goals and rewards."""

from __future__ import annotations

from typing import Any, ClassVar, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

__all__ = ["LAYOUTS", "AntMaze", "Maze2D"]

Array = NDArray[Any]
Info = dict[str, Any]
Stepped = tuple[Array, SupportsFloat, bool, bool, Info]

LAYOUTS = {  # of walls and a goal
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
        return float(np.linalg.norm(self._state()[:2] - self._goal))


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
    maze = next(layout for known, layout in LAYOUTS.items() if name.startswith(f"{known}-"))
    return np.array([list(row) for row in maze.split()])
