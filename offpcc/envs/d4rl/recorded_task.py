"""`RecordedTask`: an environment with D4RL's `get_dataset` and `get_normalized_score`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from offpcc.envs.d4rl import catalog
from offpcc.envs.wrappers.base import Array
from offpcc.utils.errors import UserError
from offpcc.utils.paths import as_path

ReadDataset = Callable[[str, "Path | None"], "tuple[Path, dict[str, Array]]"]

# Function that reads a dataset by its name or from a file. `offpcc.data.datasets.load` sets it, because environments do
# not import data.
read_dataset: ReadDataset | None = None


def set_dataset_reader(reader: ReadDataset) -> None:
    """Set the function with which `RecordedTask.get_dataset` reads datasets."""
    global read_dataset
    read_dataset = reader


class RecordedTask(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A task together with the data that was recorded in it, with the methods and attributes of D4RL's environments.

    Args:
        env: the task.
        name: D4RL's name of the dataset.

    Attributes:
        dataset_url: address of the data at D4RL.
        ref_min_score: the return with D4RL's score 0.
        ref_max_score: the return with D4RL's score 1, which is reported as 100.

    Raises:
        UserError: D4RL has no dataset of this name.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        RecordConstructorArgs.__init__(self, name=name)
        gym.Wrapper.__init__(self, env)
        references = catalog.reference_returns(name)
        if name not in catalog.FILES or references is None:
            raise UserError(f"{name} is no data set of D4RL's; give the name of one, such as hopper-medium-v2")
        self.dataset_name = name
        self.dataset_url = f"{catalog.ADDRESS}/{catalog.FILES[name]}"
        self.ref_min_score, self.ref_max_score = references

    def get_dataset(self, h5path: str | Path | None = None) -> dict[str, Array]:
        """Return the data as recorded: nothing is clipped, cut or converted (use `offpcc.data.load` for that).

        Args:
            h5path: a file. If None, the dataset's own file, which is found or downloaded as by `offpcc.data.load`.

        Returns:
            ``observations``, ``actions``, ``rewards`` and ``terminals``, and all else in the file, such as
            ``timeouts``, ``next_observations``, ``infos/qpos`` or ``metadata/algorithm``.

        Raises:
            UserError: the data is unavailable or incomplete, or its shapes do not match this environment.
        """
        if read_dataset is None:
            raise UserError(f"no reader of data sets is set; import offpcc.data before you read {self.dataset_name}")
        path, arrays = read_dataset(self.dataset_name, None if h5path is None else as_path(h5path))
        for key, space in (("observations", self.observation_space), ("actions", self.action_space)):
            if arrays[key].shape[1:] != space.shape:
                raise UserError(
                    f"{path}: {key} of shape {arrays[key].shape[1:]}, but {self.dataset_name} has {space.shape}; is it "
                    f"the file of another data set?"
                )
        return arrays

    def get_normalized_score(self, return_: float) -> float:
        """Return D4RL's score of a return: 0 for its random policy, 1 for its expert. Reports show 100 times this."""
        return (return_ - self.ref_min_score) / (self.ref_max_score - self.ref_min_score)
