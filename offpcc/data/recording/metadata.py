"""Metadata of a recording, and what must not change when it is resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from offpcc.envs.make import simulator
from offpcc.envs.relabel import observation_wrappers
from offpcc.envs.wrappers import action_bounds
from offpcc.utils.errors import UserError
from offpcc.utils.version import __version__

ONLY_TOLD = ("offpcc", "simulator", "device", "threads")  # another one may round otherwise, and does the same
NOT_COMPARED = ("actor",)  # what it is called; `actor_sha256` tells whether it is the same
CONFIG = "config"  # gin's bindings, of which another offpcc may have more
THEN = ", then "


class Continued(NamedTuple):
    """A recording that is gone on with."""

    settings: dict[str, Any]  # as they are now; of `ONLY_TOLD`, all that it was ever made with
    message: str | None  # why it may not be what a recording in one go had been


def settings_of(env: gymnasium.Env[Any, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a recording tells of itself: `metadata`, and what the environment shows and takes."""
    low, high = action_bounds(env)
    told = {
        "env": env.spec.id if env.spec else type(env.unwrapped).__name__,
        "offpcc": __version__,
        "simulator": simulator(),
        "observation": f"{np.dtype(env.observation_space.dtype)} {env.observation_space.shape}",
        "action_low": low.astype(np.float32).tolist(),
        "action_high": high.astype(np.float32).tolist(),
        "seen_through": json.dumps(observation_wrappers(env)),
        **metadata,
    }
    return {name: value for name, value in told.items() if value is not None}


def go_on(now: Mapping[str, Any], before: Mapping[str, Any], where: Path) -> Continued:
    """Go on with a recording, which keeps all settings that change what is played.

    Args:
        now: the settings of what is to be recorded.
        before: those of what is recorded.
        where: that is.

    Raises:
        UserError: naming the first that differs.
    """
    for name, new, old in _differences(now, before):
        raise UserError(
            f"{name} is {new}, but {where} was recorded with {old}: a recording that is gone on with keeps its "
            f"settings; give the same, or another file"
        )
    settings, changes = dict(now), []
    for name in ONLY_TOLD:
        if name in before:
            settings[name] = before[name]
            if (new := latest(now.get(name, before[name]))) != (old := latest(before[name])):
                settings[name] = f"{before[name]}{THEN}{new}"
                changes.append(f"{name} is {new}, but {where} was recorded with {old}")
    return Continued(settings, f"this resume may not be exact: {'; '.join(changes)}" if changes else None)


def latest(value: Any) -> str:
    """The last of all the values that a recording was made with."""
    return str(value).split(THEN)[-1]


def _differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys((*now, *before)):
        if name not in (*ONLY_TOLD, *NOT_COMPARED, CONFIG) and now.get(name) != before.get(name):
            yield name, now.get(name, "not known"), before.get(name, "no such value")
    new, old = _bindings(str(now.get(CONFIG, ""))), _bindings(str(before.get(CONFIG, "")))
    for name in new.keys() & old.keys():
        if new[name] != old[name]:
            yield name, new[name], old[name]


def _bindings(config: str) -> dict[str, str]:
    """Of gin's text, in which the lines of a long value are indented."""
    statements = (part.partition("=") for part in re.split(r"\n(?=\S)", config) if not part.startswith("#"))
    return {name.strip(): " ".join(value.lstrip(" \\").split()) for name, equals, value in statements if equals}
