"""One module for each library that takes part, and what the worker expects of it.

`prepare(case, num_transitions)` builds what a case needs and returns its `Work`; `store(capacity)` an empty buffer and
the function that puts a transition into it. Either raises `UnavailableError`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class UnavailableError(Exception):
    """A library, or what a case needs of it, is not there; the message says why."""


class Work(NamedTuple):
    """What is repeated.

    Attributes:
        run: does it once.
        units: how many updates, calls or steps that are.
        note: for the reader of the results.
    """

    run: Callable[[], Any]
    units: int = 1
    note: str = ""


class Source(NamedTuple):
    """Where a library's side of the benchmark is.

    Attributes:
        module: of this package.
        package: of PyPI, whose version is told.
        arguments: of the algorithm's class, for the options of offpcc.
    """

    module: str
    package: str
    arguments: dict[str, Any]


SOURCES = {
    "floor": Source("floor", "torch", {}),
    "offpcc": Source("offpcc_agents", "offpcc", {}),
    "offpcc-fused": Source("offpcc_agents", "offpcc", {"fused": True}),
    "offpcc-bf16": Source("offpcc_agents", "offpcc", {"precision": "bfloat16"}),
    "stable-baselines3": Source("sb3_agents", "stable-baselines3", {}),
    "d3rlpy": Source("d3rlpy_agents", "d3rlpy", {}),
    "tianshou": Source("tianshou_agents", "tianshou", {}),
}


def load(library: str, clone: str = "") -> ModuleType:
    """The module of a library, or the file of a clone.

    Raises:
        UnavailableError: it is not installed, or the file cannot be imported.
    """
    if clone:
        return _from_file(library, Path(clone))
    source = SOURCES[library]
    try:
        return importlib.import_module(f"benchmarks.libraries.{source.module}")
    except ImportError as error:
        raise UnavailableError(f"it cannot be imported here ({error}); `make bench` installs it") from error


def _from_file(library: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise UnavailableError(
            f"{file} is no file; --clone wants NAME=FILE.py, which defines prepare(case, num_transitions)"
        )
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"clone_{library.replace('-', '_')}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise UnavailableError(f"{file} cannot be imported here ({error})") from error
    return module


def version(library: str) -> str:
    """Of a library's package, "" for one that has none."""
    try:
        return importlib.metadata.version(SOURCES[library].package) if library in SOURCES else ""
    except importlib.metadata.PackageNotFoundError:
        return ""
