"""`ReplayBuffer`: transitions, for agents without memory.

Each environment has its own ring; each frame of stacked observations is stored once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NumEnvs, NumParts, PositiveInteger, Size
from offpcc.core import Batch
from offpcc.data.buffers.base import BufferBase
from offpcc.data.buffers.device import DeviceRings, DeviceRows, sent
from offpcc.data.buffers.snapshot import PIECE_BYTES, Chunk
from offpcc.data.buffers.storage import Ring, Storage, TransitionTable, wrap_edges
from offpcc.utils.errors import UserError

FIRST_BLOCK = 10_000  # rows of all rings; storage doubles from here as it fills


class InRings(BufferBase):
    """A buffer of rings; sampling from them is for the subclass to fill in.

    Each environment has a ring of rows ``o_t, a_t, r_t, d_t``, one after another, so that ``o_{t+1}`` is the
    following row's; an episode's last observation has a row of its own, which is never a start. Of stacked
    observations a row holds the newest frame alone: the older ones are in the rows before it, for which an episode
    begins with `frame_stack` - 1 rows more that are never starts. When a row makes room, the transitions whose stack
    reaches back to it are lost with it.

    The rings are interleaved, row r of environment n at ``r * num_envs + n``, so that one index reaches all of them
    and storage grows with what is stored.

    Args:
        observation_space: see `BufferBase`.
        action_space: see `BufferBase`.
        capacity: rows, shared evenly among the environments: transitions, and `frame_stack` more for each episode.
        device: see `BufferBase`.
        seed: see `BufferBase`.
        num_envs: see `BufferBase`.
        frame_stack: see `BufferBase`.
        on_device: see `DeviceCopy`.

    Attributes:
        storage: the rows of all rings.
        near: (R, 3, [O +] A + 2), a view of each row with those before and after it in its ring.
    """

    storage: Storage
    near: torch.Tensor

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        capacity: PositiveInteger,
        device: str | torch.device,
        seed: int,
        num_envs: NumEnvs,
        frame_stack: NumParts,
        on_device: Flag | None,
    ) -> None:
        super().__init__(observation_space, action_space, device, seed, num_envs, frame_stack)
        if capacity // num_envs < frame_stack + 1:
            raise UserError(
                f"{type(self).__name__}.capacity is {capacity}, but a transition takes {frame_stack + 1} rows, in each "
                f"of {num_envs} environments; it has to be {num_envs * (frame_stack + 1)} or more"
            )
        self.capacity, self.ring_rows = capacity, capacity // num_envs
        self.rings = [Ring() for _ in range(num_envs)]
        self.num_transitions = 0
        self.piece_rows = max(PIECE_BYTES // self.bytes_per_step, 1)
        self.revisions: Counter[int] = Counter()  # of each piece: how often it was written to
        self.appended = [0] * num_envs  # rows ever, to each ring
        self.device_copy = DeviceRings(on_device, type(self).__name__, self.device, self.layout)
        self._set_storage(self._empty(self._first_rows()))

    def _first_rows(self) -> int:
        return min(max(FIRST_BLOCK // self.num_envs, 1), self.ring_rows)

    def _empty(self, rows: int) -> Storage:
        """Storage for `rows` of each ring."""
        return Storage.of(rows * self.num_envs, self.frame_shape, self.dtype, self.action_dim, self.num_envs)

    def _set_storage(self, storage: Storage) -> None:
        self.storage = storage
        num_rows, width = storage.packed.shape
        self.near = torch.from_numpy(storage.with_edges).as_strided(
            (num_rows, 3, width), (width, self.num_envs * width, 1)
        )
        self.device_copy.forget()

    def _on_device(self) -> DeviceRows | None:
        """The copy on the device, up to date; None if there is none."""
        return self.device_copy.current(self.storage, self.rings, self.appended, self.ring_rows)

    def _grow(self) -> None:
        grown = self._empty(min(2 * len(self.storage.is_start) // self.num_envs, self.ring_rows))
        grown.put(self.storage.contiguous)
        self._set_storage(grown)

    def __getstate__(self) -> dict[str, Any]:
        """All but what are views of one array."""
        state = {name: part for name, part in vars(self).items() if name not in ("storage", "near")}
        return state | {"stored": self.storage.contiguous}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, which has an array of its own."""
        stored = state.pop("stored")
        vars(self).update(state)
        self._set_storage(self._empty(len(stored[0]) // self.num_envs))
        self.storage.put(stored)

    def __len__(self) -> int:
        """Transitions that `sample` can return."""
        return self.num_transitions

    @property
    def size(self) -> int:
        """Places of the storage among which are all that are in use."""
        return self.num_envs * max(ring.size for ring in self.rings)

    @property
    def bytes_per_step(self) -> int:
        """Bytes that a row takes."""
        return self.layout.bytes_per_row

    def planned_bytes(self, num_steps: int, longest_episode: int | None) -> int:
        """Bytes that a run of `num_steps` environment steps comes to."""
        episodes = self.episodes_per_env(num_steps, longest_episode)
        rows = math.ceil(num_steps / self.num_envs) + self.frame_stack * episodes
        return self.num_envs * min(self.ring_rows, rows) * self.bytes_per_step

    def _place(self, env: int, row: int) -> int:
        return row % self.ring_rows * self.num_envs + env

    def _append(self, env: int, frame: np.ndarray) -> int:
        """Put `frame` into the next row of a ring; its place."""
        ring, storage = self.rings[env], self.storage
        if ring.size == self.ring_rows:
            for age in range(self.frame_stack):  # the oldest row, and those whose stacks reach back to it
                lost = self._place(env, ring.cursor + 1 + age)
                self.revisions[lost // self.piece_rows] += 1
                self.num_transitions -= int(storage.is_start[lost])
                storage.is_start[lost] = False
                storage.actions[lost], storage.rewards[lost], storage.terminations[lost] = 0.0, 0.0, 0.0
        else:
            ring.size += 1
        ring.cursor = (ring.cursor + 1) % self.ring_rows
        place = self._place(env, ring.cursor)
        if place >= len(storage.is_start):
            self._grow()
        self.storage.observations[place] = frame
        self.revisions[place // self.piece_rows] += 1
        self.appended[env] += 1
        return place

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
    ) -> None:
        """Store a transition; one that does not start where its environment's last ended begins a new episode.

        Args:
            observation: in the order of the space, or channels first.
            action: (A,) in [-1, 1].
            reward: received after it.
            next_observation: the true one also at an episode's end, never that of a reset.
            terminated: the task ended; values after it are 0 even if it was truncated as well.
            truncated: the episode was cut, so values after it are bootstrapped.
            env: the number of its environment, from 0.

        Raises:
            ValueError: a shape or a number is not the buffer's, or stacked observations do not follow each other.
        """
        frames, next_frames, action = self.read(observation), self.read(next_observation), self.read_action(action)
        self.check_transition(frames, next_frames, env)
        ring = self.rings[env]
        stored = (self.storage.observations[self._place(env, ring.cursor - age)] for age in range(self.frame_stack))
        if not (ring.unfinished and self.continues(frames, stored)):
            for frame in frames:
                self._append(env, frame)
        start, storage = self._place(env, ring.cursor), self.storage
        storage.actions[start], storage.rewards[start], storage.terminations[start] = action, reward, terminated
        self.revisions[start // self.piece_rows] += 1
        self._append(env, next_frames[-1])
        self.storage.is_start[start] = True  # it may be another storage by now
        self.num_transitions += 1
        ring.unfinished = not (terminated or truncated)

    def drop(self, env: int) -> None:
        """End an episode that broke off; its transitions stay, as each is whole, and the last is cut like the others.

        Args:
            env: the number of its environment.
        """
        self.rings[env].unfinished = False

    def truncate(self, env: int) -> None:
        """End an unfinished episode; its last transition counts as truncated."""
        self.rings[env].unfinished = False

    def fill(self, rows: TransitionTable, recorded: str) -> None:
        """Hold recorded transitions, whatever the capacity: the arrays are kept as they are, and not in checkpoints.

        Args:
            rows: of whole episodes.
            recorded: what tells them from other data.

        Raises:
            ValueError: the buffer holds something, or is of several environments or of stacks.
        """
        rows = self._adopt(rows, recorded)
        self._set_storage(rows)
        self.capacity = self.ring_rows = len(rows.is_start)
        self.rings = [Ring(self.ring_rows - 1, self.ring_rows)]
        self.num_transitions = int(rows.is_start.sum())

    def pieces(self) -> list[Chunk]:
        """Rows side by side, as they lie in the storage."""
        arrays, rows, size = () if self.recorded else self.storage.contiguous, self.piece_rows, self.size
        return [
            Chunk(
                number,
                # Its end, too: of several rings one may be ahead, and make room in rows that none has written to.
                (self.num_loaded, self.revisions[number], min(start + rows, size)),
                [array[start : min(start + rows, size)] for array in arrays],
            )
            for number, start in enumerate(range(0, size, rows) if arrays else ())
        ]

    def metadata(self) -> dict[str, Any]:
        """Where the rings stand."""
        return {**super().metadata(), "rings": [vars(ring).copy() for ring in self.rings]}

    def _outlined_bytes(self, metadata: Mapping[str, Any]) -> int:
        rings = [Ring(**ring) for ring in metadata["rings"]]
        for ring in rings:
            wrapped = ring.cursor != ring.size - 1
            if ring.size > self.ring_rows or (wrapped and ring.size != self.ring_rows):
                raise UserError(
                    f"the saved buffer's ring of {ring.size} rows does not fit {type(self).__name__}.capacity = "
                    f"{self.capacity}: set the capacity that it was saved with"
                )
        return self.num_envs * max(ring.size for ring in rings) * self.bytes_per_step

    def _allocate(self, metadata: Mapping[str, Any]) -> None:
        self.rings = [Ring(**ring) for ring in metadata["rings"]]
        rows = self._first_rows()
        while rows * self.num_envs < self.size:
            rows = min(2 * rows, self.ring_rows)
        self._set_storage(self._empty(rows))

    def _finalize(self) -> None:
        self.num_transitions = int(self.storage.is_start.sum())


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
        num_envs: NumEnvs = 1,
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
        valid = np.ones((self.batch_size, self.num_steps + 1, 1), np.float32)
        if self.num_steps > 1:
            valid[:, 1:, 0] = np.logical_and.accumulate(self.storage.is_start[frames[:, :-1, -1]], 1)
        mask = np.zeros((self.batch_size, self.num_steps, 1), np.float32)
        mask[:, 0] = 1.0
        rows: Any = self.storage
        if copy is not None:  # from here on either arrays or tensors, which are indexed alike
            rows, frames = copy, self.tensor(frames)
        steps = frames[:, :-1, -1]
        before = steps[:, 0] - self.num_envs  # where it is no start, its action and reward are 0
        observations = rows.observations[frames].reshape(*valid.shape[:2], *self.observation_shape)
        return Batch(
            observations=self.tensor(observations),
            actions=self.tensor(rows.actions[steps]),
            rewards=self.tensor(rows.rewards[steps]),
            terminations=self.tensor(rows.terminations[steps]),
            valid=self.tensor(valid),
            loss_mask=self.tensor(mask),
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
