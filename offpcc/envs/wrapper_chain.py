"""The chain of wrappers of an environment, and at which of them a recording was made."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers as gymnasiums
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from offpcc.envs.wrappers import EpisodeReturn, Float32Observation
from offpcc.utils.errors import UserError

__all__ = [
    "ANT",
    "describe",
    "find_recorded_level",
    "in_words",
    "is_left_out",
    "is_observation_wrapper",
    "levels",
    "name_of",
    "observation_wrappers",
    "shapes",
]

Array = NDArray[Any]
Env = gym.Env[Any, Any]
Shape = tuple[int, ...] | None  # None of an observation that is no array

UNKNOWN = "arguments unknown"
ANT, ANT_WITH_CONTACT_FORCES = 27, 111  # numbers; D4RL's Ant appends 84 forces, on 14 bodies

# They take no part in a playback: it has no time limit, nothing to draw and nobody to tell, and an action that was
# recorded is the one that was executed, which does not stick.
LEFT_OUT = (
    EpisodeReturn,
    gymnasiums.HumanRendering,
    gymnasiums.OrderEnforcing,
    gymnasiums.PassiveEnvChecker,
    gymnasiums.RecordEpisodeStatistics,
    gymnasiums.RecordVideo,
    gymnasiums.RenderCollection,
    gymnasiums.StickyAction,
    gymnasiums.TimeLimit,
)
UNCHANGING = (*LEFT_OUT, gym.Wrapper, gym.ActionWrapper, gym.RewardWrapper, gymnasiums.NormalizeReward)


def name_of(env: Env | gym.vector.VectorEnv[Any, Any, Any]) -> str:
    """Its id, or its class where it is not registered."""
    innermost = env.unwrapped
    return innermost.spec.id if innermost.spec else type(innermost).__name__


def levels(env: Env) -> list[Env]:
    """The environment without its wrappers, then each of them, from the inside out."""
    chain = [env]
    while isinstance(chain[-1], gym.Wrapper):
        chain.append(chain[-1].env)
    return chain[::-1]


def is_left_out(level: Env) -> bool:
    """Whether it has no part in showing recorded episodes."""
    return _same_methods(level, LEFT_OUT)


def is_observation_wrapper(level: Env) -> bool:
    """Whether it is a wrapper that changes what is observed; converting floats to other floats does not."""
    return isinstance(level, gym.Wrapper) and not _same_methods(level, UNCHANGING) and not _casts(level)


def observation_wrappers(env: Env) -> list[str]:
    """The wrappers that change what is observed, from the inside out, such as ``KeepIndices(indices=[0, 1])``."""
    return [describe(level) for level in levels(env) if is_observation_wrapper(level)]


def shapes(env: Env) -> list[Shape]:
    """The shape of the environment's own observation, and of what each of its `observation_wrappers` shows."""
    chain = levels(env)
    return [chain[stage].observation_space.shape for stage in _stages(chain)]


def describe(wrapper: Env) -> str:
    """A wrapper and its arguments, in the same words in every run, or that these are not known.

    They are known of those that tell each of them by `gymnasium.utils.RecordConstructorArgs`, and of those that have
    none. A function is told by its name, so one without is not known, nor is an object that is told by its address.
    """
    given = wrapper._saved_kwargs if isinstance(wrapper, RecordConstructorArgs) else {}
    arguments = ", ".join(f"{key}={_plain(value)!r}" for key, value in given.items() if key != "env")
    # Where a function lies in memory is another place in each run.
    arguments = re.sub(r"<function ([\w.]+) at 0x[0-9a-f]+>", r"\1", arguments)
    is_told = _tells_all(wrapper, given) and " at 0x" not in arguments
    return f"{type(wrapper).__name__}({arguments if is_told else UNKNOWN})"


def find_recorded_level(env: Env, observations: Array, recorded_wrappers: Sequence[str] | None) -> int:
    """Which of the `levels` showed the observations, (R, *obs), that were recorded.

    Args:
        env: What they are to be seen in.
        observations: The innermost level of their shape showed them, if `recorded_wrappers` is not known; or, in Ant,
            the one of their first 27 numbers, if they are 111.
        recorded_wrappers: `observation_wrappers` of the environment that they were recorded in.

    Raises:
        UserError: They fit none, or were seen through other wrappers than these, or maybe others.
    """
    chain, name, recorded = levels(env), name_of(env), observations.shape[1:]
    stages = _stages(chain)
    if recorded_wrappers is not None:
        _check_same(name, recorded_wrappers, observation_wrappers(env))
        stages = [stages[len(recorded_wrappers)]]
    for stage in stages:
        space = chain[stage].observation_space
        # Numbers are numbers, but an image of floats is in other units than one of bytes.
        if space.shape == recorded and (len(recorded) == 1 or space.dtype == observations.dtype):
            return stage
    if recorded == (ANT_WITH_CONTACT_FORCES,) and "ant" in name.lower():
        for stage in stages:
            if chain[stage].observation_space.shape == (ANT,):
                return stage
    sizes = [f"{in_words(chain[0].observation_space.shape)} of its own"]
    sizes += [
        f"{in_words(chain[stage].observation_space.shape)} after {describe(chain[stage])}" for stage in stages if stage
    ]
    raise UserError(
        f"the data holds observations of {in_words(recorded)}, but {name} has {', '.join(sizes)}; name the "
        f"environment it was recorded in, or one that shows a part of the same"
    )


def in_words(shape: Shape) -> str:
    """A shape as messages tell it."""
    if shape is None:
        return "several parts"
    return f"{shape[0]} numbers" if len(shape) == 1 else f"shape {shape}"


def _stages(chain: Sequence[Env]) -> list[int]:
    """Places in the chain where an observation is a new one."""
    return [0, *(place for place, level in enumerate(chain) if is_observation_wrapper(level))]


def _same_methods(wrapper: Env, parents: Sequence[Any]) -> bool:
    """Whether it resets and steps as one of `parents` does; a child that does so in a way of its own does not."""
    methods = (type(wrapper).reset, type(wrapper).step)
    return methods in [(parent.reset, parent.step) for parent in parents]


def _casts(wrapper: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether floats become other floats, none of which rounds what is recorded."""
    if not isinstance(wrapper, Float32Observation | gymnasiums.DtypeObservation):
        return False
    before, after = wrapper.env.observation_space.dtype, wrapper.observation_space.dtype
    return np.issubdtype(before, np.floating) and np.can_cast(np.float32, after)  # type: ignore[arg-type]


def _tells_all(wrapper: Env, given: Mapping[str, Any]) -> bool:
    """Whether what it tells of its arguments is all that its constructor takes, but for the environment."""
    parameters = inspect.signature(type(wrapper)).parameters.values()
    named = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    # Arguments that it takes without naming them are its parent's, which tells them if it tells any.
    hands_on = len(named) < len(parameters)
    return set(named[1:]) <= set(given) and (not hands_on or isinstance(wrapper, RecordConstructorArgs))


def _plain(value: Any) -> Any:
    """Tuples and arrays as lists: gin has tuples where the table has lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _check_same(name: str, recorded: Sequence[str], here: Sequence[str]) -> None:
    for then, now in zip(recorded, here, strict=False):
        (wrapper, _, told), (same, _, telling) = then.partition("("), now.partition("(")
        if wrapper == same and f"{UNKNOWN})" in (told, telling):
            raise UserError(
                f"the data was recorded through {then}, and the agent of {name} sees through {now}, which may show "
                f"something else; have {wrapper} tell all its arguments by gymnasium.utils.RecordConstructorArgs, "
                f"functions by a name, and record anew, or write what they were into metadata/seen_through"
            )
    if list(here[: len(recorded)]) != list(recorded):
        raise UserError(
            f"the data was recorded through {_listed(recorded)}, but the agent of {name} sees through "
            f"{_listed(here)}, which does not begin with the same; name the environment it was recorded in, or one "
            f"that adds wrappers to it"
        )


def _listed(wrappers: Sequence[str]) -> str:
    return ", ".join(wrappers) or "no wrapper"
