"""What random walks through an environment show of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from offpcc.domains.findings import FAULT, NOTE, OK, WARNING, Finding
from offpcc.domains.making import OLD_GYM
from offpcc.domains.walk import LONGEST_EPISODE, Watch

__all__ = ["MEND", "TROUBLES", "as_made", "box_in_words", "watched"]

MEND = "mend reset(*, seed=None, options=None) and step(action), which are called as gymnasium.Env defines them"
LIMIT = (
    f"give it an end of at most {LONGEST_EPISODE:,} steps by gymnasium.wrappers.TimeLimit, or by max_episode_steps "
    "when registering it"
)
TRUNCATE = (
    "after a time limit values go on: return terminated=False, and leave the limit to max_episode_steps when "
    "registering it"
)

# Each kind of trouble that a walk can note: whose check it is, its level, its remedy. Floats of another precision
# are converted on their way; a float in the place of a byte becomes 0.
TROUBLES = {
    "old interface": ("interface", FAULT, OLD_GYM),
    "broken": ("interface", FAULT, MEND),
    "shape": ("type", FAULT, "return what observation_space promises"),
    "bytes": ("type", FAULT, "return what observation_space promises"),
    "precision": ("type", WARNING, "return what observation_space promises; offpcc converts it"),
    "bounds": ("bounds", FAULT, "widen observation_space, or look for a number in other units"),
    "not finite": (
        "finite",
        FAULT,
        "look for a division by 0 or a simulation that diverges; end the episode before it",
    ),
    "overwritten": (
        "copies",
        WARNING,
        "return a copy; offpcc's agents make their own, other code and wrappers may not",
    ),
    "reward no number": ("reward", FAULT, "return a number: float(reward)"),
    "reward not finite": ("reward", FAULT, "look for a division by 0 or a logarithm of 0 in the reward"),
}


def watched(watch: Watch, limit: int | None) -> Iterable[Finding]:
    """What the longest walk shows; `limit` is the time limit, in steps."""
    space = watch.space
    has_reset = bool(watch.marks)
    yield _trouble(watch, "interface") or Finding("interface", OK, f"{watch.num_steps:,} random steps, no exception")
    if has_reset:
        agrees = f"observations are {space.dtype} of shape {space.shape}, as their space says"
        yield _trouble(watch, "type") or Finding("type", OK, agrees)
        inside = f"observations from {watch.lowest:.4g} to {watch.highest:.4g}, inside their space"
        yield _trouble(watch, "bounds") or Finding("bounds", OK, inside)
        yield _trouble(watch, "finite") or Finding("finite", OK, "no NaN and no infinity in observations")
        yield _trouble(watch, "copies") or Finding("copies", OK, "observations stay as they were returned")
    if watch.num_steps:
        yield _trouble(watch, "reward") or _reward(watch.rewards)
    if not watch.is_broken:
        yield _episodes(watch, limit)


def as_made(watch: Watch, known: set[str], env: gymnasium.Env[Any, Any]) -> Finding:
    """What is odd about the environment as offpcc makes it, but not as Gymnasium does."""
    for kind, (_, level, remedy) in TROUBLES.items():
        if kind in watch.troubles and kind not in known:
            return Finding("wrapped", level, f"as offpcc makes it, {watch.troubles[kind]}", remedy)
    return Finding(
        "wrapped", OK, f"agents see {box_in_words(env.observation_space)} and act {box_in_words(env.action_space)}"
    )


def box_in_words(space: gymnasium.Space[Any]) -> str:
    """Shape, type and bounds of a Box."""
    assert isinstance(space, Box)
    same = np.unique(space.low).size == np.unique(space.high).size == 1
    bounds = f"[{space.low.min():.4g}, {space.high.max():.4g}]"
    return f"{space.shape} {space.dtype} {'in' if same else 'within'} {bounds}"


def _trouble(watch: Watch, check: str) -> Finding | None:
    for kind, (whose, level, remedy) in TROUBLES.items():
        if whose == check and kind in watch.troubles:
            return Finding(check, level, watch.troubles[kind], remedy)
    return None


def _reward(rewards: list[float]) -> Finding:
    lowest, highest = min(rewards), max(rewards)
    if lowest == highest:
        remedy = "fine if random actions cannot reach what is rewarded; else there is nothing to learn"
        return Finding("reward", WARNING, f"always {lowest:.4g}, in {len(rewards):,} steps", remedy)
    return Finding("reward", OK, f"from {lowest:.4g} to {highest:.4g}, mean {np.mean(rewards):.4g}")


def _episodes(watch: Watch, limit: int | None) -> Finding:
    ends = watch.ends
    if limit is not None and limit > LONGEST_EPISODE:
        return Finding("episodes", FAULT, f"a time limit of {limit:,} steps", LIMIT)
    if limit is None and watch.length >= LONGEST_EPISODE:
        return Finding("episodes", FAULT, f"one has not ended within {watch.length:,} steps", LIMIT)
    if not ends:
        return Finding("episodes", OK, f"none ended within {watch.num_steps:,} steps; the time limit is {limit:,}")
    num_terminated, num_both = (
        sum(end.terminated for end in ends),
        sum(end.terminated and end.truncated for end in ends),
    )
    text = (
        f"{len(ends)} ended, {num_terminated} by termination; "
        f"mean length {np.mean([end.length for end in ends]):.1f}, "
        f"mean return {np.mean([end.episode_return for end in ends]):.4g}"
    )
    # Episodes of one step are a task of their own kind, with nothing to cut short.
    for length in {limit, ends[0].length} - {None, 1}:
        of_length = [end for end in ends if end.length == length]
        is_suspect = length == limit or len(of_length) == len(ends)
        # What a last step decides, such as a choice after a corridor of one length, is an end of the task.
        decided = all(end.is_decided for end in of_length)
        if is_suspect and len(of_length) > 1 and all(end.terminated for end in of_length) and not decided:
            told_of = f"{len(of_length)} episodes lasted {length} steps, and all of these are `terminated`"
            return Finding("episodes", FAULT, f"a time limit told as a termination? {told_of}; {text}", TRUNCATE)
    if num_both:
        remedy = "agents take that as a termination"
        return Finding("episodes", NOTE, f"{num_both} both terminated and truncated; {text}", remedy)
    return Finding("episodes", OK, text)
