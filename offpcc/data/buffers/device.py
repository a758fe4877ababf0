"""Copies of buffers on the device, from which batches are sampled without transfer."""

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
    """What the rows of a buffer are made of."""

    frame_shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of frames
    action_dim: int
    frame_stack: int
    num_rings: int

    @property
    def bytes_per_row(self) -> int:
        """Bytes that a row takes."""
        return bytes_per_row(math.prod(self.frame_shape) * self.dtype.itemsize, self.action_dim)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting for a GPU; on the CPU it is the same."""
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def free_bytes(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where there is no asking."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()  # what PyTorch keeps for itself, such as rows that were let go of, would not count as free
    return torch.cuda.mem_get_info(device)[0]


class DeviceRows:
    """R rows on a device, all zeros at first: the columns of `Storage` as tensors, save whether a row is a start.

    Args:
        num_rows: R, of all rings.
        layout: of a row.
        device: where they are.
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
        """Copy rows over to `places`, no place twice: of `Storage.contiguous`, what is here."""
        index = sent(torch.from_numpy(places), self.device)
        for own, given in zip(self.contiguous, arrays, strict=False):
            own.index_copy_(0, index, sent(torch.from_numpy(given), self.device))
        wrap_edges(self.with_edges, self.num_rings)


class DeviceCopy:
    """A copy of what a buffer stores on the buffer's device, if it is wanted and fits; no part of a pickle.

    Args:
        wanted: True, False, or None where it takes at most half of what is free when it is made. There is no asking
            the CPU, so that None means no copy there.
        owner: what the buffer is called.
        device: where batches go.
        layout: of a row.
    """

    def __init__(self, wanted: bool | None, owner: str, device: torch.device, layout: RowLayout) -> None:
        self.wanted, self.owner, self.device, self.layout = wanted, owner, device, layout
        self.rows: DeviceRows | None = None
        self.num_rows = 0  # that room was looked for; 0 before that

    def __getstate__(self) -> dict[str, Any]:
        """All but the rows."""
        return vars(self) | {"rows": None, "num_rows": 0}

    def forget(self) -> None:
        """Let go of the rows, as the buffer stores others."""
        self.rows, self.num_rows = None, 0

    def make_room(self, num_rows: int) -> None:
        """Hold so many empty rows in place of those there are, or none if there is to be no copy.

        Raises:
            UserError: there is to be one, but there is no room for it.
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


BLOCK_BYTES = 2**24  # copied over at a time, which is also how much is made ready for it


class DeviceRings(DeviceCopy):
    """A copy of rings; each row has the place that it has in the storage."""

    appended: Sequence[int] = ()  # to each ring, when it was last copied from

    def current(
        self, storage: Storage, rings: Sequence[Ring], appended: Sequence[int], ring_rows: int
    ) -> DeviceRows | None:
        """The rows, with all that was written to `storage` until now; None if there is no copy.

        Args:
            storage: of the same rings as at the last call, unless `forget` was called.
            rings: where they stand.
            appended: how many rows were ever appended to each.
            ring_rows: rows at which a ring begins anew.

        Raises:
            UserError: there is to be a copy, but there is no room for it.
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
        """Places that were written to since the last time: appended rows, and those that changed with them.

        The row before the first that was appended got its action; rows ahead of the cursor, whose stacks reach back to
        a row that made room, are no starts any more.
        """
        places = [np.arange(0)]
        for env, (ring, now, then) in enumerate(zip(rings, appended, self.appended, strict=True)):
            if now > then:
                ahead = self.layout.frame_stack - 1 if ring.size == ring_rows else 0
                rows = ring.cursor + ahead - np.arange(min(now - then + 1 + ahead, ring.size))
                places.append(rows % ring_rows * len(rings) + env)
        return np.concatenate(places)


class DeviceEpisodes(DeviceCopy):
    """A copy of episodes, one after another on a tape, of which the rows form a ring.

    An episode takes a row for each of its frames; the newest frame of an observation has the action taken after it
    beside it. Behind the tape's rows is one of zeros, for what is not there.
    """

    num_seen = 0  # episodes that were ever kept, when they were last copied
    written = 0  # rows that were ever written to the tape

    def update(self, episodes: Sequence[Episode], num_kept: int, num_steps: int, are_all: bool) -> bool:
        """Copy over the episodes that are new, unless there is no copy; whether there is one.

        Args:
            episodes: all there are; older ones have made room, or `forget` was called.
            num_kept: episodes that were ever kept.
            num_steps: steps in `episodes`.
            are_all: whether no more of them will come.

        Raises:
            UserError: there is to be a copy, but there is no room for it.
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
        """Segments of `lengths` from `starts` on in the `chosen` episodes; see `RecurrentReplayBuffer`.

        Args:
            ends: (N,), the sum of the lengths of all episodes up to each one, in steps.
            chosen: (B,), numbers of episodes.
            starts: (B,), steps.
            lengths: (B,), steps.
            skipped: (B,), how many of these, the first, count in no loss.
            burn_in: steps before them.
            shape: of an observation.
        """
        assert self.rows is not None
        rows, frame_stack, nothing = self.rows, self.layout.frame_stack, self.num_rows - 1
        # Each episode's first row, counted from the last that was written: of the rows before them some made room.
        begins = np.concatenate([[0], ends])[chosen] + frame_stack * chosen - ends[-1] - frame_stack * len(ends)
        steps = (starts - burn_in)[:, None] + np.arange(-1, burn_in + int(lengths.max()) + 1)
        exists = (steps >= 0) & (steps <= (starts + lengths)[:, None])
        frames = (self.written + begins[:, None] + steps)[..., None] + np.arange(frame_stack)
        places = sent(torch.from_numpy(np.where(exists[..., None], frames % nothing, nothing)), self.device)
        newest = places[..., -1]
        before = newest[:, 0]
        during = torch.where(newest[:, 2:] != nothing, newest[:, 1:-1], nothing)  # a row may end in mid-episode
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
