"""An algorithm, a buffer, a callback and a logger of a user's with what the library uses of them, and no more.

`mypy` checks in the lint that they satisfy the protocols; tests/training/test_minimal_parts.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

import offpcc
from offpcc.core import Algorithm, Batch, Buffer, Chunk, Memory, Stats, Step
from offpcc.training.loggers import Logger, Progress, Row


@offpcc.configurable
class MinimalAlgorithm:
    """Acts by a linear layer, which learns to act as in the buffer."""

    memoryless = True
    n_step = 1
    stat_names: tuple[str, ...] = ("loss",)

    def __init__(self, observation_space: Box, action_space: Box, *, device: str = "cpu", seed: int = 0) -> None:
        self.device, self.action_space, self.action_dim = torch.device(device), action_space, 1
        self.layer = torch.nn.Linear(int(np.prod(observation_space.shape)), self.action_dim)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)

    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[np.ndarray, Memory]:
        return self._choose(torch.as_tensor(step.observation)).detach().numpy(), None

    def _choose(self, observations: torch.Tensor) -> torch.Tensor:
        actions: torch.Tensor = self.layer(observations).tanh()
        return actions

    def update_networks(self, batch: Batch) -> Stats:
        loss = (self._choose(batch.observations[:, 0]) - batch.actions[:, 0]).square().mean()
        for parameter, gradient in zip(
            self.layer.parameters(), torch.autograd.grad(loss, [*self.layer.parameters()]), strict=True
        ):
            parameter.data -= 0.01 * gradient
        return {"loss": loss.detach()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.layer.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.layer.load_state_dict(state)

    def actor_parts(self) -> dict[str, torch.nn.Module]:
        return {"layer": self.layer}

    def actor_file(self) -> dict[str, Any]:
        return {"kind": "actor", "format": 0, "weights": self.state_dict()}


@offpcc.configurable
class MinimalBuffer:
    """Keeps all transitions in lists, and returns the first few."""

    def __init__(self, observation_space: Box, action_space: Box, *, batch_size: int = 4, **kwargs: Any) -> None:
        self.batch_size, self.rows = batch_size, list[list[torch.Tensor]]()

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
        is_first: bool = False,
    ) -> None:
        numbers = (observation, action, [reward], next_observation, [float(terminated)])
        self.rows.append([torch.tensor(np.array(x), dtype=torch.float32) for x in numbers])

    def drop(self, env: int) -> None:
        pass

    def truncate(self, env: int) -> None:
        pass

    def sample(self) -> Batch:
        seen, actions, rewards, following, ends = map(torch.stack, zip(*self.rows[: self.batch_size], strict=True))
        ones = torch.ones(len(seen), 2, 1)
        steps = actions[:, None], rewards[:, None], ends[:, None]
        return Batch(torch.stack([seen, following], 1), *steps, ones, ones[:, :1], 0 * actions, 0 * rewards)

    def __len__(self) -> int:
        return len(self.rows)

    def update_priorities(self, batch: Batch, td_error: torch.Tensor) -> None:
        raise AssertionError("batches have no weights, so there is no TD error")

    def chunks(self) -> Sequence[Chunk]:
        return []

    def metadata(self) -> dict[str, Any]:
        return {"rows": [*self.rows]}

    def load(self, metadata: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Chunk], None]) -> None:
        self.rows = [*metadata["rows"]]


class MinimalLogger:
    """Keeps the rows."""

    def __init__(self, folder: Path | None = None) -> None:
        self.rows: list[Row] = []

    def progress(self, progress: Progress) -> None:
        pass

    def epoch(self, row: Row) -> None:
        self.rows.append(row)

    def artifact(self, kind: str, file: Path) -> None:
        pass

    def close(self) -> None:
        pass


SPACE = Box(-1.0, 1.0, (1,), np.float32)
algorithm: Algorithm = MinimalAlgorithm(SPACE, SPACE)
buffer: Buffer = MinimalBuffer(SPACE, SPACE)
logger: Logger = MinimalLogger()
