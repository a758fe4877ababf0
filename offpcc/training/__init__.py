"""Training: the loop, its environments and tests, checkpoints, run folders, loggers, models, analysis."""

from typing import Any

from offpcc.utils import import_submodule


def __getattr__(name: str) -> Any:
    return import_submodule(__name__, name)
