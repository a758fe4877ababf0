"""Checks whether recorded data fits an environment."""

import math
import re
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from offpcc.core import PackedDict
from offpcc.data.buffers.storage import convert_recorded
from offpcc.data.datasets.columns import Array, Range
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.load import OGBENCH
from offpcc.data.datasets.metadata import if_valid, recorded_in, recorded_wrappers
from offpcc.data.datasets.notices import Notice
from offpcc.data.datasets.ogbench import TASK
from offpcc.envs.recorded_observations import transform_observations
from offpcc.envs.wrapper_chain import REWARD_WRAPPERS, describe_wrapper, levels, name_of, observation_wrappers
from offpcc.envs.wrappers import WithoutState, bounds_of, raw_actions
from offpcc.envs.wrappers.observations import Hiding
from offpcc.utils.errors import UserError
from offpcc.utils.findings import FAULT, OK, WARNING, Finding
from offpcc.utils.paths import shown
from offpcc.utils.spaces import may_be_meant_as_image
from offpcc.utils.words import counted

# Wrappers that change no number.
PACKING = ("PackedObservation(", "PackedStateObservation(", "StateObservation(", "WithoutState(")
FAMILIES = "bullet", "minigrid", "popgym"  # first words of ids, which many tasks share
LEAST_FLOAT_FRAME = 24  # height and width; smaller arrays of floats may be several vectors
SLACK = 0.01  # part of the range of an observation by which it may be beyond a bound
OTHER_UNITS = (
    "look for other units, such as degrees, or for another order of the numbers; if the data are right, correct the "
    "observation space"
)
STEPS = 1_000  # of the first episode to pass through the wrappers; all data may take minutes

NOT_APPLIED = (
    "wrappers are not applied to recorded Dict observations: record through the same wrappers (but ReturnToGo, which "
    "cannot be used with such data), or leave make.wrappers out"
)


def bounds_for(data: Dataset, env: gymnasium.Env[Any, Any] | None) -> Range | None:
    """Return the environment's action bounds; None if its actions have another size than the recorded ones."""
    if env is None or why_other_actions(data, env):
        return None
    return bounds_of(raw_actions(env))


def why_other_actions(data: Dataset, env: gymnasium.Env[Any, Any]) -> str:
    """Return why the recorded actions are not those of the environment, or ""."""
    space = raw_actions(env)
    if isinstance(space, spaces.Discrete):
        is_other, kind = not data.discrete_actions, f"continuous actions{_hint(data.actions)}"
    else:
        is_other, kind = data.discrete_actions, "discrete actions"
    if isinstance(space, spaces.Discrete) and data.discrete_actions and data.action_range is not None:
        first, number = data.choices()
        if (first, number) != (int(space.start), int(space.n)):
            return f"it has {number} discrete actions from {first} on, but {name_of(env)} takes {space}"
    if is_other:
        return f"it has {kind}, but {name_of(env)} takes {space}"
    recorded, wanted = data.actions.shape[1], math.prod(space.shape or (1,))
    if recorded == wanted:
        return ""
    hint = _hint(data.actions) if isinstance(space, spaces.Discrete) else ""
    return f"it has actions of {counted(recorded, 'number')}{hint}, but {name_of(env)} takes {wanted}"


def as_choices(actions: Array) -> tuple[str, str] | None:
    """Return what actions (N, A) of numbers look like, and how they become discrete ones; None if they do not."""
    part = actions[:STEPS]
    if part.shape[1] == 1 and (part == np.round(part)).all():
        return "whole ones, so they seem to be choices", "give actions.astype(int)"
    if part.shape[1] > 1 and ((part == 0) | (part == 1)).all() and (part.sum(1) == 1).all():
        return "one-hot, so they seem to be choices", "give actions.argmax(1)"
    return None


def _hint(actions: Array) -> str:
    found = as_choices(actions)
    return f" ({': '.join(found)})" if found else ""


def without_channels(data: Dataset) -> list[Notice]:
    """Return a notice if observations seem to be images that lack an axis for channels; environments refuse these."""
    shape = data.observations.shape[1:]
    kind = data.observations.dtype
    if not may_be_meant_as_image(shape, np.uint8) or (kind != np.uint8 and min(shape) < LEAST_FLOAT_FRAME):
        return []
    told = "bytes" if kind == np.uint8 else str(kind)
    text = f"observations are {told} of shape {shape}, which networks read as a vector of {math.prod(shape):,} numbers"
    return [Notice("remark", f"{text}; if they are images, give them an axis for channels: observations[:, None]")]


def env_notices(data: Dataset, env: gymnasium.Env[Any, Any]) -> list[Notice]:
    """Return a notice if the data seem to be of another task, and one if wrappers change rewards.

    Two names are of one task if one contains the other. Recorded rewards stay unchanged.
    """
    notices = list[Notice]()
    origin = if_valid(recorded_in, data.metadata, data.name)  # `_source` of a check reports damaged metadata
    ours, theirs = _task_word(name_of(env)), _task_word(origin or "")
    has_id = env.unwrapped.spec is not None  # else its name is that of a class
    is_other = ours not in theirs and theirs not in ours  # else two versions of one task
    if str(origin).startswith(OGBENCH):
        is_other = _is_other_of_ogbench(data, str(origin), env)
    if has_id and is_other:
        text = f"the data were recorded in {shown(str(origin))}, but the environment is {name_of(env)}"
        notices.append(Notice("origins", text))
    elif (chances := _repeat_chances(str(origin), env)) is not None:
        text = (
            f"the data were recorded in {shown(str(origin))}, which by default repeats the last action with a chance "
            f"of {chances[0]:g}, but the environment is {name_of(env)}, with {chances[1]:g}"
        )
        notices.append(Notice("remark", text))
    changing = [type(level).__name__ for level in reversed(levels(env)) if isinstance(level, REWARD_WRAPPERS)]
    text = f"{', '.join(changing)} of {name_of(env)} changes rewards in tests, but not recorded rewards"
    return [*notices, Notice("rewards", f"{text}: be careful when you compare returns")] if changing else notices


def _is_other_of_ogbench(data: Dataset, origin: str, env: gymnasium.Env[Any, Any]) -> bool:
    """Check whether an environment has another maze or scene than data of OGBench, or another task in it."""
    names = [re.sub(r"ogbench:|-task\d+", "", name) for name in (origin, name_of(env))]
    number = re.search(r"-task(\d+)", origin)
    task, wanted = number[1] if number else data.metadata.get(TASK), getattr(env.unwrapped, "_reward_task_id", None)
    return names[0] != names[1] or (task is not None and str(task) != str(wanted))


def _repeat_chances(origin: str, env: gymnasium.Env[Any, Any]) -> tuple[float, float] | None:
    """Return the chances of sticky actions where the data and the environment are Atari games that differ in them."""
    key = "repeat_action_probability"
    theirs, ours = gymnasium.registry.get(origin), env.unwrapped.spec
    if theirs is None or ours is None or not (key in theirs.kwargs and key in ours.kwargs):
        return None
    chances = float(theirs.kwargs[key]), float(ours.kwargs[key])
    return chances if chances[0] != chances[1] else None


def _task_word(name: str) -> str:
    """Return the part of an environment's id that names its task, as "hopper" of Hopper-v5 or hopper-mujoco-p-v0."""
    words = re.findall("[a-z0-9]+", re.split("[:/]", name)[-1].lower().replace("_", ""))
    if words[:1] == ["dmc"]:  # a body and its task
        return "".join(words[1:3])
    return next((word for word in words if word not in FAMILIES), "")


def match_states_and_wrappers(
    data: Dataset, env: gymnasium.Env[Any, Any] | None, state: str | None = None, memory_limit: int | None = None
) -> tuple[Dataset, list[str] | None]:
    """Return the data, without states if the agent has none, and the wrappers they were seen through, if known.

    The state of the environment counts, or else `state`: see ``make.state``. An entry that only critics saw is an
    ordinary one if the environment shows it to the agent. An ordinary entry is left out if the environment hides it.
    For `memory_limit`, see `offpcc.data.load_dataset`.
    """
    seen = None if env is None else env.observation_space
    state_key = state if env is None else getattr(seen, "state_key", None)
    wrappers, space = recorded_wrappers(data.metadata, data.name), data.observation_space
    if wrappers and data.stacks is not None:  # which may show fewer frames than recorded, see `match_frame_stack`
        number = data.stacks.depth
        wrappers = [*wrappers[:-1], *([f"Concatenate(num={number})"] if number > 1 else [])]
    if env is not None and isinstance(seen, PackedDict) and space is not None and space.is_like(seen):
        packing = next((one for one in observation_wrappers(env) if one.startswith(PACKING[:2])), None)
        if wrappers is not None and packing is not None:
            wrappers = [packing if one.startswith(PACKING[:2]) else one for one in wrappers]
        return replace(data, observation_space=seen), wrappers
    hiding = [one for one in ([] if env is None else levels(env)) if isinstance(one, WithoutState)]
    if space is not None and space.state_key is None and any(one.key in space.entries for one in hiding):
        space = PackedDict(space.dict_space, hiding[0].key)
    if state_key is not None or space is None or space.state_key is None:
        return data, wrappers
    without = replace(data, observation_space=space).without_states(memory_limit)
    if env is not None and without.observation_space is None:
        without = _with_channels_of(env, without, memory_limit)
    kept = None if wrappers is None else [one for one in wrappers if not one.startswith(PACKING)]
    if kept is not None:
        kept += map(describe_wrapper, hiding)
        if without.observation_space is not None:  # the rest is a Dict, too
            kept.append(f"{PACKING[0]})")
    return without, kept


def _with_channels_of(env: gymnasium.Env[Any, Any], data: Dataset, memory_limit: int | None) -> Dataset:
    """Return images as the environment shows them; those that were an entry of a Dict have their channels first."""
    shapes, first = [level.observation_space.shape for level in levels(env)], data.observations.shape[1:]
    if len(first) != 3 or first in shapes or (*first[1:], first[0]) not in shapes:
        return data
    images, last = (
        convert_recorded(part, lambda rows: np.moveaxis(rows, 1, -1), memory_limit, data.name)
        for part in (data.observations, data.final_observations)
    )
    return replace(data, observations=images, final_observations=last)


def match_frame_stack(data: Dataset, env: gymnasium.Env[Any, Any] | None) -> Dataset:
    """Return stacks of recorded frames with as many of the newest frames as the environment shows."""
    shape = None if env is None else env.observation_space.shape
    is_shorter = data.stacks is not None and shape is not None and shape[1:] == data.stacks.shape[2:]
    return data.newest_frames(shape[0]) if is_shorter and shape else data


def without_states(name: str) -> str:
    """Return the message for data without the state that ``make.state`` names."""
    return (
        f"{name} has no column of states, but make.state gives states to critics; record them, as offpcc collect does "
        f"with make.state, or leave make.state out"
    )


def _shows_all(unwrapped: spaces.Space[Any], space: PackedDict) -> bool:
    """Check whether the environment without its wrappers has the recorded entries."""
    return isinstance(unwrapped, spaces.Dict) and space.is_like(PackedDict(unwrapped))


def check_entries(env: gymnasium.Env[Any, Any], space: PackedDict | None, shape: tuple[int, ...], name: str) -> None:
    """Check that Dict observations have the entries that the environment has."""
    seen = env.observation_space
    if not isinstance(seen, PackedDict):
        if space is None:
            return
        remedy = "name the environment it was recorded in, or leave --env out"
        if _shows_all(levels(env)[0].observation_space, space):
            remedy = NOT_APPLIED
        raise UserError(
            f"{name} holds Dict observations ({space.unpacked_shape!r}), but those of {name_of(env)} are arrays; "
            f"{remedy}"
        )
    if space is not None and space.is_like(seen):
        return
    inner = [level.observation_space for level in levels(env) if not isinstance(level.observation_space, PackedDict)]
    if space is None and seen.state_key is None and any(one.shape == shape for one in inner):
        return  # a wrapper such as ReturnToGo makes a Dict of these arrays; see `transform_observations`
    # Wrappers such as KeepIndices give the state; see `transform_observations`.
    if space is None and seen.state_key is not None:
        hiding = [level for level in levels(env) if isinstance(level, Hiding)]
        hides_state = any(level.state_space == level.env.observation_space for level in hiding)
        if hides_state and shape == levels(env)[0].observation_space.shape:
            return
        raise UserError(without_states(name))
    held = f"observations of shape {shape}" if space is None else f"Dict observations ({space.unpacked_shape!r})"
    remedy = "name the environment it was recorded in"
    if space is None:
        remedy += "; data whose vectors are joined in one array need make.wrappers=[@gymnasium.FlattenObservation]"
    elif _shows_all(levels(env)[0].observation_space, space):
        if seen.state_key not in (None, *space.entries):
            raise UserError(without_states(name))
        remedy = NOT_APPLIED
    else:
        remedy += ", or give the data these keys and shapes"
        ours = {part.key: part.shape for part in space.unpacked_shape.parts}
        sizes = {part.key: part.shape for part in seen.unpacked_shape.parts}
        for key, entry in seen.entries.items():
            is_choice = isinstance(entry, spaces.Discrete | spaces.MultiDiscrete)
            if is_choice and ours.get(key, sizes[key]) != sizes[key]:
                remedy = (
                    f"{key!r} is a choice, {entry}: write it one-hot, as offpcc collect does, or give the space, "
                    f"offpcc.Dataset.from_arrays(..., "
                    f"observation_space=gymnasium.make({name_of(env)!r}).observation_space)"
                )
                break
    raise UserError(f"{name} holds {held}, but {name_of(env)} has a Dict ({seen.unpacked_shape!r}); {remedy}")


def fits(data: Dataset, env: gymnasium.Env[Any, Any]) -> list[Finding]:
    """Check whether the data fits the environment. The environment's current episode is lost."""
    data, name, found = match_frame_stack(data, env), name_of(env), []
    if text := why_other_actions(data, env):
        found.append(Finding("env", FAULT, text, "name the environment it was recorded in"))
    fine = f"its actions have {counted(data.actions.shape[1], 'number')}, as the recorded ones do"
    if data.discrete_actions:
        fine = "its actions are discrete, as the recorded ones are"
    try:
        data, wrappers = match_states_and_wrappers(_beginning(data), env)
        check_entries(env, data.observation_space, data.observations.shape[1:], data.name)
        _, seen = _as_seen(data, env, wrappers)
    except UserError as error:
        return [*found, Finding("env", FAULT, error.message)]
    if seen is not None:
        recorded = f"{data.observations.dtype} of shape {data.observations.shape[1:]}"
        space = data.observation_space
        told = f"{seen.dtype} of shape {seen.shape[1:]}, where {recorded} was recorded"
        if space is not None:
            told = f"the Dict that was recorded ({space.unpacked_shape!r})"
        fine = f"the agent in {name} sees {told}; {fine}"
        found += _beyond_bounds(seen, env)
    return found or [Finding("env", OK, fine)]


def _beyond_bounds(seen: Array, env: gymnasium.Env[Any, Any]) -> list[Finding]:
    """Check whether the vectors `seen` (S, O) lie within the bounds of the environment's observations."""
    space = env.observation_space
    if not isinstance(space, spaces.Box) or seen.ndim != 2 or seen.shape[1:] != space.shape:
        return []
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    beyond = np.maximum(low - seen, seen - high)
    places = np.flatnonzero((beyond > SLACK * np.maximum(high - low, 1.0)).any(0))
    if not len(places):
        return []
    first = int(places[0])
    reach = float(seen[beyond[:, first].argmax(), first])
    text = (
        f"{len(places):,} of {counted(len(low), 'number')} of the observations are beyond the bounds of "
        f"{name_of(env)}: number {first} reaches {reach:.4g}, but its bounds are [{low[first]:.4g}, {high[first]:.4g}]"
    )
    return [Finding("env", WARNING, text, OTHER_UNITS)]


def count_hidden(data: Dataset, env: gymnasium.Env[Any, Any]) -> int:
    """Return how many numbers of recorded vectors that change in the first episode the environment hides."""
    data, wrappers = match_states_and_wrappers(_beginning(data), env)
    recorded, seen = _as_seen(data, env, wrappers)
    if recorded is None or seen is None:
        return 0
    changing, shown = (int((rows != rows[0]).any(0).sum()) for rows in (recorded, seen))
    return max(changing - shown, 0)


def _beginning(data: Dataset) -> Dataset:
    """Return the first steps of the first episode with a transition; all images may not fit in memory."""
    episode = data.select([int(_has_transition(data).argmax())])
    return episode.first_steps(min(STEPS, episode.num_steps))


def _has_transition(data: Dataset) -> Array:
    return np.asarray(data.lengths > ~data.last_is_transition)


def _as_seen(
    data: Dataset, env: gymnasium.Env[Any, Any], wrappers: list[str] | None
) -> tuple[Array | None, Array | None]:
    """Return the recorded observations, and the same as the agent will see them; None without a transition."""
    if not _has_transition(data).any():
        return None, None
    rows = data.rows(bounds_for(data, env))
    given = rows.observations, rows.actions, rows.rewards, rows.starts, rows.stops
    seen = transform_observations(env, *given, seed=0, recorded_wrappers=wrappers)
    return rows.observations, seen
