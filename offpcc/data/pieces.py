"""How a buffer is saved: an outline, and what it stores in pieces, of which a checkpoint writes those that changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from offpcc.data.columns import Array
from offpcc.errors import UserError
from offpcc.generators import NumpyGenerator

PIECE_BYTES = 2**20  # more costs more where little changed, less is more files


class Piece(NamedTuple):
    """A part of what is stored."""

    key: int
    version: Hashable  # another one whenever the content is; of this process alone
    arrays: Sequence[Array]  # the buffer's own, contiguous


class InPieces:
    """A buffer that is saved in pieces; what raises NotImplementedError is for the subclass to fill in."""

    recorded: str
    num_envs: int
    frame_stack: int
    randomness: NumpyGenerator
    num_loaded = 0  # how often all that was stored was replaced; part of a piece's version

    def pieces(self) -> list[Piece]:
        """All that is stored, none of recorded data; always the same arrays in the same order for the same outline."""
        raise NotImplementedError

    def outline(self) -> dict[str, Any]:
        """All that is to be saved but the pieces, as plain data and small tensors."""
        return {
            "num_envs": self.num_envs,
            "frame_stack": self.frame_stack,
            "recorded": self.recorded,
            "randomness": self.randomness.state_dict(),
        }

    def _outlined_bytes(self, outline: Mapping[str, Any]) -> int:
        """What the pieces of an outline come to.

        Raises:
            UserError: they do not fit this buffer.
        """
        raise NotImplementedError

    def _prepare(self, outline: Mapping[str, Any]) -> None:
        """Hold pieces of the outline's sizes, with anything in them."""
        raise NotImplementedError

    def _settle(self) -> None:
        """The pieces are filled."""
        raise NotImplementedError

    def load(self, outline: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Piece], None]) -> None:
        """Hold what was saved, read piece by piece into the place where it stays.

        Args:
            outline: as it was saved.
            num_bytes: of all pieces that are there.
            fill: puts what was saved into the arrays of a piece, of which it gets the number.

        Raises:
            UserError: it comes from a buffer of other sizes, environments or frames, or filled with other data.
        """
        self._check_saved(outline)
        self.randomness.load_state_dict(outline["randomness"])
        if self.recorded:
            return
        if (outlined := self._outlined_bytes(outline)) != num_bytes:  # nothing is allocated that is not there
            raise UserError(
                f"the saved buffer would be {outlined:,} bytes, but {num_bytes:,} were saved: it is damaged, or of "
                f"another environment; start another run"
            )
        self.num_loaded += 1
        self._prepare(outline)
        for number, piece in enumerate(self.pieces()):
            fill(number, piece)
        self._settle()

    def state_dict(self) -> dict[str, Any]:
        """A copy of what is stored, of recorded data the name alone, and the generator."""
        pieces = [[torch.from_numpy(array.copy()) for array in piece.arrays] for piece in self.pieces()]
        return {**self.outline(), "pieces": pieces}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what `state` held.

        Raises:
            UserError: it comes from a buffer of other sizes, environments or frames, or filled with other data.
        """

        def fill(number: int, piece: Piece) -> None:
            for array, saved in zip(piece.arrays, state["pieces"][number], strict=True):
                array[...] = saved.numpy().reshape(array.shape)

        self.load(state, sum(saved.nbytes for saved_piece in state["pieces"] for saved in saved_piece), fill)

    def _check_saved(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of a buffer with other parts, or of one that was filled with other data.

        Raises:
            UserError: naming what differs.
        """
        if (saved := state["recorded"]) != self.recorded:
            raise UserError(
                f"the saved buffer held {saved or 'no recorded data'}, but this one holds "
                f"{self.recorded or 'none'}: go on with the data that the run was made with, or start another run"
            )
        for name in ("num_envs", "frame_stack"):
            if state[name] != getattr(self, name):
                raise UserError(
                    f"the saved buffer's {name} is {state[name]}, but this one's is {getattr(self, name)}: go on "
                    f"with {name} = {state[name]}, or start another run"
                )
