"""One module for each library that takes part, and what the worker expects of it.

`prepare(case, num_transitions)` builds what a case needs and returns its `Work`; `store(capacity)` an empty buffer and
the function that puts a transition into it; `learner(case, data)` a `Learner` from recorded transitions. Each raises
`UnavailableError`. A library that is no package is read from its clone: `prepare` and `learner` get the folder, `root`.
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

from benchmarks.libraries import clones


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


class Learner(NamedTuple):
    """What learns from recorded transitions.

    Attributes:
        update: draws a batch and makes an update, or several.
        act: maps observations (N, O) to actions (N, A), without noise.
        units: how many updates a call of `update` makes.
    """

    update: Callable[[], Any]
    act: Callable[[Any], Any]
    units: int = 1


class Source(NamedTuple):
    """Where a library's side of the benchmark is.

    Attributes:
        module: of this package.
        package: of PyPI, whose version is told; "" for a library that is read from a clone.
        arguments: of the algorithm's class, for the options of offpcc.
    """

    module: str
    package: str
    arguments: dict[str, Any]


SOURCES = {
    "floor": Source("floor", "torch", {}),
    "offpcc": Source("offpcc_agents", "offpcc", {}),
    "offpcc-eager": Source("offpcc_agents", "offpcc", {"cuda_graphs": False}),
    "offpcc-compiled": Source("offpcc_agents", "offpcc", {"compile": True}),
    "offpcc-bf16": Source("offpcc_agents", "offpcc", {"precision": "bfloat16"}),
    "stable-baselines3": Source("sb3_agents", "stable-baselines3", {}),
    "d3rlpy": Source("d3rlpy_agents", "d3rlpy", {}),
    "tianshou": Source("tianshou_agents", "tianshou", {}),
    "torchrl": Source("torchrl_agents", "torchrl", {}),
    "torchrl-compiled": Source("torchrl_agents", "torchrl", {"compile": True}),
    "corl": Source("corl_agents", "", {}),
    "offlinerl-kit": Source("offlinerl_kit_agents", "", {}),
    "cleanrl": Source("cleanrl_agents", "", {}),
    "pomdp-baselines": Source("pomdp_baselines_agents", "", {}),
    "offpcc-2021": Source("offpcc_2021_agents", "", {}),
    "mbrl-lib": Source("mbrl_lib_agents", "", {}),
    "seohongpark": Source("fql_agents", "", {}),
    "ikostrikov": Source("rlpd_agents", "", {}),
}


def load(library: str, clone: str = "") -> tuple[ModuleType, dict[str, Any]]:
    """The module of a library, or the file of a clone, and further arguments of its functions.

    Raises:
        UnavailableError: it is not installed, or the file or the clone cannot be imported.
    """
    source = SOURCES.get(library)
    if source is None:
        return _from_file(library, Path(clone)), {}
    if not source.package and not (clone and Path(clone).is_dir()):
        raise UnavailableError(f"{clone!r} is no folder; give its clone by --clone {library}=FOLDER")
    try:
        module = importlib.import_module(f"benchmarks.libraries.{source.module}")
    except ImportError as error:
        raise UnavailableError(f"it cannot be imported here ({error}); `make bench` installs it") from error
    return module, source.arguments if source.package else {"root": Path(clone)}


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


def version(library: str, clone: str = "") -> str:
    """Of a library's package, or the commit of its clone; "" for what has none."""
    source = SOURCES.get(library)
    if source is None or not (source.package or clone):
        return ""
    try:
        return importlib.metadata.version(source.package) if source.package else clones.commit(Path(clone))
    except importlib.metadata.PackageNotFoundError:
        return ""
