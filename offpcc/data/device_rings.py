"""Rings on the device that learns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offpcc.data.columns import Array
from offpcc.data.device_rows import DeviceCopy, DeviceRows
from offpcc.data.rows import Ring, Storage

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
