"""Whether recorded data fits an environment, and what its agent will see of it."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from offpcc.data.columns import Array
from offpcc.data.datasets import Dataset
from offpcc.data.infos import seen_through
from offpcc.domains.doctor import FAULT, OK, Finding
from offpcc.domains.playback import view
from offpcc.errors import UserError

STEPS = 1_000  # of one episode that are shown: what fits one fits all, and all may take minutes


def name_of(env: gymnasium.Env[Any, Any]) -> str:
    """What messages call it by."""
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def fits(data: Dataset, env: gymnasium.Env[Any, Any]) -> list[Finding]:
    """Whether training in the environment could read the data. The environment's episode is lost."""
    name, found = name_of(env), []
    actions, wanted = data.actions.shape[1], math.prod(env.action_space.shape or ())
    if actions != wanted:
        text = f"actions have {actions} numbers, but {name} takes {wanted}"
        found.append(Finding("env", FAULT, text, "name the environment it was recorded in"))
    fine = f"its actions have {wanted} numbers, as the recorded ones do"
    try:
        seen = _first_episode_seen(data, env)
    except UserError as error:
        return [*found, Finding("env", FAULT, error.message)]
    if seen is not None:
        recorded = f"{data.observations.dtype} of shape {data.observations.shape[1:]}"
        fine = f"the agent in {name} sees {seen.dtype} of shape {seen.shape[1:]}, where {recorded} was recorded; {fine}"
    return found or [Finding("env", OK, fine)]


def _first_episode_seen(data: Dataset, env: gymnasium.Env[Any, Any]) -> Array | None:
    """What the agent will see of the first transitions; None where there is none."""
    has_any = data.lengths > ~data.last_is_transition
    if not has_any.any():
        return None
    rows = data.select([int(has_any.argmax())]).rows()
    stop = min(len(rows.is_start), STEPS + 1)
    return view(
        env,
        rows.observations[:stop],
        rows.actions[:stop],
        rows.rewards[:stop],
        rows.starts,
        np.array([stop]),
        seed=0,
        seen_through=seen_through(data.metadata, data.name),
    )
