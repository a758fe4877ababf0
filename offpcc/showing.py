"""Seeing what was learned: a window, or videos; and figures over many episodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from offpcc.core import Algorithm, UserError
from offpcc.domains.making import UnsuitableEnvironment, make
from offpcc.recording import write_video
from offpcc.run_fns import EpisodeResult, run_episodes

SHOWN_SEED = 1_000_000  # of the first episode shown; tests use other seeds


def has_screen() -> bool:
    """Whether a window can be opened."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_environment(env: str, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """The environment by name.

    Raises:
        UserError: it does not exist, lacks a package, or does not suit.
    """
    try:
        return make(env, render_mode=render_mode)
    except UnsuitableEnvironment as error:
        raise UserError(str(error)) from error


def watch_episodes(algorithm: Algorithm, env: str, num_episodes: int) -> list[EpisodeResult]:
    """Episodes in a window."""
    shown = open_environment(env, "human")
    try:
        return run_episodes(algorithm, [shown], range(SHOWN_SEED, SHOWN_SEED + num_episodes))
    finally:
        shown.close()


def record_episodes(
    algorithm: Algorithm, env: str, num_episodes: int, folder: Path, name: str = "episode"
) -> tuple[list[EpisodeResult], list[Path]]:
    """Episodes as MP4 files `folder/<name>_<number>.mp4`; results and files."""
    shown = open_environment(env, "rgb_array")
    folder.mkdir(parents=True, exist_ok=True)
    results, files = [], []
    fps = round(shown.metadata.get("render_fps") or 30)
    try:
        for number in range(1, num_episodes + 1):
            frames: list[np.ndarray] = []

            def keep(env: gymnasium.Env[Any, Any], frames: list[np.ndarray] = frames) -> None:
                frames.append(np.asarray(env.render(), np.uint8))

            results += run_episodes(algorithm, [shown], [SHOWN_SEED + number - 1], watch=keep)
            files.append(folder / f"{name}_{number}.mp4")
            write_video(frames, files[-1], fps)
    finally:
        shown.close()
    return results, files


def evaluate_actor(algorithm: Algorithm, env: str, num_episodes: int, num_envs: int, seed: int) -> list[EpisodeResult]:
    """Episodes without pictures, side by side."""
    envs = [open_environment(env) for _ in range(min(num_envs, num_episodes))]
    try:
        return run_episodes(algorithm, envs, range(seed, seed + num_episodes))
    finally:
        for one in envs:
            one.close()


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
