"""Sets gin bindings from Python."""

from __future__ import annotations

from pathlib import Path

import offpcc.training.checkpoint
import offpcc.training.experiment  # noqa: F401 (registers all configurables before a config is read)
from offpcc.config import loading

__all__ = ["configure"]


def configure(file: str | Path | None = None, *bindings: str) -> None:
    """Set gin bindings for everything that is built after this call. They replace all earlier bindings.

    Args:
        file: a config file, searched for like `--config`; None for the defaults, which are those of the paper.
        bindings: bindings such as "SAC.lr = 1e-4", one per argument. They override those of the file.

    Raises:
        UserError: a file is missing or malformed, or a binding names a class or parameter that does not exist.
    """
    loading.load(file, bindings, given_in=loading.IN_PYTHON)
