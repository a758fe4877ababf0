"""Tasks of other packages with discrete actions, which register their ids themselves: MinAtar, MiniGrid, POPGym."""

from __future__ import annotations

from offpcc.envs.registration import Environment
from offpcc.envs.tasks.minatar import ENTRY_POINT, LONGEST_GAME


def _minatar(game: str, num_channels: int, num_actions: int, hidden: str) -> Environment:
    return Environment(
        name=f"MinAtar/{game}-v1",
        family="minatar",
        hidden=hidden,
        entry_point=ENTRY_POINT,
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
