"""Transitions, the same for every library: made-up ones of Hopper's size or of images, or those of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from benchmarks.cases import ACTION_DIM, EPISODE_LENGTH, NUM_ACTIONS, NUM_STACKED, OBSERVATION_DIM

STACKS = spaces.Box(0, 255, (NUM_STACKED, 84, 84), np.uint8)
NUM_STACKS = 20_000  # transitions of images, in each buffer


class Transitions(NamedTuple):
    """Whole episodes, one after another; the last transition of each is terminated or truncated."""

    observations: np.ndarray  # (M, O)
    actions: np.ndarray  # (M, A) in [-1, 1], or one-hot
    rewards: np.ndarray  # (M,)
    next_observations: np.ndarray  # (M, O)
    terminations: np.ndarray  # (M,), bool
    truncations: np.ndarray  # (M,), bool

    @property
    def dims(self) -> tuple[int, int]:
        """O and A."""
        return self.observations.shape[1], self.actions.shape[1]

    def sample(self, size: int) -> dict[str, np.ndarray]:
        """Return `size` random transitions, named as in the code of FQL and RLPD; `masks` is 0 at a termination."""
        drawn = np.random.randint(len(self.rewards), size=size)
        columns = ("observations", "actions", "rewards", "next_observations")
        batch = {name: getattr(self, name)[drawn] for name in columns}
        return batch | {"masks": 1.0 - self.terminations[drawn].astype(np.float32)}


def transitions(num: int, seed: int = 0) -> Transitions:
    """`num` transitions, rounded up to whole episodes, which all end by their time limit."""
    draws = np.random.default_rng(seed)
    episodes = -(-num // EPISODE_LENGTH)
    seen = draws.normal(size=(episodes, EPISODE_LENGTH + 1, OBSERVATION_DIM)).astype(np.float32)
    length = episodes * EPISODE_LENGTH
    return Transitions(
        observations=seen[:, :-1].reshape(length, -1),
        actions=draws.uniform(-1.0, 1.0, (length, ACTION_DIM)).astype(np.float32),
        rewards=draws.normal(size=length).astype(np.float32),
        next_observations=seen[:, 1:].reshape(length, -1),
        terminations=np.zeros(length, np.bool_),
        truncations=np.arange(1, length + 1) % EPISODE_LENGTH == 0,
    )


def stacks(num: int, seed: int = 0) -> Iterator[tuple[np.ndarray, int, float, np.ndarray, bool, bool]]:
    """`num` transitions of made-up stacks (4, 84, 84), uint8, rounded up to whole episodes; without preprocessing.

    Each has the stack, the number of the action, the reward, the next stack, and whether it is terminated or truncated.
    """
    draws = np.random.default_rng(seed)
    for _ in range(-(-num // EPISODE_LENGTH)):
        frames = draws.integers(0, 256, (EPISODE_LENGTH + NUM_STACKED, 84, 84), np.uint8)
        for step in range(EPISODE_LENGTH):
            stack, following = (frames[first : first + NUM_STACKED] for first in (step, step + 1))
            yield (
                stack,
                int(draws.integers(NUM_ACTIONS)),
                float(draws.normal()),
                following,
                False,
                step == EPISODE_LENGTH - 1,
            )


def of_file(file: Path, best_fraction: float = 1.0) -> Transitions:
    """All transitions of a recording's best episodes, read as offpcc reads it; actions are clipped to [-1, 1]."""
    from offpcc.data.datasets.load import load_dataset  # a clone of the original offpcc has a package of this name

    data = load_dataset(file)
    data = data.best(best_fraction) if best_fraction < 1.0 else data
    kept = data.is_transition
    episodes = np.repeat(np.arange(data.num_episodes), data.lengths)[kept]
    is_last = np.append(episodes[1:] != episodes[:-1], True)
    return Transitions(
        observations=data.observations[kept].astype(np.float32),
        actions=data.unit_actions()[kept].astype(np.float32),
        rewards=data.rewards[kept].astype(np.float32),
        next_observations=data.next_observations[kept].astype(np.float32),
        terminations=data.terminations[kept],
        truncations=is_last & ~data.terminations[kept],
    )
