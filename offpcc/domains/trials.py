"""What an environment does when it is asked to: repeat itself, go on elsewhere, take extreme actions, be fast."""

from __future__ import annotations

import copy
import itertools
import sys
import time
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np

from offpcc import signals
from offpcc.domains.findings import FAULT, NOTE, OK, WARNING, Finding
from offpcc.domains.opengl import backend
from offpcc.domains.walk import Event, Mark, told, walk
from offpcc.foreign import ForeignCall

__all__ = ["extremes", "repeats", "resumes", "speed", "starts"]

OWN_GENERATOR = "draw all that is random from self.np_random, after super().reset(seed=seed)"
CARRY_NOTHING = "carry nothing over from one episode to the next"


def _first_difference(events: Iterable[Event], marks: list[Mark]) -> str:
    """When a walk first departs from another one; empty if it does not."""
    return next((event.when for event, mark in zip(events, marks, strict=False) if event.mark != mark), "")


def repeats(env: gymnasium.Env[Any, Any], other: gymnasium.Env[Any, Any], marks: list[Mark], seed: int) -> Finding:
    """Whether the same seed and actions give the walk of these marks once more, in another instance and in this."""
    told_of = f"seed {seed} and the same actions give something else"
    if when := _first_difference(walk(other, seed, seed), marks):
        return Finding("seed", FAULT, f"{told_of} in a second instance from {when} on", OWN_GENERATOR)
    if when := _first_difference(walk(env, seed, seed), marks):
        return Finding("seed", WARNING, f"{told_of} in the same instance from {when} on", CARRY_NOTHING)
    return Finding("seed", OK, f"seed {seed} repeats itself to the last bit, in a second instance and in the same")


def starts(env: gymnasium.Env[Any, Any], marks: list[Mark], seed: int) -> Finding:
    """Whether other seeds give other walks than that of these marks."""
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


def extremes(env: gymnasium.Env[Any, Any], seed: int, is_finite: bool) -> Finding:
    """What the extreme actions do; where random ones do not stay finite either, that has been told."""
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
            return Finding("actions", FAULT, f"actions of {value:g} failed with {told(error)}", remedy)
    return Finding("actions", OK, "the bounds are accepted; beyond [-1, 1] actions are clipped")


def speed(env: gymnasium.Env[Any, Any], num_steps: int, seed: int) -> Finding:
    """How many steps a second it takes."""
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
