"""A doctor for recorded data: what would spoil learning from it, found before a run is spent on it."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from offpcc.d4rl_names import max_episode_steps, normalized_score, reference_returns
from offpcc.data.columns import Array
from offpcc.data.datasets import Dataset
from offpcc.data.motion import Motion
from offpcc.data.spreads import Spread, by_column
from offpcc.domains.doctor import FAULT, NOTE, OK, WARNING, Diagnosis, Finding
from offpcc.errors import UserError

__all__ = ["Examination", "examine", "refused"]

BATCH = 256  # transitions of a batch by default: with fewer, each draws some of them twice
FEW_EPISODES = 5  # agents with memory draw whole episodes, and so few show little of how they differ
OFTEN = 5.0  # times as many episodes end at the longest length as at another: lengths by chance thin out towards it
WILD = 10.0  # spreads of the middle half from it, of at least a tenth of the median: returns of replays stay within
SPARSE = 0.99  # of rewards are 0: a batch of 256 then holds but two or three others
UNLIKE = 1_000.0  # largest spread over smallest: networks that start alike for all columns hardly see the smaller
NARROW = 0.1  # actions that never use a tenth of their range are likelier in other units than that timid
AT_BOUND, SATURATED = 0.999, 0.5  # half of all numbers at a bound: a squashed policy's likelihoods say little there
LONGEST_NOTE = 200  # characters of what a file says of itself
FILE_TELLS = ("env", "algorithm", "algorithm_name", "actor", "simulator", "note")

MARK_ENDS = "record terminals, timeouts and next_observations; or bind recorded.max_episode_steps to the time limit"
TRUNCATE = "values go on after a time limit: set timeouts there and terminals to 0"
BEFORE_RESET = (
    "record the observation before the reset, which Gymnasium's vector environments keep in info['final_obs']"
)

# What the loader says of data, by words in it: whose check that is, its level, its remedy.
NOTICES = (
    (
        "actions are whole numbers",
        "actions",
        FAULT,
        "bind recorded.action_range to their bounds if they are no choices",
    ),
    (
        "actions lie outside",
        "actions",
        WARNING,
        "fine if the environment clipped them too; else bind recorded.action_range to its bounds",
    ),
    (
        "next_observations are not the following",
        "jumps",
        WARNING,
        "fine if episodes were cut there without a flag; else look for rows that were lost or shuffled",
    ),
    ("there are no next_observations", "jumps", NOTE, "fine; record next_observations to keep these steps"),
    ("episodes are cut after", "ends", NOTE, ""),
    ("there are no truncations", "ends", WARNING, MARK_ENDS),
)


@dataclass(frozen=True)
class Examination(Diagnosis):
    """What `examine` found, and the figures it was found by."""

    spreads: tuple[Spread, ...] = ()

    @property
    def verdict(self) -> str:
        """All findings in one line."""
        return super().verdict.replace("training in it", "training on it")


def refused(name: str, error: UserError) -> Examination:
    """The diagnosis of data that cannot be read."""
    return Examination(name, (Finding("reading", FAULT, error.message),))


def examine(
    data: Dataset,
    *,
    observation_shape: tuple[int, ...] | None = None,
    action_size: int | None = None,
    env: gymnasium.Env[Any, Any] | None = None,
) -> Examination:
    """Examines recorded data.

    Args:
        data: As `offpcc.data.loading.load` gives it.
        observation_shape: What an observation has to be like, where there is no environment.
        action_size: How many numbers an action has to have, where there is no environment.
        env: To test in, made by `offpcc.domains.making.make`. What its wrappers hide may have been recorded. Its name
            tells the references of scores where the data's does not.
    """
    shapes = [observation_shape] if observation_shape is not None else []
    if env is not None:
        shapes, action_size = _shapes(env), math.prod(env.action_space.shape or ())
    name = env.spec.id if env is not None and env.spec else "environment"
    limit = env.spec.max_episode_steps if env is not None and env.spec else None
    told = defaultdict[str, list[Finding]](list)
    for notice in data.notices:
        finding = _noticed(notice)
        told[finding.check].append(finding)
    lengths, returns = Spread.of("episode length", data.lengths), Spread.of("episode return", data.returns)
    rewards = Spread.of("reward", data.rewards)
    numbers, actions = by_column("observation", data.observations), by_column("action", data.actions)
    motion = Motion.of(data)
    findings = [
        _source(data),
        _size(data),
        *_or_fine("ends", _ends_text(data), [*told.pop("ends", []), *_ends(data, motion)]),
        _time_limit(data, limit),
        *_or_fine("jumps", "next observations are the following rows", told.pop("jumps", [])),
        *(_followed(data, motion) if motion else []),
        *([_unmarked(data, motion)] if motion else []),
        Finding("lengths", OK, _spread_text(lengths)),
        _returns(data, returns),
        *_score(data, name),
        _rewards(data, rewards),
        *_or_fine("observed", _range_text(data, numbers), _observed(numbers)),
        *_or_fine("actions", _action_text(data), [*told.pop("actions", []), *_actions(data, actions)]),
        _copies(data),
        *_sizes(data, shapes, action_size, name),
        *(finding for left in told.values() for finding in left),
    ]
    return Examination(data.name, tuple(findings), (lengths, returns, rewards, *numbers, *actions))


def _or_fine(check: str, fine: str, troubles: Sequence[Finding]) -> Sequence[Finding]:
    return troubles or [Finding(check, OK, fine)]


def _noticed(notice: str) -> Finding:
    for words, check, level, remedy in NOTICES:
        if words in notice:
            return Finding(check, level, notice, remedy)
    return Finding("remark", NOTE, notice)


def _few(places: Sequence[int] | Array) -> str:
    shown = ", ".join(f"{int(place):,}" for place in places[:3])
    return f"{shown} ..." if len(places) > 3 else shown


# Counts and ends ------------------------------------------------------------------------------------------------


def _source(data: Dataset) -> Finding:
    told = {key: " ".join(str(data.metadata[key]).split()) for key in FILE_TELLS if key in data.metadata}
    text = [f"{key}: {value}" for key, value in told.items() if value and len(value) <= LONGEST_NOTE]
    return Finding("source", OK, "; ".join([data.source, *text]))


def _size(data: Dataset) -> Finding:
    episodes = f"{data.num_episodes:,} episode{'s' * (data.num_episodes > 1)}"
    text = f"{data.num_steps:,} steps in {episodes}, {data.num_transitions:,} transitions; {data.num_bytes:,} bytes"
    if data.num_transitions < BATCH:
        return Finding("size", FAULT, f"{text}: less than a batch of {BATCH}", "record more steps")
    if data.num_episodes < FEW_EPISODES:
        remedy = "enough to try things out; record more to learn from, above all for agents with memory"
        return Finding("size", NOTE, text, remedy)
    return Finding("size", OK, text)


def _last_flags(data: Dataset) -> tuple[Array, Array]:
    """Whether each episode terminated, and whether it was cut."""
    return data.terminations[data.stops - 1], data.truncations[data.stops - 1]


def _ends_text(data: Dataset) -> str:
    terminated, truncated = _last_flags(data)
    only_cut, neither = (truncated & ~terminated).sum(), (~truncated & ~terminated).sum()
    ended = terminated.sum()
    return f"episodes: {ended:,} terminated, {only_cut:,} cut, {neither:,} ended with the recording only"


def _ends(data: Dataset, motion: Motion | None) -> list[Finding]:
    terminated, truncated = _last_flags(data)
    text, found = _ends_text(data), []
    if not (terminated | truncated).any():
        level = FAULT if motion and len(motion.far) else WARNING
        found.append(Finding("ends", level, f"nothing tells where an episode ends; {text}", MARK_ENDS))
    elif not terminated.any():
        remedy = "fine if the task has no end of its own; values are then bootstrapped everywhere"
        found.append(Finding("ends", NOTE, f"no termination; {text}", remedy))
    single = int((data.lengths == 1).sum())
    if 2 * single > data.num_episodes:
        remedy = "fine if the task takes one step; else look for flags that are inverted, or rows that were shuffled"
        found.append(Finding("ends", WARNING, f"{single:,} of {data.num_episodes:,} episodes last one step", remedy))
    if both := int((terminated & truncated).sum()):
        remedy = "agents take that as a termination"
        found.append(Finding("ends", NOTE, f"{both:,} episodes both terminated and cut; {text}", remedy))
    return found


def _time_limit(data: Dataset, limit: int | None) -> Finding:
    """Whether the longest episodes look as if a time limit had been recorded as the task's end."""
    terminated, truncated = _last_flags(data)
    longest = int(data.lengths.max())
    is_longest = data.lengths == longest
    num_ended = int((terminated & is_longest).sum())
    others = data.lengths[terminated & ~is_longest]
    usual = len(others) / len(np.unique(others)) if len(others) else 0.0
    is_spike = num_ended > len(others) or num_ended >= OFTEN * max(usual, 1.0)
    is_limit = longest in (limit, max_episode_steps(data.name))
    # Episodes of one step are a task of their own kind, with nothing to cut short.
    if longest > 1 and num_ended > 1 and terminated[is_longest].all() and (is_spike or is_limit):
        text = f"{num_ended:,} episodes last {longest:,} steps, none longer, and all of these are terminals"
        return Finding("limit", FAULT, f"a time limit recorded as the task's end? {text}", TRUNCATE)
    if limit is not None and longest > limit:
        text = f"episodes of up to {longest:,} steps, but the environment's time limit is {limit:,}"
        return Finding("limit", WARNING, text, "returns are those of longer episodes: compare tests with care")
    cut = data.lengths[truncated & ~terminated]
    if limit is not None and len(cut) and (cut == limit - 1).all():
        text = f"all {len(cut):,} cut episodes last {limit - 1:,} steps, but the environment's time limit is {limit:,}"
        return Finding("limit", NOTE, text, "the recorder dropped their last step; returns lack one reward")
    return Finding("limit", OK, f"the longest episode has {longest:,} steps, and its end is no time limit's terminal")


# How observations move ------------------------------------------------------------------------------------------


def _followed(data: Dataset, motion: Motion) -> list[Finding]:
    """What stands at the ends of episodes: resets in the place of last observations, ends where nothing ends."""
    terminated, truncated = (flags[:-1] for flags in _last_flags(data))
    is_cut = truncated & ~terminated
    ends = data.stops[:-1]
    is_near = (motion.across <= motion.usual) & motion.can_tell
    is_next = (data.final_observations[:-1] == data.observations[ends]).all(axis=1)
    is_reset = is_next & is_cut & data.last_is_transition[:-1]
    if 2 * int((is_reset & is_near).sum()) > is_reset.sum():  # the recording goes on there
        is_reset[:] = False
    found = []
    if resets := int(is_reset.sum()):
        text = (
            f"the last next_observation of {resets:,} of {is_cut.sum():,} cut episodes is the first observation of the "
            f"episode after it, so that values are bootstrapped across a reset"
        )
        remedy = f"{BEFORE_RESET}; or leave next_observations out"
        found.append(Finding("resets", WARNING, text, remedy))
    if (standing := _standing(data)) and 2 * standing > is_cut.sum():
        text = (
            f"the last next_observation of {standing:,} cut episodes is the observation itself, which had moved before"
        )
        found.append(Finding("resets", NOTE, text, f"a step that stands still is learned from; {BEFORE_RESET}"))
    for flags, level, kind, remedy in (
        (terminated, WARNING, "terminated", "values are cut where the task goes on: flag terminals where it ends only"),
        (is_cut, NOTE, "cut", "these are pieces of longer episodes; agents with memory start each without a memory"),
    ):
        near = int((is_near & flags).sum())
        if near > 1 and 2 * near > flags.sum():
            text = f"{near:,} of {flags.sum():,} {kind} episodes go on in the next one, by a step like any other"
            found.append(Finding("continues", level, text, remedy))
    return found if found or not len(ends) else [Finding("continues", OK, "what follows an episode's end starts anew")]


def _standing(data: Dataset) -> int:
    """Cut episodes whose last step leads to its own observation, though the one before moved."""
    terminated, _ = _last_flags(data)
    last = data.stops - 1
    chosen = ~terminated & data.last_is_transition & (data.lengths > 1)
    stays = (data.final_observations == data.observations[last]).all(axis=1)
    moved = (data.observations[last] != data.observations[last - 1]).any(axis=1)
    return int((chosen & stays & moved).sum())


def _unmarked(data: Dataset, motion: Motion) -> Finding:
    if len(motion.far):
        text = (
            f"after {len(motion.far):,} steps inside episodes ({_few(motion.far)}) observations leap, up to "
            f"{motion.leap:.3g} times as far as nine steps in ten"
        )
        remedy = "fine if the task does that; else ends of episodes are not marked, or rows are missing"
        return Finding("leaps", WARNING, text, remedy)
    return Finding("leaps", OK, f"no step is longer than {motion.leap:.3g} times what nine in ten stay below")


# Figures --------------------------------------------------------------------------------------------------------


def _spread_text(spread: Spread) -> str:
    return f"from {spread.lowest:,.5g} to {spread.highest:,.5g}, median {spread.median:,.5g}, mean {spread.mean:,.5g}"


def _returns(data: Dataset, spread: Spread) -> Finding:
    text = _spread_text(spread)
    reach = WILD * max(spread.three_quarters - spread.quarter, 0.1 * abs(spread.median))
    wild = np.flatnonzero((data.returns < spread.quarter - reach) | (data.returns > spread.three_quarters + reach))
    if len(wild):
        remedy = "look at these episodes; scaling by the range of returns hangs on them"
        return Finding("returns", NOTE, f"{len(wild):,} far from the others (episodes {_few(wild)}); {text}", remedy)
    return Finding("returns", OK, text)


def _score(data: Dataset, env: str) -> list[Finding]:
    for name in (data.name, env, str(data.metadata.get("env", ""))):
        if reference_returns(name) is not None:
            score = normalized_score(name, float(data.returns.mean()))
            return [Finding("score", OK, f"the mean return is D4RL's score {score:.1f}, by the references of {name}")]
    return []


def _rewards(data: Dataset, spread: Spread) -> Finding:
    if spread.is_constant:
        if data.terminations.any():
            remedy = "fine if only how long an episode lasts matters"
            return Finding("rewards", NOTE, f"always {spread.lowest:.4g}", remedy)
        remedy = "nothing tells good from bad: only imitation (bc) learns from it"
        return Finding("rewards", WARNING, f"always {spread.lowest:.4g}, and no episode terminated", remedy)
    zeros = float((data.rewards == 0).mean())
    text = f"from {spread.lowest:.4g} to {spread.highest:.4g}, mean {spread.mean:.4g}, {zeros:.1%} of them 0"
    if zeros >= SPARSE:
        others = int(np.logical_or.reduceat(data.rewards != 0, data.starts).sum())
        text = f"{text}; {others:,} of {data.num_episodes:,} episodes hold others"
        return Finding("rewards", NOTE, text, "sparse: see that enough episodes reach what is rewarded")
    return Finding("rewards", OK, text)


def _range_text(data: Dataset, spreads: Sequence[Spread]) -> str:
    shape, bounds = data.observations.shape[1:], (min(s.lowest for s in spreads), max(s.highest for s in spreads))
    return f"observations are {data.observations.dtype} of shape {shape}, from {bounds[0]:.4g} to {bounds[1]:.4g}"


def _observed(spreads: Sequence[Spread]) -> list[Finding]:
    found = []
    if constant := [place for place, spread in enumerate(spreads) if spread.is_constant]:
        text = f"{len(constant):,} of {len(spreads):,} columns never change ({_runs(constant)})"
        remedy = "hide them by DropIndices, unless the environment of the tests shows the same numbers there"
        found.append(Finding("observed", WARNING, text, remedy))
    moving = [spread for spread in spreads if not spread.is_constant]
    if moving:
        small, large = min(moving, key=lambda s: s.std), max(moving, key=lambda s: s.std)
        if large.std > UNLIKE * small.std:
            text = f"{large.what} spreads by {large.std:.3g}, but {small.what} by {small.std:.3g} only"
            remedy = "bind ActorCritic.normalize_observations = True"
            found.append(Finding("observed", NOTE, text, remedy))
    return found


def _runs(places: Sequence[int]) -> str:
    """0, 1, 2, 5 -> 0 to 2, 5."""
    starts = [place for place in places if place - 1 not in places]
    stops = [place for place in places if place + 1 not in places]
    runs = zip(starts, stops, strict=True)
    return ", ".join(f"{start}" if start == stop else f"{start} to {stop}" for start, stop in runs)


def _action_text(data: Dataset) -> str:
    at_bound = float((np.abs(data.actions) >= AT_BOUND).mean())
    lowest, highest = data.actions.min(), data.actions.max()
    return f"{data.actions.shape[1]} numbers, from {lowest:.4g} to {highest:.4g}, {at_bound:.1%} of them at a bound"


def _actions(data: Dataset, spreads: Sequence[Spread]) -> list[Finding]:
    if data.discrete_actions:
        return []
    found = []
    if stuck := [place for place, spread in enumerate(spreads) if spread.is_constant]:
        text = f"{len(stuck)} of {len(spreads)} numbers never change ({_runs(stuck)})"
        remedy = "nothing can be learned of what they do; leave them out of the action"
        found.append(Finding("actions", WARNING, text, remedy))
    if (far := float(np.abs(data.actions).max())) < NARROW:
        remedy = "if the recorder had other bounds than [-1, 1], bind recorded.action_range to them"
        found.append(Finding("actions", NOTE, f"none is beyond {far:.4g}; {_action_text(data)}", remedy))
    if float((np.abs(data.actions) >= AT_BOUND).mean()) > SATURATED:
        remedy = "likelihoods of actions say little there: td3_bc, which takes none, is the safer choice"
        found.append(Finding("actions", NOTE, _action_text(data), remedy))
    return found


def _copies(data: Dataset) -> Finding:
    first: dict[bytes, int] = {}
    copies = []
    for episode, (start, stop) in enumerate(data.episodes):
        content = data.observations[start:stop].tobytes() + data.actions[start:stop].tobytes()
        digest = hashlib.blake2b(content).digest()
        if first.setdefault(digest, episode) != episode:
            copies.append((episode, first[digest]))
    if copies:
        example = "episode {:,} is {:,}".format(*copies[0])
        text = f"{len(copies):,} of {data.num_episodes:,} episodes repeat another ({example})"
        return Finding("copies", WARNING, text, "leave them out, for they count twice")
    return Finding("copies", OK, "no episode is there twice")


# The environment ------------------------------------------------------------------------------------------------


def _shapes(env: gymnasium.Env[Any, Any]) -> list[tuple[int, ...]]:
    """Shapes of observations at each level, from the inside out."""
    shapes = [tuple(env.observation_space.shape or ())]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        shapes.insert(0, tuple(env.observation_space.shape or ()))
    return list(dict.fromkeys(shapes))


def _sizes(data: Dataset, shapes: list[tuple[int, ...]], action_size: int | None, name: str) -> list[Finding]:
    found, fine = [], []
    shape, actions = data.observations.shape[1:], data.actions.shape[1]
    if shapes:
        known = " or ".join(map(str, shapes))
        is_ant = shape == (111,) and (27,) in shapes and re.search("ant", name, re.IGNORECASE)
        if shape not in shapes and not is_ant:
            text = f"observations have the shape {shape}, but {name} shows {known}"
            remedy = "name the environment it was recorded in, or one whose wrappers hide a part of that"
            found.append(Finding("env", FAULT, text, remedy))
        elif is_ant and shape not in shapes:
            fine.append(f"the first 27 of 111 numbers are {name}'s observation, the others contact forces")
        else:
            fine.append(f"observations of shape {shape} are {name}'s")
    if action_size is not None:
        if actions != action_size:
            text = f"actions have {actions} numbers, but {name} takes {action_size}"
            found.append(Finding("env", FAULT, text, "name the environment it was recorded in"))
        else:
            fine.append(f"actions of {actions} numbers are {name}'s")
    return list(_or_fine("env", ", ".join(fine), found)) if found or fine else []
