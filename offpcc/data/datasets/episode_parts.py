"""Reading and checking of the episodes that users give to `Dataset.from_episodes`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from offpcc.core import PackedDict, entries_of
from offpcc.data.datasets.boundaries import rows_differ
from offpcc.data.datasets.columns import REQUIRED, Array, as_column, check_shapes, read_flags, read_numbers
from offpcc.data.datasets.dict_columns import DictColumn
from offpcc.utils.errors import UserError

SAY_HOW_IT_ENDED = "Add terminated: True if the task ended the episode, False if a time limit or anything else cut it"
NO_LAST = "; append the one after the last action, or give next_observations, or use Dataset.from_arrays"


class EpisodeParts(NamedTuple):
    """The arrays of a given episode of L steps."""

    observations: Array  # (L+1, *obs)
    actions: Array  # (L, A), with the recorder's dtype and bounds
    rewards: Array  # (L,)
    terminated: bool
    space: PackedDict | None
    integers: list[str]  # see `DictColumn`


def read_episode_parts(
    episode: Mapping[str, Any] | Sequence[Any], where: str, space: PackedDict | None
) -> EpisodeParts:
    """Check and read an episode in a form that `Dataset.from_episodes` takes; `where` names it in messages."""
    if isinstance(episode, Mapping):
        ends = [key for key in ("terminated", "terminations", "terminals") if key in episode]
        if len(ends) > 1:
            raise UserError(f"{where}: {' and '.join(ends)} are names for the same column; give one of them")
        keys = ("observations", "actions", "rewards", ends[0] if ends else "terminated")
        missing = [key for key in keys if key not in episode]
        if missing:
            found = f"{where}: {', '.join(missing)} missing; found: {', '.join(map(str, episode))}"
            raise UserError(found if ends else f"{found}. {SAY_HOW_IT_ENDED}")
        given = [episode[key] for key in keys]
        if episode.get("next_observations") is not None:
            given[0] = _with_last(given[0], episode["next_observations"], where)
    else:
        given = list(episode) if isinstance(episode, Iterable) else []
        if len(given) != 4:
            raise UserError(
                f"{where}: {len(given)} parts; an episode is (observations, actions, rewards, terminated), or a "
                f"mapping of these names. {SAY_HOW_IT_ENDED}"
            )
    integers: list[str] = []
    if isinstance(given[0], Mapping):
        parts = {part: as_column(array, f"{where}: observations/{part}") for part, array in entries_of(given[0])}
        packed = DictColumn(parts, space, f"{where}: observations")
        space, integers, given[0] = packed.space, packed.integers, packed[: packed.shape[0]]
    elif space is not None:
        raise UserError(f"{where}: observations are one array, but the observation space is a Dict; give a mapping")
    columns = {key: as_column(value, f"{where}: {key}") for key, value in zip(REQUIRED, given, strict=True)}
    length = len(columns["actions"]) if columns["actions"].ndim else 0
    count = len(columns["observations"]) if columns["observations"].ndim else 0
    if length == 0 or count != length + 1:
        raise UserError(
            f"{where}: {count} observations and {length} actions; an episode has one observation more than actions, "
            f"and one action at least{NO_LAST if count == length else ''}"
        )
    terminated = columns["terminations"]
    if terminated.ndim == 0:
        terminated = np.append(np.zeros(length - 1, terminated.dtype), terminated)
    check_shapes({**columns, "observations": columns["observations"][:-1], "terminations": terminated}, where)
    flags = read_flags(terminated, f"{where}: terminations")
    if flags[:-1].any():
        raise UserError(
            f"{where}: terminated is True at step {int(flags.argmax())} of {length}; only the last step may "
            f"terminate; end the episode there: leave out the rows after it"
        )
    observations = columns["observations"]
    return EpisodeParts(
        read_numbers(observations, f"{where}: observations", is_observed=True) if space is None else observations,
        columns["actions"],
        read_numbers(columns["rewards"], f"{where}: rewards").reshape(length),
        bool(flags[-1]),
        space,
        integers,
    )


def _with_last(observations: Any, following: Any, where: str) -> Any:
    """Return observations (L+1, *obs) from those before and after each step, (L, *obs); or L+1 of them, unchanged."""
    if isinstance(observations, Mapping) and isinstance(following, Mapping):
        return {
            key: _with_last(part, following[key], f"{where}: {key}") if key in following else part
            for key, part in observations.items()
        }
    before, after = (
        np.asarray(as_column(rows, f"{where}: {name}observations"))
        for name, rows in (("", observations), ("next_", following))
    )
    fits = before.ndim > 0 and before.shape[1:] == after.shape[1:] and len(before) in (len(after), len(after) + 1)
    if not (fits and after.ndim and {before.dtype.kind, after.dtype.kind} <= {*"biuf"}):
        raise UserError(
            f"{where}: observations of shape {before.shape} ({before.dtype}), but next_observations of shape "
            f"{after.shape} ({after.dtype}); give as many numbers, or leave next_observations out"
        )
    if (differs := rows_differ(after[: len(before) - 1], before[1:])).any():
        step = int(differs.argmax())
        raise UserError(
            f"{where}: next_observations of step {step} are not the observations of step {step + 1}; give the steps of "
            f"one episode in their order, or all steps to Dataset.from_arrays"
        )
    return observations if len(before) > len(after) else np.concatenate([before, after[-1:]])
