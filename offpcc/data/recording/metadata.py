"""Settings of a recording, and the check that a resume does not change them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from offpcc.data.datasets.frame_stacks import FRAME_STACK
from offpcc.data.datasets.metadata import STATE_KEY
from offpcc.data.recording.hdf5_writer import NUM_ACTIONS
from offpcc.envs.make import simulator_version
from offpcc.envs.wrapper_chain import observation_wrappers
from offpcc.envs.wrappers import bounds_of, num_stacked, raw_actions
from offpcc.utils.errors import UserError
from offpcc.utils.version import __version__

# A resume may change these. The results may then differ by rounding. The recording lists all values.
LISTED = ("offpcc", "simulator", "device", "threads")
# `actor` is only a name: `actor_sha256` identifies the actor. `make.state`, in `CONFIG`, gives the key of the state.
NOT_COMPARED = ("actor", STATE_KEY)
CONFIG = "config"  # gin's bindings; another version of offpcc may have more of them
THEN = ", then "


def settings_of_recording(env: gymnasium.Env[Any, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings to save: `metadata`, versions, and the environment's name, spaces and wrappers."""
    actions = raw_actions(env)
    low, high = bounds_of(actions)
    settings = {
        "env": env.spec.id if env.spec else type(env.unwrapped).__name__,
        "offpcc": __version__,
        "simulator": simulator_version(),
        "observation": f"{np.dtype(env.observation_space.dtype)} {env.observation_space.shape}",
        "action_low": low.astype(np.float32).tolist(),
        "action_high": high.astype(np.float32).tolist(),
        NUM_ACTIONS: int(actions.n) if isinstance(actions, Discrete) else None,
        "seen_through": json.dumps(observation_wrappers(env)),
        FRAME_STACK: number if (number := stored_stack(env)) > 1 else None,
        STATE_KEY: getattr(env.observation_space, "state_key", None),
        **metadata,
    }
    return {name: value for name, value in settings.items() if value is not None}


def stored_stack(env: gymnasium.Env[Any, Any]) -> int:
    """Return the number of frames (H, W) that an observation stacks if a recording stores each frame once, else 1."""
    shape, number = env.observation_space.shape or (), num_stacked(env)
    return number if env.observation_space.dtype == np.uint8 and len(shape) == 3 and shape[0] == number else 1


def resume_settings(
    now: Mapping[str, Any], before: Mapping[str, Any], where: Path
) -> tuple[dict[str, Any], str | None]:
    """Check that a resumed recording keeps all settings that change the episodes.

    `now` are the settings of this run, and `before` those of the existing recording at `where`. The results are the
    settings to save, and the reason why the recording may differ from one without interruption, or None.
    """
    compared = [name for name in {**now, **before} if name not in (*LISTED, *NOT_COMPARED, CONFIG)]
    pairs = [(name, now.get(name, "not known"), before.get(name, "no such value")) for name in compared]
    new, old = _bindings(str(now.get(CONFIG, ""))), _bindings(str(before.get(CONFIG, "")))
    for name, value, other in (*pairs, *((name, new[name], old[name]) for name in new.keys() & old.keys())):
        if value != other:
            raise UserError(
                f"{name} is {value}, but {where} was recorded with {other}: a resumed recording keeps its "
                f"settings; give the same, or another file"
            )
    settings, changes = dict(now), []
    for name in LISTED:
        if name in before:
            settings[name] = before[name]
            if (value := latest(now.get(name, before[name]))) != (other := latest(before[name])):
                settings[name] = f"{before[name]}{THEN}{value}"
                changes.append(f"{name} is {value}, but {where} was recorded with {other}")
    return settings, f"this resume may not be exact: {'; '.join(changes)}" if changes else None


def latest(value: Any) -> str:
    """Return the newest of the values that are joined by `THEN`."""
    return str(value).split(THEN)[-1]


def _bindings(config: str) -> dict[str, str]:
    """Return name -> value for gin's text, in which the further lines of a long value are indented."""
    statements = (part.partition("=") for part in re.split(r"\n(?=\S)", config) if not part.startswith("#"))
    return {name.strip(): " ".join(value.lstrip(" \\").split()) for name, equals, value in statements if equals}
