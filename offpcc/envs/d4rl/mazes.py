"""D4RL's Maze2D and AntMaze: their mazes, starts, goals and rewards."""

from typing import Any, ClassVar, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from offpcc.envs.aliases import Array, Info

LAYOUTS = {  # "#" is a wall, "G" the goal
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
}
LAYOUTS |= {f"antmaze-{size}": LAYOUTS[f"maze2d-{size}"] for size in ("medium", "large")}


class _Maze(gym.Wrapper[Array, Array, Any, Array], RecordConstructorArgs):
    """A body in a D4RL maze that must come within 0.5 of a goal. It shows the body's positions, then its velocities.

    The simulator of gymnasium-robotics has its origin in the middle of a maze, and its y axis points up. So it gets the
    walls in D4RL's orientation, and the position of D4RL's origin is subtracted from the observation.
    """

    REACHED: ClassVar = 0.5
    BODY: ClassVar[str]  # attribute of the simulator that holds the body

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
        """Return the simulator's map, with 1 for each wall and rows from the highest y to the lowest."""
        raise NotImplementedError

    @property
    def _origin(self) -> Array:
        """The position of D4RL's origin in the simulator."""
        raise NotImplementedError

    def _draw(self) -> tuple[Array, Array, Array]:
        """Draw an episode's goal, and the body's positions and velocities, in D4RL's coordinates."""
        raise NotImplementedError

    @property
    def _body(self) -> Any:
        return self.get_wrapper_attr(self.BODY)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; see `gymnasium.Env.reset`. `options` is ignored."""
        _, info = self.env.reset(seed=seed)
        self._goal, positions, velocities = self._draw()
        positions[:2] += self._origin
        self._body.set_state(positions, velocities)
        simulated: Any = self.unwrapped
        simulated.goal = self._goal + self._origin
        simulated.update_target_site_pos()
        return self._state(), {**info, "success": self._distance() <= self.REACHED}

    def step(self, action: Array) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Take an environment step; the reward belongs to the position after it."""
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
    """A ball of D4RL's Maze2D, with reward 1 near the goal, or exp(-distance) if dense. Episodes never terminate.

    x counts the rows of the maze, y its columns. D4RL's ball is 0.2 away from the middle of a cell when these numbers
    are whole. Episodes start in any free cell, and the goal is always the same.
    """

    BODY = "point_env"

    @staticmethod
    def walls(name: str) -> list[list[int]]:
        """See `_Maze.walls`. A row of D4RL's maze is a column of the simulator's."""
        walls: list[list[int]] = (_cells(name) == "#").astype(int).T[::-1].tolist()
        return walls

    @property
    def _origin(self) -> Array:
        return 0.2 - (np.array(self._cells.shape) - 1) / 2

    def _draw(self) -> tuple[Array, Array, Array]:
        draws = self.np_random
        cell = draws.choice(np.argwhere(self._cells != "#"))
        return self._goal_cell, cell + draws.uniform(-0.1, 0.1, 2), 0.1 * draws.standard_normal(2)


class AntMaze(_Maze):
    """D4RL's AntMaze: an ant starts at the origin and gets the reward 1, once, when it reaches the goal.

    Each episode draws its goal near the middle of the goal's cell, as in D4RL's -v2; -v0 and -v1 drew it only once. The
    ant's motors have a fifth of the strength of Gymnasium's, its time step is twice as long, and its contacts are
    softer.
    """

    BODY = "ant_env"
    CELL = 4.0  # side of a cell (m)

    @staticmethod
    def walls(name: str) -> list[list[int]]:
        """See `_Maze.walls`. The last row of D4RL's maze has the highest y."""
        walls: list[list[int]] = (_cells(name) == "#").astype(int)[::-1].tolist()
        return walls

    @property
    def _origin(self) -> Array:
        return self.CELL * (1 - (np.array(self._cells.shape[::-1]) - 1) / 2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; see `gymnasium.Env.reset`. `options` is ignored."""
        model = self._body.model  # at each reset, because unpickling the simulator makes a new model
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
    """Return the cells of a D4RL name's maze, (rows, columns)."""
    maze = next(layout for known, layout in LAYOUTS.items() if name.startswith(f"{known}-"))
    return np.array([list(row) for row in maze.split()])
