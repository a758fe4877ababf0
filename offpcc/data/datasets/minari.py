"""Reading of Minari datasets."""

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces

from offpcc.core import entries_of
from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.files import DAMAGE, check_declared, names_in, own_item
from offpcc.data.datasets.metadata import num_whole_episodes
from offpcc.data.datasets.notices import Notice
from offpcc.envs.wrappers import bounds_of
from offpcc.utils.errors import UserError
from offpcc.utils.paths import shown
from offpcc.utils.system import available_bytes

ROOT = "MINARI_DATASETS_PATH"  # the environment variable with the folder of Minari's datasets
MOST_LETTERS = 200  # of an id; file systems allow 255 in a folder's name


def check_id(name: str, option: str) -> None:
    """Check that a name is a valid Minari id. A valid id never leads out of Minari's folder."""
    try:
        import minari.dataset.minari_dataset

        minari.dataset.minari_dataset.parse_dataset_id(name)
        is_id = len(name) <= MOST_LETTERS and ".." not in Path(name).parts and not Path(name).is_absolute()
    except ImportError as error:
        raise UserError(f"{option}{shown(name)} needs the Minari package ({error}); run `pip install minari`") from None
    except (TypeError, ValueError):
        is_id = False
    if not is_id:
        raise UserError(
            f"{option}{shown(name)} is not an id of a Minari dataset; an id has a name and a version, after optional "
            f"namespaces (of two letters or more), such as {option}D4RL/door/human-v2"
        )


def datasets_folder() -> Path:
    """Return the folder of all Minari datasets."""
    return Path(os.environ.get(ROOT) or Path.home() / ".minari" / "datasets")


READING = (AssertionError, AttributeError, *DAMAGE)  # exceptions that Minari raises for incomplete files
FILE = "main_data.hdf5"  # holds the steps of a dataset, unless it uses another format
RECORDED_BY = "recorded by offpcc"  # in the description of our own datasets
NUM_RECORDED = "recorded_episodes"  # in our metadata, which Minari copies into parts of a dataset, too
COPIES = 3  # of the data that are in memory while episodes are joined: episodes, observations, next observations
AGAIN = "fetch it again, or update Minari"
GOES_ON = "an episode goes on after the goal is reached (Minari issue 296), so rewards of 1 occur many times"


def read_minari(name: str) -> Dataset:
    """Read a local Minari dataset.

    Dict observations of vectors alone, as in the maze tasks, are concatenated in the order of the space, like in
    ``gymnasium.wrappers.FlattenObservation``. Those with images or choices, and those that offpcc recorded, are packed,
    see `PackedDict`. The action range is that of the action space, if it is bounded.
    """
    check_id(name, "minari:")
    import minari

    if not datasets_folder().is_dir():  # Minari would create it
        raise UserError(_not_here(name, []))
    try:
        recorded = minari.load_dataset(name)
    except FileNotFoundError:
        raise UserError(_not_here(name, list(minari.list_local_datasets()))) from None
    except (*READING, ImportError) as error:
        raise UserError(f"minari:{name} cannot be read ({error}); {AGAIN}") from None
    label = f"minari:{name}"
    observation_space, action_space = recorded.observation_space, recorded.action_space
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        raise UserError(
            f"{label}: its actions are {action_space}, but agents need a Box of numbers or a Discrete space"
        )
    is_own = RECORDED_BY in str(recorded.storage.metadata.get("description", ""))
    packs = isinstance(observation_space, spaces.Dict) and (is_own or not _is_vector(observation_space))
    is_discrete = isinstance(action_space, spaces.Discrete)
    bounded = isinstance(action_space, spaces.Discrete) or action_space.is_bounded()
    episodes = (
        {
            "observations": episode.observations if packs else _joined(episode.observations, observation_space, label),
            "actions": np.asarray(episode.actions).reshape(len(episode.rewards), -1),
            "rewards": episode.rewards,
            "terminations": episode.terminations,
        }
        for episode in recorded.iterate_episodes()
    )
    try:
        _check_file(Path(recorded.storage.data_path) / FILE)
        dataset = Dataset.from_episodes(
            _within_memory(episodes, label),
            action_range=bounds_of(action_space) if bounded else None,
            is_discrete=is_discrete,
            observation_space=observation_space if packs else None,
            name=label,
            source=str(recorded.storage.data_path),
            metadata=recorded.storage.metadata,
        )
    except READING as error:
        raise UserError(f"{label} cannot be read ({error}); {AGAIN}") from None
    num_whole = num_whole_episodes(dataset.metadata, label)
    if num_whole is not None and dataset.metadata.get(NUM_RECORDED) == dataset.num_episodes:  # no part of a recording
        dataset = replace(dataset, is_whole=np.arange(dataset.num_episodes) < num_whole)
    notices = [Notice("remark", GOES_ON)] if "antmaze" in name else []
    if isinstance(observation_space, spaces.Dict) and not packs:
        joined = ", ".join(observation_space.spaces)
        notices.append(Notice("remark", f"observations are {joined} joined, as FlattenObservation does"))
    return replace(dataset, notices=(*dataset.notices, *notices))


def _check_file(path: Path) -> None:
    """Raise if the HDF5 file refers to other files or declares too large sizes; `_within_memory` checks the others."""
    if not path.is_file():
        return
    with h5py.File(path, "r") as file:
        for name in names_in(file):
            check_declared(own_item(file, name, path), name, path)


def _within_memory(episodes: Iterable[dict[str, Any]], label: str) -> Iterator[dict[str, Any]]:
    """Yield the episodes; raise once they need more memory than is free."""
    available, taken = available_bytes(), 0
    for number, episode in enumerate(episodes):
        arrays = [np.asarray(array) for _, array in entries_of(episode)]
        # Image bytes and flags keep their size; all other numbers become float32.
        taken += COPIES * sum(array.size * (array.itemsize if array.ndim > 2 else 4) for array in arrays[:-1])
        taken += COPIES * arrays[-1].size
        if available is not None and taken > available:
            raise UserError(
                f"{label}: its first {number + 1:,} episodes take {taken:,} bytes while they are joined, but "
                f"{available:,} bytes of memory were free; split it"
            )
        yield episode


def _is_vector(space: spaces.Space[Any]) -> bool:
    """Check whether a space is a Box of one or two axes, or a Dict of such."""
    if isinstance(space, spaces.Dict):
        return all(map(_is_vector, space.values()))
    return isinstance(space, spaces.Box) and len(space.shape) < 3


def _joined(observations: Any, space: spaces.Space[Any], label: str) -> Array:
    """Return observations as one array, (L+1, *obs)."""
    if isinstance(space, spaces.Dict):
        parts = [_joined(observations[key], part, label) for key, part in space.spaces.items()]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    if not isinstance(space, spaces.Box):
        raise UserError(f"{label}: its observations are or hold {space}; only Boxes and Dicts of them can be read")
    array = np.asarray(observations)
    return array if array.ndim > 1 else array[:, None]


def _not_here(name: str, local: list[str]) -> str:
    near = difflib.get_close_matches(name, local, 3, 0.4) or local[:5]
    choice = f", or choose one of {', '.join(near)}" if near else " (no Minari dataset is on this machine yet)"
    return f"minari:{name} is not on this machine; fetch it with `minari download {name}`{choice}"
