"""D4RL's data sets as files: where they are looked for, where they are fetched from, and what is in them.

Their names are those of `offpcc.d4rl_names`; sizes and hashes are those that TensorFlow Datasets checks.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import h5py
import numpy as np

from offpcc.d4rl_names import ADDRESS, FILES, SUFFIXES, why_not
from offpcc.data.columns import Array
from offpcc.data.d4rl_files import KNOWN
from offpcc.data.dataset_files import read_everything
from offpcc.data.downloads import DownloadError, Progress, download
from offpcc.data.hdf5_items import is_hdf5
from offpcc.data.untrusted import DAMAGE, printable
from offpcc.errors import UserError, first_line
from offpcc.places import as_path, why_no_folder

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
