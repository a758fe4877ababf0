"""Random rollouts of an environment, and the problems in what they return."""

from __future__ import annotations

import itertools
import numbers
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.faults import format_error, kind_of
from offpcc.envs.make import OLD_GYM
from offpcc.utils import signals
from offpcc.utils.findings import FAULT, NOTE, OK, WARNING, Finding
from offpcc.utils.foreign import ForeignCall

__all__ = [
    "LONGEST_EPISODE",
    "MEND",
    "TROUBLES",
    "BrokenEnvironment",
    "End",
    "Event",
    "Mark",
    "RolloutRecord",
    "as_made",
    "box_in_words",
    "format_error",
    "walk",
    "watched",
]


LONGEST_EPISODE = 20_000  # steps; tests and agents with memory refuse a longer episode
ROUNDING = 1e-5  # relative to a bound; rounding to float32 may exceed a bound by this much

Mark = tuple[int, str, bool, bool]


class BrokenEnvironment(Exception):  # noqa: N818 (it is the environment that errs)
    """An environment raised, or returned something unreadable; the message says when and what."""


class Event(NamedTuple):
    """Return values of a reset or a step; a reset has no reward."""

    when: str
    observation: Any
    reward: Any = None
    terminated: bool = False
    truncated: bool = False

    @property
    def mark(self) -> Mark:
        """Checksum, reward and flags; equal for events that agree to the last bit."""
        checksum = zlib.crc32(np.asarray(self.observation).tobytes())
        return checksum, repr(self.reward), self.terminated, self.truncated


class End(NamedTuple):
    """The end of an episode."""

    length: int  # environment steps
    episode_return: float
    terminated: bool
    truncated: bool
    is_decided: bool  # only the last step brought a reward


def walk(env: gymnasium.Env[Any, Any], seed: int | None, actions_seed: int) -> Iterator[Event]:
    """Yield the events of resets and random steps, episode after episode, without end.

    Args:
        env: An environment whose action is a bounded Box.
        seed: Seed of the first reset; None continues with the environment's generator.
        actions_seed: Seed of the actions.

    Raises:
        BrokenEnvironment: The environment raised, or its return values do not follow Gymnasium's interface.
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
            raise BrokenEnvironment(f"{when} failed with {format_error(error)}") from error
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
                raise BrokenEnvironment(f"{when} failed with {format_error(error)}") from error
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
    np.asarray(observation)  # raises if it cannot become an array
    return observation


def _speaks_old(env: gymnasium.Env[Any, Any]) -> str:
    """Return how a broken environment follows the interface of the old gym; an empty string if it does not."""
    inner = env.unwrapped
    try:
        first: Any = inner.reset()
        if not isinstance(first, tuple):
            return f"reset returned {kind_of(first)} and no pair (observation, info)"
        result: Any = inner.step(inner.action_space.sample())
        return "step returned 4 values, not 5" if len(result) == 4 else ""
    except signals.ANYTHING as error:  # it is broken in another way, which the caller reports
        signals.pass_on(error)
        return ""


class RolloutRecord:
    """A random walk, with the first problem of each kind.

    Attributes:
        marks: Marks of the events up to step `num_compared`.
        ends: Ends of the finished episodes.
        length: Steps of the last episode, which may be unfinished.
        rewards: Rewards of all steps that returned a number.
        lowest: Lowest finite number in the observations.
        highest: Highest finite number in the observations.
        troubles: When and what, by kind: "old interface", "broken", "shape", "bytes", "precision", "bounds", "not
            finite", "overwritten", "reward no number", "reward not finite".

    Args:
        env: An environment whose observation and action are Boxes.
        limit: The registered time limit. Without one, the walk continues until two episodes have ended, or one lasts
            `LONGEST_EPISODE` steps.
        num_steps: Minimum number of steps.
        num_compared: Number of steps whose marks are kept, to compare other walks with.
        seed: Seed of the environment and of the actions.
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
        """True if an error stopped the walk."""
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


MEND = "mend reset(*, seed=None, options=None) and step(action), which are called as gymnasium.Env defines them"
LIMIT = (
    f"give it an end of at most {LONGEST_EPISODE:,} steps by gymnasium.wrappers.TimeLimit, or by max_episode_steps "
    "when registering it"
)
TRUNCATE = (
    "after a time limit values go on: return terminated=False, and leave the limit to max_episode_steps when "
    "registering it"
)

# Kinds of problems that a walk can find: the check, the level and the remedy of each. A float of another precision is
# converted, so it is only a warning. A float where the space has bytes would become 0, so it is a fault.
TROUBLES = {
    "old interface": ("interface", FAULT, OLD_GYM),
    "broken": ("interface", FAULT, MEND),
    "shape": ("type", FAULT, "return what observation_space promises"),
    "bytes": ("type", FAULT, "return what observation_space promises"),
    "precision": ("type", WARNING, "return what observation_space promises; offpcc converts it"),
    "bounds": ("bounds", FAULT, "widen observation_space, or look for a number in other units"),
    "not finite": (
        "finite",
        FAULT,
        "look for a division by 0 or a simulation that diverges; end the episode before it",
    ),
    "overwritten": (
        "copies",
        WARNING,
        "return a copy; offpcc's agents make their own, other code and wrappers may not",
    ),
    "reward no number": ("reward", FAULT, "return a number: float(reward)"),
    "reward not finite": ("reward", FAULT, "look for a division by 0 or a logarithm of 0 in the reward"),
}


def watched(watch: RolloutRecord, limit: int | None) -> Iterable[Finding]:
    """Yield the findings of the longest walk; `limit` is the time limit in steps."""
    space = watch.space
    has_reset = bool(watch.marks)
    yield _trouble(watch, "interface") or Finding("interface", OK, f"{watch.num_steps:,} random steps, no exception")
    if has_reset:
        agrees = f"observations are {space.dtype} of shape {space.shape}, as their space says"
        yield _trouble(watch, "type") or Finding("type", OK, agrees)
        inside = f"observations from {watch.lowest:.4g} to {watch.highest:.4g}, inside their space"
        yield _trouble(watch, "bounds") or Finding("bounds", OK, inside)
        yield _trouble(watch, "finite") or Finding("finite", OK, "no NaN and no infinity in observations")
        yield _trouble(watch, "copies") or Finding("copies", OK, "observations stay as they were returned")
    if watch.num_steps:
        yield _trouble(watch, "reward") or _reward(watch.rewards)
    if not watch.is_broken:
        yield _episodes(watch, limit)


def as_made(watch: RolloutRecord, known: set[str], env: gymnasium.Env[Any, Any]) -> Finding:
    """Return a problem that the environment has as offpcc makes it, but not as Gymnasium makes it.

    `known` holds the kinds of problems that it already has as Gymnasium makes it.
    """
    for kind, (_, level, remedy) in TROUBLES.items():
        if kind in watch.troubles and kind not in known:
            return Finding("wrapped", level, f"as offpcc makes it, {watch.troubles[kind]}", remedy)
    return Finding(
        "wrapped", OK, f"agents see {box_in_words(env.observation_space)} and act {box_in_words(env.action_space)}"
    )


def box_in_words(space: gymnasium.Space[Any]) -> str:
    """Return the shape, dtype and bounds of a Box as text."""
    assert isinstance(space, Box)
    same = np.unique(space.low).size == np.unique(space.high).size == 1
    bounds = f"[{space.low.min():.4g}, {space.high.max():.4g}]"
    return f"{space.shape} {space.dtype} {'in' if same else 'within'} {bounds}"


def _trouble(watch: RolloutRecord, check: str) -> Finding | None:
    for kind, (whose, level, remedy) in TROUBLES.items():
        if whose == check and kind in watch.troubles:
            return Finding(check, level, watch.troubles[kind], remedy)
    return None


def _reward(rewards: list[float]) -> Finding:
    lowest, highest = min(rewards), max(rewards)
    if lowest == highest:
        remedy = "fine if random actions cannot reach what is rewarded; else there is nothing to learn"
        return Finding("reward", WARNING, f"always {lowest:.4g}, in {len(rewards):,} steps", remedy)
    return Finding("reward", OK, f"from {lowest:.4g} to {highest:.4g}, mean {np.mean(rewards):.4g}")


def _episodes(watch: RolloutRecord, limit: int | None) -> Finding:
    ends = watch.ends
    if limit is not None and limit > LONGEST_EPISODE:
        return Finding("episodes", FAULT, f"a time limit of {limit:,} steps", LIMIT)
    if limit is None and watch.length >= LONGEST_EPISODE:
        return Finding("episodes", FAULT, f"one has not ended within {watch.length:,} steps", LIMIT)
    if not ends:
        return Finding("episodes", OK, f"none ended within {watch.num_steps:,} steps; the time limit is {limit:,}")
    num_terminated, num_both = (
        sum(end.terminated for end in ends),
        sum(end.terminated and end.truncated for end in ends),
    )
    text = (
        f"{len(ends)} ended, {num_terminated} by termination; "
        f"mean length {np.mean([end.length for end in ends]):.1f}, "
        f"mean return {np.mean([end.episode_return for end in ends]):.4g}"
    )
    # Tasks with episodes of one step are valid: a time limit has nothing to cut there.
    for length in {limit, ends[0].length} - {None, 1}:
        of_length = [end for end in ends if end.length == length]
        is_suspect = length == limit or len(of_length) == len(ends)
        # If only the last step brings a reward, the end belongs to the task. An example is a choice after a corridor of
        # fixed length.
        decided = all(end.is_decided for end in of_length)
        if is_suspect and len(of_length) > 1 and all(end.terminated for end in of_length) and not decided:
            told_of = f"{len(of_length)} episodes lasted {length} steps, and all of these are `terminated`"
            return Finding("episodes", FAULT, f"a time limit told as a termination? {told_of}; {text}", TRUNCATE)
    if num_both:
        remedy = "agents take that as a termination"
        return Finding("episodes", NOTE, f"{num_both} both terminated and truncated; {text}", remedy)
    return Finding("episodes", OK, text)
