"""Sets gin bindings from Python."""

from __future__ import annotations

from pathlib import Path

import offpcc.training.checkpoint
import offpcc.training.experiment  # noqa: F401 (all that gin can configure is known before a config is read)
from offpcc.config import loading

__all__ = ["configure"]


def configure(file: str | Path | None = None, *bindings: str) -> None:
    """Settings by gin for all that is built after this, in place of what was set before.

    Args:
        file: a config, looked for as `--config` is; None for the defaults, which are the paper's.
        bindings: such as "SAC.lr = 1e-4", each a string of its own; they win over the file's.

    Raises:
        UserError: a file is missing or malformed, or a binding names a class or parameter that does not exist.
    """
    loading.load(file, bindings, given_in=loading.IN_PYTHON)
