"""The chain of an environment's wrappers, and the level in it at which a recording was made."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium import wrappers as gymnasiums
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import TimeLimit

from offpcc.envs.aliases import Array, Env
from offpcc.envs.wrappers import EpisodeReturn, Float32Observation, ReturnToGo
from offpcc.utils.errors import UserError
from offpcc.utils.words import counted

UNKNOWN = "arguments unknown"
ANT, ANT_WITH_CONTACT_FORCES = 27, 111  # numbers; D4RL's Ant appends 84 forces on 14 bodies

# A playback skips these wrappers. It has no time limit, no rendering and no statistics. Its recorded actions are the
# executed ones, so StickyAction must not change them.
SKIPPED = (
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
REWARD_WRAPPERS = (gym.RewardWrapper, gymnasiums.NormalizeReward)
UNCHANGING = (*SKIPPED, gym.Wrapper, gym.ActionWrapper, *REWARD_WRAPPERS)


def name_of(env: Env | gym.vector.VectorEnv[Any, Any, Any]) -> str:
    """Return the environment's id, or the name of its class if it is not registered."""
    innermost = env.unwrapped
    return innermost.spec.id if innermost.spec else type(innermost).__name__


def levels(env: Env) -> list[Env]:
    """Return the environment without its wrappers, then each wrapper, from the inside out."""
    chain = [env]
    while isinstance(chain[-1], gym.Wrapper):
        chain.append(chain[-1].env)
    return chain[::-1]


def is_skipped(level: Env) -> bool:
    """Check whether a playback skips this wrapper: it changes no observation, or it says so by `keeps_observations`."""
    return _same_methods(level, SKIPPED) or getattr(type(level), "keeps_observations", False)


def is_observation_wrapper(level: Env) -> bool:
    """Check whether a level is a wrapper that changes observations. A change of the float type does not count."""
    is_unchanging = _same_methods(level, UNCHANGING) or is_skipped(level)
    return isinstance(level, gym.Wrapper) and not is_unchanging and not _casts(level)


def shows_return_to_go(env: Env) -> bool:
    """Check whether an environment has the wrapper `ReturnToGo`."""
    return any(isinstance(level, ReturnToGo) for level in levels(env))


def time_limit_of(env: Env) -> int | None:
    """Return the time limit of an environment's spec, or else of its wrappers; None without one."""
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return env.spec.max_episode_steps
    return min((level._max_episode_steps for level in levels(env) if isinstance(level, TimeLimit)), default=None)


def observation_wrappers(env: Env) -> list[str]:
    """Return the wrappers that change observations, from the inside out, such as ``KeepIndices(indices=[0, 1])``."""
    return [describe_wrapper(level) for level in levels(env) if is_observation_wrapper(level)]


def describe_wrapper(wrapper: Env) -> str:
    """Return a wrapper's name and arguments as text that is the same in every run.

    Unknown arguments are replaced by `UNKNOWN`. They are known if the wrapper takes none, or if it records all of them
    with `gymnasium.utils.RecordConstructorArgs`. Functions are written by name. Arguments count as unknown if they
    include a function without a name, or an object whose text contains its memory address.
    """
    given = wrapper._saved_kwargs if isinstance(wrapper, RecordConstructorArgs) else {}
    arguments = ", ".join(f"{key}={_plain(value)!r}" for key, value in given.items() if key != "env")
    # A function's address differs in each run.
    arguments = re.sub(r"<function ([\w.]+) at 0x[0-9a-f]+>", r"\1", arguments)
    is_known = _records_all(wrapper, given) and " at 0x" not in arguments
    return f"{type(wrapper).__name__}({arguments if is_known else UNKNOWN})"


def find_recorded_level(env: Env, observations: Array, recorded_wrappers: Sequence[str] | None) -> int:
    """Return the index in `levels` of the level that returned the recorded observations (R, *obs).

    `recorded_wrappers` are the `observation_wrappers` of the environment in which they were recorded. If they are None,
    the level is the innermost one with this shape. In Ant, a level with 27 numbers also fits a recording of 111
    numbers; its numbers are the first 27.
    """
    chain, name, recorded = levels(env), name_of(env), observations.shape[1:]
    # New observations appear at these indices
    stages = [0, *(place for place, level in enumerate(chain) if is_observation_wrapper(level))]
    if recorded_wrappers is not None:
        _check_same(name, recorded_wrappers, observation_wrappers(env))
        stages = [stages[len(recorded_wrappers)]]
    for stage in stages:
        space = chain[stage].observation_space
        # The dtype of a vector does not matter. An image of floats has other units than an image of bytes.
        if space.shape == recorded and (len(recorded) == 1 or space.dtype == observations.dtype):
            return stage
    if recorded == (ANT_WITH_CONTACT_FORCES,) and "ant" in name.lower():
        for stage in stages:
            if chain[stage].observation_space.shape == (ANT,):
                return stage
    if recorded == (1,) and isinstance(states := chain[0].observation_space, spaces.Discrete):
        numbers = f"states - {states.start}" if states.start else "states"
        raise UserError(
            f"the data holds observations of 1 number, the number of a state, but agents see the {states.n} states of "
            f"{name} as one-hot vectors; give observations=numpy.eye({states.n})[{numbers}], where states are these "
            f"numbers as integers of shape (steps,)"
        )
    _refuse_other_images(name, observations, [chain[stage].observation_space for stage in stages])
    sizes = [f"{in_words(chain[0].observation_space.shape)} without wrappers"]
    sizes += [
        f"{in_words(chain[stage].observation_space.shape)} after {describe_wrapper(chain[stage])}"
        for stage in stages
        if stage
    ]
    raise UserError(
        f"the data holds observations of {in_words(recorded)}, but {name} has {', '.join(sizes)}; name the "
        f"environment in which the data was recorded, or one that shows a part of its observations"
    )


def in_words(shape: tuple[int, ...] | None) -> str:
    """Return a shape as text for messages; None is that of an observation that is not an array."""
    if shape is None:
        return "several parts"
    return counted(shape[0], "number") if len(shape) == 1 else f"shape {shape}"


def _same_methods(wrapper: Env, parents: Sequence[Any]) -> bool:
    """Check whether a wrapper has the same `reset` and `step` methods as one of `parents`."""
    methods = (type(wrapper).reset, type(wrapper).step)
    return methods in [(parent.reset, parent.step) for parent in parents]


def _casts(wrapper: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Check whether a wrapper only converts floats to other floats, without rounding what is recorded."""
    if not isinstance(wrapper, Float32Observation | gymnasiums.DtypeObservation):
        return False
    before, after = wrapper.env.observation_space.dtype, wrapper.observation_space.dtype
    return np.issubdtype(before, np.floating) and np.can_cast(np.float32, after)  # type: ignore[arg-type]


def _records_all(wrapper: Env, given: Mapping[str, Any]) -> bool:
    """Check whether the recorded arguments are all that the constructor takes, except for the environment."""
    parameters = list(inspect.signature(type(wrapper).__init__).parameters.values())[1:]  # without self
    named = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    # Arguments without a name (*args, **kwargs) belong to the parent class, which records them if it records any.
    has_unnamed = len(named) < len(parameters)
    return set(named[1:]) <= set(given) and (not has_unnamed or isinstance(wrapper, RecordConstructorArgs))


def _plain(value: Any) -> Any:
    """Return tuples and arrays as lists, because gin uses tuples and the table of environments uses lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _check_same(name: str, recorded: Sequence[str], here: Sequence[str]) -> None:
    for then, now in zip(recorded, here, strict=False):
        (wrapper, _, then_arguments), (other, _, now_arguments) = then.partition("("), now.partition("(")
        if wrapper == other and f"{UNKNOWN})" in (then_arguments, now_arguments):
            raise UserError(
                f"the data was recorded with the wrapper {then}, and {name} has {now}, which may be different; let "
                f"{wrapper} record all its arguments by gymnasium.utils.RecordConstructorArgs (functions need a name) "
                f"and collect the data again, or write the wrappers of the recording into metadata/seen_through"
            )
    remedy = "name the environment in which the data was recorded"
    if len(here) < len(recorded) and list(recorded[: len(here)]) == list(here):
        missing = [one.partition("(")[0] for one in recorded[len(here) :]]
        references = ", ".join(f"@{'gymnasium.' * hasattr(gymnasiums, one)}{one}" for one in missing)
        what = f"no {_listed(recorded[len(here) :])}" if here else "no wrapper"
        raise UserError(
            f"the data was recorded with {_listed(recorded)}, but {name} has {what}; {remedy}, or add what is missing, "
            f'with the same arguments: --gin "make.wrappers=[{references}]"'
        )
    if list(here[: len(recorded)]) != list(recorded):
        raise UserError(
            f"the data was recorded with {_listed(recorded)}, but {name} has {_listed(here)}, and its first wrappers "
            f"have to be those of the recording; {remedy}, or one that adds wrappers to it"
        )


def _refuse_other_images(name: str, observations: Array, shown: Sequence[gym.Space[Any]]) -> None:
    """Raise if recorded images are those of an environment, but in another type, or with the channels elsewhere."""
    recorded, faults, remedies = observations.shape[1:], list[str](), list[str]()
    if len(recorded) != 3:
        return
    for space in shown:
        first, last = (recorded[-1], *recorded[:-1]), (*recorded[1:], recorded[0])
        if space.dtype != np.uint8 or space.shape not in (recorded, first, last):
            continue
        if space.shape != recorded:
            ends, axes = (("first", "last"), (0, 2, 3, 1)) if space.shape == last else (("last", "first"), (0, 3, 1, 2))
            faults.append(f"have their channels {ends[0]}, in the shape {recorded}, but {name} has them {ends[1]}")
            remedies.append(f"transpose them, observations.transpose{axes}")
        if observations.dtype != space.dtype:
            faults.append(f"are {observations.dtype}, but {name} has {space.dtype}")
            remedies.append("give uint8 from 0 to 255")
        raise UserError(f"the images of the data {', and '.join(faults)}; {', and '.join(remedies)}")


def _listed(wrappers: Sequence[str]) -> str:
    return ", ".join(wrappers) or "no wrapper"
