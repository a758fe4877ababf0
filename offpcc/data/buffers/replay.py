"""`ReplayBuffer`: a buffer of transitions, for agents without memory."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NumEnvs, NumParts, PositiveInteger, Size
from offpcc.core import Batch, Chunk
from offpcc.data.buffers.base import BufferBase
from offpcc.data.buffers.device import DeviceCopy, sent
from offpcc.data.buffers.snapshot import CHUNK_BYTES
from offpcc.data.buffers.storage import Ring, Storage, TransitionTable, returns_to_go, wrap_edges
from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError

FIRST_BLOCK = 10_000  # rows of all rings at first; the storage doubles when it is full


@configurable
class ReplayBuffer(BufferBase):
    """Replay buffer of transitions, for agents without memory.

    Each environment has its own ring of rows ``o_t, a_t, r_t, d_t`` in order of time. ``o_{t+1}`` is in the following
    row. A row is a start if a transition begins there. An episode's last observation has its own row, which is never a
    start.

    With stacked observations, a row holds only the newest frame. The older frames are in the rows before it. So each
    episode begins with `frame_stack` - 1 extra rows, which are never starts. When a new row overwrites the oldest one,
    the transitions whose stacks reach back to the oldest row are lost, too.

    The rings are interleaved: row r of environment n is at ``r * num_envs + n``. So one index reaches all rings, and
    the storage can grow while the buffer fills.

    `BufferBase` describes the arguments that are not listed here.

    Args:
        capacity: Number of rows, shared evenly among the environments. A transition takes one row; each episode takes
            `frame_stack` more.
        batch_size: Number of transitions per batch.
        num_steps: Length T of the windows that `sample` returns. Only the first step of a window counts in losses. 1
            gives single transitions; n-step returns need more.
        on_device: Whether to copy the rows to the device and gather batches there. None copies them if they take at
            most half of the device's free memory. On the CPU a copy has no advantage, because the buffer is there.
        memory_limit: See `BufferBase`. If the images of all rows exceed it, they are all in one file.

    Attributes:
        storage: Rows of all rings.
        near: (R, 3, [O +] A + 2), a view: each row with the row before and the row after it in its ring.
        returns: (R, 2), the numbers of `returns_to_go` of ended episodes, 0 elsewhere; None until a batch needs them.
    """

    storage: Storage
    near: torch.Tensor
    returns: Array | None = None
    _return_discount: float | None = None
    holds_episodes = False
    empty = "nothing has been pushed, so there is nothing to sample"

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box | spaces.Discrete,
        *,
        capacity: PositiveInteger = 1_000_000,
        batch_size: Size = 256,
        num_steps: Size = 1,
        device: str | torch.device = "cpu",
        seed: int = 0,
        num_envs: NumEnvs = 1,
        frame_stack: NumParts = 1,
        on_device: Flag | None = None,
        memory_limit: PositiveInteger | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, device, seed, num_envs, frame_stack, memory_limit)
        if capacity // num_envs < frame_stack + 1:
            raise UserError(
                f"{type(self).__name__}.capacity is {capacity}, but a transition takes {frame_stack + 1} rows, in each "
                f"of {num_envs} environments; it has to be {num_envs * (frame_stack + 1)} or more"
            )
        self.capacity, self.ring_rows = capacity, capacity // num_envs
        self.batch_size, self.num_steps = batch_size, num_steps
        # Offsets from a start's place to its previous row, itself and its next row in `with_edges`.
        self.around = num_envs * np.arange(3)
        # Offsets from a start's place to the places of all frames of its window, (frame_stack + T,).
        self.reach = num_envs * np.arange(1 - frame_stack, num_steps + 1)
        self.rings = [Ring() for _ in range(num_envs)]
        self.num_transitions = 0
        self.chunk_rows = max(CHUNK_BYTES // self.bytes_per_step, 1)
        self.revisions: Counter[int] = Counter()  # chunk number -> number of writes to the chunk
        self.appended = [0] * num_envs  # rows ever appended to each ring
        self.copied = [0] * num_envs  # the same at the last copy to the device
        self.device_copy = DeviceCopy(on_device, type(self).__name__, self.device, self.layout)
        self._set_storage(self._empty(0))  # recorded data need no room here

    @property
    def return_discount(self) -> float | None:
        """See `BufferBase`."""
        return self._return_discount

    @return_discount.setter
    def return_discount(self, discount: float | None) -> None:
        self._return_discount, self.returns = discount, None

    def _room(self, rows: int) -> int:
        """Return the rows of a ring that has grown until it has room for so many."""
        room = 0
        while room < rows:
            room = min(max(2 * room, FIRST_BLOCK // self.num_envs, 1), self.ring_rows)
        return room

    def _is_on_disk(self, rows: int) -> bool:
        """Return whether the images of `rows` rows for each ring exceed `memory_limit`."""
        return self.in_memory(rows * self.num_envs) < rows * self.num_envs * self.bytes_per_frame

    def _empty(self, rows: int) -> Storage:
        """Return empty storage with `rows` rows for each ring, or with all rows if the images go to a file."""
        is_on_disk = self._is_on_disk(rows)
        rows = self.num_envs * (self.ring_rows if is_on_disk else rows)  # so that a file never has to grow
        return Storage.of(rows, *self.layout, frames_on_disk=is_on_disk)

    def _set_storage(self, storage: Storage) -> None:
        self.storage = storage
        num_rows, width = storage.packed.shape
        self.near = torch.from_numpy(storage.with_edges).as_strided(
            (num_rows, 3, width), (width, self.num_envs * width, 1)
        )
        self.device_copy.forget()

    def _on_device(self) -> Storage | None:
        """Copy all new rows to the device, and return the rows there; None if there is no copy."""
        copy = self.device_copy
        if is_new := not copy.num_rows:
            copy.make_room(len(self.storage.is_start))
        if copy.rows is None:
            return None
        stale = np.arange(self.size) if is_new else self._stale()
        self.copied = list(self.appended)
        if len(stale):
            copy.put(stale, self.storage.contiguous, stale)
        return copy.rows

    def _stale(self) -> Array:
        """Return the places that changed since the last copy: appended rows and two kinds of older rows.

        The row before the first appended row has got its action. In a full ring, the rows ahead of the cursor whose
        stacks reach back to an overwritten row are no longer starts, so their columns are 0 now.
        """
        places = [np.arange(0)]
        for env, (ring, now, then) in enumerate(zip(self.rings, self.appended, self.copied, strict=True)):
            if now > then:
                ahead = self.frame_stack - 1 if ring.size == self.ring_rows else 0
                rows = ring.cursor + ahead - np.arange(min(now - then + 1 + ahead, ring.size))
                places.append(rows % self.ring_rows * self.num_envs + env)
        return np.concatenate(places)

    def _grow(self) -> None:
        grown = self._empty(self._room(len(self.storage.is_start) // self.num_envs + 1))
        grown.put(self.storage.contiguous)
        if self.returns is not None:
            self.returns = np.pad(self.returns, ((0, len(grown.is_start) - len(self.returns)), (0, 0)))
        self._set_storage(grown)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with contiguous arrays in place of `storage` and `near`, whose parts share memory."""
        state = {name: part for name, part in vars(self).items() if name not in ("storage", "near", "returns")}
        return state | {"stored": self.storage.contiguous}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state with new arrays, and make the views again."""
        stored = state.pop("stored")
        vars(self).update(state)
        self._set_storage(self._empty(len(stored[0]) // self.num_envs))
        self.storage.put(stored)

    def __len__(self) -> int:
        """Number of transitions that `sample` can return."""
        return self.num_transitions

    @property
    def size(self) -> int:
        """Number of leading places in the storage that include all used rows."""
        return self.num_envs * max(ring.size for ring in self.rings)

    @property
    def bytes_per_step(self) -> int:
        """Size of a row in bytes."""
        return self.layout.bytes_per_row

    def _planned_rows(self, num_steps: int, longest_episode: int | None) -> int:
        episodes = self.episodes_per_env(num_steps, longest_episode)
        rows = math.ceil(num_steps / self.num_envs) + self.frame_stack * episodes
        return self.num_envs * min(self.ring_rows, rows)

    def planned_bytes(self, num_steps: int, longest_episode: int | None) -> int:
        """Return the bytes of memory that the buffer needs for a run of `num_steps` environment steps."""
        rows = self._planned_rows(num_steps, longest_episode)
        return rows * (self.bytes_per_step - self.bytes_per_frame) + self.in_memory(rows)

    def planned_file_bytes(self, num_steps: int, longest_episode: int | None) -> int:
        """Return the bytes of disk that the buffer needs for such a run: its file has room for the whole capacity."""
        rows = self._planned_rows(num_steps, longest_episode) // self.num_envs
        return self.max_items * self.bytes_per_frame if self._is_on_disk(self._room(rows)) else 0

    def _place(self, env: int, row: int) -> int:
        return row % self.ring_rows * self.num_envs + env

    def _places(self, env: int) -> Array:
        """Return the places of a ring's rows in the storage, in order of time."""
        ring = self.rings[env]
        return (ring.cursor - ring.size + 1 + np.arange(ring.size)) % self.ring_rows * self.num_envs + env

    def _append(self, env: int, frame: np.ndarray) -> int:
        """Write `frame` to the next row of a ring, and return the row's place in the storage."""
        ring, storage = self.rings[env], self.storage
        if ring.size == self.ring_rows:
            for age in range(self.frame_stack):  # the oldest row, and the rows whose stacks reach back to it
                lost = self._place(env, ring.cursor + 1 + age)
                self.revisions[lost // self.chunk_rows] += 1
                self.num_transitions -= int(storage.is_start[lost])
                storage.is_start[lost] = False
                storage.actions[lost], storage.rewards[lost], storage.terminations[lost] = 0.0, 0.0, 0.0
                self.item_changed(lost)
        else:
            ring.size += 1
        ring.cursor = (ring.cursor + 1) % self.ring_rows
        place = self._place(env, ring.cursor)
        if place >= len(storage.is_start):
            self._grow()
        self.storage.observations[place] = frame
        if self.returns is not None:
            self.returns[place] = 0.0
        self.revisions[place // self.chunk_rows] += 1
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
        is_first: bool = False,
    ) -> None:
        """Store a transition.

        Args:
            observation: Observation with the axes of the space, or channels first.
            action: (A,) in [-1, 1].
            reward: Reward of the action.
            next_observation: Observation after the action. At an episode's end it must be the final observation, never
                the first one after the reset.
            terminated: True if the task ended. The value after it is 0, even if the episode was truncated as well.
            truncated: True if the episode was cut. The value after it is bootstrapped.
            env: Number of the environment, from 0.
            is_first: True if the transition begins an episode though the one before it had no end. After an end it
                begins one in any case. Otherwise `observation` must be the environment's last `next_observation`,
                which is stored already.

        Raises:
            ValueError: A shape or `env` does not fit the buffer, the stacked observations do not follow each other, or
                the buffer holds recorded data.
        """
        frames, next_frames, action = self.read_transition(observation, action, next_observation, env)
        ring = self.rings[env]
        if is_first:
            self.truncate(env)
        if not ring.unfinished:
            for frame in frames:
                self._append(env, frame)
        start, storage = self._place(env, ring.cursor), self.storage
        storage.actions[start], storage.rewards[start], storage.terminations[start] = action, reward, terminated
        self.revisions[start // self.chunk_rows] += 1
        self._append(env, next_frames[-1])
        self.storage.is_start[start] = True  # `_append` may have replaced the storage
        self.num_transitions += 1
        self.item_changed(start)
        ring.unfinished = True
        if terminated or truncated:
            self.truncate(env)

    def drop(self, env: int) -> None:
        """End the episode of an environment that broke down.

        Its transitions stay, because each one is complete. The last one counts as truncated.
        """
        self.truncate(env)

    def truncate(self, env: int) -> None:
        """End an unfinished episode. Its last transition counts as truncated, unless it is a termination."""
        if self.rings[env].unfinished:
            self.rings[env].unfinished = False
            if self.returns is not None:
                self._store_returns(env, only_newest=True)

    def _store_returns(self, env: int, only_newest: bool = False) -> None:
        """Store the returns of a ring's newest episode, or of all its episodes, except an unfinished one."""
        ring, storage, end = self.rings[env], self.storage, self.rings[env].cursor
        assert self.returns is not None and self.return_discount is not None
        while end > ring.cursor - ring.size:
            begin = end  # row of an episode's last observation
            while begin - 1 > ring.cursor - ring.size and storage.is_start[self._place(env, begin - 1)]:
                begin -= 1
            if begin < end and not (ring.unfinished and end == ring.cursor):
                places = np.arange(begin, end) % self.ring_rows * self.num_envs + env
                is_terminated = bool(storage.terminations[places[-1], 0])
                found = returns_to_go(storage.rewards[places, 0], is_terminated, self.return_discount)
                self.returns[places] = found
                if only_newest:
                    return
            end = begin - 1

    def _with_returns(self, batch: Batch, places: Array) -> Batch:
        """Return the batch with the returns of its steps, which are at `places` (B, T)."""
        if self.return_discount is None:
            return batch
        if self.returns is None:
            self.returns = np.zeros((len(self.storage.is_start), 2), np.float32)
            for env in range(self.num_envs):
                self._store_returns(env)
        found = self.tensor(self.returns[places])
        return batch._replace(returns_to_go=found[..., :1], discounts_to_go=found[..., 1:])

    def extend(self, rows: TransitionTable, num_recorded: Array | None = None) -> None:
        """Store whole episodes of one environment without frame stacks; of too many, the last ones.

        `num_recorded` has no effect; see `RecurrentReplayBuffer.extend`.
        """
        first = int(rows.starts[np.searchsorted(rows.starts, len(rows.is_start) - self.ring_rows)])
        number, (ring,) = len(rows.is_start) - first, self.rings
        while len(self.storage.is_start) < min(ring.size + number, self.ring_rows):
            self._grow()
        storage = self.storage
        places = (ring.cursor + 1 + np.arange(number)) % self.ring_rows
        self.num_transitions += int(rows.is_start[first:].sum()) - int(storage.is_start[places].sum())
        for own, given in zip(storage.columns, rows.columns, strict=True):
            own[places] = given[first:]
        ring.size, ring.cursor = min(ring.size + number, self.ring_rows), int(places[-1])
        ring.unfinished, self.returns = False, None
        self.revisions.update(np.unique(places // self.chunk_rows).tolist())
        self.appended[0] += number
        for place in places.tolist():
            self.item_changed(place)

    def keep_newest(self, number: int) -> None:
        """Leave only the newest `number` transitions of one environment.

        Older rows stay, but no transition begins there. Their actions stay, too: the last one is still the action
        before the oldest transition.
        """
        if self.num_transitions <= number:
            return
        places = self._places(0)
        lost = places[self.storage.is_start[places]][: self.num_transitions - number]
        self.storage.is_start[lost] = False
        self.num_transitions = number
        self.revisions.update(np.unique(lost // self.chunk_rows).tolist())
        for place in lost.tolist():
            self.item_changed(place)

    def clear(self) -> None:
        """Remove all transitions."""
        self._set_storage(self._empty(0))
        self.rings = [Ring() for _ in self.rings]
        self.num_transitions, self.returns = 0, None
        self.items_replaced()

    def transition_table(self) -> TransitionTable:
        """Return a copy of the rows, in order of time, without frame stacks; an unfinished episode ends."""
        places = np.concatenate([self._places(env) for env in range(self.num_envs)])
        rows = Storage.of(len(places), *self.layout[:3])
        for own, given in zip(rows.columns, self.storage.columns, strict=True):
            own[...] = given[places]
        stops = np.flatnonzero(~rows.is_start) + 1
        return TransitionTable(**vars(rows), starts=np.append(0, stops[:-1]), stops=stops)

    def fill(self, rows: TransitionTable, recorded: str) -> None:
        """Fill the buffer with rows of whole recorded episodes, whatever its capacity; `recorded` identifies the data.

        The buffer uses the given arrays without a copy, except float images with channels last. Checkpoints do not
        contain the data.

        Raises:
            ValueError: The buffer is not empty, has several environments or a frame stack, or has another dtype.
        """
        rows = self._adopt(rows, recorded)
        self._set_storage(rows)
        self.returns = None
        self.capacity = self.ring_rows = len(rows.is_start)
        self.rings = [Ring(self.ring_rows - 1, self.ring_rows)]
        self.num_transitions = int(rows.is_start.sum())
        self.items_replaced()

    @property
    def max_items(self) -> int:
        """Number of rows."""
        return self.num_envs * self.ring_rows

    def shares(self, items: Array) -> Array:
        """Return 1 for places at which a transition begins, else 0."""
        shares, is_stored = np.zeros(items.shape), items < len(self.storage.is_start)
        shares[is_stored] = self.storage.is_start[items[is_stored]]
        return shares

    def chunks(self) -> list[Chunk]:
        """Return the used rows as chunks of neighbouring rows; none for recorded data."""
        arrays, rows, size = () if self.recorded else self.storage.contiguous, self.chunk_rows, self.size
        return [
            Chunk(
                number,
                # The version includes the end. One ring can get ahead of the others, and so extend a chunk in which
                # nothing was written.
                (self.num_loaded, self.revisions[number], min(start + rows, size)),
                [array[start : min(start + rows, size)] for array in arrays],
            )
            for number, start in enumerate(range(0, size, rows) if arrays else ())
        ]

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the base class and the state of the rings."""
        return {**super().metadata(), "rings": [vars(ring).copy() for ring in self.rings]}

    def _outlined_bytes(self, metadata: Mapping[str, Any]) -> int:
        rings = [Ring(**ring) for ring in metadata["rings"]]
        for ring in rings:
            wrapped = ring.cursor != ring.size - 1
            if ring.size > self.ring_rows or (wrapped and ring.size != self.ring_rows):
                raise UserError(
                    f"the saved buffer's ring of {ring.size} rows does not fit {type(self).__name__}.capacity = "
                    f"{self.capacity}: set the capacity of the saved buffer"
                )
        return self.num_envs * max(ring.size for ring in rings) * self.bytes_per_step

    def _allocate(self, metadata: Mapping[str, Any]) -> None:
        self.rings = [Ring(**ring) for ring in metadata["rings"]]
        self.returns = None
        self._set_storage(self._empty(self._room(self.size // self.num_envs)))

    def _finalize(self) -> None:
        self.num_transitions = int(self.storage.is_start.sum())

    def draw(self) -> Array:
        """Return the places of `batch_size` transitions, drawn uniformly."""
        starts = self._draw_starts()
        while len(starts) < self.batch_size:
            starts = np.concatenate([starts, self._draw_starts()])
        return starts[: self.batch_size]

    def batch_of(self, items: Array) -> Batch:
        """Return the windows that begin at these places (B,)."""
        starts, copy = items, self._on_device()
        if self.num_steps == 1 and self.frame_stack == 1 and self.storage.packs_observations:
            return self._with_returns(self._transitions(starts, copy), starts[:, None])
        frames: Any = (starts[:, None] + self.reach) % (self.num_envs * self.ring_rows)
        if self.num_steps > 1:  # a window that reaches unallocated rows has ended before, so any row will do
            frames = np.minimum(frames, len(self.storage.is_start) - 1)
        oldest = self.frame_stack - 1  # number of frames before the newest one of the first observation
        valid = np.ones((len(starts), self.num_steps + 1, 1), np.float32)
        if self.num_steps > 1:
            valid[:, 1:, 0] = np.logical_and.accumulate(self.storage.is_start[frames[:, oldest:-1]], 1)
        mask = np.zeros((len(starts), self.num_steps, 1), np.float32)
        mask[:, 0] = 1.0
        next_actions = has_next = None
        if self.gives_next_actions:  # the next action exists if a transition begins at the next row, too
            has_next = self.tensor(valid[:, 1:] * self.storage.is_start[frames[:, oldest + 1 :], None])
        rows: Any = self.storage
        places = frames[:, oldest:-1]
        if copy is not None:  # from here on, rows and indices are both arrays or both tensors
            rows, frames = copy, self.tensor(frames)
        steps = frames[:, oldest:-1]
        if self.gives_next_actions:
            next_actions = self.tensor(rows.actions[frames[:, oldest + 1 :]])
        before = steps[:, 0] - self.num_envs  # a row that is not a start has action and reward 0
        batch = Batch(
            observations=self._stacked(self.tensor(rows.observations[frames]), self.num_steps + 1),
            actions=self.tensor(rows.actions[steps]),
            rewards=self.tensor(rows.rewards[steps]),
            terminations=self.tensor(rows.terminations[steps]),
            valid=self.tensor(valid),
            loss_mask=self.tensor(mask),
            first_action=self.tensor(rows.actions[before]),
            first_reward=self.tensor(rows.rewards[before]),
            complete=self.num_steps == 1,
            next_actions=next_actions,
            has_next_action=has_next,
        )
        return self._with_returns(batch, places)

    def _draw_starts(self) -> Array:
        """Draw starts uniformly; the number varies.

        The method draws a few rows more than a batch needs, and drops the rows that are not starts.
        """
        numbers = self.randomness.generator.random(self.batch_size + self.batch_size // 16)
        drawn = (numbers * self.size).astype(np.int64)  # several times as fast as `integers`
        return drawn[self.storage.is_start[drawn]]

    def _transitions(self, starts: np.ndarray, copy: Storage | None) -> Batch:
        """Return single transitions. A previous row that is not a start gives first action and reward 0."""
        if copy is None:
            wrap_edges(self.storage.with_edges, self.num_envs)
            rows = sent(self.near.index_select(0, torch.from_numpy(starts)), self.device)
        else:
            places = (starts[:, None] + self.around).ravel()
            tensor: Any = copy.with_edges
            rows = tensor.index_select(0, self.tensor(places)).view(len(starts), 3, -1)
        size, _, width = rows.shape
        num_actions = self.action_dim
        num_observed = width - num_actions - 2
        before = num_observed, num_actions, 1, 1 + num_observed
        parts = rows.view(size, 1, -1).split_with_sizes((*before, num_actions, 1, 1, width), 2)
        _, first_action, first_reward, _, actions, rewards, terminations, after = parts
        next_actions = has_next = None
        if self.gives_next_actions:
            next_actions = after[..., num_observed : num_observed + num_actions]
            is_start = self.storage.is_start[(starts + self.num_envs) % (self.num_envs * self.ring_rows)]
            has_next = self.tensor(is_start.astype(np.float32)[:, None, None])
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
            next_actions=next_actions,
            has_next_action=has_next,
        )
