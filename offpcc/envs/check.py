"""`offpcc check --env`: finds problems in an environment that would spoil learning, by random rollouts."""

from __future__ import annotations

import copy
import importlib.metadata
import itertools
import numbers
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.faults import kind_of
from offpcc.envs.guard import opened
from offpcc.envs.make import DEFAULT_OPTIONS, OLD_GYM, EnvOptions, cannot_be_made, make
from offpcc.envs.rendering import backend
from offpcc.utils import signals
from offpcc.utils.errors import UserError, format_error
from offpcc.utils.findings import FAULT, NOTE, OK, WARNING, Diagnosis, Finding
from offpcc.utils.foreign import ForeignCall

Env = gymnasium.Env[Any, Any]
LONGEST_EPISODE = 27_000  # steps; the length of Atari's longest episodes, which have 108,000 frames
ROUNDING = 1e-5  # relative to a bound; rounding to float32 may exceed a bound by this much
SIMULATORS = ("mujoco", "dm-control", "pybullet", "pybullet-envs-gymnasium")

OWN_GENERATOR = "draw all that is random from self.np_random, after super().reset(seed=seed)"
CARRY_NOTHING = "carry nothing over from one episode to the next"
MEND = (
    "mend reset(*, seed=None, options=None) and step(action), which are called as gymnasium.Env defines them; if it is "
    f"of the old gym, {OLD_GYM}"
)
PROMISED = "return what observation_space promises"
TRUNCATE = (
    "after a time limit values go on: return terminated=False, and leave the limit to max_episode_steps when "
    "registering it"
)

# Kinds of problems in a rollout: the check, the level and the remedy of each. A float of another precision is
# converted, so it is only a warning. A float where the space has bytes would become 0, so it is a fault.
TROUBLES = {
    "broken": ("interface", FAULT, MEND),
    "shape": ("type", FAULT, PROMISED),
    "bytes": ("type", FAULT, PROMISED),
    "precision": ("type", WARNING, f"{PROMISED}; offpcc converts it"),
    "bounds": ("bounds", FAULT, "widen observation_space, or look for a number in other units"),
    "not finite": (
        "finite",
        FAULT,
        "look for a division by 0 or a simulation that diverges; end the episode before it",
    ),
    "reward no number": ("reward", FAULT, "return a number: float(reward)"),
    "reward not finite": ("reward", FAULT, "look for a division by 0 or a logarithm of 0 in the reward"),
}


def examine(
    name: str,
    num_steps: int = 2_000,
    seed: int = 0,
    longest_episode: int = LONGEST_EPISODE,
    options: EnvOptions = DEFAULT_OPTIONS,
) -> Diagnosis:
    """Examine an environment under random actions, both as Gymnasium makes it and as offpcc makes it.

    Args:
        name: A Gymnasium id, one of offpcc's own, or "module:id".
        num_steps: Environment steps of the longest rollout; each other rollout takes a quarter of them. Without a
            registered time limit, a rollout continues until two episodes have ended or one is too long.
        seed: Seed of the environment and of the actions.
        longest_episode: Environment steps; a longer episode is a fault.
        options: Arguments of `make`.

    Raises:
        UserError: The environment cannot be made or is unsuitable; mostly `UnsuitableEnvironment`.
    """
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # Gymnasium warns of the same faults

        def make_wrapped() -> Env:
            return stack.enter_context(opened(make(name, scale_actions=True, **options._asdict())))

        def make_bare() -> Env:
            env = gymnasium.make(name, disable_env_checker=True, **(options.kwargs or {}))
            return stack.enter_context(opened(env, options.timeout))

        try:
            wrapped, bare = make_wrapped(), make_bare()
        except UserError:
            raise
        except signals.ANYTHING as error:
            signals.pass_on(error)
            raise cannot_be_made(name, error) from error
        make_other = make_bare
        if not _takes_random_actions(bare):  # it needs gin's wrappers
            make_other, bare = make_wrapped, make_wrapped()
        short = max(1, num_steps // 4)
        limit = _time_limit(bare) or _time_limit(wrapped)
        record = Rollout(bare, limit, num_steps, short, seed, longest_episode)
        findings = [_versions(), _spaces(bare), *_check_record(record, limit)]
        if not record.is_broken:
            wrapped_record = Rollout(wrapped, _time_limit(wrapped), short, 0, seed, longest_episode)
            findings += [
                _check_wrapped(wrapped_record, set(record.troubles), wrapped),
                _guarded("seed", lambda: _check_seed(bare, make_other(), record.marks, seed)),
                _guarded("starts", lambda: _check_starts(bare, record.marks, seed)),
            ]
            if not wrapped_record.is_broken:
                is_finite = not {"not finite", "reward not finite"} & set(record.troubles)
                findings += [
                    _guarded("resume", lambda: _check_resume(wrapped, make_wrapped(), short, seed)),
                    _check_actions(wrapped, seed, is_finite),
                    _guarded("speed", lambda: _measure_speed(wrapped, short, seed)),
                ]
    return Diagnosis(name, tuple(findings))


def _time_limit(env: Env) -> int | None:
    return env.spec.max_episode_steps if env.spec else None


def _takes_random_actions(env: Env) -> bool:
    actions = env.action_space
    return isinstance(env.observation_space, Box) and isinstance(actions, Box) and actions.is_bounded()


def _guarded(check: str, examination: Callable[[], Finding]) -> Finding:
    try:
        return examination()
    except BrokenEnvironment as broken:
        return Finding(check, FAULT, str(broken), MEND)


# Rollouts ---------------------------------------------------------------------------------------------------------

Mark = tuple[int, str, bool, bool]


class BrokenEnvironment(Exception):  # noqa: N818 (it is the environment that errs)
    """An environment raised, or returned something unreadable; the message says when and what."""


class Event(NamedTuple):
    """Return values of a reset or a step; a reset has no reward."""

    when: str
    observation: Any
    reward: Any = None
    terminated: bool = False
    truncated: bool = False

    @property
    def mark(self) -> Mark:
        """Checksum, reward and flags; equal for events that agree to the last bit."""
        checksum = zlib.crc32(np.asarray(self.observation).tobytes())
        return checksum, repr(self.reward), self.terminated, self.truncated


class End(NamedTuple):
    """The end of an episode."""

    length: int  # environment steps
    episode_return: float
    terminated: bool
    truncated: bool
    is_decided: bool  # only the last step brought a reward


def roll_out(env: Env, seed: int | None, actions_seed: int) -> Iterator[Event]:
    """Yield the events of resets and random steps, episode after episode, without end.

    Args:
        env: An environment whose action is a bounded Box.
        seed: Seed of the first reset; None continues with the environment's generator.
        actions_seed: Seed of the actions.

    Raises:
        BrokenEnvironment: The environment raised, or its return values do not follow Gymnasium's interface.
    """
    space = env.action_space
    assert isinstance(space, Box)
    generator = np.random.default_rng(actions_seed)
    for episode in itertools.count(1):
        yield _event(f"the reset of episode {episode}", 2, env.reset, seed=seed)
        seed = None
        for step in itertools.count(1):
            action = generator.uniform(space.low, space.high).astype(space.dtype)
            event = _event(f"step {step} of episode {episode}", 5, env.step, action)
            yield event
            if event.terminated or event.truncated:
                break


def _event(when: str, num_values: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Event:
    try:
        with ForeignCall():
            returned = call(*args, **kwargs)
            if not isinstance(returned, tuple) or len(returned) != num_values:
                raise TypeError(f"it returned {kind_of(returned)}, not a tuple of {num_values}")
            observation, *others, info = returned
            if not isinstance(info, dict):
                raise TypeError(f"its info is {kind_of(info)}, not a dict")
            np.asarray(observation)  # raises if it cannot become an array
            reward, terminated, truncated = others or (None, False, False)
            return Event(when, observation, reward, bool(terminated), bool(truncated))
    except signals.ANYTHING as error:
        signals.pass_on(error)
        raise BrokenEnvironment(f"{when} failed with {format_error(error)}") from error


class Rollout:
    """The record of a random rollout, with the first problem of each kind.

    Args:
        env: An environment whose observation and action are Boxes.
        limit: The registered time limit. Without one, the rollout continues until two episodes have ended, or one lasts
            `longest_episode` steps.
        num_steps: Minimum number of steps.
        num_compared: Number of steps whose marks are kept, to compare other rollouts with.
        seed: Seed of the environment and of the actions.
        longest_episode: See `limit`.
    """

    def __init__(
        self, env: Env, limit: int | None, num_steps: int, num_compared: int, seed: int, longest_episode: int
    ) -> None:
        assert isinstance(env.observation_space, Box)
        self.space, self.longest_episode = env.observation_space, longest_episode
        self.num_steps = self.length = 0  # of all episodes, and of the last one, which may be unfinished
        self.marks: list[Mark] = []
        self.ends: list[End] = []
        self.rewards: list[float] = []
        self.lowest, self.highest = np.inf, -np.inf  # finite numbers in observations
        self.troubles: dict[str, str] = {}  # when and what, by the kind in `TROUBLES`
        self._return = 0.0
        try:
            for event in roll_out(env, seed, seed):
                if self.num_steps < num_compared:
                    self.marks.append(event.mark)
                self._add(event)
                has_ended = limit is not None or len(self.ends) >= 2 or self.length >= longest_episode
                if self.num_steps >= num_steps and has_ended:
                    break
        except BrokenEnvironment as broken:
            self._note("broken", str(broken))

    @property
    def is_broken(self) -> bool:
        """True if an error stopped the rollout."""
        return "broken" in self.troubles

    def _note(self, kind: str, text: str) -> None:
        self.troubles.setdefault(kind, text)

    def _add(self, event: Event) -> None:
        if event.reward is None:
            self.length, self._return = 0, 0.0
        else:
            self.num_steps, self.length = self.num_steps + 1, self.length + 1
            self._add_reward(event)
        if event.terminated or event.truncated:
            is_decided = self._return != 0.0 and event.reward == self._return
            self.ends.append(End(self.length, self._return, event.terminated, event.truncated, bool(is_decided)))
        self._add_observation(event)

    def _add_reward(self, event: Event) -> None:
        if not isinstance(event.reward, numbers.Real | np.number | np.bool_):
            self._note("reward no number", f"{event.when} gave {kind_of(event.reward)}")
            return
        reward = float(event.reward)
        if not np.isfinite(reward):
            self._note("reward not finite", f"{event.when} gave {reward}")
        self.rewards.append(reward)
        self._return += reward

    def _add_observation(self, event: Event) -> None:
        observation = np.asarray(event.observation)
        if not isinstance(event.observation, np.ndarray) or observation.dtype != self.space.dtype:
            kind = "precision" if np.issubdtype(self.space.dtype, np.floating) else "bytes"
            self._note(kind, f"{event.when} gave {kind_of(event.observation)}, its space says {self.space.dtype}")
        if observation.shape != self.space.shape or observation.dtype.kind not in "biuf":
            self._note("shape", f"{event.when} gave {kind_of(observation)}, its space says {self.space.shape}")
        else:
            self._add_numbers(event.when, observation)

    def _add_numbers(self, when: str, observation: NDArray[Any]) -> None:
        finite = np.isfinite(observation)
        if not finite.all():
            self._note("not finite", f"{when} gave {_first_number(~finite, observation)}")
        if not finite.any():
            return
        self.lowest = min(self.lowest, float(observation[finite].min()))
        self.highest = max(self.highest, float(observation[finite].max()))
        for which, bound, sign in (("low", self.space.low, 1.0), ("high", self.space.high, -1.0)):
            size = np.abs(bound.astype(np.float64))
            slack = ROUNDING * np.maximum(1.0, np.where(np.isfinite(size), size, 0.0))
            if (outside := finite & (sign * observation < sign * bound - slack)).any():
                number = _first_number(outside, observation)
                self._note("bounds", f"{when} gave {number}, whose {which} bound is {bound[outside][0]:.6g}")


def _first_number(where: NDArray[np.bool_], observation: NDArray[Any]) -> str:
    index = tuple(int(place) for place in np.argwhere(where)[0])
    return f"{observation[index]:.6g} at index {index[0] if len(index) == 1 else index}"


# What one rollout shows -------------------------------------------------------------------------------------------


def _check_record(record: Rollout, limit: int | None) -> Iterator[Finding]:
    """Yield the findings of the longest rollout; `limit` is the time limit in steps."""

    def trouble(check: str) -> Finding | None:
        for kind, (its_check, level, remedy) in TROUBLES.items():
            if its_check == check and kind in record.troubles:
                return Finding(check, level, record.troubles[kind], remedy)
        return None

    space = record.space
    yield trouble("interface") or Finding("interface", OK, f"{record.num_steps:,} random steps, no exception")
    if record.marks:
        agrees = f"observations are {space.dtype} of shape {space.shape}, as their space says"
        yield trouble("type") or Finding("type", OK, agrees)
        inside = f"observations from {record.lowest:.4g} to {record.highest:.4g}, inside their space"
        yield trouble("bounds") or Finding("bounds", OK, inside)
        yield trouble("finite") or Finding("finite", OK, "no NaN and no infinity in observations")
    if record.num_steps:
        yield trouble("reward") or _check_rewards(record.rewards)
    if not record.is_broken:
        yield _check_episodes(record, limit)


def _check_wrapped(record: Rollout, known: set[str], env: Env) -> Finding:
    """Return a problem that the environment has as offpcc makes it, but not as Gymnasium makes it.

    `known` holds the kinds of problems that it already has as Gymnasium makes it.
    """
    for kind, (_, level, remedy) in TROUBLES.items():
        if kind in record.troubles and kind not in known:
            return Finding("wrapped", level, f"as offpcc makes it, {record.troubles[kind]}", remedy)
    text = f"agents see {_box_as_text(env.observation_space)} and act {_box_as_text(env.action_space)}"
    return Finding("wrapped", OK, text)


def _check_rewards(rewards: list[float]) -> Finding:
    lowest, highest = min(rewards), max(rewards)
    if lowest == highest:
        remedy = "fine if random actions cannot reach what is rewarded; else there is nothing to learn"
        return Finding("reward", WARNING, f"always {lowest:.4g}, in {len(rewards):,} steps", remedy)
    return Finding("reward", OK, f"from {lowest:.4g} to {highest:.4g}, mean {np.mean(rewards):.4g}")


def _check_episodes(record: Rollout, limit: int | None) -> Finding:
    ends, longest = record.ends, record.longest_episode
    end_it = (
        f"give it an end of at most {longest:,} steps by gymnasium.wrappers.TimeLimit, or by max_episode_steps when "
        f"registering it"
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
    for length in {limit, ends[0].length} - {None, 1}:
        of_length = [end for end in ends if end.length == length]
        is_suspect = length == limit or len(of_length) == len(ends)
        # If only the last step brings a reward, the end belongs to the task. An example is a choice after a corridor of
        # fixed length.
        is_decided = all(end.is_decided for end in of_length)
        if is_suspect and len(of_length) > 1 and all(end.terminated for end in of_length) and not is_decided:
            ended = f"{len(of_length)} episodes lasted {length} steps, and all of these are `terminated`"
            return Finding("episodes", FAULT, f"a time limit reported as a termination? {ended}; {text}", TRUNCATE)
    if num_both := sum(end.terminated and end.truncated for end in ends):
        remedy = "agents take that as a termination"
        return Finding("episodes", NOTE, f"{num_both} both terminated and truncated; {text}", remedy)
    return Finding("episodes", OK, text)


def _box_as_text(space: gymnasium.Space[Any]) -> str:
    assert isinstance(space, Box)
    same = np.unique(space.low).size == np.unique(space.high).size == 1
    bounds = f"[{space.low.min():.4g}, {space.high.max():.4g}]"
    return f"{space.shape} {space.dtype} {'in' if same else 'within'} {bounds}"


def _versions() -> Finding:
    used = [package for package in SIMULATORS if package.replace("-", "_") in sys.modules]
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("gymnasium", *used)]
    return Finding("versions", OK, ", ".join(versions))


def _spaces(env: Env) -> Finding:
    actions = env.action_space
    assert isinstance(actions, Box)
    text = f"observation {_box_as_text(env.observation_space)}; action {_box_as_text(actions)}"
    fixed = np.flatnonzero(actions.low == actions.high)
    if fixed.size:
        remedy = "leave it out of action_space, or give it different bounds"
        return Finding("spaces", WARNING, f"action {fixed[0]} can only be {actions.low[fixed[0]]:.4g}; {text}", remedy)
    return Finding("spaces", OK, text)


# What other rollouts show -----------------------------------------------------------------------------------------


def _first_difference(events: Iterable[Event], marks: list[Mark]) -> str:
    """Return when a rollout first differs from the rollout of `marks`; an empty string if it does not."""
    return next((event.when for event, mark in zip(events, marks, strict=False) if event.mark != mark), "")


def _check_seed(env: Env, other: Env, marks: list[Mark], seed: int) -> Finding:
    """Check whether the same seed and actions repeat the rollout of `marks`, in another instance and in this one."""
    text = f"seed {seed} and the same actions give something else"
    if when := _first_difference(roll_out(other, seed, seed), marks):
        return Finding("seed", FAULT, f"{text} in a second instance from {when} on", OWN_GENERATOR)
    if when := _first_difference(roll_out(env, seed, seed), marks):
        return Finding("seed", WARNING, f"{text} in the same instance from {when} on", CARRY_NOTHING)
    return Finding("seed", OK, f"seed {seed} repeats itself to the last bit, in a second instance and in the same")


def _check_starts(env: Env, marks: list[Mark], seed: int) -> Finding:
    """Check whether other seeds give rollouts that differ from the rollout of `marks`."""
    others = range(seed + 1, seed + 4)
    first = {marks[0], *(next(roll_out(env, other, seed)).mark for other in others)}
    seeds = f"seeds {seed} to {others[-1]}"
    if len(first) > 1:
        return Finding("starts", OK, f"{seeds} start at {len(first)} different observations")
    if any(_first_difference(roll_out(env, other, seed), marks) for other in others):
        return Finding("starts", NOTE, f"{seeds} start at the same observation, and go on differently")
    remedy = f"fine if all episodes are to be the same; else {OWN_GENERATOR}"
    return Finding("starts", WARNING, f"{seeds} give the same under the same actions", remedy)


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
    marks = [event.mark for event in itertools.islice(roll_out(env, None, seed), num_steps + 1)]
    if when := _first_difference(roll_out(fresh, None, seed), marks):
        text = f"np_random's state gives something else from {when} on, so that resuming a run is not exact"
        return Finding("resume", WARNING, text, f"{OWN_GENERATOR}; {CARRY_NOTHING}")
    return Finding("resume", OK, "np_random's state finds episodes again, in a new instance and without a seed")


def _check_actions(env: Env, seed: int, is_finite: bool) -> Finding:
    """Check actions at the bounds and beyond them.

    `is_finite` is False if random actions already gave NaN or infinity. Another finding reports that, so this check
    then ignores NaN and infinity.
    """
    for value in (-1.0, 1.0, -1.5, 1.5):
        action = np.full(env.action_space.shape or (), value, np.float32)
        try:
            env.reset(seed=seed)
            for step in range(1, 21):
                with ForeignCall():
                    observation, reward, terminated, truncated, _ = env.step(action)
                if is_finite and not (np.isfinite(observation).all() and np.isfinite(float(reward))):
                    text = f"actions of {value:g} gave an observation or a reward that is not finite at step {step}"
                    return Finding("actions", FAULT, text, "look for what diverges at the bounds of action_space")
                if terminated or truncated:
                    break
        except signals.ANYTHING as error:
            signals.pass_on(error)
            remedy = "accept every action in action_space, its bounds included"
            return Finding("actions", FAULT, f"actions of {value:g} failed with {format_error(error)}", remedy)
    return Finding("actions", OK, "the bounds are accepted; beyond [-1, 1] actions are clipped")


def _measure_speed(env: Env, num_steps: int, seed: int) -> Finding:
    """Measure the environment steps per second."""
    events, num_taken = roll_out(env, seed, seed), 0
    next(events)
    start = time.perf_counter()
    while num_taken < num_steps:
        num_taken += next(events).reward is not None
    rate = num_taken / max(time.perf_counter() - start, 1e-9)
    drawn = ", each draws an image" if len(env.observation_space.shape or ()) == 3 else ""
    if drawn and "mujoco" in sys.modules:
        drawn += f"; MuJoCo draws by {backend()}"
    return Finding("speed", OK, f"{rate:,.0f} steps/s{drawn}")
