"""What was recorded beside the steps, and about the whole: read when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from offpcc.data.columns import Array
from offpcc.errors import UserError


class StepInfos(Mapping[str, Array]):
    """What was recorded beside some of the steps, read when it is asked for.

    Args:
        recorded: of all steps.
        steps: those that are wanted.
        num_steps: of all steps; arrays of another length tell of no steps, and stay whole.
    """

    def __init__(self, recorded: Mapping[str, Array], steps: slice | Array, num_steps: int) -> None:
        self.recorded, self.steps, self.num_steps = recorded, steps, num_steps

    def __getitem__(self, name: str) -> Array:
        array = np.asarray(self.recorded[name])
        return array[self.steps] if array.ndim and len(array) == self.num_steps else array

    def __iter__(self) -> Iterator[str]:
        return iter(self.recorded)

    def __len__(self) -> int:
        return len(self.recorded)


class Recorded(Mapping[str, Any]):
    """Named things in a file, each read when it is asked for.

    Args:
        names: what there is in the file.
        read: gives one of them.
        known: what was read already, under other names.
    """

    def __init__(
        self, names: tuple[str, ...], read: Callable[[str], Any], known: Mapping[str, Any] | None = None
    ) -> None:
        self.names, self.read, self.known = names, read, dict(known or {})

    def __getitem__(self, name: str) -> Any:
        if name in self.known:
            return self.known[name]
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        yield from self.known
        yield from (name for name in self.names if name not in self.known)

    def __len__(self) -> int:
        return len({*self.known, *self.names})


def seen_through(metadata: Mapping[str, Any], name: str) -> list[str] | None:
    """The wrappers that were above the recorded environment, as `observation_wrappers` tells them; None if unknown.

    Args:
        metadata: of the recording.
        name: of the data, for messages.

    Raises:
        UserError: what is told of them cannot be read.
    """
    if "seen_through" not in metadata:
        return None
    told = str(metadata["seen_through"])
    try:
        wrappers = json.loads(told)
    except ValueError:
        wrappers = None
    if not isinstance(wrappers, list):
        raise UserError(f"{name}: metadata/seen_through is {told[:80]!r}, no list in JSON; mend it, or leave it out")
    return list(map(str, wrappers))
