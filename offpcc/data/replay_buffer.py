"""Transitions for agents without memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from offpcc.checks import Flag, NumParts, PositiveInteger, Size
from offpcc.core import Batch
from offpcc.data.device_rows import DeviceRows, sent
from offpcc.data.rings import InRings
from offpcc.data.rows import wrap_edges
from offpcc.registry import configurable


@configurable
class ReplayBuffer(InRings):
    """Transitions for agents without memory; how they are stored, and when they make room, is told by `InRings`.

    Args:
        observation_space: see `BufferBase`.
        action_space: see `BufferBase`.
        capacity: see `InRings`.
        batch_size: transitions per batch.
        num_steps: length T of the windows that `sample` returns; only their first step counts in losses. 1 gives
            transitions; more is what n-step returns need.
        device: where batches go.
        seed: of the buffer's own generator.
        num_envs: see `BufferBase`.
        frame_stack: see `BufferBase`.
        on_device: whether rows are copied to the device, and batches gathered there; None for where they
            take at most half of what is free there. On the CPU, where the buffer is, there is nothing to gain.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        *,
        capacity: PositiveInteger = 1_000_000,
        batch_size: Size = 256,
        num_steps: Size = 1,
        device: str | torch.device = "cpu",
        seed: int = 0,
        num_envs: NumParts = 1,
        frame_stack: NumParts = 1,
        on_device: Flag | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, capacity, device, seed, num_envs, frame_stack, on_device)
        self.batch_size, self.num_steps = batch_size, num_steps
        # From a row's place to its own, and to those before and after it, with edges.
        self.around = num_envs * np.arange(3)
        # From a start's place to those of the frames of its observations, (T+1, frame_stack).
        self.reach = num_envs * (np.arange(num_steps + 1)[:, None] + np.arange(1 - frame_stack, 1))

    def _sample(self) -> Batch:
        """`batch_size` windows with uniformly drawn starts."""
        if not self.num_transitions:
            raise ValueError("nothing has been pushed, so there is nothing to sample")
        starts = self._draw()
        while len(starts) < self.batch_size:
            starts = np.concatenate([starts, self._draw()])
        starts, copy = starts[: self.batch_size], self._on_device()
        if self.num_steps == 1 and self.frame_stack == 1 and self.storage.packs_observations:
            return self._transitions(starts, copy)
        frames: Any = (starts[:, None, None] + self.reach) % (self.num_envs * self.ring_rows)
        if self.num_steps > 1:  # beyond what is allocated nothing is a start
            frames = np.minimum(frames, len(self.storage.is_start) - 1)
        real = np.ones((self.batch_size, self.num_steps + 1, 1), np.float32)
        if self.num_steps > 1:
            real[:, 1:, 0] = np.logical_and.accumulate(self.storage.is_start[frames[:, :-1, -1]], 1)
        mask = np.zeros((self.batch_size, self.num_steps, 1), np.float32)
        mask[:, 0] = 1.0
        rows: Any = self.storage
        if copy is not None:  # from here on either arrays or tensors, which are indexed alike
            rows, frames = copy, self.tensor(frames)
        steps = frames[:, :-1, -1]
        before = steps[:, 0] - self.num_envs  # where it is no start, its action and reward are 0
        observations = rows.observations[frames].reshape(*real.shape[:2], *self.observation_shape)
        return Batch(
            observations=self.tensor(observations),
            actions=self.tensor(rows.actions[steps]),
            rewards=self.tensor(rows.rewards[steps]),
            terminations=self.tensor(rows.terminations[steps]),
            real=self.tensor(real),
            mask=self.tensor(mask),
            first_action=self.tensor(rows.actions[before]),
            first_reward=self.tensor(rows.rewards[before]),
            complete=self.num_steps == 1,
        )

    def _draw(self) -> np.ndarray:
        """Starts, each as likely: mostly a few more than are needed, for some rows are none."""
        numbers = self.randomness.generator.random(self.batch_size + self.batch_size // 16)
        drawn = (numbers * self.size).astype(np.int64)  # several times as fast as `integers`
        return drawn[self.storage.is_start[drawn]]

    def _transitions(self, starts: np.ndarray, copy: DeviceRows | None) -> Batch:
        """Single transitions, each with the row before it, whose action and reward are 0 if it is no start."""
        if copy is None:
            wrap_edges(self.storage.with_edges, self.num_envs)
            rows = sent(self.near.index_select(0, torch.from_numpy(starts)), self.device)
        else:
            places = (starts[:, None] + self.around).ravel()
            rows = copy.with_edges.index_select(0, self.tensor(places)).view(self.batch_size, 3, -1)
        size, _, width = rows.shape
        num_actions = self.action_dim
        num_observed = width - num_actions - 2
        before = num_observed, num_actions, 1, 1 + num_observed
        parts = rows.view(size, 1, -1).split_with_sizes((*before, num_actions, 1, 1, width), 2)
        _, first_action, first_reward, _, actions, rewards, terminations, _ = parts
        observations = rows.as_strided((size, 2, num_observed), (3 * width, width, 1), width)
        if len(self.observation_shape) > 1:
            observations = observations.view(-1, 2, *self.observation_shape)
        return Batch(
            observations,
            actions,
            rewards,
            terminations,
            torch.ones(size, 2, 1, device=self.device),
            torch.ones(size, 1, 1, device=self.device),
            first_action.squeeze(1),
            first_reward.squeeze(1),
            complete=True,
        )
