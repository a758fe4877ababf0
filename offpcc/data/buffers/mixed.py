"""`MixedBuffer`: recorded data and new experience in each batch, for learning that goes on in an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from offpcc.core import Batch, Chunk
from offpcc.data.buffers.replay import ReplayBuffer
from offpcc.data.buffers.sequence_replay import RecurrentReplayBuffer
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator

AnyReplay = ReplayBuffer | RecurrentReplayBuffer


class MixedBuffer:
    """Draws a fixed number of each batch from recorded data, and the others from new experience.

    It is empty until both have something to draw. New transitions go to `online`; the recorded data stay as they are.

    Args:
        recorded: the buffer of recorded data. From `begin` on, it draws its share of a batch.
        online: the buffer of new experience. It draws its share from now on.
        share: the share of recorded data in a batch, above 0 and at most 1.
    """

    def __init__(self, recorded: AnyReplay, online: AnyReplay, share: float) -> None:
        self.recorded, self.online = recorded, online
        self.receiver = online  # the part that stores new transitions
        self.batch_size = online.batch_size
        self.num_recorded = round(share * self.batch_size)
        if not self.num_recorded or (share < 1.0 and self.num_recorded == self.batch_size):
            raise UserError(
                f"OfflineToOnline.share is {share:g}, which gives {self.num_recorded} recorded items in a batch of "
                f"{self.batch_size}; raise {type(online).__name__}.batch_size, or set share to 0 or 1 for a batch of "
                f"one kind"
            )
        online.batch_size = self.batch_size - self.num_recorded
        self.parts = [recorded, online] if online.batch_size else [recorded]
        self.drawn: list[Batch] = []

    def begin(self, seed: int) -> None:
        """Let the buffer of recorded data draw its share, with a new generator."""
        self.recorded.batch_size, self.recorded.randomness = self.num_recorded, NumpyGenerator(seed, 2)
        self.recorded.gives_next_actions = self.online.gives_next_actions
        self.recorded.gives_few_shapes = self.online.gives_few_shapes
        self.recorded.return_discount = self.online.return_discount

    def __len__(self) -> int:
        """Number of items that `sample` can draw; 0 until each part has one."""
        lengths = [len(part) for part in self.parts]
        return sum(lengths) if all(lengths) else 0

    def unused_parameters(self) -> dict[str, str]:
        """Return the parameters that have no effect on this buffer, each with the reason."""
        return self.receiver.unused_parameters()

    def sample(self) -> Batch:
        """Return a random batch: the recorded items first."""
        self.drawn = self._draw(lambda part: part.sample())
        return concat_batches(self.drawn)

    def peek(self) -> Batch:
        """Return the batch that `sample` returns next, without a change of the buffer."""
        return concat_batches(self._draw(lambda part: part.peek()))

    def _draw(self, draw: Callable[[AnyReplay], Batch]) -> list[Batch]:
        return [draw(part) for part in self.parts]

    def update_priorities(self, batch: Batch, td_error: Tensor) -> None:
        """Give each part the TD errors (B, T, 1) of its own items."""
        start = 0
        for part, own in zip(self.parts, self.drawn, strict=True):
            rows, steps = own.rewards.shape[:2]
            if own.weights is not None:
                part.update_priorities(own, td_error[start : start + rows, :steps])
            start += rows

    def push(self, *transition: Any, **options: Any) -> None:
        """Store a new transition; see `ReplayBuffer.push`."""
        self.receiver.push(*transition, **options)

    def drop(self, env: int) -> None:
        """See `Store.drop`."""
        self.receiver.drop(env)

    def truncate(self, env: int) -> None:
        """See `Store.truncate`."""
        self.receiver.truncate(env)

    def chunks(self) -> list[Chunk]:
        """Return new experience in chunks."""
        return self.online.chunks()

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of both parts."""
        return {"recorded": self.recorded.metadata(), "online": self.online.metadata()}

    def load(self, metadata: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Chunk], None]) -> None:
        """Restore both parts; see `BufferBase.load`."""
        self.recorded.load(metadata["recorded"], 0, fill)
        self.online.load(metadata["online"], num_bytes, fill)


def concat_batches(batches: Sequence[Batch]) -> Batch:
    """Return one batch with the rows of all, padded with zeros to the longest.

    A field that only some batches have is filled with ones for `weights`, and else with zeros.
    """
    if len(batches) == 1:
        return batches[0]
    columns = {name: [getattr(batch, name) for batch in batches] for name in Batch._fields}
    rows = [len(batch.rewards) for batch in batches]
    batch = Batch(**{name: _joined(name, values, rows) for name, values in columns.items()})
    is_padded = len({one.rewards.shape[1] for one in batches}) > 1
    return batch._replace(complete=False) if is_padded else batch


def _joined(name: str, values: list[Any], rows: list[int]) -> Any:
    known = next((value for value in values if isinstance(value, Tensor)), None)
    if known is None:
        return all(values) if name == "complete" else values[0]
    value = 1.0 if name == "weights" else 0.0
    tensors = [
        known.new_full((number, *known.shape[1:]), value) if given is None else given
        for number, given in zip(rows, values, strict=True)
    ]
    longest = max(tensor.shape[1] for tensor in tensors)
    return torch.cat([_padded(tensor, longest) for tensor in tensors])


def _padded(tensor: Tensor, length: int) -> Tensor:
    missing = length - tensor.shape[1]
    if not missing:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(tensor.shape[0], missing, *tensor.shape[2:])], 1)
