"""`load_dataset`: reads a dataset by file, D4RL name, Minari id or OGBench name."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from offpcc.data.datasets.columns import Array, Range, check_shapes, with_our_names
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.download import A_NAME, D4RL_KEYS, KNOWN, Progress, find_dataset_file, obtain
from offpcc.data.datasets.files import printable, read_dataset_file, read_everything
from offpcc.data.datasets.minari import FILE, read_minari
from offpcc.data.datasets.notices import Notice
from offpcc.data.datasets.ogbench import read_ogbench
from offpcc.envs.d4rl import catalog
from offpcc.envs.d4rl import make as d4rl_environments
from offpcc.utils.errors import UserError, similar
from offpcc.utils.paths import as_path

MINARI, OGBENCH = "minari:", "ogbench:"
NOT_HASHED = "no hash of this file is published, so only its form was checked"


def check_source(source: Any) -> None:
    """Raise if a dataset is neither named nor a `Dataset`."""
    if not isinstance(source, str | Path | Dataset):
        raise UserError(
            f"the dataset is given as {type(source).__name__}; give a file, a D4RL name, minari:ID, ogbench:NAME or an "
            f"offpcc.Dataset; make one from arrays by Dataset.from_arrays(observations=..., actions=..., rewards=..., "
            f"terminations=..., truncations=...), or from episodes by Dataset.from_episodes([...])"
        )


def load_dataset(
    source: str | Path,
    *,
    max_episode_steps: int | None = None,
    action_range: Range | None = None,
    observation_space: spaces.Dict | None = None,
    progress: Progress | None = None,
    memory_limit: int | None = None,
) -> Dataset:
    """Load a dataset.

    Args:
        source: an HDF5 or NPZ file, also one of d3rlpy; ``minari:ID``; ``ogbench:NAME``; or a name. A name is searched
            in ``$OFFPCC_DATASETS``, ``$D4RL_DATASET_DIR`` and ``~/.d4rl/datasets``, and downloaded if it is D4RL's.
        max_episode_steps: the time limit of the recorded environment, for data without truncations. By default D4RL's
            limit for a D4RL name.
        action_range: lowest and highest action of the recorder, which are scaled to -1 and 1, for data that does not
            contain them. Minari's datasets and the files of `offpcc collect` contain them.
        observation_space: the space of Dict observations in a file; see `Dataset.from_arrays`.
        progress: see `download`.
        memory_limit: maximum size of images in memory, in bytes; if those of a file exceed it, they are in a temporary
            file, as in `offpcc.data.ReplayBuffer`. None for no limit; stacks of frames that do not fit into the free
            memory are in a file in any case.

    Raises:
        UserError: the dataset is not available, or its data is incomplete.
    """
    check_source(source)
    text = str(source)
    if text.startswith(MINARI):
        return read_minari(text.removeprefix(MINARI)).with_range(action_range)
    if text.startswith(OGBENCH):
        return read_ogbench(text.removeprefix(OGBENCH)).with_range(action_range)
    if not text:
        raise UserError(f"'' is not a dataset; give a file, {A_NAME}")
    path = as_path(text, "the data")
    if fault := _minari_fault(path):
        raise UserError(fault)
    if path.is_dir():
        raise UserError(
            f"{path} is a folder; give the file with the data in it; to make one from files of episodes, in Python: "
            f'offpcc.Dataset.from_episodes([...]).save("data.hdf5"), see `offpcc docs your_data`'
        )
    if not path.is_file():
        if path.suffix in catalog.SUFFIXES or len(path.parts) > 1:
            kind = " (this path is a device or a broken link)" if os.path.lexists(path) else ""
            raise UserError(f"there is no file {path}{kind}; {_advice(path)}")
        file = next((file for end in catalog.SUFFIXES if (file := Path(f"{path}{end}")).is_file()), None)
        if file and text not in catalog.FILES and find_dataset_file(text) is None:
            raise UserError(f"{text}: there is no such dataset; did you mean the file {file}?")
        path = obtain(text, progress)
        name = text
    else:
        name = catalog.NAMES.get(path.name, path.stem)
    limit = max_episode_steps or catalog.max_episode_steps(name)
    facts: dict[str, Any] = {"max_episode_steps": limit, "action_range": action_range, "memory_limit": memory_limit}
    dataset = read_dataset_file(path, name=name, given=text, **facts, observation_space=observation_space)
    remarks = [NOT_HASHED] if path.name in catalog.NAMES and path.name not in KNOWN else []
    remarks += catalog.remarks(name)
    return replace(dataset, notices=(*dataset.notices, *(Notice("remark", words) for words in remarks)))


def _minari_fault(path: Path) -> str:
    """Return how to name a Minari dataset that is given by its file or by a folder of it; "" for other paths."""
    files = [path] if path.name == FILE else [path / FILE, path / "data" / FILE]
    file = next((file.resolve() for file in files if file.is_file()), None)
    if file is None:
        return ""
    try:
        name = json.loads((file.parent / "metadata.json").read_text(encoding="utf-8"))["dataset_id"]
        root = file.parents[1 + len(Path(name).parts)]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""
    if not name or root / name != file.parents[1]:  # the folder was renamed, so Minari does not find it by this name
        return ""
    return f"{path} belongs to a Minari dataset; give minari:{name}, and set MINARI_DATASETS_PATH to {root}"


def _advice(missing: Path) -> str:
    """Return advice for a missing file: a similar name in the same folder, or what to give instead."""
    there = missing.parent.iterdir() if missing.parent.is_dir() else ()
    files = {file.stem: file for file in there if file.suffix in catalog.SUFFIXES}
    near = similar(missing.stem, files, 1)
    return f"did you mean {files[near[0]]}?" if near else f"give a file that exists, {A_NAME}"


def qlearning_dataset(source: str | Path | Dataset) -> dict[str, Any]:
    """Return all transitions, with the keys of D4RL's function of this name.

    If a recording has ``next_observations``, they are used, and the last step of a truncated episode is included if
    its next observation is known. D4RL's function always uses the following row, and leaves these steps out.

    Args:
        source: a `Dataset`, or a source for `load_dataset`.

    Returns:
        ``observations`` and ``next_observations`` (N, *obs), of Dict observations by key; ``actions`` (N, A) as
        recorded; ``rewards`` (N,); ``terminals`` (N,).

    Raises:
        UserError: see `load_dataset`.
    """
    data = source if isinstance(source, Dataset) else load_dataset(source)
    mask, space = data.is_transition, data.observation_space
    observations, following = data.observations[mask], data.next_observations[mask]
    return {
        "observations": observations if space is None else space.split(observations),
        "actions": data.actions[mask],
        "next_observations": following if space is None else space.split(following),
        "rewards": data.rewards[mask],
        "terminals": data.terminations[mask],
    }


def raw_arrays(path: Path) -> dict[str, Array]:
    """Read all arrays of a file as they are. Arrays in HDF5 groups have names such as "infos/qpos"."""
    arrays = read_everything(path)
    columns = {key: np.asarray(arrays[key]) for key in D4RL_KEYS if key in arrays}
    num_steps = check_shapes(with_our_names(columns, str(path), printable(arrays)), str(path))
    for key in ("rewards", "terminals"):
        arrays[key] = arrays[key].reshape(num_steps)
    return arrays


def _read_recorded(name: str, path: Path | None) -> tuple[Path, dict[str, Array]]:
    """Return the file of a dataset and its arrays. `path` overrides the name."""
    file = obtain(name) if path is None else path
    return file, raw_arrays(file)


d4rl_environments.read_dataset = _read_recorded
