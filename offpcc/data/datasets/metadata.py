"""Metadata of datasets, read on demand.

The functions take the metadata and the name of the data, for messages. They raise a `UserError` for an entry that
cannot be read or is invalid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from offpcc.data.datasets.columns import Array, Range
from offpcc.utils.errors import UserError

ACTION_KEYS = ("action_low", "action_high")
STATE_KEY = "state"  # the entry of Dict observations that only critics see; see `make.state`
SHOWN = 80  # the most characters of a wrong value in a message


class LazyMetadata(Mapping[str, Any]):
    """Named entries of a file, each read on access by `read`; `source` is for messages."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Any], source: str) -> None:
        self.names, self._read, self.source = dict.fromkeys(names), read, source

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names  # without reading the entry

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def infos_of_steps(infos: Mapping[str, Array], steps: slice | Array, num_steps: int) -> LazyMetadata:
    """Return the infos of selected steps of `num_steps`. Arrays of another length are not per step: they stay whole."""

    def read(name: str) -> Array:
        array = np.asarray(infos[name])
        return array[steps] if array.ndim and len(array) == num_steps else array

    return LazyMetadata(infos, read, "infos")


def recorded_wrappers(metadata: Mapping[str, Any], name: str) -> list[str] | None:
    """Return the wrappers of the recorded environment, in the form of `observation_wrappers`; None if unknown."""
    saved = read_metadata_text(metadata, "seen_through", name)
    if saved is None:
        return None
    wrappers = _parse(saved)
    if not isinstance(wrappers, list) or not all(isinstance(wrapper, str) for wrapper in wrappers):
        raise _fault(metadata, "seen_through", name, f"is {saved[:SHOWN]!r}, not a list of texts in JSON")
    return wrappers


def action_range(metadata: Mapping[str, Any], name: str) -> Range | None:
    """Return lowest and highest action of the recorder, each with one number or one per component; None if unknown."""
    low, high = (_numbers(metadata, key, name) for key in ACTION_KEYS)
    if low is None and high is None:
        return None
    if low is None or high is None:
        there, missing = ACTION_KEYS if high is None else reversed(ACTION_KEYS)
        raise _fault(metadata, there, name, f"is given without {missing}", "write both, or leave both out")
    for key, bound in zip(ACTION_KEYS, (low, high), strict=True):
        if bound.ndim > 1 or not bound.size or not np.isfinite(bound).all():
            raise _fault(metadata, key, name, f"is {_format(bound)}, not one finite number per action dimension")
    if low.size != high.size or not ((low <= high).all() and (low < high).any()):
        raise _fault(
            metadata, "action_low", name, f"is {_format(low)}, which is not below action_high, {_format(high)}"
        )
    return low, high


def recorded_in(metadata: Mapping[str, Any], name: str = "the data") -> str | None:
    """Return the id of the recorded environment, from Minari's ``env_spec`` or else from ``env``; None if unknown."""
    saved = read_metadata_text(metadata, "env_spec", name)
    if saved is None:
        return read_metadata_text(metadata, "env", name)
    spec = _parse(saved)
    if not isinstance(spec, dict) or not isinstance(spec.get("id"), str):
        raise _fault(metadata, "env_spec", name, f"is {saved[:SHOWN]!r}, not an environment's specification with an id")
    return str(spec["id"])


def if_valid(read: Callable[[Mapping[str, Any], str], Any], metadata: Mapping[str, Any], name: str) -> Any:
    """Return what `read` finds in the metadata; None if it is invalid."""
    with suppress(UserError):
        return read(metadata, name)
    return None


def state_key(metadata: Mapping[str, Any], name: str) -> str | None:
    """Return the key of the entry of Dict observations that only critics see, in a recording by offpcc; else None."""
    return read_metadata_text(metadata, STATE_KEY, name) if "offpcc" in metadata else None


def num_whole_episodes(metadata: Mapping[str, Any], name: str) -> int | None:
    """Return the number of whole episodes in a recording by offpcc, whose episode ends are reliable; else None."""
    if not ("whole_episodes" in metadata and "offpcc" in metadata):
        return None
    number = metadata.get("whole_episodes")
    if not isinstance(number, int | np.integer):
        raise UserError(f"{name}: metadata/whole_episodes is not a whole number; correct it, or leave it out")
    return max(0, int(number))


def read_metadata_text(metadata: Mapping[str, Any], key: str, name: str) -> str | None:
    """Return a text from the metadata; None if the key is missing."""
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        raise _fault(metadata, key, name, f"is {_format(value)}, not a text")
    return str(value)


def _numbers(metadata: Mapping[str, Any], key: str, name: str) -> Array | None:
    """Return numbers from the metadata as float32, infinite where they overflow; None if the key is missing."""
    value = metadata.get(key)
    if value is None:
        return None
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "fiu":
        raise _fault(metadata, key, name, f"is {_format(value)}, not a few numbers")
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _parse(content: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _format(value: Any) -> str:
    words = " ".join(repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value).split())
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}..."


def _fault(
    metadata: Mapping[str, Any], key: str, name: str, fault: str, remedy: str = "correct it, or leave it out"
) -> UserError:
    where = metadata.source if isinstance(metadata, LazyMetadata) else f"{name}: metadata"
    return UserError(f"{where}/{key} {fault}; {remedy}")
