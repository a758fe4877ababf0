"""The environments of offpcc, registered with Gymnasium when this package is imported.

`ENVIRONMENTS` is the one table. A new environment is a file beside this one, which holds its rows and imports no
simulator before one is made, and a line here. The names of D4RL's data sets, which D4RL gave to environments too, are
registered beside them; `offpcc.envs.d4rl.catalog` has their table, `offpcc.envs.d4rl` makes them.
"""

from __future__ import annotations

import gymnasium
from gymnasium.envs.registration import WrapperSpec

from offpcc.envs.d4rl import catalog
from offpcc.envs.registration import Environment, is_installed
from offpcc.envs.tasks import (
    bumps,
    corridor,
    dm_control_suite,
    mujoco_locomotion,
    pendulum,
    pybullet_locomotion,
    reacher,
    water_maze,
)

__all__ = ["ENVIRONMENTS", "Environment", "missing_package"]

ENVIRONMENTS: tuple[Environment, ...] = (
    *pendulum.ENVIRONMENTS,
    *dm_control_suite.ENVIRONMENTS,
    *reacher.ENVIRONMENTS,
    *pybullet_locomotion.ENVIRONMENTS,
    *mujoco_locomotion.ENVIRONMENTS,
    *water_maze.ENVIRONMENTS,
    *bumps.ENVIRONMENTS,
    *corridor.ENVIRONMENTS,
)


def missing_package(name: str) -> str | None:
    """Returns the pip package that the environment `name` needs and that is not installed, or None."""
    packages = {environment.name: environment.package for environment in ENVIRONMENTS}
    package = packages.get(name) or catalog.package(name)
    return None if package is None or is_installed(package) else package


def _register() -> None:
    # Gymnasium warns of an id that is registered twice, as it would be when this package is reloaded.
    for environment in ENVIRONMENTS:
        if environment.name not in gymnasium.registry:
            gymnasium.register(
                id=environment.name,
                entry_point=environment.entry_point,
                max_episode_steps=environment.max_episode_steps,
                additional_wrappers=environment.wrappers,
                kwargs=dict(environment.kwargs),
            )
    if corridor.ANY_LENGTH not in gymnasium.registry:  # it ends by itself, at no time that a table could tell
        gymnasium.register(id=corridor.ANY_LENGTH, entry_point="offpcc.envs.tasks.corridor:Corridor")
    for name in catalog.FILES:
        if catalog.task(name) and name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="offpcc.envs.d4rl.make:simulator",
                max_episode_steps=catalog.max_episode_steps(name),
                additional_wrappers=(
                    WrapperSpec("AsRecorded", "offpcc.envs.d4rl.make:as_recorded", {"name": name}),
                    WrapperSpec("RecordedTask", "offpcc.envs.d4rl.recorded_task:RecordedTask", {"name": name}),
                ),
                kwargs={"name": name},
            )


_register()
