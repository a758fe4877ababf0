"""The environments of offpcc, registered with Gymnasium when this package is imported.

`ENVIRONMENTS` is the one table. A new environment is a file beside this one, which holds its rows and imports no
simulator before one is made, and a line here.
"""

from __future__ import annotations

import gymnasium

from offpcc.domains import bullet_locomotion, bumps, dm_control_env, mujoco_locomotion, pendulum, reacher, water_maze
from offpcc.domains.table import Environment, is_installed

__all__ = ["ENVIRONMENTS", "Environment", "missing_package"]

ENVIRONMENTS: tuple[Environment, ...] = (
    *pendulum.ENVIRONMENTS,
    *dm_control_env.ENVIRONMENTS,
    *reacher.ENVIRONMENTS,
    *bullet_locomotion.ENVIRONMENTS,
    *mujoco_locomotion.ENVIRONMENTS,
    *water_maze.ENVIRONMENTS,
    *bumps.ENVIRONMENTS,
)


def missing_package(name: str) -> str | None:
    """Returns the pip package that the environment `name` needs and that is not installed, or None."""
    packages = {environment.name: environment.package for environment in ENVIRONMENTS}
    package = packages.get(name)
    return None if package is None or is_installed(package) else package


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
