"""Recorded data as an agent learns from it: read, seen as its environment shows it, and described."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces

from offpcc import d4rl_names
from offpcc.checks import PositiveInteger, PositiveNumber, check, rules_of
from offpcc.data.columns import Array, Range
from offpcc.data.datasets import Dataset
from offpcc.data.downloads import Progress
from offpcc.data.infos import seen_through
from offpcc.data.loading import load
from offpcc.data.rows import Rows
from offpcc.domains.playback import view
from offpcc.domains.wrappers import action_bounds
from offpcc.errors import UserError


@dataclass(frozen=True)
class Recording:
    """Recorded data, ready for a buffer.

    Attributes:
        rows: whole episodes, with observations as the agent sees them.
        name: of the data.
        source: where it came from.
        num_transitions: in `rows`.
        num_episodes: in `rows`.
        mean_return: of the episodes, undiscounted, as recorded.
        has_ends: whether the data says of any episode where it ends.
        recorded_in: the environment's name, if the data tells.
        reward_scale: what rewards are to be multiplied by, as gin has it.
        notices: what is odd about the data, each one sentence.
        identity: what tells it from other data, or from another view of it.
    """

    rows: Rows
    name: str
    source: str
    num_transitions: int
    num_episodes: int
    mean_return: float
    has_ends: bool
    recorded_in: str | None
    reward_scale: float
    notices: tuple[str, ...]
    identity: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.rows)

    @property
    def observation_space(self) -> spaces.Box:
        """What can be told of it without an environment."""
        shape = self.rows.observations.shape[1:]
        if self.rows.observations.dtype == np.uint8:
            return spaces.Box(0, 255, shape, np.uint8)
        return spaces.Box(-np.inf, np.inf, shape, np.float32)

    @property
    def action_space(self) -> spaces.Box:
        """Of actions in [-1, 1]."""
        return spaces.Box(-1.0, 1.0, self.rows.actions.shape[1:], np.float32)

    def statistics(self) -> tuple[Array, Array]:
        """Mean and standard deviation, float64, of the observations that transitions start from."""
        chosen = self.rows.observations if self.rows.is_start.all() else self.rows.observations[self.rows.is_start]
        return chosen.mean(0, dtype=np.float64), chosen.std(0, dtype=np.float64)

    def facts(self) -> dict[str, Any]:
        """What run.json tells of it."""
        named = ("name", "source", "num_transitions", "num_episodes", "mean_return", "reward_scale", "identity")
        return {name: getattr(self, name) for name in named}

    def lines(self) -> Iterator[str]:
        """What a person is told of it."""
        yield (
            f"learning from {self.name}: {self.num_transitions:,} transitions in {self.num_episodes:,} episodes, mean "
            f"return {self.mean_return:.1f}{told_score(self.name, self.mean_return)}; {self.num_bytes:,} bytes"
        )
        if self.reward_scale != 1.0:
            yield f"rewards are multiplied by {self.reward_scale:.6g} (recorded.return_range)"
        yield from (f"note: {notice}" for notice in self.notices)


@gin.configurable("recorded", module="offpcc")  # type: ignore[untyped-decorator]
def by_gin(
    *,
    return_range: PositiveNumber | None = None,
    max_episode_steps: PositiveInteger | None = None,
    action_range: Range | None = None,
) -> Mapping[str, Any]:
    """What gin says of recorded data; see `read`."""
    settings = {"return_range": return_range, "max_episode_steps": max_episode_steps, "action_range": action_range}
    check("recorded", rules_of(by_gin), settings)
    return settings


def read(
    source: str | Path | Dataset,
    env: gymnasium.Env[Any, Any] | None = None,
    *,
    fraction: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Recording:
    """Recorded data as an agent learns from it.

    gin may bind ``recorded.return_range``, the difference that the largest and the smallest return of an episode are
    scaled to for learning (1000 in IQL, arXiv:2110.06169), ``recorded.max_episode_steps`` and
    ``recorded.action_range`` (see `offpcc.data.load`).

    Args:
        source: what `offpcc.data.load` takes, or what it gave.
        env: made by `offpcc.make`, whose wrappers show the agent its part of what was recorded; it is used up. None
            to learn from what was recorded as it is.
        fraction: as few whole episodes from the start as hold this part of the steps.
        seed: of what those wrappers draw, such as noise.
        progress: of a download.

    Raises:
        UserError: it is not to be had, is not whole, cannot be learned from, or does not fit the environment.
    """
    settings = by_gin()
    if isinstance(source, Dataset):
        data = source
    else:
        data = load(
            source,
            max_episode_steps=settings["max_episode_steps"],
            action_range=settings["action_range"],
            default_action_range=None if env is None else action_bounds(env),
            progress=progress,
        )
    _check_actions(data, env)
    data = data.fraction(fraction)
    rows = data.rows()
    if not len(rows.starts):
        raise UserError(f"{data.name}: there are no transitions in it; give longer episodes, or next_observations")
    if env is not None:
        rows = rows._replace(observations=_seen(data, rows, env, seed))
    return Recording(
        rows,
        data.name,
        data.source,
        int(rows.is_start.sum()),
        len(rows.starts),
        float(data.returns.mean()),
        bool((data.terminations | data.truncations)[data.stops - 1].any()),
        _recorded_in(data.metadata),
        _reward_scale(data, settings["return_range"]),
        data.notices,
        _identity(data.name, rows),
    )


def told_score(name: str, mean_return: float) -> str:
    """D4RL's score of a return in words, empty where the name has no reference."""
    score = d4rl_names.normalized_score(name, mean_return)
    return "" if score is None else f", D4RL score {score:.1f}"


def _check_actions(data: Dataset, env: gymnasium.Env[Any, Any] | None) -> None:
    if data.discrete_actions:
        raise UserError(
            f"{data.name}: its actions are whole numbers, choices as it seems, and agents for continuous control "
            f"cannot learn from them; if they are no choices, bind recorded.action_range"
        )
    recorded = data.actions.shape[1]
    wanted = recorded if env is None else int(np.prod(env.action_space.shape or (1,)))
    if recorded != wanted:
        raise UserError(
            f"{data.name} has actions of {recorded} numbers, but the environment takes {wanted}; name the environment "
            f"it was recorded in with --env, or leave --env out to train without tests"
        )


def _seen(data: Dataset, rows: Rows, env: gymnasium.Env[Any, Any], seed: int) -> Array:
    return view(
        env,
        rows.observations,
        rows.actions,
        rows.rewards,
        rows.starts,
        rows.stops,
        seed=seed,
        seen_through=seen_through(data.metadata, data.name),
    )


def _recorded_in(metadata: Mapping[str, Any]) -> str | None:
    if "env_spec" in metadata:  # Minari's
        with contextlib.suppress(ValueError, TypeError):
            return str(json.loads(metadata["env_spec"])["id"])
    return str(metadata["env"]) if "env" in metadata else None


def _reward_scale(data: Dataset, return_range: float | None) -> float:
    if return_range is None:
        return 1.0
    difference = float(data.returns.max() - data.returns.min())
    if difference <= 0.0:
        raise UserError(
            f"recorded.return_range is {return_range}, but all episodes of {data.name} have the return "
            f"{data.returns[0]:.6g}; leave the binding out"
        )
    return return_range / difference


def _identity(name: str, rows: Rows) -> str:
    digest = hashlib.sha256()
    for array in rows:
        digest.update(np.ascontiguousarray(array).data)
    return f"{name} ({int(rows.is_start.sum()):,} transitions, SHA-256 {digest.hexdigest()[:16]})"
