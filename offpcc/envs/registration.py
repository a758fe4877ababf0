"""Rows of the table `ENVIRONMENTS`.

Rows name their environment and its wrappers as strings, so registering them imports no simulator.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec


@dataclass(frozen=True)
class Environment:
    """A row of the table.

    Attributes:
        name: The Gymnasium id.
        family: A name shared by environments that differ only in what the agent sees.
        hidden: The part of the state that a single observation does not show, in a few words.
        entry_point: "module:class" of the environment without its wrappers.
        max_episode_steps: The time limit, in environment steps.
        observation_shape: The shape of an observation.
        action_size: The number of action dimensions, or of discrete actions.
        kwargs: Arguments of the entry point.
        wrappers: Wrappers in the order of application, outside of the time limit.
        is_discrete: Whether actions are discrete.
        package: The pip package that it needs in addition to offpcc's own requirements, or None. The module of the
            package has the same name, with underscores.
    """

    name: str
    family: str
    hidden: str
    entry_point: str
    max_episode_steps: int
    observation_shape: tuple[int, ...]
    action_size: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[WrapperSpec, ...] = ()
    is_discrete: bool = False
    package: str | None = None

    @property
    def actions(self) -> str:
        """The action space in a few words."""
        return f"{self.action_size} discrete" if self.is_discrete else str(self.action_size)

    def variant(
        self, suffix: str, hidden: str, shape: tuple[int, ...], *wrappers: WrapperSpec, **kwargs: Any
    ) -> Environment:
        """Return a row for a variant of this environment, with more wrappers or other arguments."""
        return replace(
            self,
            name=f"{self.name.removesuffix('-v0')}{suffix}-v0",
            hidden=hidden,
            observation_shape=shape,
            wrappers=(*self.wrappers, *wrappers),
            kwargs={**self.kwargs, **kwargs},
        )


def keep(*indices: int) -> WrapperSpec:
    """Return the spec of a wrapper that shows only these indices of the observation."""
    return WrapperSpec("KeepIndices", "offpcc.envs.wrappers:KeepIndices", {"indices": list(indices)})


def concatenate(num: int) -> WrapperSpec:
    """Return the spec of a wrapper that shows the last `num` observations together."""
    return WrapperSpec("Concatenate", "offpcc.envs.wrappers:Concatenate", {"num": num})


FLOAT32 = WrapperSpec("Float32Observation", "offpcc.envs.wrappers:Float32Observation", {})
PREVIOUS_ACTION = WrapperSpec("PreviousAction", "offpcc.envs.wrappers:PreviousAction", {})


def is_installed(package: str) -> bool:
    """Check whether a pip package is installed. Its module must have the same name, with underscores."""
    return importlib.util.find_spec(package.replace("-", "_")) is not None


# Packages of others that register their ids when they are imported, by the beginning of the ids.
ROBOTS = ("AdroitHand", "AntMaze_", "Fetch", "FrankaKitchen-", "HandManipulate", "HandReach", "PointMaze_")
PACKAGES = {"MiniGrid-": "minigrid", "MinAtar/": "minatar", "popgym-": "popgym"}
PACKAGES |= dict.fromkeys(ROBOTS, "gymnasium_robotics")


def package_of(name: str) -> str | None:
    """Return the package of `PACKAGES` that has an id, or None."""
    return next((package for start, package in PACKAGES.items() if name.startswith(start)), None)


def register_package(name: str) -> None:
    """Register the ids of the package that has the id `name`, if it is one of `PACKAGES` and installed."""
    package = package_of(name)
    if package is not None and is_installed(package) and name not in gymnasium.registry:
        importlib.import_module(package)
        if package == "minatar":
            importlib.import_module("minatar.gym").register_envs()


def require(package: str, environment: str) -> None:
    """Raise Gymnasium's `DependencyNotInstalled` if the pip package of a simulator is missing."""
    if not is_installed(package):
        raise gymnasium.error.DependencyNotInstalled(
            f"{environment} needs the package {package}, which is not installed; run `pip install {package}`"
        )
