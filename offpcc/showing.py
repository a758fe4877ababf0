"""Seeing what was learned: a window, or videos; and figures over many episodes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from offpcc.algorithms import ActorCritic
from offpcc.domains.closing import close
from offpcc.domains.guard import guarded
from offpcc.domains.making import make
from offpcc.errors import UserError
from offpcc.evaluation import run_episodes
from offpcc.filming import video
from offpcc.interaction import EpisodeResult

SHOWN_SEED = 1_000_000  # of the first episode shown; tests use other seeds


def open_environment(env: str, algorithm: ActorCritic, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """The environment by name, which has to be one that the agent can see and act in; it takes actions in [-1, 1].

    Raises:
        UserError: it does not exist, lacks a package, cannot be drawn, or has other sizes than the agent's.
    """
    opened = make(env, render_mode=render_mode, scale_actions=True)
    seen, actions = opened.observation_space.shape, int(np.prod(opened.action_space.shape or (1,)))
    if seen != algorithm.space_shape or actions != algorithm.action_dim:
        close(opened)
        raise UserError(
            f"{env} has observations of shape {seen} and {actions} action dimensions, but the actor was trained with "
            f"{algorithm.space_shape} and {algorithm.action_dim}; name the environment it was trained in with --env"
        )
    return opened


def watch_episodes(algorithm: ActorCritic, env: str, num_episodes: int) -> list[EpisodeResult]:
    """Episodes in a window."""
    shown = guarded(open_environment(env, algorithm, "human"))
    try:
        return run_episodes(algorithm, [shown], range(SHOWN_SEED, SHOWN_SEED + num_episodes))
    finally:
        shown.close()


def record_episodes(
    algorithm: ActorCritic, env: str, num_episodes: int, folder: Path, name: str = "episode"
) -> tuple[list[EpisodeResult], list[Path]]:
    """Episodes as MP4 files `folder/<name>_<number>.mp4`; results and files."""
    shown = guarded(open_environment(env, algorithm, "rgb_array"))
    folder.mkdir(parents=True, exist_ok=True)
    results, files = [], []
    fps = round(shown.metadata.get("render_fps") or 30)
    try:
        for number in range(1, num_episodes + 1):
            files.append(folder / f"{name}_{number}.mp4")
            with video(files[-1], fps) as add_frame:
                seed = SHOWN_SEED + number - 1
                results += run_episodes(algorithm, [shown], [seed], watch=functools.partial(_draw, add_frame))
    finally:
        shown.close()
    return results, files


def _draw(add_frame: Callable[[Any], None], env: gymnasium.Env[Any, Any]) -> None:
    add_frame(env.render())


def evaluate_actor(
    algorithm: ActorCritic, env: str, num_episodes: int, num_envs: int, seed: int
) -> list[EpisodeResult]:
    """Episodes without pictures, side by side."""
    envs = [guarded(open_environment(env, algorithm)) for _ in range(min(num_envs, num_episodes))]
    try:
        return run_episodes(algorithm, envs, range(seed, seed + num_episodes))
    finally:
        for one in envs:
            one.close()


def frames_per_second(env: str, num_steps: int = 20) -> float:
    """How fast an environment is whose observations are drawn."""
    drawn = guarded(make(env, scale_actions=True))
    try:
        drawn.reset(seed=SHOWN_SEED)
        started = time.perf_counter()
        for _ in range(num_steps):
            drawn.step(drawn.action_space.sample())
        return num_steps / (time.perf_counter() - started)
    finally:
        drawn.close()


def lines(results: list[EpisodeResult]) -> Iterator[str]:
    """One line per episode."""
    for number, result in enumerate(results, 1):
        yield f"episode {number}: return {result.episode_return:.1f}, {result.length} steps"


def overview(results: list[EpisodeResult]) -> str:
    """Mean and spread in one line."""
    returns = np.array([result.episode_return for result in results])
    lengths = np.mean([result.length for result in results])
    return (
        f"return over {len(results)} episodes: mean {returns.mean():.1f}, s.d. {returns.std():.1f}, "
        f"median {np.median(returns):.1f}, min {returns.min():.1f}, max {returns.max():.1f}; mean length {lengths:.0f}"
    )
