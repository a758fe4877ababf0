"""Makes the environments of D4RL's dataset names, and corrects the differences to their data."""

import contextlib
import importlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs

from offpcc.envs.aliases import Array, Info
from offpcc.envs.d4rl import catalog
from offpcc.envs.d4rl.mazes import AntMaze, Maze2D
from offpcc.envs.registration import require
from offpcc.envs.rendering import choose_opengl, require_opengl
from offpcc.envs.tasks.mujoco_locomotion import make_mujoco_simulator as gymnasiums_simulator
from offpcc.envs.tasks.pybullet_locomotion import BulletLocomotion
from offpcc.utils.errors import UserError
from offpcc.utils.paths import as_path

MAZES: Mapping[str, type[Maze2D | AntMaze]] = {"maze2d": Maze2D, "antmaze": AntMaze}


def make_d4rl_simulator(name: str, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make the simulator of a D4RL name's task, unchanged except for the walls of mazes."""
    require(catalog.package(name) or "mujoco", name)
    family, body = name.split("-")[:2]
    if family == "bullet":
        return BulletLocomotion(body, render_mode=render_mode, **kwargs)
    choose_opengl()  # before the packages import MuJoCo
    if catalog.package(name) == "gymnasium-robotics":
        # At import, the package prints that the rewards of its hands have changed. That does not apply here.
        with contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module("gymnasium_robotics")
    entry_point = str(gym.spec(str(catalog.task(name))).entry_point)
    if catalog.package(name) == "mujoco":
        return gymnasiums_simulator(entry_point.removeprefix("gymnasium.envs.mujoco."), render_mode, **kwargs)
    if render_mode is not None:
        require_opengl(name)
    creator: Any = load_env_creator(entry_point)
    if family in MAZES:
        kwargs["maze_map"] = MAZES[family].walls(name)
    env: gym.Env[Any, Any] = creator(render_mode=render_mode, **kwargs)
    if family in MAZES:
        Path(env.get_wrapper_attr("tmp_xml_file_path")).unlink()  # already read; the package does not delete it
    return env


class NoContactForces(gym.ObservationWrapper[Array, Any, Array], RecordConstructorArgs):
    """Ant as D4RL recorded it: the contact forces are zeros, because MuJoCo 2.0 did not compute them.

    So the reward has no cost of contacts, in the data and in Gymnasium's Ant-v4. The observation of Ant-v4 has no
    forces. (With ``use_contact_forces``, it would have forces that D4RL's data does not have.)
    """

    NUM_FORCES = 84  # 6 for each of 14 bodies

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.ObservationWrapper.__init__(self, env)
        (size,) = env.observation_space.shape or ()
        self.observation_space = Box(-np.inf, np.inf, (size + self.NUM_FORCES,), np.float64)

    def observation(self, observation: Array) -> Array:
        """Return the observation, followed by the zeros."""
        return np.concatenate([observation, np.zeros(self.NUM_FORCES)])


class AdroitHand(gym.Wrapper[Array, Array, Array, Array], RecordConstructorArgs):
    """A hand of Adroit with D4RL's rewards and ends of episodes.

    In gymnasium-robotics, an episode continues after the pen was dropped. Since its version 1.2.1, the rewards of the
    other three hands increase with the distance of the palm from the object, while D4RL's decrease.
    """

    keeps_observations = True  # so recorded episodes, which lack the simulator, are not played through it
    DROPPED = 0.075  # height of the pen (m)

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.Wrapper.__init__(self, env)
        self._hand = name.split("-")[0]

    def step(self, action: Array) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Take an environment step, which is 5 steps of the simulator."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._hand == "pen":
            terminated = terminated or bool(observation[26] < self.DROPPED)
        else:
            reward = _REWARDS[self._hand](observation, self.get_wrapper_attr("data"))
        return observation, reward, terminated, truncated, info


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
ADAPTERS: Mapping[str, Callable[[gym.Env[Any, Any], str], gym.Env[Any, Any]]] = {
    "ant": NoContactForces,
    **dict.fromkeys(("pen", "hammer", "door", "relocate"), AdroitHand),
    **MAZES,
}


def as_recorded(env: gym.Env[Any, Any], name: str) -> gym.Env[Any, Any]:
    """Correct the differences between a simulator and the data of a D4RL name; most simulators have none."""
    adapter = ADAPTERS.get(name.split("-")[0])
    return env if adapter is None else adapter(env, name)


# Function that reads a dataset by its name or from a file. `offpcc.data.datasets.load` sets it, because environments do
# not import data.
read_dataset: Callable[[str, Path | None], tuple[Path, dict[str, Array]]] | None = None


class RecordedTask(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A task together with the data that was recorded in it, with the methods and attributes of D4RL's environments.

    Args:
        env: the task.
        name: D4RL's name of the dataset.

    Attributes:
        dataset_url: address of the data at D4RL.
        ref_min_score: the return with D4RL's score 0.
        ref_max_score: the return with D4RL's score 1, which is reported as 100.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.Wrapper.__init__(self, env)
        references = catalog.reference_returns(name)
        if name not in catalog.FILES or references is None:
            raise UserError(f"{name} is not a D4RL dataset; give the name of one, such as hopper-medium-v2")
        self.dataset_name = name
        self.dataset_url = f"{catalog.ADDRESS}/{catalog.FILES[name]}"
        self.ref_min_score, self.ref_max_score = references

    def get_dataset(self, h5path: str | Path | None = None) -> dict[str, Array]:
        """Return the data as recorded: nothing is clipped, cut or converted (use `offpcc.data.load_dataset` for that).

        Args:
            h5path: a file. If None, the dataset's own file, which is found or downloaded as by
                `offpcc.data.load_dataset`.

        Returns:
            ``observations``, ``actions``, ``rewards`` and ``terminals``, and all else in the file, such as
            ``timeouts``, ``next_observations``, ``infos/qpos`` or ``metadata/algorithm``.
        """
        if read_dataset is None:
            raise UserError(f"offpcc.data is not imported; import it before you read {self.dataset_name}")
        path, arrays = read_dataset(self.dataset_name, None if h5path is None else as_path(h5path))
        for key, space in (("observations", self.observation_space), ("actions", self.action_space)):
            if arrays[key].shape[1:] != space.shape:
                raise UserError(
                    f"{path}: {key} have the shape {arrays[key].shape[1:]}, but {self.dataset_name} has {space.shape}; "
                    f"give the file of this dataset"
                )
        return arrays

    def get_normalized_score(self, return_: float) -> float:
        """Return D4RL's score of a return: 0 for its random policy, 1 for its expert. Reports show 100 times this."""
        return (return_ - self.ref_min_score) / (self.ref_max_score - self.ref_min_score)
