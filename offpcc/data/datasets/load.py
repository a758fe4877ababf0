"""`load`: reads a dataset by file, D4RL name or Minari id.

D4RL's names are in `offpcc.envs.d4rl.catalog`. Sizes and hashes of its files come from TensorFlow Datasets.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from offpcc.data.datasets.columns import Array, Range
from offpcc.data.datasets.d4rl_checksums import KNOWN
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.download import DownloadError, Progress, download
from offpcc.data.datasets.hdf5 import is_hdf5, read_everything, read_file
from offpcc.data.datasets.limits import DAMAGE, printable
from offpcc.data.datasets.metadata import Notice
from offpcc.data.datasets.minari import read_minari
from offpcc.envs.d4rl import catalog
from offpcc.envs.d4rl.catalog import ADDRESS, FILES, SUFFIXES, why_not
from offpcc.envs.d4rl.make import set_dataset_reader
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.paths import as_path, why_no_folder

D4RL_KEYS = ("observations", "actions", "rewards", "terminals")  # in every file of D4RL


def folders() -> list[Path]:
    """Return the folders to search for datasets, in this order."""
    given = {name: os.environ.get(name) for name in ("OFFPCC_DATASETS", "D4RL_DATASET_DIR")}
    return [as_path(folder, name) for name, folder in (*given.items(), ("", "~/.d4rl/datasets")) if folder]


def find(name: str) -> Path | None:
    """Return the file for a D4RL name or a user's own name in `folders()`; None if there is none."""
    files = ([FILES[name].rsplit("/", 1)[-1]] if name in FILES else []) + [f"{name}.hdf5", f"{name}.npz"]
    places = (folder / file for folder in folders() for file in files)
    return next((place for place in places if place.is_file()), None)


def obtain(name: str, progress: Progress | None = None) -> Path:
    """Return the file for a name. Download a missing D4RL file into the first writable folder.

    The file comes from D4RL's URL, or from a mirror whose URL is in ``$OFFPCC_D4RL_URL``.

    Args:
        name: the name of the dataset.
        progress: see `download`.

    Raises:
        UserError: there is no such dataset, or it could not be downloaded.
    """
    if found := find(name):
        return found
    if name not in FILES:
        raise UserError(_unknown(name))
    file = FILES[name].rsplit("/", 1)[-1]
    folder = next((folder for folder in folders() if why_no_folder(folder) is None), None)
    places = " or ".join(map(str, folders()))
    ways = (
        f"nothing of it was kept. Get {file} elsewhere and give its path, or put it into {places}; or set "
        f"OFFPCC_DATASETS to the folder that it is in, or OFFPCC_D4RL_URL to a mirror of {ADDRESS}"
    )
    if folder is None:
        raise UserError(f"{name} is to be downloaded, but no folder for it can be written; {ways}")
    url = f"{os.environ.get('OFFPCC_D4RL_URL', ADDRESS).rstrip('/')}/{FILES[name]}"
    try:
        download(
            url,
            folder / file,
            known=KNOWN.get(file),
            accept=_fault_of,
            progress=progress,
        )
    except DownloadError as error:
        raise UserError(f"{name} could not be downloaded: {error}; {ways}") from None
    return folder / file


def raw_arrays(path: Path) -> dict[str, Array]:
    """Read all arrays of a file as they are. Arrays in HDF5 groups have names such as "infos/qpos".

    Raises:
        UserError: the file cannot be read, or lacks observations, actions, rewards or terminals of equal length.
    """
    arrays = read_everything(path)
    missing = [key for key in D4RL_KEYS if key not in arrays]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} missing; found: {', '.join(printable(arrays))}")
    columns = {key: np.asarray(arrays[key]) for key in D4RL_KEYS}
    for key, column in columns.items():
        if column.dtype.kind not in "fiub":
            raise UserError(f"{path}: {key} holds {column.dtype}, no numbers; every column is to be an array of them")
    num_steps = len(np.atleast_1d(columns["rewards"]))
    for key, column in columns.items():
        one_number = key in ("rewards", "terminals")
        if column.shape[:1] != (num_steps,) or (one_number and column.shape[1:] not in ((), (1,))):
            raise UserError(
                f"{path}: {key} of shape {column.shape} beside {num_steps:,} rewards; each is to have one row a step, "
                f"of one number for rewards and terminals"
            )
    for key in ("rewards", "terminals"):
        arrays[key] = arrays[key].reshape(num_steps)
    return arrays


def _fault_of(path: Path) -> str | None:
    """Return what is wrong with the format of a downloaded file, or None. It is the only check for unhashed files."""
    if not is_hdf5(path):
        return "what came is no HDF5 file"
    try:
        with h5py.File(path, "r") as file:
            missing = [key for key in D4RL_KEYS if key not in file]
    except DAMAGE as error:
        return f"what came is damaged or not whole ({first_line(error)})"
    return f"what came lacks {', '.join(missing)}" if missing else None


def _unknown(name: str) -> str:
    if reason := why_not(name):
        return reason
    own = [file.stem for folder in folders() if folder.is_dir() for file in folder.iterdir() if file.suffix in SUFFIXES]
    nearest = difflib.get_close_matches(name, [*FILES, *own], n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(nearest)}?" if nearest else "give a file, a D4RL name or minari:ID"
    return f"{name}: there is no such data set; {advice}"


MINARI = "minari:"


def load(
    source: str | Path,
    *,
    max_episode_steps: int | None = None,
    action_range: Range | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load a dataset.

    Args:
        source: an HDF5 or NPZ file; ``minari:ID``; or a name. A name is searched in ``$OFFPCC_DATASETS``,
            ``$D4RL_DATASET_DIR`` and ``~/.d4rl/datasets``, and downloaded if it is a D4RL name.
        max_episode_steps: the time limit of the recorded environment, for data without truncations. By default D4RL's
            limit for a D4RL name.
        action_range: lowest and highest action of the recorder, which are scaled to -1 and 1, for data that does not
            contain them. Minari's datasets and the files of `offpcc collect` contain them.
        progress: see `download`.

    Raises:
        UserError: the dataset is not available, or its data is incomplete.
    """
    if not isinstance(source, str | Path):
        raise UserError(
            f"the data set is given as {type(source).__name__}; give a file, a name, minari:ID or what "
            f"offpcc.Dataset.from_arrays makes of arrays"
        )
    text = str(source)
    if text.startswith(MINARI):
        return read_minari(text.removeprefix(MINARI)).with_range(action_range)
    if not text:
        raise UserError("'' names no data set; give a file, a D4RL name or minari:ID")
    path = as_path(text, "the data")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the file with the data in it")
    if not path.is_file():
        if path.suffix in catalog.SUFFIXES or len(path.parts) > 1:
            kind = ", for what is there is a device or a link to nothing" if os.path.lexists(path) else ""
            raise UserError(f"there is no file {path}{kind}; {_advice(path)}")
        file = next((file for end in catalog.SUFFIXES if (file := Path(f"{path}{end}")).is_file()), None)
        if file and text not in catalog.FILES and find(text) is None:
            raise UserError(f"{text}: there is no such data set; did you mean the file {file}?")
        path = obtain(text, progress)
        name = text
    else:
        name = catalog.NAMES.get(path.name, path.stem)
    limit = max_episode_steps or catalog.max_episode_steps(name)
    dataset = read_file(path, name=name, given=text, max_episode_steps=limit, action_range=action_range)
    remarks = [Notice("remark", words) for words in catalog.remarks(name)]
    return replace(dataset, notices=(*dataset.notices, *remarks))


def _advice(missing: Path) -> str:
    """Return advice for a missing file: a similar name in the same folder, or what to give instead."""
    there = missing.parent.iterdir() if missing.parent.is_dir() else ()
    files = {file.stem: file for file in there if file.suffix in catalog.SUFFIXES}
    near = difflib.get_close_matches(missing.stem, files, 1)
    return f"did you mean {files[near[0]]}?" if near else "give one that is there, a D4RL name or minari:ID"


def qlearning_dataset(source: str | Path | Dataset) -> dict[str, Array]:
    """Return all transitions, with the keys of D4RL's function of this name.

    If a recording has ``next_observations``, they are used, and the last step of a truncated episode is included if
    its next observation is known. D4RL's function always uses the following row, and leaves these steps out.

    Args:
        source: a `Dataset`, or a source for `load`.

    Returns:
        ``observations`` and ``next_observations`` (N, *obs), ``actions`` (N, A) as recorded, ``rewards`` (N,),
        ``terminals`` (N,).

    Raises:
        UserError: see `load`.
    """
    data = source if isinstance(source, Dataset) else load(source)
    mask = data.is_transition
    return {
        "observations": data.observations[mask],
        "actions": data.actions[mask],
        "next_observations": data.next_observations[mask],
        "rewards": data.rewards[mask],
        "terminals": data.terminations[mask],
    }


def _read_recorded(name: str, path: Path | None) -> tuple[Path, dict[str, Array]]:
    """Return the file of a dataset and its arrays. `path` overrides the name."""
    file = obtain(name) if path is None else path
    return file, raw_arrays(file)


set_dataset_reader(_read_recorded)
