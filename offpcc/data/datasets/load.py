"""`load`: reads a data set by file, D4RL name or Minari id.

D4RL's names are in `offpcc.envs.d4rl.catalog`; sizes and hashes are those of TensorFlow Datasets.
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
from offpcc.envs.d4rl.recorded_task import set_dataset_reader
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.paths import as_path, why_no_folder

D4RL_KEYS = ("observations", "actions", "rewards", "terminals")  # that every file of D4RL has


def folders() -> list[Path]:
    """Where data sets are looked for, in this order."""
    given = {name: os.environ.get(name) for name in ("OFFPCC_DATASETS", "D4RL_DATASET_DIR")}
    return [as_path(folder, name) for name, folder in (*given.items(), ("", "~/.d4rl/datasets")) if folder]


def find(name: str) -> Path | None:
    """The file of a name, D4RL's or one's own, in the folders where data sets are looked for."""
    files = ([FILES[name].rsplit("/", 1)[-1]] if name in FILES else []) + [f"{name}.hdf5", f"{name}.npz"]
    places = (folder / file for folder in folders() for file in files)
    return next((place for place in places if place.is_file()), None)


def obtain(name: str, progress: Progress | None = None) -> Path:
    """The file of a name; D4RL's are fetched into the first folder that can be written if they are nowhere.

    They come from D4RL's address, or from a mirror of it whose address is in ``$OFFPCC_D4RL_URL``.

    Args:
        name: of the data set.
        progress: see `download`.

    Raises:
        UserError: there is no such data set, or it could not be fetched.
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
    """All that was recorded, each array as it is in the file; in groups of HDF5, by names like "infos/qpos".

    Raises:
        UserError: the file cannot be read, or lacks observations, actions, rewards or terminals of one length.
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
    """What is wrong with the form of a file that came, which is all that is known of many."""
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
    """Recorded data.

    Args:
        source: an HDF5 or NPZ file; ``minari:ID``; or a name, which is looked for in ``$OFFPCC_DATASETS``,
            ``$D4RL_DATASET_DIR`` and ``~/.d4rl/datasets``, and fetched if it is one of D4RL's.
        max_episode_steps: the time limit of the recorder, for data that does not tell where it cut an episode; D4RL's
            own for its names.
        action_range: lowest and highest action of the recorder, which are to stand for -1 and 1, for data that does not
            tell; Minari's does, and so do the files of `offpcc collect`.
        progress: see `download`.

    Raises:
        UserError: it is not to be had, or its data is not whole.
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
    """A file in the same folder with a name like it, or what else to give."""
    there = missing.parent.iterdir() if missing.parent.is_dir() else ()
    files = {file.stem: file for file in there if file.suffix in catalog.SUFFIXES}
    near = difflib.get_close_matches(missing.stem, files, 1)
    return f"did you mean {files[near[0]]}?" if near else "give one that is there, a D4RL name or minari:ID"


def qlearning_dataset(source: str | Path | Dataset) -> dict[str, Array]:
    """All transitions, with the keys of D4RL's function of this name.

    Where a recording has ``next_observations``, these are given, and a step at which an episode was cut stays in if
    they tell what it led to; D4RL's function takes the following row in every case, and leaves these steps out.

    Args:
        source: what `load` takes, or what it gave.

    Returns:
        ``observations`` and ``next_observations`` (N, *obs), ``actions`` (N, A) as they were recorded, ``rewards``
        (N,), ``terminals`` (N,).

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
    """The file of a data set and its arrays; `path` wins over the name."""
    file = obtain(name) if path is None else path
    return file, raw_arrays(file)


set_dataset_reader(_read_recorded)
