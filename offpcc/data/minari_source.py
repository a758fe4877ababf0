"""Recorded data in Minari's format, through its package."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from offpcc.data.columns import Array
from offpcc.data.datasets import Dataset
from offpcc.errors import UserError

READING = (AssertionError, KeyError, OSError, RuntimeError)  # what Minari raises of files that are not whole
AGAIN = "fetch it again, or update Minari"
GOES_ON = "an episode goes on after the goal is reached (Minari issue 296), so rewards of one come many times"


def read_minari(name: str) -> Dataset:
    """A Minari data set that is on this machine.

    Observations that are a dictionary of vectors, as the maze tasks have, are joined in the order of the space, as
    ``gymnasium.wrappers.FlattenObservation`` does for the environment. Actions are scaled from the bounds of their
    space to [-1, 1].

    Args:
        name: its id, such as ``D4RL/door/human-v2``.

    Raises:
        UserError: Minari or the data set is missing, or it holds what cannot be learned from.
    """
    try:
        import minari
    except ImportError as error:
        raise UserError(f"minari:{name} needs the Minari package ({error}); pip install 'offpcc[offline]'") from None
    try:
        recorded = minari.load_dataset(name)
    except FileNotFoundError:
        raise UserError(_not_here(name, list(minari.list_local_datasets()))) from None
    except (*READING, ImportError, ValueError) as error:
        raise UserError(f"minari:{name} cannot be read ({error}); {AGAIN}") from None
    label = f"minari:{name}"
    observation_space, action_space = recorded.observation_space, recorded.action_space
    if not isinstance(action_space, spaces.Box):
        raise UserError(f"{label}: its actions are {action_space}, but continuous control needs a Box of numbers")
    bounded = bool(np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all())
    episodes = (
        {
            "observations": _joined(episode.observations, observation_space, label),
            "actions": np.asarray(episode.actions).reshape(len(episode.rewards), -1),
            "rewards": episode.rewards,
            "terminations": episode.terminations,
        }
        for episode in recorded.iterate_episodes()
    )
    try:
        dataset = Dataset.from_episodes(
            episodes,
            action_range=(action_space.low.ravel(), action_space.high.ravel()) if bounded else None,
            name=label,
            source=str(recorded.storage.data_path),
            metadata=recorded.storage.metadata,
        )
    except READING as error:
        raise UserError(f"{label} cannot be read ({error}); {AGAIN}") from None
    notices = [GOES_ON] if "antmaze" in name else []
    if isinstance(observation_space, spaces.Dict):
        notices.append(f"observations are {', '.join(observation_space.spaces)} joined, as FlattenObservation does")
    return replace(dataset, notices=(*dataset.notices, *notices))


def _joined(observations: Any, space: spaces.Space[Any], label: str) -> Array:
    """Observations as one array, (L+1, *obs)."""
    if isinstance(space, spaces.Dict):
        parts = [_joined(observations[key], part, label) for key, part in space.spaces.items()]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    if not isinstance(space, spaces.Box):
        raise UserError(
            f"{label}: its observations are or hold {space}; only Boxes, and dictionaries of them, are read"
        )
    array = np.asarray(observations)
    return array if array.ndim > 1 else array[:, None]


def _not_here(name: str, local: list[str]) -> str:
    near = difflib.get_close_matches(name, local, 3, 0.4) or local[:5]
    choice = f"or choose one that is: {', '.join(near)}" if near else "for no data set is yet"
    return f"minari:{name} is not on this machine; fetch it with `minari download {name}`, {choice}"
