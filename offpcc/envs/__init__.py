"""The environments of offpcc. Importing this package registers them with Gymnasium.

`ENVIRONMENTS` is their table. A user's own environment needs no change here: see docs/your_environment.md. To add one
to offpcc, write a file in `offpcc.envs.tasks` that holds its rows, and add a line here. The file must not import a
simulator before an environment is made.

D4RL also uses the names of its datasets as environment ids, and they are registered, too. `offpcc.envs.d4rl.catalog`
holds their table, and `offpcc.envs.d4rl` makes them.
"""

import gymnasium
from gymnasium.envs.registration import WrapperSpec

from offpcc.envs import extras
from offpcc.envs.d4rl import catalog
from offpcc.envs.registration import Environment, is_installed
from offpcc.envs.tasks import (
    bumps,
    cartpole,
    corridor,
    dm_control_suite,
    mujoco_locomotion,
    pendulum,
    pybullet_locomotion,
    reacher,
    water_maze,
)

__all__ = ["ALL", "ENVIRONMENTS", "LISTED", "Environment", "missing_package"]

ENVIRONMENTS: tuple[Environment, ...] = (
    *pendulum.ENVIRONMENTS,
    *cartpole.ENVIRONMENTS,
    *dm_control_suite.ENVIRONMENTS,
    *reacher.ENVIRONMENTS,
    *pybullet_locomotion.ENVIRONMENTS,
    *mujoco_locomotion.ENVIRONMENTS,
    *water_maze.ENVIRONMENTS,
    *bumps.ENVIRONMENTS,
    *corridor.ENVIRONMENTS,
)

LISTED = (*ENVIRONMENTS, *extras.ENVIRONMENTS)  # with tasks of other packages, which register their ids themselves
ALL = (*LISTED, *dm_control_suite.SUITE)


def missing_package(name: str) -> str | None:
    """Return the pip package that the environment `name` needs if it is not installed, else None."""
    packages = {environment.name: environment.package for environment in ALL}
    package = packages.get(name) or catalog.package(name)
    return None if package is None or is_installed(package) else package


def _register() -> None:
    # Gymnasium warns when an id is registered twice, which happens when this package is reloaded.
    for environment in (*ENVIRONMENTS, *dm_control_suite.SUITE):
        if environment.name not in gymnasium.registry:
            gymnasium.register(
                id=environment.name,
                entry_point=environment.entry_point,
                max_episode_steps=environment.max_episode_steps,
                additional_wrappers=environment.wrappers,
                kwargs=dict(environment.kwargs),
            )
    if corridor.ANY_LENGTH not in gymnasium.registry:  # its length is an argument, so it has no fixed time limit
        gymnasium.register(id=corridor.ANY_LENGTH, entry_point="offpcc.envs.tasks.corridor:Corridor")
    for name in catalog.FILES:
        if catalog.task(name) and name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="offpcc.envs.d4rl.make:make_d4rl_simulator",
                max_episode_steps=catalog.max_episode_steps(name),
                additional_wrappers=(
                    WrapperSpec("AsRecorded", "offpcc.envs.d4rl.make:as_recorded", {"name": name}),
                    WrapperSpec("RecordedTask", "offpcc.envs.d4rl.make:RecordedTask", {"name": name}),
                ),
                kwargs={"name": name},
            )


_register()
