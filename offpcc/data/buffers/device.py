"""Copies of buffers on the device, so that a batch needs no transfer of its data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offpcc.data.buffers.storage import Storage, bytes_per_row, wrap_edges
from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError
from offpcc.utils.system import GPU_LOCK

BLOCK_BYTES = 2**24  # copied to the device at a time; this also limits the temporary copy on the CPU


class RowLayout(NamedTuple):
    """Layout of a buffer's rows."""

    frame_shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of the frames
    action_dim: int
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
    with GPU_LOCK:
        torch.cuda.empty_cache()  # else memory that PyTorch caches, such as freed rows, would not count as free
    return torch.cuda.mem_get_info(device)[0]


class DeviceCopy:
    """Optional copy of a buffer's rows on its device. A pickle does not contain the rows.

    `wanted` is True to make a copy, and False for no copy. None makes a copy if it takes at most half of the memory
    that is free at that time. Free memory is known on CUDA only; on other devices None means no copy. `owner` is the
    name of the buffer's class, for messages.
    """

    def __init__(self, wanted: bool | None, owner: str, device: torch.device, layout: RowLayout) -> None:
        self.wanted, self.owner, self.device, self.layout = wanted, owner, device, layout
        self.rows: Storage | None = None  # of tensors; `is_start` is not used
        self.num_rows = 0  # the last argument of `make_room`; 0 before the first call

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the rows."""
        return vars(self) | {"rows": None, "num_rows": 0}

    def forget(self) -> None:
        """Free the rows, because the buffer's content was replaced."""
        self.rows, self.num_rows = None, 0

    def make_room(self, num_rows: int) -> None:
        """Replace the rows with `num_rows` empty ones, or with None if the copy is not wanted or does not fit."""
        self.forget()
        if self.wanted is not False:
            needed, free = num_rows * self.layout.bytes_per_row, free_bytes(self.device)
            if self.wanted and free is not None and needed > free:
                raise UserError(
                    f"{self.owner}.on_device is True, but {num_rows:,} rows take {needed:,} bytes, and {self.device} "
                    f"has {free:,} free: remove this setting; then rows are on the device only if they fit"
                )
            if self.wanted or (free is not None and needed <= free // 2):
                self.rows = Storage.of(num_rows, *self.layout, device=self.device)
        self.num_rows = num_rows

    def put(self, places: Array, arrays: Sequence[Array], numbers: Array) -> None:
        """Copy the rows `numbers` of `arrays`, which are those of `Storage.contiguous`, to `places`, each only once."""
        assert self.rows is not None
        tensors: list[Any] = self.rows.contiguous[:-1]  # all but `is_start`
        block = max(BLOCK_BYTES // self.layout.bytes_per_row, 1)
        for start in range(0, len(places), block):
            index = sent(torch.from_numpy(places[start : start + block]), self.device)
            for own, given in zip(tensors, arrays, strict=False):
                own.index_copy_(0, index, sent(torch.from_numpy(given[numbers[start : start + block]]), self.device))
        wrap_edges(self.rows.with_edges, self.layout.num_rings)
