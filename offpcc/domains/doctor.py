"""A doctor for environments: what would spoil learning in one, found before a run is spent on it."""

from __future__ import annotations

import importlib.metadata
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from offpcc import signals
from offpcc.domains import trials
from offpcc.domains.closing import opened
from offpcc.domains.findings import FAULT, OK, WARNING, Diagnosis, Finding
from offpcc.domains.making import by_gin, cannot_be_made, make
from offpcc.domains.walk import BrokenEnvironment, Watch
from offpcc.domains.walk_findings import MEND, as_made, box_in_words, watched
from offpcc.errors import UserError

__all__ = ["examine"]

SIMULATORS = ("mujoco", "dm-control", "pybullet", "pybullet-envs-gymnasium")


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
            return stack.enter_context(opened(make(name, scale_actions=True)))

        def bared() -> gymnasium.Env[Any, Any]:
            return stack.enter_context(
                opened(gymnasium.make(name, disable_env_checker=True, **(by_gin().kwargs or {})))
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
        findings = [_versions(), _spaces(bare), *watched(watch, limit)]
        if not watch.is_broken:
            wrapped = Watch(ready, _limit(ready), short, 0, seed)
            findings += [
                as_made(wrapped, set(watch.troubles), ready),
                _guarded("seed", lambda: trials.repeats(bare, again(), watch.marks, seed)),
                _guarded("starts", lambda: trials.starts(bare, watch.marks, seed)),
            ]
        if not watch.is_broken and not wrapped.is_broken:
            findings += [
                _guarded("resume", lambda: trials.resumes(ready, made(), short, seed)),
                trials.extremes(ready, seed, is_finite=not {"not finite", "reward not finite"} & set(watch.troubles)),
                _guarded("speed", lambda: trials.speed(ready, short, seed)),
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
