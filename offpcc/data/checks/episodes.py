"""Checks the episodes of recorded data: ends, time limits, resets, outliers, copies."""

import hashlib
from collections.abc import Sequence

import numpy as np

from offpcc.data.checks.summary_stats import Motion, Spread, is_binary
from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.notices import Notice
from offpcc.data.datasets.ogbench import GOES_ON
from offpcc.envs.d4rl.catalog import max_episode_steps
from offpcc.utils.findings import FAULT, NOTE, OK, WARNING, Finding

# Times the usual number of terminations at one length. So many at the longest length mean a time limit, because random
# lengths get rarer towards the longest one.
OFTEN = 5.0
NEARBY = 5  # lengths that are fewer steps shorter than the longest one are compared with it
MANY_LENGTHS = 10  # different lengths: with as many, lengths are taken to be random
WITHOUT_ORDER_FROM = 0.95  # `Motion.order`; fast recordings such as HalfCheetah's stay below 0.8
NEARLY_ALL = 0.9  # of the episodes last one step: too few others remain to train a memory
WILD = 10.0  # interquartile ranges, or tenths of the median, beyond the quartiles; returns of replay data stay within

SINGLE_STEPS = "fine if the task takes one step; else look for flags that are inverted, or rows that were shuffled"
SHUFFLED = (
    "nearly no row continues in the next one, so the rows seem to be shuffled: restore the order in which they were "
    "recorded"
)
WITHOUT_ORDER = (
    "these are transitions without order, for agents without memory; `offpcc convert rl-unplugged --ordered` gives "
    "whole episodes"
)
ONLY_OBSERVED = (
    "fine if an action of 0 ended the task; else these rows hold only the last observation, as in RLDS: give the rows "
    "before them, with one observation more, to Dataset.from_episodes"
)
MARK_ENDS = "record terminals, timeouts and next_observations; or bind dataset.max_episode_steps to the time limit"
TRUNCATE = "a time limit is not a termination, so values are bootstrapped: set timeouts there and terminals to 0"
BEFORE_RESET = (
    "record the observation before the reset, which Gymnasium's vector environments keep in info['final_obs']"
)


def length_notices(lengths: Array) -> list[Notice]:
    """Return a notice if nearly all episodes last one step, so that an agent with memory has nothing to remember."""
    single = int((lengths == 1).sum())
    if single < NEARLY_ALL * len(lengths):
        return []
    text = f"nearly all of the episodes are one step long ({single:,} of {len(lengths):,})"
    return [Notice("single steps", f"{text}, in which an agent with memory has nothing to remember")]


def are_shuffled(data: Dataset) -> bool:
    """Check whether nearly every next observation differs from the following row, and no termination explains it."""
    terminated, _ = _last_flags(data)
    elsewhere = data.final_observations[:-1] != data.observations[data.stops[:-1]]
    cut = elsewhere.any(axis=tuple(range(1, elsewhere.ndim))) & (data.last_is_transition & ~terminated)[:-1]
    has_jumps = any(notice.kind == "jumps" for notice in data.notices)
    return has_jumps and bool(cut.sum() >= NEARLY_ALL * data.num_steps)


def _last_flags(data: Dataset) -> tuple[Array, Array]:
    """Return two arrays (E,): whether each episode terminated, and whether it was cut."""
    return data.terminations[data.stops - 1], data.truncations[data.stops - 1]


def ends(data: Dataset, motion: Motion | None, noticed: Sequence[Finding]) -> list[Finding]:
    """Check how episodes end. The result includes `noticed`, from the data's notices."""
    terminated, truncated = _last_flags(data)
    only_cut, neither = (truncated & ~terminated).sum(), (~truncated & ~terminated).sum()
    text = f"episodes: {terminated.sum():,} terminated, {only_cut:,} cut, {neither:,} ended with the recording only"
    found = [*noticed]
    if not (terminated | truncated).any():
        level = FAULT if motion and len(motion.far) else WARNING
        found.append(Finding("ends", level, f"no episode has a recorded end; {text}", MARK_ENDS))
    elif not terminated.any():
        remedy = "fine if the task has no end of its own; values are then bootstrapped everywhere"
        found.append(Finding("ends", NOTE, f"no termination; {text}", remedy))
    if num_empty := _last_without_action(data):
        which = "terminal" if terminated.any() else "last"
        text = f"the actions and rewards of all {num_empty:,} {which} steps are 0, and of hardly any other step"
        found.append(Finding("ends", WARNING, text, ONLY_OBSERVED))
    single = int((data.lengths == 1).sum())
    if 2 * single > data.num_episodes and not length_notices(data.lengths):
        text = f"{single:,} of {data.num_episodes:,} episodes last one step"
        found.append(Finding("ends", WARNING, text, SINGLE_STEPS))
    is_told = any(notice.kind == "both ends" for notice in data.notices)
    if (both := int((terminated & truncated).sum())) and not is_told:
        remedy = "agents take that as a termination"
        found.append(Finding("ends", NOTE, f"{both:,} episodes both terminated and cut; {text}", remedy))
    return found or [Finding("ends", OK, text)]


def _last_without_action(data: Dataset) -> int:
    """Return how many last steps have zeros for action and reward, if all of them do but few other steps, else 0.

    If episodes terminated, only these count: files do not hold the last step of a cut one without its next observation.
    """
    is_empty = ~data.actions.any(axis=1) & (data.rewards == 0)
    terminated = _last_flags(data)[0]
    last = data.stops[terminated if terminated.any() else slice(None)] - 1
    is_rule = len(last) > 1 and is_empty[last].all() and is_empty.mean() < 2.0 * data.num_episodes / data.num_steps
    return len(last) if is_rule else 0


def time_limit(data: Dataset, limit: int | None) -> Finding:
    """Check whether a time limit was recorded as termination, and whether lengths fit the environment's `limit`."""
    terminated, truncated = _last_flags(data)
    longest = int(data.lengths.max())
    is_longest = data.lengths == longest
    num_ended = int((terminated & is_longest).sum())
    others = data.lengths[terminated & ~is_longest]
    usual = len(others) / len(np.unique(others)) if len(others) else 0.0
    if len(np.unique(others)) >= MANY_LENGTHS:  # where lengths are random, ends get rarer with the length
        window = max(longest // 10, NEARBY)
        usual = min(usual, (others >= longest - window).sum() / window)
    is_spike = num_ended > len(others) or num_ended >= OFTEN * max(usual, 1.0)
    is_limit = longest in (limit, max_episode_steps(data.name))
    # If all episodes last one step, no time limit has cut them: the task takes one step.
    ends_there = longest > 1 and num_ended > 1 and terminated[is_longest].all() and (is_spike or is_limit)
    # If only the last step brings a reward, in episodes of one length, the end belongs to the task.
    if ends_there and (len(others) or not _are_decided(data, is_longest)):
        text = f"{num_ended:,} episodes last {longest:,} steps, none longer, and all of these are terminals"
        return Finding("limit", FAULT, f"a time limit recorded as the task's end? {text}", TRUNCATE)
    if limit is not None and longest > limit:
        text = f"episodes of up to {longest:,} steps, but the environment's time limit is {limit:,}"
        remedy = "recorded returns are from longer episodes: be careful when you compare tests with them"
        return Finding("limit", WARNING, text, remedy)
    cut = data.lengths[truncated & ~terminated]
    if limit is not None and len(cut) and (cut == limit - 1).all():
        text = f"all {len(cut):,} cut episodes last {limit - 1:,} steps, but the environment's time limit is {limit:,}"
        return Finding("limit", NOTE, text, "the recorder dropped their last step; returns lack one reward")
    text = f"no time limit seems to be recorded as a terminal; the longest length is {longest:,}"
    return Finding("limit", OK, text)


def _are_decided(data: Dataset, chosen: Array) -> bool:
    """Check whether some of these episodes have rewards, and only in their last step."""
    last = data.rewards[data.stops[chosen] - 1]
    return bool(last.any() and (data.returns[chosen] == last).all())


def followed(data: Dataset, motion: Motion) -> list[Finding]:
    """Check the ends of episodes: a repeated last observation, or an episode that continues in the next one."""
    terminated, truncated = (flags[:-1] for flags in _last_flags(data))
    is_cut = truncated & ~terminated
    is_near = (motion.across <= motion.usual) & motion.can_tell
    if goes_on := any(notice.text == GOES_ON for notice in data.notices):
        terminated = np.zeros_like(terminated)  # the remark says it
    found = []
    # Unterminated episodes whose observation changes in the step before the last, but not in the last one.
    last = data.stops - 1
    stays = (data.final_observations == data.observations[last]).all(axis=1)
    moved = (data.observations[last] != data.observations[last - 1]).any(axis=1)
    is_known = ~_last_flags(data)[0] & data.last_is_transition & (data.lengths > 1)
    if (standing := int((is_known & stays & moved).sum())) and 2 * standing > is_cut.sum():
        text = (
            f"the last next_observation of {standing:,} cut episodes is the observation itself, which had moved before"
        )
        found.append(Finding("resets", NOTE, text, f"agents learn from steps without motion; {BEFORE_RESET}"))
    for flags, level, kind, remedy in (
        (
            terminated,
            WARNING,
            "terminated",
            "set terminals only where the task ends; values are not bootstrapped there",
        ),
        (
            is_cut,
            NOTE,
            "cut",
            "these are parts of longer episodes, and agents with memory start each with an empty memory; or flags mark "
            "first steps in place of last ones",
        ),
    ):
        near = int((is_near & flags).sum())
        if near > 1 and 2 * near > flags.sum():
            text = f"{near:,} of {flags.sum():,} {kind} episodes continue in the next one, after an ordinary step"
            found.append(Finding("continues", level, text, remedy))
    if found or goes_on or not len(is_cut):
        return found
    return [Finding("continues", OK, "no episode continues the one before it")]


def order(motion: Motion) -> list[Finding]:
    """Check whether rows are in the order of time. Shuffled rows are as far apart as random ones."""
    if motion.order < WITHOUT_ORDER_FROM:
        return []
    text = f"consecutive observations differ as much as random pairs (ratio {motion.order:.2f})"
    remedy = "fine if observations do not depend on earlier ones; else rows seem to be shuffled: restore their order"
    return [Finding("order", WARNING, text, remedy)]


def leaps(motion: Motion) -> Finding:
    """Check for leaps inside episodes, where the mark of an episode's end may be missing."""
    if len(motion.far):
        text = (
            f"after {len(motion.far):,} steps inside episodes ({_few(motion.far)}) observations leap, up to "
            f"{motion.leap:.3g} times the 90th percentile of the steps"
        )
        remedy = (
            "fine if the task does that; else ends of episodes are not marked, or rows are missing, or an angle jumps "
            "by a full turn: give its sine and cosine"
        )
        return Finding("leaps", WARNING, text, remedy)
    return Finding("leaps", OK, f"no step is longer than {motion.leap:.3g} times the 90th percentile of the steps")


def returns(data: Dataset, spread: Spread) -> Finding:
    """Check for episodes with far better or worse returns than the others."""
    text = spread.text
    reach = WILD * max(spread.three_quarters - spread.quarter, 0.1 * abs(spread.median))
    wild = np.flatnonzero((data.returns < spread.quarter - reach) | (data.returns > spread.three_quarters + reach))
    if len(wild) and reach:
        remedy = "check these episodes; scaling by the range of returns depends on them"
        return Finding("returns", NOTE, f"{len(wild):,} far from the others (episodes {_few(wild)}); {text}", remedy)
    return Finding("returns", OK, text)


def copies(data: Dataset) -> Finding:
    """Check for duplicate episodes."""
    digests = np.empty(data.num_episodes, np.uint64)
    for episode, (start, stop) in enumerate(zip(data.starts, data.stops, strict=True)):
        digest = hashlib.blake2b(digest_size=8)  # short, because there may be a million episodes
        for column in (data.observations, data.actions):
            digest.update(np.ascontiguousarray(column[start:stop]).data)
        digests[episode] = int.from_bytes(digest.digest(), "little")
    _, first, number = np.unique(digests, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[number] != np.arange(data.num_episodes))
    if len(again):
        example = f"episode {again[0]:,} is {first[number[again[0]]]:,}"
        text = f"{len(again):,} of {data.num_episodes:,} episodes repeat another ({example})"
        if is_binary(data.observations):
            return Finding("copies", NOTE, text, "fine in a task of few states, where equal episodes are likely")
        return Finding("copies", WARNING, text, "remove them, because they count twice")
    return Finding("copies", OK, "no episode occurs twice")


def _few(places: Sequence[int] | Array) -> str:
    return ", ".join(f"{int(place):,}" for place in places[:3]) + " ..." * (len(places) > 3)
