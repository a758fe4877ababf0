"""Metadata of a recording, and the check that a resume does not change its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from offpcc.envs.make import simulator
from offpcc.envs.wrapper_chain import observation_wrappers
from offpcc.envs.wrappers import action_bounds
from offpcc.utils.errors import UserError
from offpcc.utils.version import __version__

# A resume may change these. The results may then differ by rounding.
ONLY_TOLD = ("offpcc", "simulator", "device", "threads")
NOT_COMPARED = ("actor",)  # only a name; `actor_sha256` identifies the actor
CONFIG = "config"  # gin's bindings; another version of offpcc may have more of them
THEN = ", then "


class Continued(NamedTuple):
    """Settings of a resumed recording."""

    settings: dict[str, Any]  # current values; those of `ONLY_TOLD` list all values so far
    message: str | None  # why it may differ from a recording without interruption


def settings_of(env: gymnasium.Env[Any, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings to save: `metadata`, versions, and the environment's name, spaces and wrappers."""
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
    """Check that a resumed recording keeps all settings that change the episodes, and return its settings.

    Args:
        now: Settings of this run.
        before: Settings of the existing recording.
        where: Path of the existing recording, for messages.

    Raises:
        UserError: A setting differs; the message names the first one.
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
    """Return the newest of the values that are joined by `THEN`."""
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
    """Return name -> value for gin's text, in which the further lines of a long value are indented."""
    statements = (part.partition("=") for part in re.split(r"\n(?=\S)", config) if not part.startswith("#"))
    return {name.strip(): " ".join(value.lstrip(" \\").split()) for name, equals, value in statements if equals}
