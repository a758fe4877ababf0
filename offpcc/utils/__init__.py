"""Tools without any reinforcement learning: errors, files, locks, signals, figures, videos."""

import importlib
from typing import Any


def import_submodule(package: str, name: str) -> Any:
    """Import a module of a package on first use, as in `offpcc.training.loggers`.

    Raises:
        AttributeError: there is no such module.
    """
    missing = AttributeError(f"module {package!r} has no attribute {name!r}")
    if name.startswith("_"):
        raise missing
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.{name}":
            raise
        raise missing from None


def __getattr__(name: str) -> Any:
    return import_submodule(__name__, name)
