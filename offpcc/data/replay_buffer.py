"""Transitions in a ring, each observation stored once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from offpcc.core import Batch, NumpyGenerator, UserError, channels_first, channels_first_shape, configurable

FIRST_BLOCK = 10_000  # rows; storage doubles from here as it fills


class BufferBase:
    """What both buffers share: spaces, the generator, checks and the statement of size.

    Args:
        observation_space: of one environment; images may have channels first or last.
        action_space: of one environment, scaled to [-1, 1].
        device: where batches go.
        seed: of the buffer's own generator.
    """

    def __init__(
        self, observation_space: spaces.Box, action_space: spaces.Box, device: str | torch.device, seed: int
    ) -> None:
        self.space_shape = observation_space.shape
        self.observation_shape = channels_first_shape(observation_space.shape)
        self.dtype = np.dtype(np.uint8 if observation_space.dtype == np.uint8 else np.float32)
        self.action_dim = int(np.prod(action_space.shape))
        self.device = torch.device(device)
        self.randomness = NumpyGenerator(seed, 2)
        self.last_observation: np.ndarray | None = None  # where an unfinished episode stands

    @property
    def bytes_per_step(self) -> int:
        """Bytes that one step takes."""
        observation = int(np.prod(self.observation_shape)) * self.dtype.itemsize
        return observation + 4 * self.action_dim + 4 + 1 + 1

    def read(self, observation: np.ndarray) -> np.ndarray:
        """An observation as it is stored.

        Raises:
            ValueError: its shape is not the space's.
        """
        observation = np.asarray(observation)
        if observation.shape != self.space_shape:
            if observation.shape == self.observation_shape:
                return observation.astype(self.dtype, copy=False)
            raise ValueError(
                f"observation of shape {observation.shape} pushed into a buffer of shape {self.space_shape}"
            )
        return channels_first(observation, self.space_shape).astype(self.dtype, copy=False)

    def read_action(self, action: np.ndarray) -> np.ndarray:
        """An action as it is stored.

        Raises:
            ValueError: it has another number of dimensions than the space.
        """
        return np.asarray(action, np.float32).reshape(self.action_dim)

    def continues(self, observation: np.ndarray) -> bool:
        """Whether a stored-form `observation` is where the unfinished episode stands."""
        last = self.last_observation
        return last is not None and np.array_equal(last, observation, equal_nan=last.dtype.kind == "f")

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """`array` on the device."""
        return torch.from_numpy(array).to(self.device)


@configurable
class ReplayBuffer(BufferBase):
    """Transitions for agents without memory.

    Rows ``o_t, a_t, r_t, d_t`` lie one after another in a ring, so that ``o_{t+1}`` is the following row's; an
    episode's last observation has a row of its own, which is never a start. Storage grows with what is stored.

    Args:
        observation_space: see `BufferBase`.
        action_space: see `BufferBase`.
        capacity: rows: transitions, and one more for each episode.
        batch_size: transitions per batch.
        num_steps: length T of the windows that `sample` returns; only their first step counts in losses. 1 gives
            transitions; more is what n-step returns need.
        device: where batches go.
        seed: of the buffer's own generator.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        *,
        capacity: int = 1_000_000,
        batch_size: int = 256,
        num_steps: int = 1,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(observation_space, action_space, device, seed)
        if capacity < 2 or batch_size < 1 or num_steps < 1:
            raise UserError(
                f"ReplayBuffer.capacity is {capacity}, batch_size {batch_size} and num_steps {num_steps}: "
                f"a transition takes 2 rows, a batch at least 1, and a window at least 1 step"
            )
        self.capacity, self.batch_size, self.num_steps = capacity, batch_size, num_steps
        self.cursor = 0  # the row of the last observation seen
        self.size = 0  # rows in use
        self.num_transitions = 0
        self._allocate(min(FIRST_BLOCK, capacity))

    def _allocate(self, rows: int) -> None:
        self.observations = np.zeros((rows, *self.observation_shape), self.dtype)
        self.actions = np.zeros((rows, self.action_dim), np.float32)
        self.rewards = np.zeros((rows, 1), np.float32)
        self.terminations = np.zeros((rows, 1), np.bool_)
        self.is_start = np.zeros(rows, np.bool_)

    def _grow(self) -> None:
        old = self._arrays()
        self._allocate(min(2 * len(self.is_start), self.capacity))
        for name, array in old.items():
            getattr(self, name)[: len(array)] = array

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ("observations", "actions", "rewards", "terminations", "is_start")
        return {name: getattr(self, name) for name in names}

    def __len__(self) -> int:
        """Transitions that `sample` can return."""
        return self.num_transitions

    def planned_bytes(self, num_steps: int, longest_episode: int | None) -> int:
        """Bytes that a run of `num_steps` environment steps comes to."""
        return min(self.capacity, num_steps) * self.bytes_per_step

    def _advance(self) -> int:
        """The next row, emptied."""
        row = (self.cursor + 1) % self.capacity if self.size else 0
        if row == len(self.is_start):
            self._grow()
        self.num_transitions -= int(self.is_start[row])
        self.is_start[row] = False
        self.size = max(self.size, row + 1)
        self.cursor = row
        return row

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Store a transition; one that does not start where the last ended begins a new episode.

        Args:
            observation: in the order of the space, or channels first.
            action: (A,) in [-1, 1].
            reward: received after it.
            next_observation: the true one also at an episode's end, never that of a reset.
            terminated: the task ended; values after it are 0 even if it was truncated as well.
            truncated: the episode was cut, so values after it are bootstrapped.
        """
        observation, next_observation = self.read(observation), self.read(next_observation)
        if self.continues(observation):
            row = self.cursor
        else:
            row = self._advance()
            self.observations[row] = observation
        self.actions[row] = self.read_action(action)
        self.rewards[row] = reward
        self.terminations[row] = terminated
        after = self._advance()
        self.observations[after] = next_observation
        self.is_start[row] = True
        self.num_transitions += 1
        self.last_observation = None if terminated or truncated else self.observations[after].copy()

    def sample(self) -> Batch:
        """`batch_size` windows with uniformly drawn starts."""
        if not self.num_transitions:
            raise ValueError("nothing has been pushed, so there is nothing to sample")
        draw = self.randomness.generator.integers
        rows = draw(0, self.size, self.batch_size)
        while (missed := np.flatnonzero(~self.is_start[rows])).size:
            rows[missed] = draw(0, self.size, missed.size)
        window = (rows[:, None] + np.arange(self.num_steps + 1)) % self.capacity
        if self.num_steps > 1:  # beyond what is allocated nothing is a start
            window = np.minimum(window, len(self.is_start) - 1)
        steps = window[:, :-1]
        real = np.ones((self.batch_size, self.num_steps + 1, 1), np.float32)
        real[:, 1:, 0] = np.logical_and.accumulate(self.is_start[steps], 1)
        mask = np.zeros((self.batch_size, self.num_steps, 1), np.float32)
        mask[:, 0] = 1.0
        before = rows - 1
        follows = self.is_start[before][:, None]
        return Batch(
            observations=self.tensor(self.observations[window]),
            actions=self.tensor(self.actions[steps]),
            rewards=self.tensor(self.rewards[steps]),
            terminations=self.tensor(self.terminations[steps].astype(np.float32)),
            real=self.tensor(real),
            mask=self.tensor(mask),
            first_action=self.tensor(np.where(follows, self.actions[before], np.float32(0.0))),
            first_reward=self.tensor(np.where(follows, self.rewards[before], np.float32(0.0))),
        )

    def state_dict(self) -> dict[str, Any]:
        """What is stored, and the generator."""
        return {
            "arrays": {name: torch.from_numpy(a[: self.size].copy()) for name, a in self._arrays().items()},
            "cursor": self.cursor,
            "last_observation": None if self.last_observation is None else torch.from_numpy(self.last_observation),
            "randomness": self.randomness.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what `state` held.

        Raises:
            UserError: it comes from a buffer of another capacity, and its ring does not fit this one.
        """
        arrays = {name: array.numpy() for name, array in state["arrays"].items()}
        size = len(arrays["is_start"])
        wrapped = size > 0 and state["cursor"] != size - 1
        if size > self.capacity or (wrapped and size != self.capacity):
            raise UserError(
                f"the saved buffer's ring of {size} rows does not fit ReplayBuffer.capacity = {self.capacity}: "
                f"set the capacity that it was saved with"
            )
        self.size = size
        rows = min(FIRST_BLOCK, self.capacity)
        while rows < self.size:
            rows = min(2 * rows, self.capacity)
        self._allocate(rows)
        for name, array in arrays.items():
            getattr(self, name)[: self.size] = array
        self.cursor = state["cursor"]
        self.num_transitions = int(self.is_start.sum())
        last = state["last_observation"]
        self.last_observation = None if last is None else last.numpy()
        self.randomness.load_state_dict(state["randomness"])
