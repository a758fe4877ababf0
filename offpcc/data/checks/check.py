"""`offpcc check --dataset`: finds problems in recorded data that would harm training."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from offpcc.core import is_image
from offpcc.data.checks import env_fit, recommend, termination
from offpcc.data.checks import episodes as episode_findings
from offpcc.data.checks.episodes import (
    BEFORE_RESET,
    MARK_ENDS,
    SHUFFLED,
    SINGLE_STEPS,
    WITHOUT_ORDER,
    are_shuffled,
    length_notices,
)
from offpcc.data.checks.summary_stats import LARGEST_SAMPLE, Motion, Spread, by_column, is_constant, is_one_hot
from offpcc.data.datasets.columns import Array, Range, SpoiledData, check_room
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.metadata import if_valid, read_metadata_text, recorded_in
from offpcc.envs.d4rl.catalog import normalized_score, reference_returns
from offpcc.envs.wrapper_chain import name_of, time_limit_of
from offpcc.utils.errors import UserError
from offpcc.utils.findings import DARK, FAULT, LIGHTEN, NOTE, OK, WARNING, Diagnosis, Finding, unlike_scales
from offpcc.utils.spaces import MOST_CHOICES, DictShape, observed_shape
from offpcc.utils.system import available_bytes
from offpcc.utils.words import counted

BYTES_PER_STEP, COPIES_OF_ACTIONS, COPIES_OF_ENDS = 64, 4, 3  # the most memory of intermediate results
BATCH = 256  # default batch size; with fewer transitions, every batch contains some twice
FEW_EPISODES = 5  # agents with memory draw whole episodes; fewer show too little variety
LONGEST_NOTE = 200  # characters; longer metadata values are not shown
MOST_SHOWN = 20  # shares of discrete actions in a finding
# Errors of predicting rewards from their own step, relative to those from the step before. In recordings of 22 tasks,
# this was 1.7 or less, also with half of the columns; with the rewards a row late, it was above 4 in ten.
LATE = 3.0
UNFIT, FITS = 1e-3, 0.1  # the least of the first error and the most of the second: else both fit, or neither does
SPARSE = 0.99  # fraction of zero rewards; a batch of 256 then has only two or three others
NARROW = 0.1  # of the range; actions that stay below it are probably in other units
# If more than half of all numbers are at a bound, the likelihoods of a squashed policy are unreliable.
AT_BOUND, SATURATED = 0.999, 0.5
IN_PYTHON = "(in Python: from_arrays(action_range=...))"
FACTS = ("env", "algorithm", "algorithm_name", "actor", "model", "simulator", "note")

# Kind of notice -> (check, level, remedy).
NOTICES = {
    "choices": ("actions", NOTE, f"if they are not choices, bind dataset.action_range to their bounds {IN_PYTHON}"),
    "clipped": (
        "actions",
        WARNING,
        f"fine if the environment clipped them too; else bind dataset.action_range to its bounds {IN_PYTHON}",
    ),
    "off scale": (
        "actions",
        FAULT,
        f"they seem to be in other units: correct dataset.action_range {IN_PYTHON}, or the range in the data",
    ),
    "unknown range": ("actions", FAULT, ""),  # the text of the notice ends with the remedy
    "units": ("actions", OK, ""),
    "scaled": ("actions", NOTE, "fine if the recorded policy chose such small actions"),
    "jumps": (
        "jumps",
        WARNING,
        "fine if episodes were cut there without a flag; else look for rows that were lost or shuffled",
    ),
    "no next observations": ("jumps", NOTE, "fine; record next_observations to keep these steps"),
    "no time limits": ("ends", WARNING, MARK_ENDS),
    "time limit": ("ends", NOTE, ""),
    "both ends": ("ends", WARNING, ""),
    "single steps": ("ends", WARNING, SINGLE_STEPS),
    "resets": ("resets", NOTE, f"fine; to keep these steps, {BEFORE_RESET}"),
    "rewards": ("rewards", NOTE, "fine if they were recorded through the same wrapper"),
    "scales": ("observed", NOTE, "bind normalize_observations = True"),
    "whole numbers": ("observed", NOTE, "fine if they are numbers, such as counts"),
    "origins": ("source", WARNING, "fine if they are one task, such as two versions of it"),
    "rounded": ("observed", WARNING, ""),
    "remark": ("remark", NOTE, ""),
}


@dataclass(frozen=True, repr=False)
class Examination(Diagnosis):
    """Findings, statistics and recommendation of `examine_dataset`."""

    spreads: tuple[Spread, ...] = ()
    advice: tuple[Finding, ...] = ()  # what the recommendation rests on, and the recommendation last; () with a fault

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.findings, *self.advice, self.verdict)))

    @property
    def verdict(self) -> str:
        """One-line summary of all findings."""
        return super().verdict.replace("training in it", "training on it")


def refused(name: str, error: SpoiledData) -> Examination:
    """Return the diagnosis of data that cannot be used at all."""
    return Examination(name, (Finding("reading", FAULT, error.message),))


def images_in_memory() -> int | None:
    """Return how many bytes of images a check keeps in memory, for `load_dataset`; further ones are in a file.

    It makes one copy of them if the data hold states, and has other arrays. None if the free memory is not known.
    """
    available = available_bytes()
    return None if available is None else available // 3


def examine_dataset(data: Dataset, *, env: gymnasium.Env[Any, Any] | None = None) -> Examination:
    """Examine recorded data, for an environment to train for and to test in if one is given, made by `offpcc.make`.

    The current episode of `env` is lost. The data may contain parts of observations that its wrappers hide. If the
    data's name has no reference scores, the name of `env` gives them.
    """
    of_steps = data.num_steps * (BYTES_PER_STEP + COPIES_OF_ACTIONS * data.actions[:1].nbytes)
    of_ends = data.num_episodes * COPIES_OF_ENDS * data.observations[:1].nbytes
    check_room(of_steps + of_ends, f"{data.name}: intermediate results of a check of {data.num_steps:,} steps")
    bounds, recorded = env_fit.bounds_for(data, env), data
    data = data.as_numbers()
    notices = [*data.notices, *data.action_warnings(bounds), *length_notices(data.lengths)]
    notices += env_fit.without_channels(recorded) if env is None else env_fit.env_notices(data, env)
    noticed = defaultdict[str, list[Finding]](list)
    for kind, text in notices:
        check, level, remedy = NOTICES[kind]
        if kind == "single steps" and data.is_shuffled:
            level, remedy = NOTE, WITHOUT_ORDER
        elif kind == "single steps" and are_shuffled(data):
            remedy = SHUFFLED
        if kind == "unknown range":
            text, _, remedy = text.partition("; ")
        noticed[check].append(Finding(check, level, text, remedy))
    lengths, returns = Spread.of("episode length", data.lengths), Spread.of("episode return", data.returns)
    rewards = Spread.of("reward", data.rewards)
    entries, actions = _entries(recorded), by_column("action", data.actions)
    numbers = {key: by_column(repr(key) if key else "observation", entry) for key, entry in entries.items()}
    motion = Motion.of(data)
    findings = [
        _source(data),
        _size(recorded),
        *episode_findings.ends(data, motion, noticed.pop("ends", [])),
        episode_findings.time_limit(data, None if env is None else time_limit_of(env)),
        *noticed.pop("jumps", [Finding("jumps", OK, "next observations are the following rows")]),
        *noticed.pop("resets", []),
        *(episode_findings.followed(data, motion) if motion else []),
        *([*episode_findings.order(motion), episode_findings.leaps(motion)] if motion else []),
        *termination.terminals(data, _names(data, env)),
        Finding("lengths", OK, lengths.text),
        episode_findings.returns(data, returns),
        *_score(data, env),
        _rewards(data, rewards, recommend.reward_errors(data, bounds)),
        *noticed.pop("rewards", []),
        *_observed(recorded, data, entries, numbers, noticed.pop("observed", [])),
        *_actions(data, actions, noticed.pop("actions", []), bounds),
        episode_findings.copies(recorded),
        *(env_fit.fits(recorded, env) if env is not None else []),
        *(finding for left in noticed.values() for finding in left),
    ]
    advice: list[Finding] = []
    is_unclear = any(finding.level == FAULT for finding in findings) or _may_be_numbers(data, bounds)
    is_unclear |= data.num_transitions < BATCH  # statistics of so few say little
    if not is_unclear:  # else the data may say something else once corrected
        space = recorded.observation_space
        agents = recorded.without_states(images_in_memory()).as_numbers()
        is_vector = not is_image(agents.observations.shape[1:])
        num_hidden = agents.observations.shape[1] - _num_seen(env) if is_vector and env is not None else 0
        if num_hidden > 0 and space is None and env is not None:  # constants, as Ant's contact forces, tell nothing
            num_hidden = min(num_hidden, env_fit.count_hidden(recorded, env))
        sees_images = not is_vector or (space is not None and bool(space.unpacked_shape.images))
        advice = recommend.advise(agents, bounds, max(num_hidden, 0), sees_images)
    observed = [spread for spreads in numbers.values() for spread in spreads]
    spreads = lengths, returns, rewards, *observed, *actions
    return Examination(data.name, tuple(findings), spreads, tuple(advice))


def _num_seen(env: gymnasium.Env[Any, Any]) -> int:
    """Return how many numbers of its vectors an environment shows an agent."""
    shape = observed_shape(env.observation_space)
    return shape.num_numbers if isinstance(shape, DictShape) else math.prod(shape)


def _entries(data: Dataset) -> dict[str, Array]:
    """Return the entries of Dict observations by key; other observations under the key ""."""
    space = data.observation_space
    return {"": data.observations} if space is None else space.split(data.observations)


def _source(data: Dataset) -> Finding:
    try:
        recorded_in(data.metadata, data.name)
    except UserError as error:
        return Finding("source", FAULT, error.message)
    facts = {key: " ".join(_fact(data, key).split()) for key in FACTS}
    text = [f"{key}: {value}" for key, value in facts.items() if value and len(value) <= LONGEST_NOTE]
    return Finding("source", OK, "; ".join([data.source, *text]))


def _names(data: Dataset, env: gymnasium.Env[Any, Any] | None) -> list[str]:
    """Return the known names of the recorded task, the most reliable first; some may be empty."""
    names = [if_valid(recorded_in, data.metadata, data.name) or "", data.name, _fact(data, "env")]
    # A "healthy" argument changes the termination rule.
    if env is not None and not (env.spec and any("healthy" in key for key in env.spec.kwargs)):
        names.append(name_of(env))
    return names


def _fact(data: Dataset, key: str) -> str:
    """Return a text from the metadata; empty if it is missing or not a text."""
    return if_valid(lambda facts, name: read_metadata_text(facts, key, name), data.metadata, data.name) or ""


def _size(data: Dataset) -> Finding:
    text = f"{counted(data.num_steps, 'step')} in {counted(data.num_episodes, 'episode')}, "
    text += f"{counted(data.num_transitions, 'transition')}; {data.num_bytes:,} bytes"
    if data.num_transitions < BATCH:
        return Finding(
            "size",
            WARNING,
            f"{text}: fewer than a batch of {BATCH}",
            "record more steps; for so few there is no advice",
        )
    if data.num_episodes < FEW_EPISODES:
        remedy = "enough for a first try; record more for training, above all for agents with memory"
        return Finding("size", NOTE, text, remedy)
    return Finding("size", OK, text)


def _score(data: Dataset, env: gymnasium.Env[Any, Any] | None) -> list[Finding]:
    for name in (data.name, name_of(env) if env is not None else "", _fact(data, "env")):
        if reference_returns(name) is not None:
            score = normalized_score(name, float(data.whole_returns.mean()))
            recorded = _fact(data, "env")
            if reference_returns(recorded) not in (None, reference_returns(name)):
                text = f"the data was recorded in {recorded}, whose scores have other references than those of {name}"
                return [Finding("score", WARNING, text, "name the environment of the recording by --env")]
            return [Finding("score", OK, f"the mean return is D4RL's score {score:.1f}, by the references of {name}")]
    return []


def _rewards(data: Dataset, spread: Spread, errors: tuple[float, float] | None) -> Finding:
    """Check whether rewards are constant or sparse, or seem to be in the row after theirs; see `reward_errors`."""
    if spread.is_constant:
        if data.terminations.any():
            remedy = "fine if only the length of an episode matters"
            return Finding("rewards", NOTE, f"always {spread.lowest:.4g}", remedy)
        remedy = "all actions look equally good: only imitation (bc) learns from it"
        return Finding("rewards", WARNING, f"always {spread.lowest:.4g}, and no episode terminated", remedy)
    zeros = float((data.rewards == 0).mean())
    text = f"from {spread.lowest:.4g} to {spread.highest:.4g}, mean {spread.mean:.4g}, {zeros:.1%} of them 0"
    if zeros >= SPARSE:
        others = int(np.logical_or.reduceat(data.rewards != 0, data.starts).sum())
        hold = "hold" if data.num_episodes > 1 else "holds"
        text = f"{text}; {others:,} of {counted(data.num_episodes, 'episode')} {hold} others"
        return Finding("rewards", NOTE, text, "rewards are sparse: make sure that enough episodes reach one")
    if errors is not None and errors[0] > max(LATE * errors[1], UNFIT) and errors[1] < FITS:
        text = f"they fit the step before better than their own (errors of {errors[1]:.2%} and {errors[0]:.2%})"
        remedy = (
            "fine if the task gives rewards a step late; else each is in the row after its action, as in dm_env's time "
            "steps: move rewards up by one row within each episode"
        )
        return Finding("rewards", WARNING, text, remedy)
    return Finding("rewards", OK, text)


def _observed(
    recorded: Dataset,
    data: Dataset,
    entries: Mapping[str, Array],
    spreads: Mapping[str, Sequence[Spread]],
    noticed: Sequence[Finding],
) -> list[Finding]:
    """Check for what never changes, for dark images and for columns of very different scales."""
    found, shape = [*noticed], data.observations.shape[1:]
    if is_one_hot(data.observations) and (seen := int((data.observations.max(0) > 0).sum())) > 1:
        text = f"observations are one-hot vectors of {shape[0]:,} states; {seen:,} of them occur"
        return [*found, Finding("observed", OK, text)]
    space = recorded.observation_space
    for key, entry in entries.items():
        name, is_still = f"{key!r}: " if key else "", is_image(entry.shape[1:]) and bool(key) and is_constant(entry)
        text = "no pixel ever changes" if is_still else _constant(spreads[key], "number" if key else "column")
        if text:
            remedy = (
                "remove them from the data, or with DropIndices and --env; agents with normalised observations do not "
                "see them"
            )
            if key:
                remedy = "remove them from the data; agents with normalised observations do not see such numbers"
            found.append(Finding("observed", WARNING, f"{name}{text}", remedy))
        elif is_image(entry.shape[1:]) and entry.dtype == np.uint8 and spreads[key][0].highest <= 1:
            found.append(Finding("observed", WARNING, f"{name}{DARK}", LIGHTEN))
    if not is_image(shape):
        most_rows = max(LARGEST_SAMPLE // math.prod(shape), 1)
        sample = data.observations[:: math.ceil(len(data.observations) / most_rows)].reshape(-1, math.prod(shape))
        # Column by column, because a float64 copy of all would take twice the memory of the observations.
        mean, std = (
            np.array([measure(column, dtype=np.float64) for column in sample.T]).reshape(shape)
            for measure in (np.mean, np.std)
        )
        if text := unlike_scales(mean, std, [] if space is None else space.unpacked_shape.number_names):
            remedy = (
                "all but ddpg, td3 and sac normalise by default; for these, and where a config has it False, bind "
                "normalize_observations, such as SAC.normalize_observations = True"
            )
            found.append(Finding("observed", NOTE, text, remedy))
    shown = []
    for key, entry in entries.items():
        low, high = min(spread.lowest for spread in spreads[key]), max(spread.highest for spread in spreads[key])
        name = f"{key!r} is" if key else "observations are"
        shown.append(f"{name} {entry.dtype} of shape {entry.shape[1:]}, from {low:.4g} to {high:.4g}")
    return found or [Finding("observed", OK, "; ".join(shown))]


def _constant(spreads: Sequence[Spread], noun: str) -> str:
    """Return a text such as "2 of 3 columns never change (0 to 1)"; "" if all change."""
    places = [place for place, spread in enumerate(spreads) if spread.is_constant]
    if not places:
        return ""
    starts = [place for place in places if place - 1 not in places]
    stops = [place for place in places if place + 1 not in places]
    runs = [f"{i}" if i == j else f"{i} to {j}" for i, j in zip(starts, stops, strict=True)]
    some = f"{len(places):,} of {counted(len(spreads), noun)}"
    return f"{some} never change{'s' if len(places) == 1 else ''} ({', '.join(runs)})"


def _may_be_numbers(data: Dataset, action_bounds: Range | None) -> bool:
    """Check whether discrete actions of unknown number are so many that they may be continuous."""
    if not data.discrete_actions or data.action_range is not None or action_bounds is not None:
        return False
    return data.choices()[1] > MOST_CHOICES


def _actions(
    data: Dataset, spreads: Sequence[Spread], noticed: Sequence[Finding], action_bounds: Range | None
) -> list[Finding]:
    """Check whether actions have the kind and the units that agents expect. The result includes `noticed`."""
    found = [*noticed]
    if data.discrete_actions:
        first, num = data.choices(action_bounds)
        if _may_be_numbers(data, action_bounds):
            text = f"whole numbers from {first} to {first + num - 1}, which are taken for {num:,} choices"
            remedy = (
                f"if they are continuous, bind dataset.action_range to their bounds {IN_PYTHON}; if they are choices, "
                f"name the environment with --env"
            )
            return [Finding("actions", WARNING, text, remedy)]
        shares = np.bincount(data.actions[:, 0].astype(np.int64) - first, minlength=num) / data.num_steps
        shown = [f"{share:.1%}" for share in shares[:MOST_SHOWN]] + ["..."] * (num > MOST_SHOWN)
        text = f"{num:,} discrete ones from {first} on, with shares of {', '.join(shown)}"
        if not shares.all():
            remedy = (
                f"the value of {first + int(shares.argmin())} is unknown, so take an algorithm such as dcql or dbcq"
            )
            lacking = int((shares == 0).sum())
            return [*found, Finding("actions", NOTE, f"the data lack {lacking:,} of them: {text}", remedy)]
        return found or [Finding("actions", OK, text)]
    low, high = data.actions.min(), data.actions.max()
    may_be_choices = action_bounds is None and 0.0 <= low < high  # bang-bang actions are below 0, too
    if may_be_choices and (choices := env_fit.as_choices(data.actions)):
        text, remedy = choices
        found.append(Finding("actions", NOTE, f"numbers, {text}", f"{remedy} if they are"))
    if text := _constant(spreads, "number"):
        remedy = "an agent cannot learn what they do; remove them from the action"
        found.append(Finding("actions", WARNING, text, remedy))
    sizes, number = np.abs(data.unit_actions(action_bounds)), data.actions.shape[1]
    at_bound, furthest = float((sizes >= AT_BOUND).mean()), float(sizes.max())
    text = (
        f"{number} number{'' if number == 1 else 's'}, from {low:.4g} to {high:.4g}, {at_bound:.1%} of them at a bound"
    )
    if furthest < NARROW:
        remedy = f"if the recorder had other bounds, bind dataset.action_range to them {IN_PYTHON}"
        found.append(Finding("actions", NOTE, f"none is beyond {furthest:.1%} of the way to a bound; {text}", remedy))
    if at_bound > SATURATED and not any(finding.level == FAULT for finding in noticed):  # else the bounds are wrong
        remedy = "likelihoods of actions are unreliable there; td3_bc uses none and is safer"
        found.append(Finding("actions", NOTE, text, remedy))
    return found if any(finding.level != OK for finding in found) else [*found, Finding("actions", OK, text)]
