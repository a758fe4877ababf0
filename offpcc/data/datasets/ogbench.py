"""Reading of OGBench's datasets."""

import contextlib
import sys
import urllib.error
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np

from offpcc.data.datasets.columns import as_column
from offpcc.data.datasets.dataset import Dataset, DatasetInfo
from offpcc.data.datasets.download import folders
from offpcc.data.datasets.files import DAMAGE
from offpcc.data.datasets.notices import Notice
from offpcc.envs.rendering import choose_opengl
from offpcc.envs.wrappers import bounds_of
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.paths import shown

SINGLE = "singletask"  # in the names of OGBench's tasks with rewards
TASK = "reward_task_id"  # the number of the task in the metadata, also of a default task
FOLDER = "~/.ogbench/data"  # of OGBench's package
GOES_ON = (
    "an episode of OGBench goes on after the task is solved; each solved step ends an episode here, so that nothing is "
    "learned from the value of the next"
)


def read_ogbench(name: str) -> Dataset:
    """Read a dataset of OGBench for one task, such as "antmaze-large-navigate-singletask-v0" (arXiv:2410.20092).

    OGBench's package downloads the files if they are in no folder of `download.folders` and not in ``~/.ogbench/data``,
    and computes the rewards. The environment is the same name without the kind of data.

    Raises:
        UserError: the package is missing, the name has no rewards, or the data cannot be downloaded or read.
    """
    label, words = f"ogbench:{shown(name)}", name.split("-")
    if SINGLE not in words[2:]:
        raise UserError(
            f"{label} has no rewards: OGBench's datasets for many goals have none; name one task, as in "
            f"ogbench:antmaze-large-navigate-singletask-v0, or ...-singletask-task2-v0 for another than the default"
        )
    choose_opengl()  # before the package imports MuJoCo, which draws the images of a visual task
    try:
        import ogbench
    except ImportError as error:
        raise UserError(f"{label} needs the OGBench package ({error}); run `pip install ogbench`") from None
    place = words.index(SINGLE)
    file = "-".join([*words[:place], words[-1]])
    folder = next((folder for folder in folders() if (folder / f"{file}.npz").is_file()), FOLDER)
    played_in = "-".join([*words[: place - 1], *words[place:]])
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it prints what it downloads, which is no output of a command
            env, columns, _ = ogbench.make_env_and_datasets(name, dataset_dir=str(folder))
        action_range, task = bounds_of(env.action_space), env.unwrapped._reward_task_id
        env.close()
    except gymnasium.error.Error as error:
        if name in gymnasium.registry:
            kinds = "-".join([*words[:place], "KIND", *words[place:]])
            raise UserError(
                f"{label} is an environment; name its data ogbench:{kinds}, with a kind such as navigate or play"
            ) from None
        raise UserError(f"{label}: OGBench has no task {played_in} ({first_line(error)})") from None
    except urllib.error.URLError as error:
        raise UserError(
            f"{label} could not be downloaded ({first_line(error)}); get {file}.npz and {file}-val.npz elsewhere, and "
            f"put both into {FOLDER} or into the folder that OFFPCC_DATASETS names"
        ) from None
    except DAMAGE as error:
        raise UserError(f"{label} cannot be read from {folder} ({first_line(error)}); remove its files there") from None
    given = {
        "observations": columns["observations"],
        "actions": columns["actions"],
        "rewards": columns["rewards"],
        "terminations": columns["masks"] == 0,
        "truncations": np.logical_and(columns["terminals"] == 1, columns["masks"] == 1),
        "next_observations": columns["next_observations"],
    }
    source, metadata = str(Path(folder).expanduser() / f"{file}.npz"), {"env": f"ogbench:{played_in}", TASK: task}
    info = DatasetInfo(label, source, action_range=action_range, metadata=metadata)
    data = Dataset.from_columns({key: as_column(value, key) for key, value in given.items()}, info, are_episodes=True)
    begins = np.concatenate([[True], columns["terminals"][data.stops[:-1] - 1] == 1])  # others: after a solved step
    return replace(data, is_whole=data.is_whole & begins, notices=(*data.notices, Notice("remark", GOES_ON)))
