"""Metadata of recorded data, read on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from offpcc.data.datasets.columns import Array, Range
from offpcc.utils.errors import UserError

ACTION_KEYS = ("action_low", "action_high")
MOST_BYTES = 2**16  # of a fact about a recording
SHOWN = 80  # letters of what is wrong, in a message


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


class LazyMetadata(Mapping[str, Any]):
    """Named things in a file, each read when it is asked for.

    Args:
        names: what there is in the file.
        read: gives one of them, or refuses one that is larger than so many bytes.
        source: where they are, for messages.
    """

    def __init__(self, names: tuple[str, ...], read: Callable[[str, int | None], Any], source: str) -> None:
        self.names, self.read, self.source = dict.fromkeys(names), read, source

    def __getitem__(self, name: str) -> Any:
        return self.within(name, None)

    def within(self, name: str, most_bytes: int | None) -> Any:
        """One of them.

        Raises:
            KeyError: there is none of this name.
            UserError: it cannot be read, or is larger than `most_bytes`.
        """
        if name not in self.names:
            raise KeyError(name)
        return self.read(name, most_bytes)

    def __contains__(self, name: object) -> bool:
        return name in self.names  # nothing is read for it

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def recorded_wrappers(metadata: Mapping[str, Any], name: str) -> list[str] | None:
    """The wrappers that were above the recorded environment, as `observation_wrappers` tells them; None if unknown.

    Args:
        metadata: of the recording.
        name: of the data, for messages.

    Raises:
        UserError: what is told of them cannot be read.
    """
    told = text(metadata, "seen_through", name)
    if told is None:
        return None
    wrappers = _parsed(told)
    if not isinstance(wrappers, list) or not all(isinstance(wrapper, str) for wrapper in wrappers):
        raise _fault(metadata, "seen_through", name, f"is {told[:SHOWN]!r}, no list of texts in JSON")
    return wrappers


def action_range(metadata: Mapping[str, Any], name: str) -> Range | None:
    """Lowest and highest action of the recorder, each one number or one for each number of an action; None if unknown.

    Args:
        metadata: of the recording.
        name: of the data, for messages.

    Raises:
        UserError: what is told of them cannot be read, or they are no bounds.
    """
    low, high = (_numbers(metadata, key, name) for key in ACTION_KEYS)
    if low is None and high is None:
        return None
    if low is None or high is None:
        there, missing = ACTION_KEYS if high is None else reversed(ACTION_KEYS)
        raise _fault(metadata, there, name, f"is there without {missing}", "write both, or leave both out")
    for key, bound in zip(ACTION_KEYS, (low, high), strict=True):
        if bound.ndim > 1 or not bound.size or not np.isfinite(bound).all():
            raise _fault(metadata, key, name, f"is {_shown(bound)}, not one finite number for each of an action's")
    if low.size != high.size or not (low < high).all():
        raise _fault(metadata, "action_low", name, f"is {_shown(low)}, which is not below action_high, {_shown(high)}")
    return low, high


def recorded_in(metadata: Mapping[str, Any], name: str = "the data") -> str | None:
    """The name of the environment that was recorded, by ``env``, or by the ``env_spec`` of Minari; None if unknown.

    Args:
        metadata: of the recording.
        name: of the data, for messages.

    Raises:
        UserError: what is told of it cannot be read.
    """
    told = text(metadata, "env_spec", name)
    if told is None:
        return text(metadata, "env", name)
    spec = _parsed(told)
    if not isinstance(spec, dict) or not isinstance(spec.get("id"), str):
        raise _fault(metadata, "env_spec", name, f"is {told[:SHOWN]!r}, no environment's specification with an id")
    return str(spec["id"])


def is_own_recording(metadata: Mapping[str, Any]) -> bool:
    """Whether offpcc's recorder wrote it, so that what it says of episodes' ends is the truth."""
    return "whole_episodes" in metadata and "offpcc" in metadata


def text(metadata: Mapping[str, Any], key: str, name: str) -> str | None:
    """What the metadata says in words under a key; None if nothing.

    Args:
        metadata: of the recording.
        key: what is asked for.
        name: of the data, for messages.

    Raises:
        UserError: it cannot be read, or is no text of reasonable length.
    """
    value = _small(metadata, key, name)
    if value is None:
        return None
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        raise _fault(metadata, key, name, f"is {_shown(value)}, no text")
    if len(value) > MOST_BYTES:
        raise _fault(metadata, key, name, f"is a text of {len(value):,} letters, more than {MOST_BYTES:,}")
    return str(value)


def _numbers(metadata: Mapping[str, Any], key: str, name: str) -> Array | None:
    """float32; what it cannot hold is infinite."""
    value = _small(metadata, key, name)
    if value is None:
        return None
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "fiu" or numbers.nbytes > MOST_BYTES:
        raise _fault(metadata, key, name, f"is {_shown(value)}, not a few numbers")
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _small(metadata: Mapping[str, Any], key: str, name: str) -> Any:
    if key not in metadata:
        return None
    return metadata.within(key, MOST_BYTES) if isinstance(metadata, LazyMetadata) else metadata[key]


def _parsed(told: str) -> Any:
    try:
        return json.loads(told)
    except (ValueError, RecursionError):  # lists in lists in lists
        return None


def _shown(value: Any) -> str:
    words = " ".join(repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value).split())
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}..."


def _fault(
    metadata: Mapping[str, Any], key: str, name: str, fault: str, remedy: str = "mend it, or leave it out"
) -> UserError:
    where = metadata.source if isinstance(metadata, LazyMetadata) else f"{name}: metadata"
    return UserError(f"{where}/{key} {fault}; {remedy}")


Kind = Literal[
    "choices",  # actions are whole numbers
    "clipped",  # actions lie outside of their bounds
    "unknown range",  # actions lie outside of the bounds that are taken where nothing tells them
    "units",  # actions are taken to be in the environment's units
    "scaled",  # they may be so no more
    "jumps",  # next observations are not the following ones
    "no next observations",
    "no time limits",  # nothing tells where one ended an episode
    "time limit",  # one is assumed
    "single steps",  # nearly all episodes last but one
    "resets",  # last observations are those of the next episode's start
    "rewards",  # tests have others
    "scales",  # columns of observations that are not normalised have unlike ones
    "remark",  # what is known of this data
]


COUNTING: tuple[Kind, ...] = ("jumps", "no next observations", "resets")  # when data is read, all of it
OF_WHOLE = " (counted in the whole data set, of which this is a part)"


class Notice(NamedTuple):
    """One thing that is odd about recorded data.

    Attributes:
        kind: what it is about, for programs.
        text: one sentence, for persons.
    """

    kind: Kind
    text: str

    def in_part(self) -> Notice:
        """The same of a part of the data: what was counted is said to be of the whole."""
        if self.kind not in COUNTING or self.text.endswith(OF_WHOLE):
            return self
        return self._replace(text=self.text + OF_WHOLE)
