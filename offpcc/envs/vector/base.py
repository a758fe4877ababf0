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

    def restore(self, notes: list[dict[str, Any] | None]) -> RestoredEpisodes:
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


def to_tensors(note: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a snapshot as a checkpoint stores it."""
    if note is None or note["actions"] is None:
        return note
    import torch  # here, because worker processes do without it

    return {**note, "actions": torch.from_numpy(note["actions"])}


def to_arrays(note: dict[str, Any] | None) -> dict[str, Any]:
    """Return a snapshot as an environment takes it."""
    assert note is not None
    return note if note["actions"] is None else {**note, "actions": note["actions"].numpy()}


def restored_episodes(results: Sequence[tuple[np.ndarray, bool, bool]]) -> RestoredEpisodes:
    """Combine what N environments returned from `EpisodeReplay.restore`."""
    observations, over, same = zip(*results, strict=True)
    return RestoredEpisodes(
        [np.array(observation) for observation in observations], np.array(over, np.bool_), all(same)
    )
