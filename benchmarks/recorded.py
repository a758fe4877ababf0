"""Made-up transitions of Hopper's size, the same for every library."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.cases import ACTION_DIM, EPISODE_LENGTH, OBSERVATION_DIM


class Transitions(NamedTuple):
    """Whole episodes, one after another; all end by their time limit."""

    observations: np.ndarray  # (M, O)
    actions: np.ndarray  # (M, A) in [-1, 1]
    rewards: np.ndarray  # (M,)
    next_observations: np.ndarray  # (M, O)
    truncations: np.ndarray  # (M,), bool


def transitions(num: int, seed: int = 0) -> Transitions:
    """`num` transitions, rounded up to whole episodes."""
    draws = np.random.default_rng(seed)
    episodes = -(-num // EPISODE_LENGTH)
    seen = draws.normal(size=(episodes, EPISODE_LENGTH + 1, OBSERVATION_DIM)).astype(np.float32)
    length = episodes * EPISODE_LENGTH
    return Transitions(
        observations=seen[:, :-1].reshape(length, -1),
        actions=draws.uniform(-1.0, 1.0, (length, ACTION_DIM)).astype(np.float32),
        rewards=draws.normal(size=length).astype(np.float32),
        next_observations=seen[:, 1:].reshape(length, -1),
        truncations=np.arange(1, length + 1) % EPISODE_LENGTH == 0,
    )
