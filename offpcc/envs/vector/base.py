"""The interface of several environments, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
Observations = list[np.ndarray]  # one per environment


class StepResult(NamedTuple):
    """What a step brought to N environments."""

    observations: Observations
    rewards: np.ndarray  # (N,)
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool
    # (N,) bool: whose episode is lost, without this step; its observation is the first of another. None for nobody's.
    crashed: np.ndarray | None = None


class RestoredEpisodes(NamedTuple):
    """Where N episodes stand that were found back."""

    observations: Observations
    over: np.ndarray  # (N,) bool
    same: bool  # whether all of them repeated themselves


class Environments(Protocol):
    """N environments side by side."""

    num_envs: int
    loses_episodes: bool  # whether one may break down and be started anew
    replay_on_resume: bool  # whether `restore` is called when a run is resumed, which sends the noted actions again
    name: str
    action_space: spaces.Box  # of one of them

    def start(self, over: np.ndarray, observations: Observations) -> np.ndarray:
        """Begin an episode where one is over: its first observation is put into `observations`.

        Returns:
            (N,) bool, false where that takes the next step, whose outcome is then the first observation.
        """
        ...

    def step(self, actions: np.ndarray) -> StepResult:
        """Act in all of them, (N, A) in [-1, 1]."""
        ...

    def snapshot(self) -> list[dict[str, Any] | None] | None:
        """What finds their episodes back, or None if nothing does."""
        ...

    def restore(self, notes: list[dict[str, Any] | None]) -> RestoredEpisodes:
        """Find back the episodes that were noted."""
        ...

    def begin_anew(self, num_steps: int) -> None:
        """Have the next episodes begin from seeds that follow from the first ones and the run's steps so far."""
        ...

    def close(self) -> None:
        """Close them all."""
        ...


def resumed_seeds(seeds: Sequence[int], num_steps: int) -> list[int]:
    """Seeds of environments in which new episodes begin after `num_steps` steps of a run."""
    # Longer than what other seeds are made from.
    return [int(np.random.SeedSequence((seed, 0, 2, num_steps)).generate_state(1)[0] >> 1) for seed in seeds]


def to_tensors(note: dict[str, Any] | None) -> dict[str, Any] | None:
    """A note as a checkpoint keeps it."""
    if note is None or note["actions"] is None:
        return note
    return {**note, "actions": torch.from_numpy(note["actions"])}


def to_arrays(note: dict[str, Any] | None) -> dict[str, Any]:
    """A note as an environment takes it."""
    assert note is not None
    return note if note["actions"] is None else {**note, "actions": note["actions"].numpy()}


def restored_episodes(results: Sequence[tuple[np.ndarray, bool, bool]]) -> RestoredEpisodes:
    """What N environments gave when they repeated their episodes."""
    observations, over, same = zip(*results, strict=True)
    return RestoredEpisodes(
        [np.array(observation) for observation in observations], np.array(over, np.bool_), all(same)
    )
