"""Tasks of other packages with discrete actions, which register their ids themselves: MinAtar, MiniGrid, POPGym."""

from __future__ import annotations

from offpcc.envs.registration import Environment
from offpcc.envs.tasks.minatar import ENTRY_POINT, LONGEST_GAME


def _row(
    name: str, package: str, entry_point: str, shape: tuple[int, ...], num_actions: int, max_steps: int, hidden: str
) -> Environment:
    given = name, package, hidden, entry_point, max_steps, shape, num_actions  # `family` is the name of the package
    return Environment(*given, is_discrete=True, package=package)


def _minatar(game: str, num_channels: int, num_actions: int, hidden: str) -> Environment:
    return _row(f"MinAtar/{game}-v1", "minatar", ENTRY_POINT, (num_channels, 10, 10), num_actions, LONGEST_GAME, hidden)


def _minigrid(size: str, max_steps: int) -> Environment:
    name, hidden = f"MiniGrid-Memory{size}-v0", "what is out of view; which object to find"
    return _row(name, "minigrid", "minigrid.envs:MemoryEnv", (20, 7, 7), 7, max_steps, hidden)


def _popgym(task: str, num_numbers: int, num_actions: int, max_steps: int, hidden: str) -> Environment:
    return _row(f"popgym-{task}Easy-v0", "popgym", "popgym.envs", (num_numbers,), num_actions, max_steps, hidden)


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
