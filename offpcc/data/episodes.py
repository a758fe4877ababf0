"""Episodes as an agent with memory learns from them, finished and under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from offpcc.data.rows import Rows


class Episode(NamedTuple):
    """An episode of L steps."""

    frames: np.ndarray  # (L + frame_stack, *frame)
    actions: np.ndarray  # (L, A)
    rewards: np.ndarray  # (L, 1)
    terminated: bool
    observations: np.ndarray  # (L+1, *obs), or of stacks (L+1, frame_stack, *frame): a view of the frames
    group: int  # of the episodes that are saved together

    @property
    def stored(self) -> tuple[np.ndarray, ...]:
        """All there is, each number once."""
        return self.frames, self.actions, self.rewards


class RecordedEpisodes(Sequence[Episode]):
    """Episodes of recorded data; each is a view of the rows, made when it is asked for.

    Args:
        rows: of all episodes.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows.starts)

    @property
    def lengths(self) -> np.ndarray:
        """(N,), steps of each."""
        return self.rows.stops - self.rows.starts - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all that they store."""
        per_step = self.rows.actions[:1].nbytes + self.rows.rewards[:1].nbytes
        return self.rows.observations.nbytes + int(self.lengths.sum()) * per_step

    def __getitem__(self, number: Any) -> Any:
        start, stop = int(self.rows.starts[number]), int(self.rows.stops[number])
        frames, steps = self.rows.observations[start:stop], slice(start, stop - 1)
        is_terminated = bool(self.rows.terminations[stop - 2, 0])
        return Episode(frames, self.rows.actions[steps], self.rows.rewards[steps], is_terminated, frames, 0)


@dataclass
class Unfinished:
    """An episode under way."""

    frames: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as tensors; None for what has no steps yet."""
        frames, actions = (torch.from_numpy(np.stack(a)) if a else None for a in (self.frames, self.actions))
        return {"frames": frames, "actions": actions, "rewards": list(self.rewards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what `state` held."""
        self.frames, self.actions = ([] if state[n] is None else list(state[n].numpy()) for n in ("frames", "actions"))
        self.rewards = list(state["rewards"])
