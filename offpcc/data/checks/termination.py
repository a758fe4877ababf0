"""Compares recorded terminals with the termination rule of a known task."""

from collections.abc import Iterable

import numpy as np

from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.dataset import Dataset
from offpcc.envs.termination import ROUNDING, find_rule
from offpcc.utils.findings import NOTE, OK, WARNING, Finding


def terminals(data: Dataset, names: Iterable[str]) -> list[Finding]:
    """Find terminals at states where the task continues, and steps into terminal states that are not terminals.

    The result is empty if none of the names, the most reliable first, belongs to a known task, or if the observations
    do not contain what its rule needs.
    """
    known = ((name, rule) for name in names if (rule := find_rule(name, data.observations.shape[1:])) is not None)
    name, rule = next(known, ("", None))
    if rule is None:
        return []
    is_last, last = np.zeros(data.num_steps, np.bool_), data.stops - 1
    is_last[last] = True
    terminated = data.terminations[last]
    is_known = terminated & (_has_true_end(data, terminated) if rule.sizes else True)
    goes_on = is_known & rule.is_within(data.final_observations)
    # For a step inside an episode, the next observation is the following row.
    inside = np.flatnonzero(rule.margin(data.observations[1:])[~is_last[:-1]] < -ROUNDING)
    is_missed = ~terminated & data.last_is_transition & (rule.margin(data.final_observations) < -ROUNDING)
    missed = np.sort(np.concatenate([np.flatnonzero(~is_last)[inside], last[is_missed]]))
    found = []
    if goes_on.any():
        text = (
            f"terminals that lead to a state where {name} continues ({rule.text}): {goes_on.sum():,} of "
            f"{terminated.sum():,}, the first at step {last[goes_on][0]:,}"
        )
        remedy = (
            "values are not bootstrapped where the task continues: check whether the recorder dropped last steps, or "
            "recorded time limits as terminals; fine if the task had another rule"
        )
        level, is_imagined = WARNING, data.metadata.get("imagined")
        if isinstance(is_imagined, bool | np.bool_) and is_imagined:  # the rule has read the prediction
            level, remedy = NOTE, "a model moves imagined observations back into the range of its data"
        found.append(Finding("terminals", level, text, remedy))
    if len(missed):
        text = (
            f"steps that lead to a state where {name} ends (it continues while {rule.text}), but are not terminals: "
            f"{len(missed):,}, the first at step {missed[0]:,}"
        )
        remedy = "values are bootstrapped where the task ends: set terminals there; fine if the task had another rule"
        found.append(Finding("terminals", WARNING, text, remedy))
    if terminated.any() and not is_known.any():
        text = f"what they led to is unknown, so they are not compared with the rule of {name} ({rule.text})"
    else:
        text = f"they agree with the rule of {name} ({rule.text})"
    return found or [Finding("terminals", OK, text)]


def _has_true_end(data: Dataset, terminated: Array) -> Array:
    """Return for each episode whether its final observation is the true result of its last step, (E,).

    Otherwise it is the observation before that step, or the first observation of another episode, if the recorder read
    observations after resets.
    """
    final, last = data.final_observations, data.stops - 1
    is_next_start = (final[:-1] == data.observations[data.stops[:-1]]).all(axis=1)
    num_followed = terminated[:-1].sum()
    looks_after_resets = any(notice.kind == "resets" for notice in data.notices)
    if looks_after_resets or 2 * is_next_start[terminated[:-1]].sum() > num_followed:
        return np.zeros(data.num_episodes, np.bool_)
    has_moved: Array = (final != data.observations[last]).any(axis=1)
    return has_moved
