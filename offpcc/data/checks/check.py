"""`offpcc check --dataset`: finds problems in recorded data that would harm training."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import gymnasium

from offpcc.data.checks import env_fit, termination, values
from offpcc.data.checks import episodes as episode_findings
from offpcc.data.checks.episodes import BEFORE_RESET, MARK_ENDS, SHUFFLED, SINGLE_STEPS, are_shuffled, told_of_lengths
from offpcc.data.checks.summary_stats import Motion, Spread, by_column
from offpcc.data.datasets import metadata
from offpcc.data.datasets.columns import SpoiledData
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.metadata import Kind, recorded_in
from offpcc.envs.d4rl.catalog import normalized_score, reference_returns
from offpcc.envs.wrapper_chain import name_of
from offpcc.utils.errors import UserError
from offpcc.utils.findings import FAULT, NOTE, OK, WARNING, Diagnosis, Finding

__all__ = ["Examination", "examine", "refused"]

BATCH = 256  # default batch size; with fewer transitions, every batch contains some twice
FEW_EPISODES = 5  # agents with memory draw whole episodes; fewer show too little variety
LONGEST_NOTE = 200  # characters; longer metadata values are not shown
FILE_TELLS = ("env", "algorithm", "algorithm_name", "actor", "simulator", "note")

# Kind of notice -> (check, level, remedy).
NOTICES: dict[Kind, tuple[str, str, str]] = {
    "choices": ("actions", FAULT, "bind dataset.action_range to their bounds if they are no choices"),
    "clipped": (
        "actions",
        WARNING,
        "fine if the environment clipped them too; else bind dataset.action_range to its bounds",
    ),
    "unknown range": ("actions", FAULT, ""),  # the text of the notice ends with the remedy
    "units": ("actions", OK, ""),
    "scaled": ("actions", NOTE, "fine if the recorder was as timid as that"),
    "jumps": (
        "jumps",
        WARNING,
        "fine if episodes were cut there without a flag; else look for rows that were lost or shuffled",
    ),
    "no next observations": ("jumps", NOTE, "fine; record next_observations to keep these steps"),
    "no time limits": ("ends", WARNING, MARK_ENDS),
    "time limit": ("ends", NOTE, ""),
    "single steps": ("ends", WARNING, SINGLE_STEPS),
    "resets": ("resets", NOTE, f"fine; to keep these steps, {BEFORE_RESET}"),
    "rewards": ("rewards", NOTE, "fine if they were recorded through the same wrapper"),
    "scales": ("observed", NOTE, "bind normalize_observations = True"),
    "remark": ("remark", NOTE, ""),
}
OFF_SCALE = (
    "actions",
    FAULT,
    "they are in other units, as it seems: correct dataset.action_range, or the action_range that the data tells",
)


@dataclass(frozen=True)
class Examination(Diagnosis):
    """Findings and statistics of `examine`."""

    spreads: tuple[Spread, ...] = ()

    @property
    def verdict(self) -> str:
        """One-line summary of all findings."""
        return super().verdict.replace("training in it", "training on it")


def refused(name: str, error: SpoiledData) -> Examination:
    """Return the diagnosis of data that cannot be used at all."""
    return Examination(name, (Finding("reading", FAULT, error.message),))


def examine(data: Dataset, *, env: gymnasium.Env[Any, Any] | None = None) -> Examination:
    """Examine recorded data.

    Args:
        data: Data from `offpcc.data.datasets.load.load`.
        env: Environment to train for and to test in, made by `offpcc.envs.make.make`. Its current episode is lost. The
            data may contain parts of observations that the wrappers of `env` hide. If the data's name has no reference
            scores, the name of `env` gives them.
    """
    bounds = env_fit.bounds_for(data, env)
    notices = [*data.notices, *data.action_warnings(bounds), *told_of_lengths(data.lengths)]
    if env is not None:
        notices += env_fit.told_of_rewards(env)
    told = defaultdict[str, list[Finding]](list)
    for kind, text in notices:
        is_off_scale = kind == "clipped" and values.are_off_scale(data, bounds)
        check, level, remedy = OFF_SCALE if is_off_scale else NOTICES[kind]
        if kind == "single steps" and are_shuffled(data):
            remedy = SHUFFLED
        if kind == "unknown range":
            text, _, remedy = text.partition("; ")
        told[check].append(Finding(check, level, text, remedy))
    lengths, returns = Spread.of("episode length", data.lengths), Spread.of("episode return", data.returns)
    rewards = Spread.of("reward", data.rewards)
    numbers, actions = by_column("observation", data.observations), by_column("action", data.actions)
    motion = Motion.of(data)
    findings = [
        _source(data),
        _size(data),
        *episode_findings.ends(data, motion, told.pop("ends", [])),
        episode_findings.time_limit(data, env.spec.max_episode_steps if env is not None and env.spec else None),
        *told.pop("jumps", [Finding("jumps", OK, "next observations are the following rows")]),
        *told.pop("resets", []),
        *(episode_findings.followed(data, motion) if motion else []),
        *([episode_findings.leaps(motion)] if motion else []),
        *termination.terminals(data, _names(data, env)),
        Finding("lengths", OK, lengths.text),
        episode_findings.returns(data, returns),
        *_score(data, env),
        values.rewards(data, rewards),
        *told.pop("rewards", []),
        *values.observed(data, numbers),
        *values.actions(data, actions, told.pop("actions", []), bounds),
        episode_findings.copies(data),
        *(env_fit.fits(data, env) if env is not None else []),
        *(finding for left in told.values() for finding in left),
    ]
    return Examination(data.name, tuple(findings), (lengths, returns, rewards, *numbers, *actions))


def _source(data: Dataset) -> Finding:
    try:
        recorded_in(data.metadata, data.name)
    except UserError as error:
        return Finding("source", FAULT, error.message)
    told = {key: " ".join(_told(data, key).split()) for key in FILE_TELLS}
    text = [f"{key}: {value}" for key, value in told.items() if value and len(value) <= LONGEST_NOTE]
    return Finding("source", OK, "; ".join([data.source, *text]))


def _names(data: Dataset, env: gymnasium.Env[Any, Any] | None) -> list[str]:
    """Return the known names of the recorded task, the most reliable first; some may be empty."""
    names = [data.name, _told(data, "env")]
    with contextlib.suppress(UserError):
        names.insert(0, recorded_in(data.metadata, data.name) or "")
    # A "healthy" argument changes the termination rule.
    if env is not None and not (env.spec and any("healthy" in key for key in env.spec.kwargs)):
        names.append(name_of(env))
    return names


def _told(data: Dataset, key: str) -> str:
    """Return a text from the metadata; empty if it is missing or no text."""
    with contextlib.suppress(UserError):
        return metadata.text(data.metadata, key, data.name) or ""
    return ""


def _size(data: Dataset) -> Finding:
    episodes = f"{data.num_episodes:,} episode{'s' * (data.num_episodes > 1)}"
    text = f"{data.num_steps:,} steps in {episodes}, {data.num_transitions:,} transitions; {data.num_bytes:,} bytes"
    if data.num_transitions < BATCH:
        return Finding("size", FAULT, f"{text}: less than a batch of {BATCH}", "record more steps")
    if data.num_episodes < FEW_EPISODES:
        remedy = "enough to try things out; record more to learn from, above all for agents with memory"
        return Finding("size", NOTE, text, remedy)
    return Finding("size", OK, text)


def _score(data: Dataset, env: gymnasium.Env[Any, Any] | None) -> list[Finding]:
    for name in (data.name, name_of(env) if env is not None else "", _told(data, "env")):
        if reference_returns(name) is not None:
            score = normalized_score(name, float(data.whole_returns.mean()))
            return [Finding("score", OK, f"the mean return is D4RL's score {score:.1f}, by the references of {name}")]
    return []
