"""Recorded episodes seen through an environment's wrappers, which are shown them as if they happened.

What was recorded is the observation at some level of the environment: its own, or the one that some of its wrappers
show. In the place of that level stands a `Playback`, and the wrappers above it run as they do in training. So what they
show is exact for every wrapper, a user's too, up to float32, which recordings are kept in.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import wrappers as gymnasiums
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from offpcc.domains.wrappers import EpisodeReturn, Float32Observation, KeepIndices
from offpcc.errors import UserError, first_line

__all__ = ["Playback", "observation_wrappers", "shapes", "view"]

Array = NDArray[Any]
Info = dict[str, Any]
Env = gym.Env[Any, Any]
Shape = tuple[int, ...] | None  # None of an observation that is no array

STREAM = 4  # tells what is drawn here from what else is drawn with the same seed
NUM_COMPARED = 1_000  # steps of the first episode that are played again, to find what depends on other episodes
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
REFUSED = (
    (gymnasiums.AddRenderObservation, "draws the environment, and there is none in a recording"),
    (gymnasiums.MaxAndSkipObservation, "takes several steps in one, and a recording has one"),
    (gymnasiums.NormalizeObservation, "learns as it goes, so that an episode would look different at each time"),
)


class OutOfStepError(Exception):
    """A wrapper took a step, or a reset, that was not asked of it."""


class Playback(gym.Env[Array, Array]):
    """Shows a recorded episode, whatever the actions are.

    The step to its last observation is truncated, as nothing follows; no other is, and none is terminated. There is
    no info, and nothing to render.

    Args:
        level: What it stands for, whose spaces and spec it has.
    """

    def __init__(self, level: Env) -> None:
        self.observation_space, self.action_space, self.spec = level.observation_space, level.action_space, level.spec
        self.row = self.due = 0

    def insert(self, observations: Array, rewards: Array, generator: np.random.Generator) -> None:
        """Goes to the start of an episode of L steps.

        Args:
            observations: (L+1, *obs).
            rewards: (L, 1).
            generator: What wrappers draw from, as `np_random`, in this episode.
        """
        # A copy, in the type that wrappers are promised, for some may write into it.
        self._observations = observations.astype(self.observation_space.dtype)
        self._rewards = rewards
        self.np_random = generator
        self.row, self.due = -1, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Shows the first observation; `np_random` is the episode's, whatever `seed` is."""
        self._advance(0)
        return self._observations[0], {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Shows the next observation."""
        self._advance(self.row + 1)
        is_last = self.row == len(self._rewards)
        return self._observations[self.row], float(self._rewards[self.row - 1, 0]), False, is_last, {}

    def render(self) -> None:
        """Refuses.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a recording cannot be rendered")

    def _advance(self, row: int) -> None:
        if row != self.due or row == self.row:
            raise OutOfStepError
        self.row = row


class _Recording(NamedTuple):
    """Episodes, as `view` takes them."""

    observations: Array
    actions: Array
    rewards: Array
    starts: Array
    stops: Array


def view(
    env: Env,
    observations: Array,
    actions: Array,
    rewards: Array,
    starts: Array,
    stops: Array,
    *,
    seed: int,
    seen_through: Sequence[str] | None = None,
) -> Array:
    """What an agent in `env` would have seen of recorded episodes.

    The recorded observation is the one that the wrappers of `seen_through` show; if that is not known, the innermost
    one of its shape; or, in Ant, the first 27 numbers are, if 111 were recorded. Of wrappers that select numbers alone
    the columns are taken at once; others are shown all episodes step by step. Randomness of theirs is drawn once for
    each episode, from `seed` and its number. Of a recorded action it is taken that it was executed: StickyAction
    changes none.

    Where nothing is to be done, the recorded array itself is returned.

    Args:
        env: Made by `offpcc.domains.making.make`; its episode is lost, and closing it is left to the caller. Its
            wrappers are to reach what is below them by `env` alone, as one that was kept apart would not be played.
        observations: (R, *obs), of episodes one after another; the last of an episode is the one that ended it.
        actions: (R, A), in [-1, 1]; those of an episode's last rows count for nothing.
        rewards: (R, 1), likewise.
        starts: (N,), each episode's first row.
        stops: (N,), the row after each episode's last.
        seed: Of what wrappers draw.
        seen_through: `observation_wrappers` of the environment that the episodes were recorded in.

    Returns:
        (R, *env.observation_space.shape), in its dtype.

    Raises:
        UserError: The recording fits no level of `env`, or a wrapper cannot be shown it.
    """
    if len(env.observation_space.shape or ()) == 3 and observations.ndim != 4:
        raise UserError(
            f"{_name(env)} shows images, but the data holds observations of {_size(observations.shape[1:])}; "
            f"{_record_anew(env)}"
        )
    chain = _chain(env)
    cut = _recorded_level(chain, observations, seen_through)
    if observations.shape[1:] != chain[cut].observation_space.shape:  # Ant's, with contact forces
        observations = np.ascontiguousarray(observations[:, :ANT])
    above: list[Any] = [level for level in chain[cut + 1 :] if not _takes_after(level, LEFT_OUT)]
    changing = [wrapper for wrapper in above if _changes(wrapper)]
    if not all(_selects(wrapper) for wrapper in changing):
        recording = _Recording(observations, actions, rewards, starts, stops)
        return _played(recording, Playback(chain[cut]), above, seed)
    if changing:
        columns = np.arange(observations.shape[1])
        for wrapper in changing:
            columns = wrapper.observation(columns)
        observations = np.take(observations, columns, axis=1)
    return observations.astype(env.observation_space.dtype, copy=False)


def observation_wrappers(env: Env) -> list[str]:
    """The wrappers that change what is observed, from the inside out, such as ``KeepIndices(indices=[0, 1])``.

    A wrapper that converts floats to other floats is none of them.
    """
    return [_describe(level) for level in _chain(env) if _changes(level)]


def shapes(env: Env) -> list[Shape]:
    """The shape of the environment's own observation, and of what each of its `observation_wrappers` shows."""
    chain = _chain(env)
    return [chain[stage].observation_space.shape for stage in _stages(chain)]


def _chain(env: Env) -> list[Env]:
    """The environment without its wrappers, then each of them, from the inside out."""
    chain = [env]
    while isinstance(chain[-1], gym.Wrapper):
        chain.append(chain[-1].env)
    return chain[::-1]


def _stages(chain: Sequence[Env]) -> list[int]:
    """Places in the chain where an observation is a new one."""
    return [0, *(place for place, level in enumerate(chain) if _changes(level))]


def _takes_after(wrapper: Env, parents: Sequence[Any]) -> bool:
    """Whether it resets and steps as one of `parents` does; a child that does so in a way of its own does not."""
    methods = (type(wrapper).reset, type(wrapper).step)
    return methods in [(parent.reset, parent.step) for parent in parents]


def _changes(level: Env) -> bool:
    return isinstance(level, gym.Wrapper) and not _takes_after(level, UNCHANGING) and not _casts(level)


def _casts(wrapper: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether floats become other floats, none of which rounds what is recorded."""
    if not isinstance(wrapper, Float32Observation | gymnasiums.DtypeObservation):
        return False
    before, after = wrapper.env.observation_space.dtype, wrapper.observation_space.dtype
    return np.issubdtype(before, np.floating) and np.can_cast(np.float32, after)  # type: ignore[arg-type]


def _selects(wrapper: Any) -> bool:
    return isinstance(wrapper, KeepIndices) and all(
        getattr(type(wrapper), name) is getattr(KeepIndices, name) for name in ("reset", "step", "observation")
    )


def _describe(wrapper: Env) -> str:
    given = wrapper._saved_kwargs if isinstance(wrapper, RecordConstructorArgs) else {}
    arguments = ", ".join(f"{key}={_plain(value)!r}" for key, value in given.items() if key != "env")
    # Where a function lies in memory is another place in each run.
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(wrapper).__name__}({arguments})")


def _plain(value: Any) -> Any:
    """Tuples and arrays as lists: gin has tuples where the table has lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _recorded_level(chain: Sequence[Env], observations: Array, seen_through: Sequence[str] | None) -> int:
    """The place in the chain whose observation was recorded."""
    env, stages, recorded = chain[-1], _stages(chain), observations.shape[1:]
    if seen_through is not None:
        here = observation_wrappers(env)
        if here[: len(seen_through)] != list(seen_through):
            raise UserError(
                f"the data was recorded through {_listed(seen_through)}, but the agent of {_name(env)} sees through "
                f"{_listed(here)}, which does not begin with the same; name the environment it was recorded in, or one "
                f"that adds wrappers to it"
            )
        stages = [stages[len(seen_through)]]
    for stage in stages:
        space = chain[stage].observation_space
        # Numbers are numbers, but an image of floats is in other units than one of bytes.
        if space.shape == recorded and (len(recorded) == 1 or space.dtype == observations.dtype):
            return stage
    if recorded == (ANT_WITH_CONTACT_FORCES,) and "ant" in _name(env).lower():
        for stage in stages:
            if chain[stage].observation_space.shape == (ANT,):
                return stage
    sizes = [f"{_size(shapes(env)[0])} of its own"]
    sizes += [
        f"{_size(chain[stage].observation_space.shape)} after {_describe(chain[stage])}" for stage in stages if stage
    ]
    raise UserError(
        f"the data holds observations of {_size(recorded)}, but {_name(env)} has {', '.join(sizes)}; name the "
        f"environment it was recorded in, or one that shows a part of the same"
    )


def _played(recording: _Recording, playback: Playback, wrappers: Sequence[Any], seed: int) -> Array:
    """What `wrappers`, from the inside out, make of a recording."""
    outermost = wrappers[-1]
    for wrapper in wrappers:
        for refused, reason in REFUSED:
            if isinstance(wrapper, refused):
                raise UserError(f"{_describe(wrapper)} {reason}; {_record_anew(outermost)}")
    space = outermost.observation_space
    seen = np.zeros((len(recording.observations), *space.shape), space.dtype)
    below = [wrapper.env for wrapper in wrappers]
    try:
        for wrapper, inner in zip(wrappers, [playback, *wrappers], strict=False):
            wrapper.env = inner
        for number, (start, stop) in enumerate(zip(recording.starts, recording.stops, strict=True)):
            _play(outermost, playback, recording, number, seed, seen[start:stop])
        if len(recording.starts):
            _check_once_more(outermost, playback, recording, seed, seen)
    except OutOfStepError as error:
        raise UserError(
            f"{_among(wrappers)} does not take one step for each that is asked of it, as a recording needs, or resets "
            f"more than once; {_record_anew(outermost)}"
        ) from error
    except UserError:
        raise
    except Exception as error:  # a user's own may raise anything
        raise UserError(
            f"{_who_raised(error, wrappers)} cannot be shown recorded episodes, of which there are "
            f"observations, actions and rewards alone: {first_line(error)}; {_record_anew(outermost)}"
        ) from error
    finally:
        for wrapper, inner in zip(wrappers, below, strict=True):
            wrapper.env = inner
    return seen


def _play(outermost: Env, playback: Playback, recording: _Recording, number: int, seed: int, seen: Array) -> None:
    """Plays an episode for as long as `seen` has room, and puts there what `outermost` shows."""
    start, stop = recording.starts[number], recording.stops[number]
    sequence = np.random.SeedSequence((seed, STREAM, number))
    rewards = recording.rewards[start : stop - 1]
    playback.insert(recording.observations[start:stop], rewards, np.random.default_rng(sequence))
    # Wrappers with a generator of their own take this seed, which old ones want below 2**32.
    seen[0], _ = outermost.reset(seed=int(sequence.generate_state(1)[0]))
    actions = recording.actions[start : stop - 1].copy()  # as with observations, some may write into them
    for row in range(1, len(seen)):
        playback.due = row
        seen[row], *_ = outermost.step(actions[row - 1])
    if playback.row != playback.due:
        raise OutOfStepError


def _check_once_more(outermost: Env, playback: Playback, recording: _Recording, seed: int, seen: Array) -> None:
    """Plays the start of the first episode again, after all others."""
    start, stop = recording.starts[0], min(recording.stops[0], recording.starts[0] + NUM_COMPARED)
    again = np.zeros_like(seen[start:stop])
    _play(outermost, playback, recording, 0, seed, again)
    if not np.array_equal(again, seen[start:stop], equal_nan=np.issubdtype(seen.dtype, np.floating)):
        raise UserError(
            f"{_among(_chain(outermost))} shows an episode differently the second time, so that it depends on other "
            f"episodes; draw from self.np_random in it, and carry nothing over a reset"
        )


def _who_raised(error: Exception, wrappers: Sequence[Env]) -> str:
    """The innermost wrapper whose own code was running; what Gymnasium gives each of them only hands things on."""
    found = _among(wrappers)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") != gym.core.__name__:
            running = frame.f_locals.get("self")
            found = next((_describe(wrapper) for wrapper in wrappers if wrapper is running), found)
    return found


def _among(wrappers: Sequence[Env]) -> str:
    suspects = [_describe(wrapper) for wrapper in wrappers if _changes(wrapper)]
    return suspects[0] if len(suspects) == 1 else f"one of {', '.join(suspects)}"


def _name(env: Env) -> str:
    spec = env.unwrapped.spec
    return spec.id if spec else type(env.unwrapped).__name__


def _record_anew(env: Env) -> str:
    return f"learn from data recorded in the environment itself, as by `offpcc collect --env {_name(env)}`"


def _listed(wrappers: Sequence[str]) -> str:
    return ", ".join(wrappers) or "no wrapper"


def _size(shape: Shape) -> str:
    if shape is None:
        return "several parts"
    return f"{shape[0]} numbers" if len(shape) == 1 else f"shape {shape}"
