"""Episodes as an agent with memory learns from them, finished and under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch


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
