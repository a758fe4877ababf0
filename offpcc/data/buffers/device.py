"""Copies of buffers on the device, so that a batch needs no transfer of its data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offpcc.core import Batch
from offpcc.data.buffers.storage import Episode, Ring, Storage, bytes_per_row, wrap_edges
from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError


class RowLayout(NamedTuple):
    """Layout of a buffer's rows."""

    frame_shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of the frames
    action_dim: int
    frame_stack: int
    num_rings: int

    @property
    def bytes_per_row(self) -> int:
        """Size of a row in bytes."""
        return bytes_per_row(math.prod(self.frame_shape) * self.dtype.itemsize, self.action_dim)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device without waiting for a GPU; if the device is the CPU, return it unchanged."""
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if the device is not a CUDA GPU."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()  # else memory that PyTorch caches, such as freed rows, would not count as free
    return torch.cuda.mem_get_info(device)[0]


class DeviceRows:
    """R rows on a device, zeros at first: the columns of `Storage` as tensors, without `is_start`.

    Args:
        num_rows: R, the number of rows of all rings.
        layout: Layout of a row.
        device: Device of the tensors.
    """

    def __init__(self, num_rows: int, layout: RowLayout, device: torch.device) -> None:
        self.device, self.num_rings = device, layout.num_rings
        packs = layout.dtype == np.float32
        width = math.prod(layout.frame_shape) if packs else 0
        self.with_edges = torch.zeros(num_rows + 2 * self.num_rings, width + layout.action_dim + 2, device=device)
        packed = self.with_edges[self.num_rings : -self.num_rings]
        shape = (num_rows, *layout.frame_shape)
        self.observations = (
            packed[:, :width].view(shape) if packs else torch.zeros(shape, dtype=torch.uint8, device=device)
        )
        self.actions, self.rewards, self.terminations = packed[:, width:-2], packed[:, -2:-1], packed[:, -1:]
        self.contiguous = [packed, *([] if packs else [self.observations])]

    def put(self, places: Array, arrays: Iterable[Array]) -> None:
        """Copy rows to `places`, which must be unique.

        `arrays` are the rows of `Storage.contiguous`, in the same order; `is_start` is not copied.
        """
        index = sent(torch.from_numpy(places), self.device)
        for own, given in zip(self.contiguous, arrays, strict=False):
            own.index_copy_(0, index, sent(torch.from_numpy(given), self.device))
        wrap_edges(self.with_edges, self.num_rings)


class DeviceCopy:
    """Optional copy of a buffer's rows on its device. A pickle does not contain the rows.

    Args:
        wanted: True to make a copy, False for no copy. None makes a copy if it takes at most half of the memory that is
            free at that time. Free memory is known on CUDA only; on other devices None means no copy.
        owner: Name of the buffer's class, for messages.
        device: Device of the batches.
        layout: Layout of a row.
    """

    def __init__(self, wanted: bool | None, owner: str, device: torch.device, layout: RowLayout) -> None:
        self.wanted, self.owner, self.device, self.layout = wanted, owner, device, layout
        self.rows: DeviceRows | None = None
        self.num_rows = 0  # the last argument of `make_room`; 0 before the first call

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the rows."""
        return vars(self) | {"rows": None, "num_rows": 0}

    def forget(self) -> None:
        """Free the rows, because the buffer's content was replaced."""
        self.rows, self.num_rows = None, 0

    def make_room(self, num_rows: int) -> None:
        """Replace the rows with `num_rows` empty ones, or with None if the copy is not wanted or does not fit.

        Raises:
            UserError: `wanted` is True, but the device has not enough free memory.
        """
        self.forget()
        if self.wanted is not False:
            needed, free = num_rows * self.layout.bytes_per_row, free_bytes(self.device)
            if self.wanted and free is not None and needed > free:
                raise UserError(
                    f"{self.owner}.on_device is True, but {num_rows:,} rows take {needed:,} bytes, and {self.device} "
                    f"has {free:,} free: take it out, so that they are there only where they fit"
                )
            if self.wanted or (free is not None and needed <= free // 2):
                self.rows = DeviceRows(num_rows, self.layout, self.device)
        self.num_rows = num_rows


BLOCK_BYTES = 2**24  # copied to the device at a time; this also limits the temporary copy on the CPU


class DeviceRings(DeviceCopy):
    """Copy of rings on the device. Each row has the same place as in the storage."""

    appended: Sequence[int] = ()  # rows ever appended to each ring, at the last copy

    def current(
        self, storage: Storage, rings: Sequence[Ring], appended: Sequence[int], ring_rows: int
    ) -> DeviceRows | None:
        """Copy all new rows of `storage` to the device, and return the rows there; None if there is no copy.

        Args:
            storage: Rows of the buffer. They must belong to the same rings as in the last call, unless `forget` was
                called.
            rings: State of each ring.
            appended: Number of rows ever appended to each ring.
            ring_rows: Number of rows after which a ring starts again at row 0.

        Raises:
            UserError: `wanted` is True, but the device has not enough free memory.
        """
        if is_new := not self.num_rows:
            self.make_room(len(storage.is_start))
        if self.rows is None:
            return None
        if is_new:
            stale = np.arange(len(rings) * max(ring.size for ring in rings))
        else:
            stale = self._stale(rings, appended, ring_rows)
        self.appended = list(appended)
        block = max(BLOCK_BYTES // self.layout.bytes_per_row, 1)
        for start in range(0, len(stale), block):
            places = stale[start : start + block]
            self.rows.put(places, (array[places] for array in storage.contiguous))
        return self.rows

    def _stale(self, rings: Sequence[Ring], appended: Sequence[int], ring_rows: int) -> Array:
        """Return the places that changed since the last copy: appended rows and two kinds of older rows.

        The row before the first appended row has got its action. In a full ring, the rows ahead of the cursor whose
        stacks reach back to an overwritten row are no longer starts, so their columns are 0 now.
        """
        places = [np.arange(0)]
        for env, (ring, now, then) in enumerate(zip(rings, appended, self.appended, strict=True)):
            if now > then:
                ahead = self.layout.frame_stack - 1 if ring.size == ring_rows else 0
                rows = ring.cursor + ahead - np.arange(min(now - then + 1 + ahead, ring.size))
                places.append(rows % ring_rows * len(rings) + env)
        return np.concatenate(places)


class DeviceEpisodes(DeviceCopy):
    """Copy of episodes on the device, one after another in a single ring of rows.

    An episode takes one row per frame. The row of an observation's newest frame also contains the action taken after
    that observation. One more row after the ring holds zeros; it stands for steps that do not exist.
    """

    num_seen = 0  # `num_kept` at the last copy
    written = 0  # rows ever written to the ring

    def update(self, episodes: Sequence[Episode], num_kept: int, num_steps: int, are_all: bool) -> bool:
        """Copy the new episodes to the device.

        Args:
            episodes: All episodes of the buffer. Only the oldest ones may be gone since the last call, unless `forget`
                was called.
            num_kept: Number of episodes ever stored.
            num_steps: Number of steps in `episodes`.
            are_all: True if no more episodes will come.

        Returns:
            True if there is a copy.

        Raises:
            UserError: `wanted` is True, but the device has not enough free memory.
        """
        new = min(num_kept - self.num_seen, len(episodes))
        needed = num_steps + self.layout.frame_stack * len(episodes)
        if needed >= self.num_rows:
            self.make_room((needed if are_all else 2 * needed) + 1)
            new = len(episodes)
        self.num_seen = num_kept
        if self.rows is None:
            return False
        for episode in itertools.islice(episodes, len(episodes) - new, None):
            self._write(episode)
        return True

    def _write(self, episode: Episode) -> None:
        assert self.rows is not None
        frame_shape, dtype, action_dim, frame_stack, _ = self.layout
        storage = Storage.of(len(episode.frames), frame_shape, dtype, action_dim)
        steps = slice(frame_stack - 1, -1)
        storage.observations[:] = episode.frames
        storage.actions[steps], storage.rewards[steps] = episode.actions, episode.rewards
        storage.terminations[-2] = episode.terminated
        self.rows.put((self.written + np.arange(len(episode.frames))) % (self.num_rows - 1), storage.contiguous)
        self.written += len(episode.frames)

    def batch(
        self,
        ends: Array,
        chosen: Array,
        starts: Array,
        lengths: Array,
        skipped: Array,
        burn_in: int,
        shape: tuple[int, ...],
    ) -> Batch:
        """Return segments of the `chosen` episodes as a batch. See `RecurrentReplayBuffer`.

        Args:
            ends: (N,), cumulative lengths of all episodes in steps.
            chosen: (B,), number of each segment's episode.
            starts: (B,), first step of each segment in its episode.
            lengths: (B,), length of each segment in steps.
            skipped: (B,), number of first steps in each segment that count in no loss.
            burn_in: Number of steps before each segment.
            shape: Shape of an observation.
        """
        assert self.rows is not None
        rows, frame_stack, nothing = self.rows, self.layout.frame_stack, self.num_rows - 1
        # First row of each chosen episode, relative to `written`, because the oldest rows may be overwritten.
        begins = np.concatenate([[0], ends])[chosen] + frame_stack * chosen - ends[-1] - frame_stack * len(ends)
        steps = (starts - burn_in)[:, None] + np.arange(-1, burn_in + int(lengths.max()) + 1)
        exists = (steps >= 0) & (steps <= (starts + lengths)[:, None])
        frames = (self.written + begins[:, None] + steps)[..., None] + np.arange(frame_stack)
        places = sent(torch.from_numpy(np.where(exists[..., None], frames % nothing, nothing)), self.device)
        newest = places[..., -1]
        before = newest[:, 0]
        during = torch.where(newest[:, 2:] != nothing, newest[:, 1:-1], nothing)  # a segment may end in mid-episode
        valid = (newest[:, 1:, None] != nothing).float()
        counts = np.arange(steps.shape[1] - 2) >= burn_in + skipped[:, None]
        mask = valid[:, 1:] * sent(torch.from_numpy(counts[..., None]), self.device)
        return Batch(
            observations=rows.observations[places[:, 1:]].reshape(*valid.shape[:2], *shape),
            actions=rows.actions[during],
            rewards=rows.rewards[during],
            terminations=rows.terminations[during],
            valid=valid,
            loss_mask=mask,
            first_action=rows.actions[before],
            first_reward=rows.rewards[before],
            burn_in=burn_in,
        )
