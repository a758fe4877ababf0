"""Rows of the table `ENVIRONMENTS`.

Rows name their environment and its wrappers as strings, so that registering imports no simulator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec

__all__ = ["FLOAT32", "PREVIOUS_ACTION", "Environment", "concatenate", "is_installed", "keep", "require"]


@dataclass(frozen=True)
class Environment:
    """A row of the table.

    Attributes:
        name: The Gymnasium id.
        family: The environments that differ only in what the agent sees.
        hidden: What of the state a single observation does not show, in a few words.
        entry_point: "module:class" of the environment without its wrappers.
        max_episode_steps: The time limit, in environment steps.
        observation_shape: The shape of an observation.
        action_size: The number of action dimensions.
        kwargs: Arguments of the entry point.
        wrappers: Applied in this order, above the time limit.
        package: The pip package that is needed besides offpcc's own requirements, or None. Its module has the
            same name, with underscores.
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
    package: str | None = None


def keep(*indices: int) -> WrapperSpec:
    """Shows these numbers of the observation alone."""
    return WrapperSpec("KeepIndices", "offpcc.envs.wrappers:KeepIndices", {"indices": list(indices)})


def concatenate(num: int) -> WrapperSpec:
    """Shows the last `num` observations at once."""
    return WrapperSpec("Concatenate", "offpcc.envs.wrappers:Concatenate", {"num": num})


FLOAT32 = WrapperSpec("Float32Observation", "offpcc.envs.wrappers:Float32Observation", {})
PREVIOUS_ACTION = WrapperSpec("PreviousAction", "offpcc.envs.wrappers:PreviousAction", {})


def is_installed(package: str) -> bool:
    """Whether a pip package is there whose module has the same name, with underscores."""
    return importlib.util.find_spec(package.replace("-", "_")) is not None


def require(package: str, environment: str) -> None:
    """Checks that a simulator is installed, before an environment imports it.

    Args:
        package: The pip package; its module has the same name, with underscores.
        environment: Who needs it, for the message.

    Raises:
        gymnasium.error.DependencyNotInstalled: It is not installed.
    """
    if not is_installed(package):
        raise gymnasium.error.DependencyNotInstalled(
            f"{environment} needs the package {package}, which is not installed; run `pip install {package}`"
        )
