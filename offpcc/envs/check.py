"""`offpcc check --env`: finds problems in an environment that would spoil learning."""

from __future__ import annotations

import copy
import importlib.metadata
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from offpcc.envs.check_rollout import (
    MEND,
    BrokenEnvironment,
    Event,
    Mark,
    RolloutRecord,
    as_made,
    box_in_words,
    format_error,
    walk,
    watched,
)
from offpcc.envs.closing import opened
from offpcc.envs.make import DEFAULT_OPTIONS, EnvOptions, cannot_be_made, make
from offpcc.envs.rendering import backend
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.findings import FAULT, NOTE, OK, WARNING, Diagnosis, Finding
from offpcc.utils.foreign import ForeignCall

__all__ = ["examine", "extremes", "repeats", "resumes", "speed", "starts"]


OWN_GENERATOR = "draw all that is random from self.np_random, after super().reset(seed=seed)"
CARRY_NOTHING = "carry nothing over from one episode to the next"


def _first_difference(events: Iterable[Event], marks: list[Mark]) -> str:
    """Return when a walk first differs from the walk of `marks`; an empty string if it does not."""
    return next((event.when for event, mark in zip(events, marks, strict=False) if event.mark != mark), "")


def repeats(env: gymnasium.Env[Any, Any], other: gymnasium.Env[Any, Any], marks: list[Mark], seed: int) -> Finding:
    """Check whether the same seed and actions repeat the walk of `marks`, in another instance and in the same one."""
    told_of = f"seed {seed} and the same actions give something else"
    if when := _first_difference(walk(other, seed, seed), marks):
        return Finding("seed", FAULT, f"{told_of} in a second instance from {when} on", OWN_GENERATOR)
    if when := _first_difference(walk(env, seed, seed), marks):
        return Finding("seed", WARNING, f"{told_of} in the same instance from {when} on", CARRY_NOTHING)
    return Finding("seed", OK, f"seed {seed} repeats itself to the last bit, in a second instance and in the same")


def starts(env: gymnasium.Env[Any, Any], marks: list[Mark], seed: int) -> Finding:
    """Check whether other seeds give walks that differ from the walk of `marks`."""
    others = range(seed + 1, seed + 4)
    first = {marks[0], *(next(walk(env, other, seed)).mark for other in others)}
    seeds = f"seeds {seed} to {others[-1]}"
    if len(first) > 1:
        return Finding("starts", OK, f"{seeds} start at {len(first)} different observations")
    if any(_first_difference(walk(env, other, seed), marks) for other in others):
        return Finding("starts", NOTE, f"{seeds} start at the same observation, and go on differently")
    remedy = f"fine if all episodes are to be the same; else {OWN_GENERATOR}"
    return Finding("starts", WARNING, f"{seeds} give the same under the same actions", remedy)


def resumes(env: gymnasium.Env[Any, Any], fresh: gymnasium.Env[Any, Any], num_steps: int, seed: int) -> Finding:
    """Check whether the generator's state at a reset repeats an episode in a new instance, as a resumed run needs."""
    # Reset several times. A private generator of the environment then has another state than in the new instance.
    for reset_seed in (seed, None, None):
        list(itertools.islice(walk(env, reset_seed, seed), 5))
    next(walk(fresh, seed, seed))
    try:
        state = copy.deepcopy(env.unwrapped.np_random.bit_generator.state)
        fresh.unwrapped.np_random.bit_generator.state = state
    except Exception as error:
        return Finding(
            "resume", WARNING, f"np_random's state cannot be restored ({format_error(error)})", OWN_GENERATOR
        )
    marks = [event.mark for event in itertools.islice(walk(env, None, seed), num_steps + 1)]
    if when := _first_difference(walk(fresh, None, seed), marks):
        text = f"np_random's state gives something else from {when} on, so that resuming a run is not exact"
        return Finding("resume", WARNING, text, f"{OWN_GENERATOR}; {CARRY_NOTHING}")
    return Finding("resume", OK, "np_random's state finds episodes again, in a new instance and without a seed")


def extremes(env: gymnasium.Env[Any, Any], seed: int, is_finite: bool) -> Finding:
    """Check actions at the bounds and beyond them.

    `is_finite` is False if random actions already gave NaN or infinity. Another finding reports that, so this check
    then ignores NaN and infinity.
    """
    for value in (-1.0, 1.0, -1.5, 1.5):
        action = np.full(env.action_space.shape or (), value, np.float32)
        try:
            env.reset(seed=seed)
            for step in range(1, 21):
                with ForeignCall():
                    observation, reward, terminated, truncated, _ = env.step(action)
                if is_finite and not (np.isfinite(observation).all() and np.isfinite(float(reward))):
                    text = f"actions of {value:g} gave an observation or a reward that is not finite at step {step}"
                    return Finding("actions", FAULT, text, "look for what diverges at the bounds of action_space")
                if terminated or truncated:
                    break
        except signals.ANYTHING as error:
            signals.pass_on(error)
            remedy = "accept every action in action_space, its bounds included"
            return Finding("actions", FAULT, f"actions of {value:g} failed with {format_error(error)}", remedy)
    return Finding("actions", OK, "the bounds are accepted; beyond [-1, 1] actions are clipped")


def speed(env: gymnasium.Env[Any, Any], num_steps: int, seed: int) -> Finding:
    """Measure the environment steps per second."""
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


SIMULATORS = ("mujoco", "dm-control", "pybullet", "pybullet-envs-gymnasium")


def examine(name: str, num_steps: int = 2_000, seed: int = 0, options: EnvOptions = DEFAULT_OPTIONS) -> Diagnosis:
    """Examine an environment under random actions, both as Gymnasium makes it and as offpcc makes it.

    Args:
        name: A Gymnasium id, one of offpcc's own, or "module:id".
        num_steps: Environment steps of the longest walk; each other walk takes a quarter of them. Without a registered
            time limit, a walk continues until two episodes have ended or one is too long.
        seed: Seed of the environment and of the actions.
        options: Arguments of `make`.

    Raises:
        UserError: The environment cannot be made or is unsuitable; mostly `UnsuitableEnvironment`.
    """
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # Gymnasium warns of the same faults

        def made() -> gymnasium.Env[Any, Any]:
            return stack.enter_context(opened(make(name, scale_actions=True, **options._asdict())))

        def bared() -> gymnasium.Env[Any, Any]:
            return stack.enter_context(
                opened(gymnasium.make(name, disable_env_checker=True, **(options.kwargs or {})), options.timeout)
            )

        try:
            ready, bare = made(), bared()
        except UserError:
            raise
        except signals.ANYTHING as error:
            signals.pass_on(error)
            raise cannot_be_made(name, error) from error
        again = bared
        if not _can_walk(bare):  # it needs gin's wrappers
            again, bare = made, made()
        short = max(1, num_steps // 4)
        limit = _limit(bare) or _limit(ready)
        watch = RolloutRecord(bare, limit, num_steps, short, seed)
        findings = [_versions(), _spaces(bare), *watched(watch, limit)]
        if not watch.is_broken:
            wrapped = RolloutRecord(ready, _limit(ready), short, 0, seed)
            findings += [
                as_made(wrapped, set(watch.troubles), ready),
                _guarded("seed", lambda: repeats(bare, again(), watch.marks, seed)),
                _guarded("starts", lambda: starts(bare, watch.marks, seed)),
            ]
        if not watch.is_broken and not wrapped.is_broken:
            findings += [
                _guarded("resume", lambda: resumes(ready, made(), short, seed)),
                extremes(ready, seed, is_finite=not {"not finite", "reward not finite"} & set(watch.troubles)),
                _guarded("speed", lambda: speed(ready, short, seed)),
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


def _versions() -> Finding:
    used = [package for package in SIMULATORS if package.replace("-", "_") in sys.modules]
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("gymnasium", *used)]
    return Finding("versions", OK, ", ".join(versions))


def _spaces(env: gymnasium.Env[Any, Any]) -> Finding:
    actions = env.action_space
    assert isinstance(actions, Box)
    text = f"observation {box_in_words(env.observation_space)}; action {box_in_words(actions)}"
    stuck = np.flatnonzero(actions.low == actions.high)
    if stuck.size:
        remedy = "leave it out of action_space, or give it different bounds"
        return Finding("spaces", WARNING, f"action {stuck[0]} can only be {actions.low[stuck[0]]:.4g}; {text}", remedy)
    return Finding("spaces", OK, text)
