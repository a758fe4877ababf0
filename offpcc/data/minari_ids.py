"""Names of Minari's data sets, and where they lie."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = "MINARI_DATASETS_PATH"  # the environment variable by which Minari finds its data sets
MOST_LETTERS = 200  # of an id; a folder's name may have 255


def is_id(name: str) -> bool:
    """Whether Minari could give a name to a data set; none leads out of its folder.

    Raises:
        ImportError: the package is missing.
    """
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(name)
    except (TypeError, ValueError):
        return False
    return len(name) <= MOST_LETTERS and ".." not in Path(name).parts and not Path(name).is_absolute()


def datasets_folder() -> Path:
    """Where Minari has all data sets."""
    return Path(os.environ.get(ROOT) or Path.home() / ".minari" / "datasets")
