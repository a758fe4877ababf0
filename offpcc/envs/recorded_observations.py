"""Applies an environment's wrappers to recorded episodes.

A recording holds the observations of one level of the environment's wrapper chain (see `offpcc.envs.wrapper_chain`). A
`Playback` replaces that level, and the wrappers above it run as they do in training. So the result is exact for every
wrapper, including a user's own. Recordings have the precision of float32.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from offpcc.envs.aliases import Array, Env, Info
from offpcc.envs.faults import locate_env_line
from offpcc.envs.wrapper_chain import (
    ANT,
    describe_wrapper,
    find_recorded_level,
    in_words,
    is_observation_wrapper,
    is_skipped,
    levels,
    name_of,
)
from offpcc.envs.wrappers import KeepIndices, ReturnToGo, UnitAction
from offpcc.utils.errors import UserError, first_line

STREAM = 6  # separates these draws from others of the seed; (seed, 4, 0) would be the seed of acting, (seed, 4)
NUM_COMPARED = 1_000  # steps of the first episode to replay, to detect a dependence on other episodes


class OutOfStepError(Exception):
    """A wrapper took a step or a reset that the playback did not expect."""


class Playback(gym.Env[Array, Array]):
    """Environment that replays recorded episodes and ignores the actions. For the arrays see `transform_observations`.

    The step to the last observation is truncated, because no data follows. No other step is truncated, and no step is
    terminated. `info` is empty, and there is nothing to render.
    """

    def __init__(
        self, level: Env, observations: Array, rewards: Array, starts: Array, stops: Array, rewards_after: Array
    ) -> None:
        self.observation_space, self.action_space, self.spec = level.observation_space, level.action_space, level.spec
        self.observations, self.rewards, self.rewards_after = observations, rewards, rewards_after
        self.starts, self.stops = starts.tolist(), stops.tolist()
        self.row = self.due = 0

    def insert(self, number: int, generator: np.random.Generator) -> None:
        """Set the episode that the next reset starts. Wrappers draw from `generator`."""
        start, stop = self.starts[number], self.stops[number]
        # Copy, because some wrappers write into observations. The dtype is the one that the space promises.
        self._observations = self.observations[start:stop].astype(self.observation_space.dtype)
        self._rewards = self.rewards[start : stop - 1]
        after = self._rewards[::-1].sum(1, dtype=np.float64).cumsum()[::-1]
        self._returns_to_go = np.append(after, 0.0) + float(self.rewards_after[number])
        self.np_random = generator
        self.row, self.due = -1, 0

    @property
    def recorded_return_to_go(self) -> float:
        """The sum of the rewards that follow in the recorded episode; `ReturnToGo` shows it."""
        return float(self._returns_to_go[self.row])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Return the first observation. `np_random` stays the episode's generator, whatever `seed` is."""
        self._advance(0)
        return self._observations[0], {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Return the next observation."""
        self._advance(self.row + 1)
        is_last = self.row == len(self._rewards)
        return self._observations[self.row], float(self._rewards[self.row - 1, 0]), False, is_last, {}

    def render(self) -> None:
        """Raise NotImplementedError."""
        raise NotImplementedError("a recording cannot be rendered")

    def _advance(self, row: int) -> None:
        if row != self.due or row == self.row:
            raise OutOfStepError
        self.row = row


def transform_observations(
    env: Env,
    observations: Array,
    actions: Array,
    rewards: Array,
    starts: Array,
    stops: Array,
    *,
    seed: int,
    recorded_wrappers: Sequence[str] | None = None,
    rewards_after: Array | None = None,
    zeros: Callable[[tuple[int, ...], Any], Array] = np.zeros,
) -> Array:
    """Return the observations of recorded episodes as an agent in `env` would have seen them.

    First, this finds the level of `env` that returned the recorded observations. With `recorded_wrappers`, it is the
    level of the last of these wrappers. Without them, it is the innermost level with the recorded shape. If 111 numbers
    were recorded in Ant, a level with 27 numbers fits, too, and the first 27 numbers are used.

    Then the wrappers above that level are applied. Wrappers that only select numbers are applied to all rows at once.
    With any other wrapper, all episodes are replayed step by step. Random wrappers draw once for each episode, from
    `seed` and the number of the episode. Recorded actions are the executed ones, so StickyAction is skipped.

    If the wrappers change nothing, the recorded array itself is returned.

    Args:
        env: Made by `offpcc.envs.make.make`. Its current episode is lost; the caller closes it. Its wrappers must use
            only `env` to reach the level below. A reference that a wrapper keeps elsewhere is not replayed.
        observations: (R, *obs), episode after episode; the last row of an episode is its final observation.
        actions: (R, A), in [-1, 1]; that of an episode's last row is ignored.
        rewards: (R, 1); that of an episode's last row is ignored.
        starts: (N,), each episode's first row.
        stops: (N,), the row after each episode's last.
        seed: Seed of the wrappers' random draws.
        recorded_wrappers: `observation_wrappers` of the environment that the episodes were recorded in; None if
            unknown.
        rewards_after: (N,), the reward of a step after each episode's last row, which is no transition as its next
            observation is unknown; 0 without such a step. Returns count it. None for zeros.
        zeros: Returns room for the observations of wrappers: an array of zeros, of a shape and a dtype.

    Returns:
        (R, *env.observation_space.shape), in its dtype.
    """
    if len(env.observation_space.shape or ()) == 3 and observations.ndim != 4:
        raise UserError(
            f"{name_of(env)} shows images, but the data holds observations of {in_words(observations.shape[1:])}; "
            f"{_advice(env)}"
        )
    chain = levels(env)
    if not any(isinstance(level, UnitAction) for level in chain):
        chain = levels(UnitAction(env))
    cut = find_recorded_level(env, observations, recorded_wrappers)
    if observations.shape[1:] != chain[cut].observation_space.shape:  # Ant with contact forces
        observations = np.ascontiguousarray(observations[:, :ANT])
    asking = [describe_wrapper(level) for level in chain[: cut + 1] if isinstance(level, ReturnToGo)]
    if asking and recorded_wrappers is not None:
        raise UserError(
            f"the data was recorded with {asking[0]}, so it holds the returns that an agent was asked for, not those "
            f"that followed; collect it with an agent that needs no ReturnToGo"
        )
    above: list[Any] = [level for level in chain[cut + 1 :] if not is_skipped(level)]
    changing = [wrapper for wrapper in above if is_observation_wrapper(wrapper)]
    if not all(_selects(wrapper) for wrapper in changing):
        after = np.zeros(len(starts)) if rewards_after is None else rewards_after
        playback = Playback(chain[cut], observations, rewards, starts, stops, after)
        return _replayed(playback, actions, above, seed, zeros)
    if changing:
        columns = np.arange(observations.shape[1])
        for wrapper in changing:
            columns = wrapper.observation(columns)
        observations = np.take(observations, columns, axis=1)
    return observations.astype(env.observation_space.dtype, copy=False)


def _selects(wrapper: Any) -> bool:
    return isinstance(wrapper, KeepIndices) and all(
        getattr(type(wrapper), name) is getattr(KeepIndices, name) for name in ("reset", "step", "observation")
    )


def _replayed(
    playback: Playback,
    actions: Array,
    wrappers: Sequence[Any],
    seed: int,
    zeros: Callable[[tuple[int, ...], Any], Array],
) -> Array:
    """Return the observations of `wrappers`, which are sorted from the inside out, in recorded episodes."""
    outermost, remedy = wrappers[-1], _advice(wrappers[-1])  # now, because the playback hides the environment
    suspects = [describe_wrapper(wrapper) for wrapper in wrappers if is_observation_wrapper(wrapper)]
    who = suspects[0] if len(suspects) == 1 else f"one of {', '.join(suspects)}"

    def play(number: int, out: Array) -> None:
        """Replay the first rows of an episode, and write the observations of `outermost` into `out`, which has them."""
        sequence = np.random.SeedSequence((seed, STREAM, number))
        playback.insert(number, np.random.default_rng(sequence))
        # Wrappers with their own generator take this seed. Old generators need it below 2**32.
        out[0], _ = outermost.reset(seed=int(sequence.generate_state(1)[0]))
        # Copy, because some wrappers write into actions.
        executed = actions[playback.starts[number] : playback.stops[number] - 1].copy()
        for row in range(1, len(out)):
            playback.due = row
            out[row], *_ = outermost.step(executed[row - 1])
        if playback.row != playback.due:
            raise OutOfStepError

    space = outermost.observation_space
    result = zeros((len(playback.observations), *space.shape), space.dtype)
    below = [wrapper.env for wrapper in wrappers]
    try:
        for wrapper, inner in zip(wrappers, [playback, *wrappers], strict=False):
            wrapper.env = inner
        for number, (start, stop) in enumerate(zip(playback.starts, playback.stops, strict=True)):
            play(number, result[start:stop])
        if playback.starts:  # after all other episodes, the first one must give the same observations again
            first = result[playback.starts[0] : min(playback.stops[0], playback.starts[0] + NUM_COMPARED)]
            play(0, again := np.zeros_like(first))
            if not np.array_equal(again, first, equal_nan=np.issubdtype(first.dtype, np.floating)):
                raise UserError(
                    f"{who} returns other observations when an episode is replayed, so it depends on other episodes; "
                    f"use only self.np_random for random numbers, and reset all its state in reset()"
                )
    except OutOfStepError as error:
        raise UserError(
            f"{who} does not take one inner step for each step, or resets more than once, so it cannot process "
            f"recorded episodes; {remedy}"
        ) from error
    except UserError:
        raise
    except Exception as error:  # a user's wrapper may raise any exception
        place = locate_env_line(traceback.extract_tb(error.__traceback__))
        raise UserError(
            f"{who} cannot process recorded episodes, which only have observations, actions and rewards: "
            f"{first_line(error)}{f' ({place})' if place else ''}; {remedy}"
        ) from error
    finally:
        for wrapper, inner in zip(wrappers, below, strict=True):
            wrapper.env = inner
    return result


def _advice(env: Env) -> str:
    return f"use data that was recorded in this environment, for example by `offpcc collect --env {name_of(env)}`"
