"""Rows of a buffer on the device that learns, so that no batch is gathered by the processor and copied over."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offpcc.data.columns import Array
from offpcc.data.rows import bytes_per_row, wrap_edges
from offpcc.errors import UserError


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
