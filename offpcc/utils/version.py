"""Versions of offpcc and of the packages that affect a run's numbers."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
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
def versions() -> dict[str, str]:
    """Return the versions in this process by package; skip packages that are not installed."""
    found = {"offpcc": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def tell_changed(before: Any) -> str | None:
    """Return which versions differ from those of a checkpoint; None if none differ or none are known."""
    if not isinstance(before, Mapping):
        return None
    now = versions()
    changed = [name for name in ("offpcc", "python", *PACKAGES) if str(before.get(name)) != str(now.get(name))]
    if not changed:
        return None
    used = ", ".join(f"{name} {shown(str(before.get(name, '(none)')))}" for name in changed)
    uses = ", ".join(f"{name} {now.get(name, '(none)')}" for name in changed)
    return f"the run used {used}, this process uses {uses}"
