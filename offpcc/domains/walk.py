"""Walking through an environment under random actions, and noting what is odd about what it returns."""

from __future__ import annotations

import itertools
import numbers
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc import signals
from offpcc.domains.faults import kind_of, told
from offpcc.foreign import ForeignCall

__all__ = ["LONGEST_EPISODE", "BrokenEnvironment", "End", "Event", "Mark", "Watch", "told", "walk"]

LONGEST_EPISODE = 20_000  # steps; tests, and agents with memory, refuse a longer one
ROUNDING = 1e-5  # relative to a bound: what float32 may add to a number that is on it

Mark = tuple[int, str, bool, bool]


class BrokenEnvironment(Exception):  # noqa: N818 (it is the environment that errs)
    """An environment raised, or returned what cannot be read; the message says when and what."""


class Event(NamedTuple):
    """What a reset or a step returned; a reset has no reward."""

    when: str
    observation: Any
    reward: Any = None
    terminated: bool = False
    truncated: bool = False

    @property
    def mark(self) -> Mark:
        """Equal for events that agree to the last bit."""
        checksum = zlib.crc32(np.asarray(self.observation).tobytes())
        return checksum, repr(self.reward), self.terminated, self.truncated


class End(NamedTuple):
    """How an episode ended."""

    length: int  # environment steps
    episode_return: float
    terminated: bool
    truncated: bool
    is_decided: bool  # the last step alone brought a reward


def walk(env: gymnasium.Env[Any, Any], seed: int | None, actions_seed: int) -> Iterator[Event]:
    """Resets and steps under random actions, episode after episode, for as long as they are asked for.

    Args:
        env: Its action is a bounded Box.
        seed: Of the first reset; None goes on with the environment's generator.
        actions_seed: Of the actions.

    Raises:
        BrokenEnvironment: It raised, or does not return what a Gymnasium environment returns.
    """
    space = env.action_space
    assert isinstance(space, Box)
    generator = np.random.default_rng(actions_seed)
    for episode in itertools.count(1):
        when = f"the reset of episode {episode}"
        try:
            with ForeignCall():
                event = Event(when, _observation(*_values(env.reset(seed=seed), 2)))
        except signals.ANYTHING as error:
            signals.pass_on(error)
            raise BrokenEnvironment(f"{when} failed with {told(error)}") from error
        yield event
        seed = None
        for step in itertools.count(1):
            when = f"step {step} of episode {episode}"
            action = generator.uniform(space.low, space.high).astype(space.dtype)
            try:
                with ForeignCall():
                    observation, reward, terminated, truncated, info = _values(env.step(action), 5)
                event = Event(when, _observation(observation, info), reward, bool(terminated), bool(truncated))
            except signals.ANYTHING as error:
                signals.pass_on(error)
                raise BrokenEnvironment(f"{when} failed with {told(error)}") from error
            yield event
            if event.terminated or event.truncated:
                break


def _values(result: Any, num: int) -> tuple[Any, ...]:
    if isinstance(result, tuple) and len(result) == num:
        return result
    raise TypeError(f"it returned {kind_of(result)}, not a tuple of {num}")


def _observation(observation: Any, info: Any) -> Any:
    if not isinstance(info, dict):
        raise TypeError(f"its info is {kind_of(info)}, not a dict")
    np.asarray(observation)  # raises for what is no array of numbers
    return observation


def _speaks_old(env: gymnasium.Env[Any, Any]) -> str:
    """How an environment that broke speaks the old gym's language; empty if it does not."""
    inner = env.unwrapped
    try:
        first: Any = inner.reset()
        if not isinstance(first, tuple):
            return f"reset returned {kind_of(first)} and no pair (observation, info)"
        result: Any = inner.step(inner.action_space.sample())
        return "step returned 4 values, not 5" if len(result) == 4 else ""
    except signals.ANYTHING as error:  # then it is broken in another way, which has been told
        signals.pass_on(error)
        return ""


class Watch:
    """A walk, and the first of each kind of trouble on it.

    Attributes:
        marks: Of the events up to step `num_compared`.
        ends: Of episodes.
        length: Steps of the last episode, which need not have ended.
        rewards: Of all steps that had a number.
        lowest: Of all finite numbers in observations.
        highest: Of all finite numbers in observations.
        troubles: When and what, by kind: "old interface", "broken", "shape", "bytes", "precision", "bounds",
            "not finite", "overwritten", "reward no number", "reward not finite".

    Args:
        env: Its observation and action are Boxes.
        limit: The registered time limit. Without one, the walk goes on until two episodes have ended, or one lasts
            `LONGEST_EPISODE` steps.
        num_steps: To take, at least.
        num_compared: How many steps are kept to compare others with.
        seed: Of the environment and of the actions.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], limit: int | None, num_steps: int, num_compared: int, seed: int
    ) -> None:
        assert isinstance(env.observation_space, Box)
        self.space = env.observation_space
        self.num_steps = self.length = 0
        self.marks: list[Mark] = []
        self.ends: list[End] = []
        self.rewards: list[float] = []
        self.lowest, self.highest = np.inf, -np.inf
        self.troubles: dict[str, str] = {}
        self._return = 0.0
        self._last: tuple[Event, bytes] | None = None
        try:
            for event in walk(env, seed, seed):
                if self.num_steps < num_compared:
                    self.marks.append(event.mark)
                self._see(event)
                has_ended = limit is not None or len(self.ends) >= 2 or self.length >= LONGEST_EPISODE
                if self.num_steps >= num_steps and has_ended:
                    break
        except BrokenEnvironment as broken:
            old = _speaks_old(env)
            self._trouble("old interface" if old else "broken", old or str(broken))

    @property
    def is_broken(self) -> bool:
        """Whether the walk had to stop."""
        return "broken" in self.troubles or "old interface" in self.troubles

    def _trouble(self, kind: str, text: str) -> None:
        self.troubles.setdefault(kind, text)

    def _see(self, event: Event) -> None:
        if event.reward is None:
            self.length, self._return = 0, 0.0
        else:
            self.num_steps, self.length = self.num_steps + 1, self.length + 1
            self._see_reward(event)
        if event.terminated or event.truncated:
            decided = self._return != 0.0 and event.reward == self._return
            self.ends.append(End(self.length, self._return, event.terminated, event.truncated, bool(decided)))
        self._see_observation(event)

    def _see_reward(self, event: Event) -> None:
        if not isinstance(event.reward, numbers.Real | np.number | np.bool_):
            self._trouble("reward no number", f"{event.when} gave {kind_of(event.reward)}")
            return
        reward = float(event.reward)
        if not np.isfinite(reward):
            self._trouble("reward not finite", f"{event.when} gave {reward}")
        self.rewards.append(reward)
        self._return += reward

    def _see_observation(self, event: Event) -> None:
        if self._last is not None and np.asarray(self._last[0].observation).tobytes() != self._last[1]:
            self._trouble("overwritten", f"{event.when} overwrote what {self._last[0].when} had returned")
        seen = np.asarray(event.observation)
        self._last = (event, seen.tobytes())
        if not isinstance(event.observation, np.ndarray) or seen.dtype != self.space.dtype:
            kind = "precision" if np.issubdtype(self.space.dtype, np.floating) else "bytes"
            self._trouble(kind, f"{event.when} gave {kind_of(event.observation)}, its space says {self.space.dtype}")
        if seen.shape != self.space.shape or seen.dtype.kind not in "biuf":
            self._trouble("shape", f"{event.when} gave {kind_of(seen)}, its space says {self.space.shape}")
        else:
            self._see_numbers(event.when, seen)

    def _see_numbers(self, when: str, seen: NDArray[Any]) -> None:
        finite = np.isfinite(seen)
        if not finite.all():
            self._trouble("not finite", f"{when} gave {_at(~finite, seen)}")
        if not finite.any():
            return
        self.lowest = min(self.lowest, float(seen[finite].min()))
        self.highest = max(self.highest, float(seen[finite].max()))
        low, high = self.space.low, self.space.high
        if (below := finite & (seen < low - _slack(low))).any():
            self._trouble("bounds", f"{when} gave {_at(below, seen)}, whose low bound is {low[below][0]:.6g}")
        if (above := finite & (seen > high + _slack(high))).any():
            self._trouble("bounds", f"{when} gave {_at(above, seen)}, whose high bound is {high[above][0]:.6g}")


def _slack(bound: NDArray[Any]) -> NDArray[np.float64]:
    size = np.abs(bound.astype(np.float64))
    return ROUNDING * np.maximum(1.0, np.where(np.isfinite(size), size, 0.0))


def _at(where: NDArray[np.bool_], seen: NDArray[Any]) -> str:
    index = tuple(int(place) for place in np.argwhere(where)[0])
    return f"{seen[index]:.6g} at index {index[0] if len(index) == 1 else index}"
