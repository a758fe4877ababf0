"""`ImaginedBuffer`: recorded or new transitions, and transitions of a learned model, in each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from offpcc.core import Batch, Chunk
from offpcc.data.buffers.mixed import AnyReplay, MixedBuffer
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError


class ImaginedBuffer(MixedBuffer):
    """Draws a fixed number of each batch from real transitions, and the others from those of a learned model.

    While there are no imagined transitions, all of a batch is real. With memory, an item is an episode or a segment.
    An imagined one begins with the recorded steps before its rollout. They compute the hidden state and count in no
    loss.

    Args:
        real: the buffer of recorded data, or of experience in the environment.
        imagined: the buffer of imagined transitions, of one environment without frame stacks.
        share: the share of real items in a batch, from 0 to 1; between them, at least one item is of each kind.
        model: identifies the model; "" if it is trained in the run.
    """

    def __init__(self, real: AnyReplay, imagined: AnyReplay, share: float, model: str = "") -> None:
        self.real, self.imagined, self.model = real, imagined, model
        self.receiver = real
        self.batch_size = real.batch_size
        self.num_recorded = round(share * self.batch_size)
        if 0.0 < share < 1.0:
            if self.batch_size == 1:
                raise UserError(
                    f"{type(real).__name__}.batch_size is 1; a batch of real and imagined items needs at least 2"
                )
            self.num_recorded = min(max(self.num_recorded, 1), self.batch_size - 1)
        imagined.batch_size = max(self.batch_size - self.num_recorded, 1)
        self.drawn: list[Batch] = []

    def __len__(self) -> int:
        """Number of real items that `sample` can draw."""
        return len(self.real)

    def extend(self, rows: TransitionTable, num_recorded: Array) -> None:
        """Store imagined episodes; see `RecurrentReplayBuffer.extend`."""
        self.imagined.extend(rows, num_recorded)

    def _draw(self, draw: Callable[[AnyReplay], Batch]) -> list[Batch]:
        is_empty = not len(self.imagined)
        self.real.batch_size = self.batch_size if is_empty else self.num_recorded
        self.parts = [part for part in (self.real, self.imagined) if part.batch_size]
        if is_empty or self.num_recorded == self.batch_size:
            self.parts = [self.real]
        return [_marked(draw(part), part is self.imagined) for part in self.parts]

    def chunks(self) -> list[Chunk]:
        """Return the chunks of both parts. Those of real transitions have even keys, here and in `load`."""
        parts = (self.real, self.imagined)
        return [chunk._replace(key=2 * chunk.key + n) for n, part in enumerate(parts) for chunk in part.chunks()]

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of both parts, and the identifier of the model."""
        return {"real": self.real.metadata(), "imagined": self.imagined.metadata(), "model": self.model}

    def load(self, metadata: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Chunk], None]) -> None:
        """Restore both parts; see `BufferBase.load`."""
        saved = metadata["real"]
        if metadata["model"] != self.model:
            raise UserError(
                f"the run learned in a model with the digest {metadata['model']}, but this model has {self.model}; "
                f"give the run's model with --model"
            )
        num_real = 0 if saved["recorded"] else self.real._outlined_bytes(saved)
        self.real.load(saved, num_real, lambda n, chunk: fill(n, chunk._replace(key=2 * chunk.key)))
        first, own = len(self.real.chunks()), metadata["imagined"]

        def fill_imagined(number: int, chunk: Chunk) -> None:
            fill(first + number, chunk._replace(key=2 * chunk.key + 1))

        self.imagined.load(own, num_bytes - num_real, fill_imagined)


def _marked(batch: Batch, is_imagined: bool) -> Batch:
    return batch._replace(imagined=torch.full_like(batch.rewards[:, :1], float(is_imagined)))
