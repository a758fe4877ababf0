"""`RecordedTask`: an environment with D4RL's `get_dataset` and `get_normalized_score`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from offpcc.envs.d4rl import catalog
from offpcc.utils.errors import UserError
from offpcc.utils.paths import as_path

__all__ = ["RecordedTask"]

Array = NDArray[Any]
ReadDataset = Callable[[str, "Path | None"], "tuple[Path, dict[str, Array]]"]

# Reads a data set, by its name or from a file. `offpcc.data.datasets.load` sets it: environments do not import data.
read_dataset: ReadDataset | None = None


def set_dataset_reader(reader: ReadDataset) -> None:
    """Set what `RecordedTask.get_dataset` reads data sets with."""
    global read_dataset
    read_dataset = reader


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
        references = catalog.reference_returns(name)
        if name not in catalog.FILES or references is None:
            raise UserError(f"{name} is no data set of D4RL's; give the name of one, such as hopper-medium-v2")
        self.dataset_name = name
        self.dataset_url = f"{catalog.ADDRESS}/{catalog.FILES[name]}"
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
        """D4RL's score of a return: 0 for its random policy, 1 for its expert (scores are told as 100 times this)."""
        return (return_ - self.ref_min_score) / (self.ref_max_score - self.ref_min_score)
