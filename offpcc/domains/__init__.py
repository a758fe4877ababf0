"""The environments of offpcc, registered with Gymnasium when this package is imported.

`ENVIRONMENTS` is the one table. A row names its environment and its wrappers as strings, so that registering
imports no simulator. A new environment is a file beside this one and a row here, or a function that gives the
rows of its family.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec

__all__ = ["ENVIRONMENTS", "Environment", "missing_package", "require"]


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


def _keep(*indices: int) -> WrapperSpec:
    return WrapperSpec("KeepIndices", "offpcc.domains.wrappers:KeepIndices", {"indices": list(indices)})


def _concatenate(num: int) -> WrapperSpec:
    return WrapperSpec("Concatenate", "offpcc.domains.wrappers:Concatenate", {"num": num})


_PREVIOUS_ACTION = WrapperSpec("PreviousAction", "offpcc.domains.wrappers:PreviousAction", {})
_PENDULUM_IMAGE = WrapperSpec("PendulumImage", "offpcc.domains.pendulum_image:PendulumImage", {})


def _pendulum() -> tuple[Environment, ...]:
    def row(suffix: str, hidden: str, shape: tuple[int, ...], *wrappers: WrapperSpec) -> Environment:
        return Environment(
            name=f"pendulum{suffix}-v0",
            family="pendulum",
            hidden=hidden,
            entry_point="offpcc.domains.pendulum:Pendulum",
            max_episode_steps=200,
            observation_shape=shape,
            action_size=1,
            wrappers=wrappers,
        )

    p, v, a = _keep(0, 1), _keep(2), _PREVIOUS_ACTION
    return (
        row("", "nothing", (3,)),
        row("-p", "angular velocity", (2,), p),
        row("-v", "angle", (1,), v),
        row("-va", "angle", (2,), v, a),
        row("-p-concat5", "angular velocity; last 5 angles shown", (10,), p, _concatenate(5)),
        row("-v-concat10", "angle; last 10 velocities shown", (10,), v, _concatenate(10)),
        row("-va-concat10", "angle; last 10 velocities and torques shown", (20,), v, a, _concatenate(10)),
        row("-img", "angular velocity; angle shown as an image", (1, 40, 40), _PENDULUM_IMAGE),
    )


def _dmc_cartpole(task: str) -> tuple[Environment, ...]:
    def row(suffix: str, hidden: str, size: int, keys: list[str], *wrappers: WrapperSpec) -> Environment:
        return Environment(
            name=f"dmc-cartpole-{task}{suffix}-v0",
            family=f"dmc-cartpole-{task}",
            hidden=hidden,
            entry_point="offpcc.domains.dm_control_env:DMControl",
            max_episode_steps=200,
            observation_shape=(size,),
            action_size=1,
            kwargs={"domain": "cartpole", "task": task, "action_repeat": 5, "keys": keys},
            wrappers=wrappers,
            package="dm-control",
        )

    p, v, a = ["position"], ["velocity"], _PREVIOUS_ACTION
    return (
        row("", "nothing", 5, p + v),
        row("-p", "velocities", 3, p),
        row("-va", "positions", 3, v, a),
        row("-p-concat5", "velocities; last 5 positions shown", 15, p, _concatenate(5)),
        row("-va-concat10", "positions; last 10 velocities and actions shown", 30, v, a, _concatenate(10)),
    )


ENVIRONMENTS: tuple[Environment, ...] = (
    *_pendulum(),
    *_dmc_cartpole("balance"),
    *_dmc_cartpole("swingup"),
)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package.replace("-", "_")) is not None


def missing_package(name: str) -> str | None:
    """Returns the pip package that the environment `name` needs and that is not installed, or None."""
    packages = {environment.name: environment.package for environment in ENVIRONMENTS}
    package = packages.get(name)
    return None if package is None or _is_installed(package) else package


def require(package: str, environment: str) -> None:
    """Checks that a simulator is installed, before an environment imports it.

    Args:
        package: The pip package; its module has the same name, with underscores.
        environment: Who needs it, for the message.

    Raises:
        gymnasium.error.DependencyNotInstalled: It is not installed.
    """
    if not _is_installed(package):
        raise gymnasium.error.DependencyNotInstalled(
            f"{environment} needs the package {package}, which is not installed; run `pip install {package}`"
        )


def _register() -> None:
    for environment in ENVIRONMENTS:
        # Gymnasium warns of an id that is registered twice, as it would be when this package is reloaded.
        if environment.name not in gymnasium.registry:
            gymnasium.register(
                id=environment.name,
                entry_point=environment.entry_point,
                max_episode_steps=environment.max_episode_steps,
                additional_wrappers=environment.wrappers,
                kwargs=dict(environment.kwargs),
            )


_register()
