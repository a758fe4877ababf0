"""`offpcc check --env`: finds problems in an environment that would spoil learning, by random rollouts."""

import copy
import functools
import importlib.metadata
import itertools
import numbers
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from offpcc.envs.aliases import Array, Env
from offpcc.envs.faults import SPACE, UnfitError, format_env_error, kind_of
from offpcc.envs.guard import Inspection, opened
from offpcc.envs.make import DEFAULT_OPTIONS, EnvFunction, EnvOptions, env_label, make, spec_and_arguments
from offpcc.envs.registration import package_of
from offpcc.envs.rendering import backend
from offpcc.envs.unsuitable import OLD_GYM, cannot_be_made
from offpcc.envs.wrapper_chain import name_of, time_limit_of
from offpcc.envs.wrappers import bounds_of
from offpcc.utils.errors import UserError, format_error
from offpcc.utils.findings import DARK, FAULT, LIGHTEN, NOTE, OK, WARNING, Diagnosis, Finding, unlike_scales
from offpcc.utils.rng import same_global_generators, seed_global_generators
from offpcc.utils.spaces import (
    MAKE_IMAGE,
    OneHot,
    PackedDict,
    entries_of,
    has_images,
    images_read_as_vectors,
    is_image,
    one_hot,
    random_action,
)

LONGEST_EPISODE = 27_000  # steps; the length of Atari's longest episodes, which have 108,000 frames
ROUNDING = 1e-5  # relative to a bound; rounding to float32 may exceed a bound by this much
SIMULATORS = ("mujoco", "dm-control", "pybullet", "pybullet-envs-gymnasium", "ale-py")

OWN_GENERATOR = "draw all random numbers from self.np_random, after super().reset(seed=seed)"
CARRY_NOTHING = "keep no state from one episode to the next"
CORRECT = (
    "correct reset(*, seed=None, options=None) and step(action), which are called as gymnasium.Env defines them; if it "
    f"is of the old gym, {OLD_GYM}"
)
TRUNCATE = (
    "a time limit is not a termination: return terminated=False, and set the limit by max_episode_steps when "
    "registering it"
)

# Kinds of problems in a rollout: the check, the level and the remedy of each. A float of another precision is
# converted, so it is only a warning. A float where the space has bytes would become 0, so it is a fault.
PROBLEMS = {
    "broken": ("interface", FAULT, CORRECT),
    "shape": ("type", FAULT, SPACE),
    "bytes": ("type", FAULT, SPACE),
    "precision": ("type", WARNING, f"{SPACE}; offpcc converts it"),
    "bounds": ("bounds", FAULT, "widen observation_space, or look for a number in other units"),
    "not finite": (
        "finite",
        FAULT,
        "look for a division by 0 or a simulation that diverges; end the episode before it",
    ),
    "reward no number": ("reward", FAULT, "return a number: float(reward)"),
    "reward not finite": ("reward", FAULT, "look for a division by 0 or a logarithm of 0 in the reward"),
}


def examine_env(
    env: str | EnvFunction,
    num_steps: int = 2_000,
    seed: int = 0,
    longest_episode: int = LONGEST_EPISODE,
    options: EnvOptions = DEFAULT_OPTIONS,
) -> Diagnosis:
    """Examine an environment under random actions, both as Gymnasium makes it and as offpcc makes it.

    Args:
        env: A Gymnasium id, one of offpcc's own, or "module:id"; or a function or a class that makes the environment.
        num_steps: Environment steps of the longest rollout; each other rollout takes a quarter of them. Without a
            registered time limit, a rollout continues until two episodes have ended or one is too long.
        seed: Seed of the environment and of the actions.
        longest_episode: Environment steps; a longer episode is a fault.
        options: Arguments of `make`.
    """
    name = env if isinstance(env, str) else env_label(env)
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # Gymnasium warns of the same faults

        def make_wrapped(pack_observations: bool = True) -> Env:
            made = make(env, scale_actions=True, pack_observations=pack_observations, **options.values())
            return stack.enter_context(opened(made))

        def make_bare() -> Env:
            if isinstance(env, str):
                spec, given = spec_and_arguments(env, options.kwargs or {})
                made = gymnasium.make(spec, disable_env_checker=True, **given)
            else:
                made = env(**options.kwargs or {})
            return stack.enter_context(opened(made, options.timeout))

        try:
            wrapped, bare = make_wrapped(), make_bare()
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise cannot_be_made(name, error) from error
        make_other = make_bare
        if not _can_be_examined(bare):  # it needs gin's wrappers
            make_other = functools.partial(make_wrapped, pack_observations=False)
            bare = make_other()
        short = max(1, num_steps // 4)
        limit = time_limit_of(bare) or time_limit_of(wrapped)
        record = Rollout(bare, limit, num_steps, short, seed, longest_episode)
        findings = [_versions(), _spaces(bare), *_check_record(bare, record, limit)]
        if not record.is_broken:
            wrapped_record = Rollout(wrapped, time_limit_of(wrapped), short, 0, seed, longest_episode)
            findings += [
                *_check_wrapped(wrapped_record, record, wrapped),
                _guarded("seed", lambda: _check_seed(bare, make_other(), record.digests, seed)),
                _guarded("starts", lambda: _check_starts(bare, record.digests, seed)),
            ]
            if not wrapped_record.is_broken:
                is_finite = not {"not finite", "reward not finite"} & {kind for kind, _ in record.problems}
                findings += [
                    _guarded("resume", lambda: _check_resume(wrapped, make_wrapped(), short, seed)),
                    _check_actions(wrapped, seed, is_finite),
                    _guarded("speed", lambda: _measure_speed(wrapped, short, seed)),
                ]
    return Diagnosis(name, tuple(findings))


def _can_be_examined(env: Env) -> bool:
    observations, actions = env.observation_space, env.action_space
    if isinstance(observations, Dict):
        try:
            observations = PackedDict(observations)
        except UserError:
            return False
    is_bounded = isinstance(actions, Discrete) or (isinstance(actions, Box) and actions.is_bounded())
    return isinstance(observations, Box) and is_bounded


def _guarded(check: str, examination: Callable[[], Finding]) -> Finding:
    try:
        return examination()
    except BrokenEnvironment as broken:
        return Finding(check, FAULT, str(broken), CORRECT)


# Rollouts ---------------------------------------------------------------------------------------------------------

Digest = tuple[int, str, bool, bool]


class BrokenEnvironment(Exception):  # noqa: N818 (it is the environment that errs)
    """An environment raised, or returned something unreadable; the message says when and what."""


class Event(NamedTuple):
    """Return values of a reset or a step; a reset has no reward."""

    when: str
    observation: Any
    reward: Any = None
    terminated: bool = False
    truncated: bool = False
    is_reset: bool = False

    @property
    def digest(self) -> Digest:
        """Checksum, reward and flags; equal for events that agree to the last bit."""
        checksum = 0
        for _, value in sorted(_entries(self.observation).items()):
            checksum = zlib.crc32(np.asarray(value).tobytes(), checksum)
        return checksum, repr(self.reward), self.terminated, self.truncated


def _entries(observation: Any) -> dict[str, Any]:
    """Return the entries of a Dict observation by key; any other observation under the key ""."""
    return dict(entries_of(observation)) if isinstance(observation, Mapping) else {"": observation}


class End(NamedTuple):
    """The end of an episode."""

    length: int  # environment steps
    episode_return: float
    terminated: bool
    truncated: bool
    is_decided: bool  # no step before the last brought a reward


def roll_out(env: Env, seed: int | None, actions_seed: int, always: Any = None) -> Iterator[Event]:
    """Yield the events of resets and random steps, episode after episode, without end.

    Actions are a bounded Box, or Discrete. `seed` is that of the first reset; None continues with the environment's
    generator. With `always`, each step takes this action.

    Raises:
        BrokenEnvironment: The environment raised, or its return values do not follow Gymnasium's interface.
    """
    space = env.action_space
    assert isinstance(space, Box | Discrete)
    generator = np.random.default_rng(actions_seed)
    for episode in itertools.count(1):
        yield _event(f"the reset of episode {episode}", 2, env.reset, seed=seed)
        seed = None
        for step in itertools.count(1):
            if always is not None:
                action = copy.copy(always)  # an environment may change it in place
            elif isinstance(space, OneHot):
                action = random_action(space, generator)
            elif isinstance(space, Discrete):
                action = space.start + generator.integers(space.n)
            else:
                action = generator.uniform(space.low, space.high).astype(space.dtype)
            event = _event(f"step {step} of episode {episode}", 5, env.step, action)
            yield event
            if event.terminated or event.truncated:
                break


def _event(when: str, num_values: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Event:
    try:
        returned = call(*args, **kwargs)
        if not isinstance(returned, tuple) or len(returned) != num_values:
            raise TypeError(f"it returned {kind_of(returned)}, not a tuple of {num_values}")
        observation, *others, info = returned
        if not isinstance(info, dict):
            raise TypeError(f"its info is {kind_of(info)}, not a dict")
        for value in _entries(observation).values():
            np.asarray(value)  # raises if it cannot become an array
        reward, terminated, truncated = others or (None, False, False)
        try:
            flags = Inspection.flag("terminated", terminated), Inspection.flag("truncated", truncated)
        except UnfitError as error:
            raise TypeError(f"it {error.what}; {error.remedy}") from None
        return Event(when, observation, reward, *flags, is_reset=not others)
    except (Exception, SystemExit) as error:
        raise BrokenEnvironment(f"{when} failed with {format_env_error(error)}") from error


class EntryStatistics:
    """What a rollout shows of one entry of a Dict observation, or of an observation that is no Dict, with the key "".

    Its space is a Box, Discrete, MultiDiscrete or MultiBinary. In messages, `name` is its name, and `of` follows a
    value.
    """

    def __init__(self, key: str, space: gymnasium.Space[Any]) -> None:
        self.key, self.space, self.shape = key, space, space.shape or ()
        self.name, self.of = (repr(key), f" for {key!r}") if key else ("observations", "")
        self.low: Array
        self.high: Array
        if isinstance(space, Box):
            self.low, self.high = space.low, space.high
        elif isinstance(space, Discrete | MultiDiscrete):
            self.low = np.asarray(space.start)
            self.high = self.low + (space.nvec if isinstance(space, MultiDiscrete) else space.n) - 1
        else:  # MultiBinary
            self.low, self.high = np.zeros(self.shape, np.int8), np.ones(self.shape, np.int8)
        self.lowest, self.highest = np.inf, -np.inf  # finite numbers
        self.first: Array | None = None
        self.changes = False
        self.count = 0  # of observations whose numbers are all finite
        self.sums = np.zeros((2, *self.shape))  # of the distances to the first observation, and of their squares

    @property
    def is_image(self) -> bool:
        """True if the networks read it as an image."""
        return self.space.dtype == np.uint8 and is_image(self.shape)

    @property
    def scales(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each number."""
        assert self.first is not None
        mean, square = self.sums / self.count
        return (self.first + mean).ravel(), np.sqrt(np.maximum(square - mean**2, 0.0)).ravel()

    def problems(self, value: Any) -> Iterator[tuple[str, str]]:
        """Add a value; yield the kind of each problem and what was returned."""
        array, space = np.asarray(value), self.space
        if isinstance(space, Box):
            is_other = not isinstance(value, np.ndarray | np.generic) or array.dtype != space.dtype
        else:
            is_other = array.dtype.kind not in "biu"
        if is_other:
            kind = "precision" if np.issubdtype(space.dtype, np.floating) else "bytes"
            yield kind, f"{kind_of(value)}{self.of}, its space says {space.dtype}"
        if array.shape != self.shape or array.dtype.kind not in "biuf":
            yield "shape", f"{kind_of(array)}{self.of}, its space says {self.shape}"
        else:
            yield from self._add(array)

    def _add(self, array: Array) -> Iterator[tuple[str, str]]:
        finite = np.isfinite(array)
        if not finite.all():
            yield "not finite", f"{_first_number(~finite, array)}{self.of}"
        if not finite.any():
            return
        self.lowest = min(self.lowest, float(array[finite].min()))
        self.highest = max(self.highest, float(array[finite].max()))
        if finite.all():
            self._count(array)
        for which, bound, sign in (("low", self.low, 1.0), ("high", self.high, -1.0)):
            size = np.abs(bound.astype(np.float64))
            slack = ROUNDING * np.maximum(1.0, np.where(np.isfinite(size), size, 0.0))
            if (outside := finite & (sign * array < sign * bound - slack)).any():
                text = f"{_first_number(outside, array)}{self.of}, whose {which} bound is {bound[outside][0]:.6g}"
                yield "bounds", text

    def _count(self, array: Array) -> None:
        self.count += 1
        if self.first is None:
            self.first = array.copy()
        self.changes |= not np.array_equal(array, self.first)
        if not self.is_image:
            distance = array.astype(np.float64) - self.first
            self.sums += distance, distance**2


class Rollout:
    """The record of a random rollout of `num_steps` steps or more, with the first problem of each kind.

    Without a registered time limit `limit`, the rollout continues until two episodes have ended, or one lasts
    `longest_episode` steps. The digests of the first `num_compared` steps are kept, to compare other rollouts with.
    """

    def __init__(
        self, env: Env, limit: int | None, num_steps: int, num_compared: int, seed: int, longest_episode: int
    ) -> None:
        space = env.observation_space
        self.is_dict, self.longest_episode = isinstance(space, Dict), longest_episode
        spaces = PackedDict(space).entries if isinstance(space, Dict) else {"": space}
        self.entries = {key: EntryStatistics(key, each) for key, each in spaces.items()}
        self.num_steps = self.length = 0  # of all episodes, and of the last one, which may be unfinished
        self.digests: list[Digest] = []
        self.ends: list[End] = []
        self.rewards: list[float] = []
        self.problems: dict[tuple[str, str], str] = {}  # when and what, by the kind in `PROBLEMS` and the entry's key
        self._return = 0.0
        try:
            for event in roll_out(env, seed, seed):
                if self.num_steps < num_compared:
                    self.digests.append(event.digest)
                self._add(event)
                has_ended = limit is not None or len(self.ends) >= 2 or self.length >= longest_episode
                if self.num_steps >= num_steps and has_ended:
                    break
        except BrokenEnvironment as broken:
            self._note("broken", str(broken))

    @property
    def is_broken(self) -> bool:
        """True if an error stopped the rollout."""
        return ("broken", "") in self.problems

    def _note(self, kind: str, text: str, key: str = "") -> None:
        self.problems.setdefault((kind, key), text)

    def findings(self, check: str) -> list[Finding]:
        """Return the first problem of each entry that belongs to a check."""
        found: dict[str, Finding] = {}
        for kind, (its_check, level, remedy) in PROBLEMS.items():
            for (of_kind, key), text in self.problems.items():
                if (its_check, kind) == (check, of_kind):
                    found.setdefault(key, Finding(check, level, text, remedy))
        return [*found.values()]

    def _add(self, event: Event) -> None:
        if event.is_reset:
            self.length, self._return = 0, 0.0
        else:
            self.num_steps, self.length = self.num_steps + 1, self.length + 1
            self._add_reward(event)
        if event.terminated or event.truncated:
            is_decided = _is_number(event.reward) and bool(event.reward == self._return)
            self.ends.append(End(self.length, self._return, event.terminated, event.truncated, is_decided))
        self._add_observation(event)

    def _add_reward(self, event: Event) -> None:
        if not _is_number(event.reward):
            self._note("reward no number", f"{event.when} gave {kind_of(event.reward)}")
            return
        reward = float(event.reward)
        if not np.isfinite(reward):
            self._note("reward not finite", f"{event.when} gave {reward}")
        self.rewards.append(reward)
        self._return += reward

    def _add_observation(self, event: Event) -> None:
        given = _entries(event.observation)
        for key, entry in self.entries.items():
            if key not in given:
                missing = f" without {key!r}" if key else f", its space says {entry.shape}"
                self._note("shape", f"{event.when} gave {kind_of(event.observation)}{missing}", key)
                continue
            for kind, text in entry.problems(given[key]):
                self._note(kind, f"{event.when} gave {text}", key)


def _first_number(where: Array, observation: Array) -> str:
    index = tuple(int(place) for place in np.argwhere(where)[0])
    at = f" at index {index[0] if len(index) == 1 else index}" if index else ""
    return f"{observation[index]:.6g}{at}"


def _is_number(reward: Any) -> bool:
    return isinstance(reward, numbers.Real | np.number | np.bool_)


# What one rollout shows -------------------------------------------------------------------------------------------


def _check_record(env: Env, record: Rollout, limit: int | None) -> Iterator[Finding]:
    """Yield the findings of the longest rollout; `limit` is the time limit in steps."""
    entries = [*record.entries.values()]
    if not (found := record.findings("interface")):
        found = [Finding("interface", OK, f"{record.num_steps:,} random steps, no exception")]
    yield from found
    if record.digests:
        agrees = f"{len(entries)} entries are as their spaces say"
        if not record.is_dict:
            agrees = f"observations are {entries[0].space.dtype} of shape {entries[0].shape}, as their space says"
        yield from record.findings("type") or [Finding("type", OK, agrees)]
        ranges = [f"{entry.name} from {entry.lowest:.4g} to {entry.highest:.4g}" for entry in entries]
        inside = f"{', '.join(ranges)}, inside their space{'s' * (len(entries) > 1)}"
        yield from record.findings("bounds") or [Finding("bounds", OK, inside)]
        yield from record.findings("finite") or [Finding("finite", OK, "no NaN and no infinity in observations")]
        yield from _check_entries(record)
    if record.num_steps:
        yield from record.findings("reward") or [_check_rewards(record.rewards)]
    if not record.is_broken:
        yield _check_episodes(env, record, limit)


def _check_entries(record: Rollout) -> Iterator[Finding]:
    """Yield findings about inputs that networks learn badly from: constant entries, dark images, very unlike scales."""
    seen = [entry for entry in record.entries.values() if entry.count > 1]
    for entry in seen:
        if not entry.changes:
            remedy = "fine if random actions cannot change it; else look for a camera or a sensor that is off"
            text = f"{entry.name} never change{'s' * record.is_dict} (from {entry.lowest:.4g} to {entry.highest:.4g})"
            yield Finding("observed", WARNING, text, remedy)
        elif entry.is_image and entry.highest <= 1 and ("bytes", entry.key) not in record.problems:
            yield Finding("observed", WARNING, f"{entry.name}: {DARK}", LIGHTEN)
    numbers = [entry for entry in seen if isinstance(entry.space, Box) and not entry.is_image]
    if record.is_dict and numbers:
        names = [f"{entry.name} {place}" for entry in numbers for place in range(entry.low.size)]
        mean, std = (np.concatenate(parts) for parts in zip(*(entry.scales for entry in numbers), strict=True))
        if text := unlike_scales(mean, std, names):
            remedy = "bind normalize_observations, such as SAC.normalize_observations = True"
            yield Finding("observed", NOTE, text, remedy)


def _check_wrapped(record: Rollout, bare: Rollout, env: Env) -> Iterator[Finding]:
    """Yield a problem that the environment has as offpcc makes it, but not as Gymnasium makes it."""
    known = {kind for kind, _ in bare.problems}
    if record.is_broken and any(key and PROBLEMS[kind][1] == FAULT for kind, key in bare.problems):
        return  # such an entry cannot be packed
    for kind, (_, level, remedy) in PROBLEMS.items():
        if (kind, "") in record.problems and kind not in known:
            yield Finding("wrapped", level, f"as offpcc makes it, {record.problems[kind, '']}", remedy)
            return
    text = f"agents see {_space_as_text(env.observation_space)} and act {_space_as_text(env.action_space)}"
    yield Finding("wrapped", OK, text)
    entries = getattr(env.observation_space, "entries", {})
    if {"achieved_goal", "desired_goal"} <= entries.keys() and hasattr(env.unwrapped, "compute_reward"):
        remedy = "if random actions seldom reach a goal, learn with HindsightReplayBuffer: `offpcc docs goals`"
        yield Finding("goals", NOTE, "observations have achieved_goal and desired_goal", remedy)


def _check_rewards(rewards: list[float]) -> Finding:
    lowest, highest = min(rewards), max(rewards)
    if lowest == highest:
        remedy = "fine if random actions cannot reach a reward; else there is nothing to learn"
        return Finding("reward", WARNING, f"always {lowest:.4g}, in {len(rewards):,} steps", remedy)
    return Finding("reward", OK, f"from {lowest:.4g} to {highest:.4g}, mean {np.mean(rewards):.4g}")


def _check_episodes(env: Env, record: Rollout, limit: int | None) -> Finding:
    """Return the finding about the ends of episodes."""
    ends, longest = record.ends, record.longest_episode
    end_it = (
        f"give it an end of at most {longest:,} steps by make.kwargs = {{'max_episode_steps': 1000}}, by "
        f"gymnasium.wrappers.TimeLimit, or by max_episode_steps when registering it"
    )
    if limit is not None and limit > longest:
        return Finding("episodes", FAULT, f"a time limit of {limit:,} steps", end_it)
    if limit is None and record.length >= longest:
        return Finding("episodes", FAULT, f"one has not ended within {record.length:,} steps", end_it)
    if not ends:
        return Finding("episodes", OK, f"none ended within {record.num_steps:,} steps; the time limit is {limit:,}")
    text = (
        f"{len(ends)} ended, {sum(end.terminated for end in ends)} by termination; "
        f"mean length {np.mean([end.length for end in ends]):.1f}, "
        f"mean return {np.mean([end.episode_return for end in ends]):.4g}"
    )
    # Tasks with episodes of one step are valid: a time limit has nothing to cut there.
    for length in {limit or 1, ends[0].length} - {1}:
        of_length = [end for end in ends if end.length == length and np.isfinite(end.episode_return)]
        is_suspect = length == limit or len(of_length) == len(ends)
        # If only the last step brings a reward, in episodes of one length, the end belongs to the task. An example is a
        # choice after a corridor of fixed length.
        has_rewards = any(end.episode_return for end in of_length)
        have_one_length = not any(end.terminated and end.length != length for end in ends)
        is_decided = has_rewards and have_one_length and all(end.is_decided for end in of_length)
        is_ended = len(of_length) > 1 and all(end.terminated for end in of_length)
        has_decks = package_of(name_of(env)) == "popgym"  # games of cards end with the last card
        if is_suspect and is_ended and not (has_decks or is_decided):
            ended = f"{len(of_length)} episodes lasted {length} steps, and all of these are `terminated`"
            suspicion = f"a time limit reported as a termination? {ended}; {text}"
            others = set[int]() if length == limit else _lengths_of_repeated_actions(env, length)
            if not others - {length}:
                return Finding("episodes", FAULT, suspicion, TRUNCATE)
            if max(others) < length:
                return Finding("episodes", WARNING, suspicion, f"fine if the task ends there; else {TRUNCATE}")
    if num_both := sum(end.terminated and end.truncated for end in ends):
        remedy = "agents take that as a termination"
        return Finding("episodes", NOTE, f"{num_both} both terminated and truncated; {text}", remedy)
    return Finding("episodes", OK, text)


def _lengths_of_repeated_actions(env: Env, length: int) -> set[int]:
    """Return the lengths of episodes of one repeated action; `length` + 1 stands for all that are longer."""
    space = env.action_space
    if isinstance(space, OneHot):
        repeated: list[Any] = [one_hot(choice, len(space.low)) for choice in (0, len(space.low) - 1)]
    elif isinstance(space, Box):
        repeated = [space.low, space.high]
    else:
        assert isinstance(space, Discrete)
        repeated = [space.start, space.start + space.n - 1]
    lengths = set()
    for action in repeated:
        with suppress(BrokenEnvironment):  # `_check_actions` reports it
            steps = itertools.islice(roll_out(env, 0, 0, action), 1, length + 1)
            ends = (step for step, event in enumerate(steps, 1) if event.terminated or event.truncated)
            lengths.add(next(ends, length + 1))
    return lengths


def _space_as_text(space: gymnasium.Space[Any]) -> str:
    if isinstance(space, PackedDict):
        return repr(space.unpacked_shape)
    if isinstance(space, OneHot):
        return str(space.discrete)
    if isinstance(space, Dict):
        return ", ".join(f"{key!r} {_space_as_text(entry)}" for key, entry in PackedDict(space).entries.items())
    if not isinstance(space, Box):
        return str(space)
    same = np.unique(space.low).size == np.unique(space.high).size == 1
    bounds = f"[{space.low.min():.4g}, {space.high.max():.4g}]"
    return f"{space.shape} {space.dtype} {'in' if same else 'within'} {bounds}"


def _versions() -> Finding:
    used = [package for package in SIMULATORS if package.replace("-", "_") in sys.modules]
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("gymnasium", *used)]
    return Finding("versions", OK, ", ".join(versions))


def _spaces(env: Env) -> Finding:
    actions = env.action_space
    assert isinstance(actions, Box | Discrete)
    text = f"observation {_space_as_text(env.observation_space)}; action {_space_as_text(actions)}"
    low, high = bounds_of(actions)
    fixed = np.flatnonzero(low == high)
    if fixed.size and isinstance(actions, Discrete):
        remedy = "an agent has nothing to choose: give action_space two actions or more"
        return Finding("spaces", WARNING, f"{low[0]:.0f} is the only action; {text}", remedy)
    if fixed.size:
        remedy = "leave it out of action_space, or give it different bounds"
        return Finding("spaces", WARNING, f"action {fixed[0]} can only be {low[fixed[0]]:.4g}; {text}", remedy)
    entries = PackedDict(env.observation_space).entries if isinstance(env.observation_space, Dict) else {}
    if read_as_vectors := images_read_as_vectors(entries):
        return Finding("spaces", WARNING, f"{read_as_vectors[0]}; {text}", MAKE_IMAGE)
    return Finding("spaces", OK, text)


# What other rollouts show -----------------------------------------------------------------------------------------


def _first_difference(events: Iterable[Event], digests: list[Digest]) -> str:
    """Return when a rollout first differs from the rollout of `digests`; an empty string if it does not."""
    return next((event.when for event, digest in zip(events, digests, strict=False) if event.digest != digest), "")


def _check_seed(env: Env, other: Env, digests: list[Digest], seed: int) -> Finding:
    """Check whether the same seed and actions repeat the rollout of `digests`, in another instance and in this one."""
    text = f"seed {seed} and the same actions give something else"
    if when := _first_difference(roll_out(other, seed, seed), digests):
        if _repeats_with_global_generators(env, other, len(digests), seed):
            text = f"seed {seed} repeats itself only if the global generators, such as np.random, are seeded, too"
            remedy = "whole runs repeat, as a run seeds them, but its test episodes differ; in your own code"
            return Finding("seed", WARNING, text, f"{remedy} {OWN_GENERATOR}")
        return Finding("seed", FAULT, f"{text} in a second instance from {when} on", OWN_GENERATOR)
    if when := _first_difference(roll_out(env, seed, seed), digests):
        return Finding("seed", WARNING, f"{text} in the same instance from {when} on", CARRY_NOTHING)
    return Finding("seed", OK, f"seed {seed} repeats itself to the last bit, in a second instance and in the same")


def _repeats_with_global_generators(env: Env, other: Env, num_events: int, seed: int) -> bool:
    """Check whether two instances give the same rollout if NumPy's, Python's and PyTorch's generators are seeded."""
    rollouts = []
    with same_global_generators():
        for instance in (env, other):
            seed_global_generators(0)
            rollouts.append([event.digest for event in itertools.islice(roll_out(instance, seed, 0), num_events)])
    return rollouts[0] == rollouts[1]


def _check_starts(env: Env, digests: list[Digest], seed: int) -> Finding:
    """Check whether other seeds give rollouts that differ from the rollout of `digests`."""
    others = range(seed + 1, seed + 4)
    first = {digests[0], *(next(roll_out(env, other, seed)).digest for other in others)}
    seeds = f"seeds {seed} to {others[-1]}"
    if len(first) > 1:
        return Finding("starts", OK, f"{seeds} start at {len(first)} different observations")
    if any(_first_difference(roll_out(env, other, seed), digests) for other in others):
        return Finding("starts", NOTE, f"{seeds} start at the same observation, and go on differently")
    remedy = f"fine if all episodes should be the same; else {OWN_GENERATOR}"
    return Finding("starts", WARNING, f"{seeds} give the same with the same actions", remedy)


def _check_resume(env: Env, fresh: Env, num_steps: int, seed: int) -> Finding:
    """Check whether the generator's state at a reset repeats an episode in a new instance, as a resumed run needs."""
    # Reset several times. A private generator of the environment then has another state than in the new instance.
    for reset_seed in (seed, None, None):
        list(itertools.islice(roll_out(env, reset_seed, seed), 5))
    next(roll_out(fresh, seed, seed))
    try:
        state = copy.deepcopy(env.unwrapped.np_random.bit_generator.state)
        fresh.unwrapped.np_random.bit_generator.state = state
    except Exception as error:
        text = f"np_random's state cannot be restored ({format_error(error)})"
        return Finding("resume", WARNING, text, OWN_GENERATOR)
    digests = [event.digest for event in itertools.islice(roll_out(env, None, seed), num_steps + 1)]
    if when := _first_difference(roll_out(fresh, None, seed), digests):
        text = f"np_random's state does not repeat the episode from {when} on, so resuming a run is not exact"
        return Finding("resume", WARNING, text, f"{OWN_GENERATOR}; {CARRY_NOTHING}")
    return Finding("resume", OK, "np_random's state repeats episodes, in a new instance and without a seed")


def _check_actions(env: Env, seed: int, is_finite: bool) -> Finding:
    """Check actions at the bounds and beyond them.

    `is_finite` is False if random actions already gave NaN or infinity. Another finding reports that, so this check
    then ignores NaN and infinity.
    """
    space = env.action_space
    tried = {value: np.full(space.shape or (), value, np.float32) for value in (-1.0, 1.0, -1.5, 1.5)}
    if isinstance(space, OneHot):
        tried = {float(space.discrete.start + k): one_hot(k, len(space.low)) for k in range(len(space.low))}
    for value, action in tried.items():
        try:
            env.reset(seed=seed)
            for step in range(1, 21):
                observation, reward, terminated, truncated, _ = env.step(action)
                read = float(reward) if _is_number(reward) else 0.0  # another finding says that it is none
                if is_finite and not (np.isfinite(observation).all() and np.isfinite(read)):
                    text = f"actions of {value:g} gave an observation or a reward that is not finite at step {step}"
                    return Finding("actions", FAULT, text, "find the part that diverges at the bounds of action_space")
                if terminated or truncated:
                    break
        except (Exception, SystemExit) as error:
            remedy = "accept every action in action_space, including its bounds"
            return Finding("actions", FAULT, f"actions of {value:g} failed with {format_env_error(error)}", remedy)
    if isinstance(space, OneHot):
        return Finding("actions", OK, "all discrete actions are accepted")
    return Finding("actions", OK, "the bounds are accepted; beyond [-1, 1] actions are clipped")


def _measure_speed(env: Env, num_steps: int, seed: int) -> Finding:
    """Measure the environment steps per second."""
    events, num_taken = roll_out(env, seed, seed), 0
    next(events)
    start = time.perf_counter()
    while num_taken < num_steps:
        num_taken += not next(events).is_reset
    rate = num_taken / max(time.perf_counter() - start, 1e-9)
    space = env.observation_space
    shape = space.unpacked_shape if isinstance(space, PackedDict) else space.shape or ()
    drawn = ", each draws an image" if has_images(shape) else ""
    if drawn and "mujoco" in sys.modules:
        drawn += f"; MuJoCo draws by {backend()}"
    return Finding("speed", OK, f"{rate:,.0f} steps/s{drawn}")
