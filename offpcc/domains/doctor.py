"""A doctor for environments: what would spoil learning in one, found before a run is spent on it."""

from __future__ import annotations

import copy
import importlib.metadata
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from offpcc import signals
from offpcc.domains.making import OLD_GYM, by_gin, cannot_be_made, make
from offpcc.domains.opengl import backend
from offpcc.domains.walk import LONGEST_EPISODE, BrokenEnvironment, Event, Mark, Watch, told, walk
from offpcc.errors import UserError

__all__ = ["FAULT", "NOTE", "OK", "WARNING", "Diagnosis", "Finding", "examine"]

OK, NOTE, WARNING, FAULT = "ok", "note", "warning", "FAULT"
SIMULATORS = ("mujoco", "dm-control", "pybullet", "pybullet-envs-gymnasium")

OWN_GENERATOR = "draw all that is random from self.np_random, after super().reset(seed=seed)"
CARRY_NOTHING = "carry nothing over from one episode to the next"
MEND = "mend reset(*, seed=None, options=None) and step(action), which are called as gymnasium.Env defines them"
LIMIT = (
    f"give it an end of at most {LONGEST_EPISODE:,} steps by gymnasium.wrappers.TimeLimit, or by max_episode_steps "
    "when registering it"
)
TRUNCATE = (
    "after a time limit values go on: return terminated=False, and leave the limit to max_episode_steps when "
    "registering it"
)

# Each kind of trouble that a walk can note: whose check it is, its level, its remedy. Floats of another precision
# are converted on their way; a float in the place of a byte becomes 0.
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


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was looked at, in a word.
        level: OK; NOTE, good to know; WARNING, learning goes on but may not be what you think; FAULT, learning fails
            or learns something else.
        found: The value found, and where.
        remedy: What to do, where there is something to do.
    """

    check: str
    level: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What `examine` found, one finding per check."""

    name: str
    findings: tuple[Finding, ...]

    def of(self, level: str) -> tuple[Finding, ...]:
        """The findings of a level."""
        return tuple(finding for finding in self.findings if finding.level == level)

    @property
    def verdict(self) -> str:
        """All findings in one line."""
        faults, warned = len(self.of(FAULT)), len(self.of(WARNING))
        parts = [f"{faults} fault{'s' * (faults > 1)}" if faults else "no fault"]
        if warned:
            parts.append(f"{warned} warning{'s' * (warned > 1)}")
        return f"{self.name}: {', '.join(parts)}" + ("; mend it before training in it" if faults else "")


def examine(name: str, num_steps: int = 2_000, seed: int = 0) -> Diagnosis:
    """Examines an environment, as Gymnasium makes it and as offpcc does, under random actions.

    Args:
        name: A Gymnasium id, one of offpcc's own, or "module:id".
        num_steps: Environment steps of the longest walk; each other takes a quarter of them. Where no time limit is
            registered, it goes on until two episodes have ended or one is too long.
        seed: Of the environment and of the actions.

    Raises:
        UserError: The environment cannot be made, or does not suit; mostly `UnsuitableEnvironment`.
    """
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # Gymnasium's own, of the same faults

        def made() -> gymnasium.Env[Any, Any]:
            return stack.enter_context(closing(make(name)))

        def bared() -> gymnasium.Env[Any, Any]:
            return stack.enter_context(
                closing(gymnasium.make(name, disable_env_checker=True, **(by_gin().kwargs or {})))
            )

        try:
            ready, bare = made(), bared()
        except UserError:
            raise
        except signals.ANYTHING as error:
            signals.pass_on(error)
            raise cannot_be_made(name, error) from error
        again = bared
        if not _can_walk(bare):  # it needs the wrappers that gin gives it
            again, bare = made, made()
        short = max(1, num_steps // 4)
        limit = _limit(bare) or _limit(ready)
        watch = Watch(bare, limit, num_steps, short, seed)
        findings = [_versions(), _spaces(bare), *_watched(watch, limit)]
        if not watch.is_broken:
            wrapped = Watch(ready, _limit(ready), short, 0, seed)
            findings += [
                _wrapped(wrapped, set(watch.troubles), ready),
                _guarded("seed", lambda: _seed(bare, again(), watch.marks, seed)),
                _guarded("starts", lambda: _starts(bare, watch.marks, seed)),
            ]
        if not watch.is_broken and not wrapped.is_broken:
            findings += [
                _guarded("resume", lambda: _resume(ready, made(), short, seed)),
                _actions(ready, seed, is_finite=not {"not finite", "reward not finite"} & set(watch.troubles)),
                _guarded("speed", lambda: _speed(ready, short, seed)),
            ]
    return Diagnosis(name, tuple(findings))


def _limit(env: gymnasium.Env[Any, Any]) -> int | None:
    return env.spec.max_episode_steps if env.spec else None


def _can_walk(env: gymnasium.Env[Any, Any]) -> bool:
    actions = env.action_space
    return isinstance(env.observation_space, Box) and isinstance(actions, Box) and actions.is_bounded()


def _guarded(check: str, examination: Callable[[], Finding]) -> Finding:
    try:
        return examination()
    except BrokenEnvironment as broken:
        return Finding(check, FAULT, str(broken), MEND)


# What the longest walk shows ------------------------------------------------------------------------------------


def _watched(watch: Watch, limit: int | None) -> Iterable[Finding]:
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


def _trouble(watch: Watch, check: str) -> Finding | None:
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


def _episodes(watch: Watch, limit: int | None) -> Finding:
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
    # Episodes of one step are a task of their own kind, with nothing to cut short.
    for length in {limit, ends[0].length} - {None, 1}:
        of_length = [end for end in ends if end.length == length]
        is_suspect = length == limit or len(of_length) == len(ends)
        # What a last step decides, such as a choice after a corridor of one length, is an end of the task.
        decided = all(end.is_decided for end in of_length)
        if is_suspect and len(of_length) > 1 and all(end.terminated for end in of_length) and not decided:
            told_of = f"{len(of_length)} episodes lasted {length} steps, and all of these are `terminated`"
            return Finding("episodes", FAULT, f"a time limit told as a termination? {told_of}; {text}", TRUNCATE)
    if num_both:
        remedy = "agents take that as a termination"
        return Finding("episodes", NOTE, f"{num_both} both terminated and truncated; {text}", remedy)
    return Finding("episodes", OK, text)


# The other checks -----------------------------------------------------------------------------------------------


def _versions() -> Finding:
    used = [package for package in SIMULATORS if package.replace("-", "_") in sys.modules]
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("gymnasium", *used)]
    return Finding("versions", OK, ", ".join(versions))


def _spaces(env: gymnasium.Env[Any, Any]) -> Finding:
    actions = env.action_space
    assert isinstance(actions, Box)
    text = f"observation {_box(env.observation_space)}; action {_box(actions)}"
    stuck = np.flatnonzero(actions.low == actions.high)
    if stuck.size:
        remedy = "leave it out of action_space, or give it different bounds"
        return Finding("spaces", WARNING, f"action {stuck[0]} can only be {actions.low[stuck[0]]:.4g}; {text}", remedy)
    return Finding("spaces", OK, text)


def _box(space: gymnasium.Space[Any]) -> str:
    assert isinstance(space, Box)
    same = np.unique(space.low).size == np.unique(space.high).size == 1
    bounds = f"[{space.low.min():.4g}, {space.high.max():.4g}]"
    return f"{space.shape} {space.dtype} {'in' if same else 'within'} {bounds}"


def _wrapped(watch: Watch, known: set[str], env: gymnasium.Env[Any, Any]) -> Finding:
    """What is odd about the environment as offpcc makes it, but not as Gymnasium does."""
    for kind, (_, level, remedy) in TROUBLES.items():
        if kind in watch.troubles and kind not in known:
            return Finding("wrapped", level, f"as offpcc makes it, {watch.troubles[kind]}", remedy)
    return Finding("wrapped", OK, f"agents see {_box(env.observation_space)} and act {_box(env.action_space)}")


def _first_difference(events: Iterable[Event], marks: list[Mark]) -> str:
    """When a walk first departs from another one; empty if it does not."""
    return next((event.when for event, mark in zip(events, marks, strict=False) if event.mark != mark), "")


def _seed(env: gymnasium.Env[Any, Any], other: gymnasium.Env[Any, Any], marks: list[Mark], seed: int) -> Finding:
    told_of = f"seed {seed} and the same actions give something else"
    if when := _first_difference(walk(other, seed, seed), marks):
        return Finding("seed", FAULT, f"{told_of} in a second instance from {when} on", OWN_GENERATOR)
    if when := _first_difference(walk(env, seed, seed), marks):
        return Finding("seed", WARNING, f"{told_of} in the same instance from {when} on", CARRY_NOTHING)
    return Finding("seed", OK, f"seed {seed} repeats itself to the last bit, in a second instance and in the same")


def _starts(env: gymnasium.Env[Any, Any], marks: list[Mark], seed: int) -> Finding:
    others = range(seed + 1, seed + 4)
    starts = {marks[0], *(next(walk(env, other, seed)).mark for other in others)}
    seeds = f"seeds {seed} to {others[-1]}"
    if len(starts) > 1:
        return Finding("starts", OK, f"{seeds} start at {len(starts)} different observations")
    if any(_first_difference(walk(env, other, seed), marks) for other in others):
        return Finding("starts", NOTE, f"{seeds} start at the same observation, and go on differently")
    remedy = f"fine if all episodes are to be the same; else {OWN_GENERATOR}"
    return Finding("starts", WARNING, f"{seeds} give the same under the same actions", remedy)


def _resume(env: gymnasium.Env[Any, Any], fresh: gymnasium.Env[Any, Any], num_steps: int, seed: int) -> Finding:
    """Finds an episode again as a resumed run does: from the generator's state at its reset, in a new instance."""
    # Several resets, so that a generator of the environment's own stands elsewhere in the new instance.
    for reset_seed in (seed, None, None):
        list(itertools.islice(walk(env, reset_seed, seed), 5))
    next(walk(fresh, seed, seed))
    try:
        state = copy.deepcopy(env.unwrapped.np_random.bit_generator.state)
        fresh.unwrapped.np_random.bit_generator.state = state
    except Exception as error:
        return Finding("resume", WARNING, f"np_random's state cannot be restored ({told(error)})", OWN_GENERATOR)
    marks = [event.mark for event in itertools.islice(walk(env, None, seed), num_steps + 1)]
    if when := _first_difference(walk(fresh, None, seed), marks):
        text = f"np_random's state gives something else from {when} on, so that resuming a run is not exact"
        return Finding("resume", WARNING, text, f"{OWN_GENERATOR}; {CARRY_NOTHING}")
    return Finding("resume", OK, "np_random's state finds episodes again, in a new instance and without a seed")


def _actions(env: gymnasium.Env[Any, Any], seed: int, is_finite: bool) -> Finding:
    """What the extreme actions do; where random ones do not stay finite either, that has been told."""
    for value in (-1.0, 1.0, -1.5, 1.5):
        action = np.full(env.action_space.shape or (), value, np.float32)
        try:
            env.reset(seed=seed)
            for step in range(1, 21):
                observation, reward, terminated, truncated, _ = env.step(action)
                if is_finite and not (np.isfinite(observation).all() and np.isfinite(float(reward))):
                    text = f"actions of {value:g} gave an observation or a reward that is not finite at step {step}"
                    return Finding("actions", FAULT, text, "look for what diverges at the bounds of action_space")
                if terminated or truncated:
                    break
        except signals.ANYTHING as error:
            signals.pass_on(error)
            remedy = "accept every action in action_space, its bounds included"
            return Finding("actions", FAULT, f"actions of {value:g} failed with {told(error)}", remedy)
    return Finding("actions", OK, "the bounds are accepted; beyond [-1, 1] actions are clipped")


def _speed(env: gymnasium.Env[Any, Any], num_steps: int, seed: int) -> Finding:
    events, num_taken = walk(env, seed, seed), 0
    next(events)
    start = time.perf_counter()
    while num_taken < num_steps:
        num_taken += next(events).reward is not None
    rate = num_taken / max(time.perf_counter() - start, 1e-9)
    drawn = ", each draws an image" if len(env.observation_space.shape or ()) == 3 else ""
    if drawn and "mujoco" in sys.modules:
        drawn += f"; MuJoCo draws by {backend()}"
    return Finding("speed", OK, f"{rate:,.0f} steps/s{drawn}")
