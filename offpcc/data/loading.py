"""Recorded data from wherever it is: a file, a D4RL name, a Minari id."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path

from offpcc import d4rl_names
from offpcc.data import d4rl
from offpcc.data.columns import Array, Range
from offpcc.data.dataset_files import read_file
from offpcc.data.datasets import Dataset
from offpcc.data.downloads import Progress
from offpcc.data.minari_source import read_minari
from offpcc.data.notices import Notice
from offpcc.errors import UserError
from offpcc.places import as_path

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
        if path.suffix in d4rl_names.SUFFIXES or len(path.parts) > 1:
            kind = ", for what is there is a device or a link to nothing" if os.path.lexists(path) else ""
            raise UserError(f"there is no file {path}{kind}; {_advice(path)}")
        file = next((file for end in d4rl_names.SUFFIXES if (file := Path(f"{path}{end}")).is_file()), None)
        if file and text not in d4rl_names.FILES and d4rl.find(text) is None:
            raise UserError(f"{text}: there is no such data set; did you mean the file {file}?")
        path = d4rl.obtain(text, progress)
        name = text
    else:
        name = d4rl_names.NAMES.get(path.name, path.stem)
    limit = max_episode_steps or d4rl_names.max_episode_steps(name)
    dataset = read_file(path, name=name, given=text, max_episode_steps=limit, action_range=action_range)
    remarks = [Notice("remark", words) for words in d4rl_names.remarks(name)]
    return replace(dataset, notices=(*dataset.notices, *remarks))


def _advice(missing: Path) -> str:
    """A file in the same folder with a name like it, or what else to give."""
    there = missing.parent.iterdir() if missing.parent.is_dir() else ()
    files = {file.stem: file for file in there if file.suffix in d4rl_names.SUFFIXES}
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
