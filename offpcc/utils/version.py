"""Versions of offpcc and of the packages that affect a run's numbers."""

import functools
import importlib.metadata
import platform
import re
import sys
from collections.abc import Mapping
from typing import Any

from offpcc.utils.paths import shown

try:
    __version__ = importlib.metadata.version("offpcc")
except importlib.metadata.PackageNotFoundError:  # the checkout is not installed
    __version__ = "0.1.0"

SIMULATORS = ("pygame", "mujoco", "dm-control", "pybullet", "pybullet_envs_gymnasium")
PACKAGES = ("torch", "numpy", "gymnasium", "gin-config", *SIMULATORS)


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the installed versions by package; skip packages that are not installed."""
    found = {"offpcc": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def version_numbers(version: str) -> list[int]:
    """Return the first three numbers of a version, to compare it with another: [0, 12, 1] of "0.12.1"."""
    return [int(number) for number in re.findall(r"\d{1,9}", version)[:3]]


def private_attribute(package: str, last_seen: str, owner: Any, name: str) -> Any:
    """Return a private attribute of a package's `owner`. The package has it in version `last_seen`.

    Raises:
        ImportError: the installed version has none.
    """
    if not hasattr(owner, name):
        raise ImportError(
            f"{package} has no {name}, which offpcc needs; it was last seen in {package} {last_seen}: "
            f'pip install "{package}<={last_seen}"'
        )
    return getattr(owner, name)


def versions() -> dict[str, str]:
    """Return the versions that this process uses, by package; simulators only if they are imported."""
    return {
        package: version
        for package, version in installed_versions().items()
        if package not in SIMULATORS or package.replace("-", "_") in sys.modules
    }


def tell_changed(before: Any) -> str | None:
    """Return a description of the versions that differ from those of a checkpoint; None if there are none.

    A simulator is compared only if the run has used it.
    """
    if not isinstance(before, Mapping):
        return None
    now = installed_versions()
    compared = [name for name in ("offpcc", "python", *PACKAGES) if name not in SIMULATORS or name in before]
    changed = [name for name in compared if str(before.get(name)) != str(now.get(name))]
    if not changed:
        return None
    used = ", ".join(f"{name} {shown(str(before.get(name, '(none)')))}" for name in changed)
    uses = ", ".join(f"{name} {now.get(name, '(none)')}" for name in changed)
    return f"the run used {used}, this process uses {uses}"
