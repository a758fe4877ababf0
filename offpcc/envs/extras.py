"""Tasks of other packages, which `offpcc.make` makes from the packages' own ids: MinAtar, MiniGrid-Memory, POPGym.

The packages register their ids when they are imported, so this file imports them when such an id is asked for.
`ENVIRONMENTS` lists their tasks with discrete actions; `offpcc.envs.ENVIRONMENTS` holds offpcc's own.
"""

from __future__ import annotations

import copy
import importlib

from gymnasium.envs.registration import EnvSpec, WrapperSpec

from offpcc.envs.registration import Environment, is_installed
from offpcc.envs.tasks import minatar

PACKAGES = {"MinAtar/": "minatar", "MiniGrid-": "minigrid", "popgym-": "popgym"}  # by the beginning of the id
REGISTERING = {"minatar": "minatar.gym", "minigrid": "minigrid", "popgym": "popgym.envs"}  # modules
ADAPTED = ("minatar.gym:BaseEnv", "minigrid.envs:MemoryEnv")  # entry points
LONGEST_GAME = 10_000  # steps; MinAtar itself has no limit, and an agent that never loses would play forever
ONE_HOT_GRID = WrapperSpec("OneHotGrid", "offpcc.envs.wrappers:OneHotGrid", {})


def package_of(name: str) -> str | None:
    """Return the pip package that has this id by its form, or None."""
    return next((package for prefix, package in PACKAGES.items() if name.startswith(prefix)), None)


def register(name: str) -> None:
    """Register the ids of a package if `name` is one of them and the package is installed."""
    package = package_of(name)
    if package is not None and is_installed(package):
        module = importlib.import_module(REGISTERING[package])
        if package == "minatar" and not _has_minatar():
            module.register_envs()


def _has_minatar() -> bool:
    import gymnasium

    return "MinAtar/Breakout-v1" in gymnasium.registry


def adapted(spec: EnvSpec) -> EnvSpec:
    """Return the spec from which `offpcc.make` makes a task of these packages; the same one for any other.

    MinAtar's games are `MinAtar`, with a time limit. MiniGrid-Memory shows an image with a channel for each value of a
    symbol. Its text, which is always the same, and the direction are hidden.
    """
    if spec.entry_point not in ADAPTED:
        return spec
    made = copy.copy(spec)
    if spec.entry_point == ADAPTED[0]:
        made.entry_point, made.max_episode_steps = minatar.ENTRY_POINT, LONGEST_GAME
    else:
        made.additional_wrappers = (*spec.additional_wrappers, ONE_HOT_GRID)
    return made


def _minatar(game: str, num_channels: int, num_actions: int, hidden: str) -> Environment:
    return Environment(
        name=f"MinAtar/{game}-v1",
        family="minatar",
        hidden=hidden,
        entry_point=minatar.ENTRY_POINT,
        max_episode_steps=LONGEST_GAME,
        observation_shape=(num_channels, 10, 10),
        action_size=num_actions,
        is_discrete=True,
        package="minatar",
    )


def _minigrid(size: str, max_steps: int) -> Environment:
    return Environment(
        name=f"MiniGrid-Memory{size}-v0",
        family="minigrid",
        hidden="what is out of view; which object to find",
        entry_point="minigrid.envs:MemoryEnv",
        max_episode_steps=max_steps,
        observation_shape=(20, 7, 7),
        action_size=7,
        is_discrete=True,
        package="minigrid",
    )


def _popgym(task: str, num_numbers: int, num_actions: int, max_steps: int, hidden: str) -> Environment:
    return Environment(
        name=f"popgym-{task}Easy-v0",
        family="popgym",
        hidden=hidden,
        entry_point="popgym.envs",
        max_episode_steps=max_steps,
        observation_shape=(num_numbers,),
        action_size=num_actions,
        is_discrete=True,
        package="popgym",
    )


ENVIRONMENTS: tuple[Environment, ...] = (
    _minatar("Asterix", 4, 5, "the last action, timers"),
    _minatar("Breakout", 4, 3, "the last action"),
    _minatar("Freeway", 7, 3, "the last action, timers"),
    _minatar("Seaquest", 10, 6, "the last action, timers"),
    _minatar("SpaceInvaders", 6, 4, "the last action, timers"),
    *(_minigrid(f"S{size}", 5 * size * size) for size in (7, 9, 11, 13)),
    _minigrid("S13Random", 845),
    _minigrid("S17Random", 1445),
    _popgym("Autoencode", 6, 4, 103, "the cards before"),
    _popgym("Concentration", 156, 52, 104, "cards that lie face down"),
    _popgym("CountRecall", 4, 27, 51, "the cards before"),
    _popgym("HigherLower", 13, 2, 51, "the cards before"),
    _popgym("MultiarmedBandit", 2, 10, 200, "the arms' probabilities"),
    _popgym("NoisyPositionOnlyCartPole", 2, 2, 200, "velocities; positions are noisy"),
    _popgym("PositionOnlyCartPole", 2, 2, 200, "velocities"),
    _popgym("RepeatFirst", 4, 4, 51, "the first card"),
    _popgym("RepeatPrevious", 4, 4, 51, "the fourth last card"),
    _popgym("VelocityOnlyCartpole", 2, 2, 200, "positions"),
)
