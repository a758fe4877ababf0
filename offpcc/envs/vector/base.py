"""The interface of several environments, in this process or in others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
Observations = list[np.ndarray]  # one per environment


class StepResult(NamedTuple):
    """The results of one step in N environments."""

    observations: Observations
    rewards: np.ndarray  # (N,)
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool
    # (N,) bool: True where an episode was lost and this step did not count. The observation is then the first of a new
    # episode. None if environments cannot crash.
    crashed: np.ndarray | None = None

    @classmethod
    def of(cls, results: Sequence[tuple[Any, ...]], crashed: np.ndarray | None = None) -> StepResult:
        """Return N results of `gymnasium.Env.step`, without their infos, as one."""
        observations, rewards, terminated, truncated = zip(*results, strict=True)
        return cls(
            [np.array(observation) for observation in observations],  # copies: some environments reuse one array
            np.array(rewards, np.float64),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            crashed,
        )


class RestoredEpisodes(NamedTuple):
    """The states of N restored episodes."""

    observations: Observations
    over: np.ndarray  # (N,) bool
    same: bool  # whether all episodes were repeated exactly


class Environments(Protocol):
    """N environments side by side."""

    num_envs: int
    loses_episodes: bool  # whether an environment may crash and be restarted
    replay_on_resume: bool  # whether a resumed run calls `restore`, which repeats the recorded actions
    name: str
    action_space: spaces.Box  # of one environment

    def start(self, over: np.ndarray, observations: Observations) -> np.ndarray:
        """Start an episode where one is over, and write its first observation into `observations`.

        Returns:
            (N,) bool; False where the next step does the reset and returns the first observation.
        """
        ...

    def step(self, actions: np.ndarray) -> StepResult:
        """Take a step in all environments; `actions` has the shape (N, A) and is in [-1, 1]."""
        ...

    def snapshot(self) -> list[dict[str, Any] | None] | None:
        """Return what `restore` needs, one item per environment, or None if episodes cannot be restored."""
        ...

    def restore(self, snapshots: list[dict[str, Any] | None]) -> RestoredEpisodes:
        """Restore the episodes of a snapshot."""
        ...

    def begin_anew(self, num_steps: int) -> None:
        """Set new seeds for the next episodes, derived from the first seeds and the run's number of steps so far."""
        ...

    def close(self) -> None:
        """Close all environments."""
        ...


def resumed_seeds(seeds: Sequence[int], num_steps: int) -> list[int]:
    """Return seeds for the new episodes of environments after `num_steps` steps of a run."""
    # This tuple is longer than those of other seeds, so that they differ.
    return [int(np.random.SeedSequence((seed, 0, 2, num_steps)).generate_state(1)[0] >> 1) for seed in seeds]


def to_tensors(snapshot: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the snapshot of an environment as a checkpoint stores it."""
    if snapshot is None or snapshot["actions"] is None:
        return snapshot
    import torch  # here, because worker processes do without it

    return {**snapshot, "actions": torch.from_numpy(snapshot["actions"])}


def to_arrays(snapshot: dict[str, Any] | None) -> dict[str, Any]:
    """Return the snapshot in a checkpoint as an environment takes it."""
    assert snapshot is not None
    return snapshot if snapshot["actions"] is None else {**snapshot, "actions": snapshot["actions"].numpy()}


def restored_episodes(results: Sequence[tuple[np.ndarray, bool, bool]]) -> RestoredEpisodes:
    """Combine what N environments returned from `EpisodeReplay.restore`."""
    observations, over, same = zip(*results, strict=True)
    return RestoredEpisodes(
        [np.array(observation) for observation in observations], np.array(over, np.bool_), all(same)
    )
