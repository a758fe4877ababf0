"""`OfflineDataset`: recorded data for training, with observations as the environment's wrappers show them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from offpcc.config.settings import Settings, settings
from offpcc.config.validation import PositiveFraction, PositiveInteger, PositiveNumber
from offpcc.core import PackedDict, is_image
from offpcc.data.buffers.base import content_of
from offpcc.data.buffers.storage import TransitionTable, bytes_per_row, folder_of_frames, recorded_frames
from offpcc.data.checks.env_fit import (
    PACKING,
    bounds_for,
    check_entries,
    env_notices,
    match_frame_stack,
    match_states_and_wrappers,
    why_other_actions,
    without_channels,
    without_states,
)
from offpcc.data.checks.episodes import length_notices
from offpcc.data.datasets.actions import unused_range
from offpcc.data.datasets.columns import (
    BLOCK_BYTES,
    BYTES_PER_EPISODE,
    COPIES,
    Array,
    Range,
    blocks,
    check_room,
    exceeds,
)
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.download import Progress
from offpcc.data.datasets.load import load_dataset
from offpcc.data.datasets.metadata import recorded_in, recorded_wrappers
from offpcc.data.datasets.notices import Notice
from offpcc.envs.d4rl import catalog
from offpcc.envs.recorded_observations import transform_observations
from offpcc.envs.wrapper_chain import name_of, observation_wrappers, shows_return_to_go
from offpcc.envs.wrappers import raw_actions
from offpcc.utils.errors import UserError
from offpcc.utils.findings import unlike_scales
from offpcc.utils.words import counted

UNIT_ACTIONS = re.compile(r", actions in \[\[(-1\.0(, )?)+\], \[(1\.0(, )?)+\]\]")
SMALL_SPREAD = 0.05  # spread of returns relative to their mean; D4RL's locomotion datasets have 0.5 or more


@dataclass(frozen=True)
class OfflineDataset:
    """A dataset, ready for a buffer.

    Attributes:
        rows: whole episodes, with observations as the agent sees them.
        name: name of the data.
        source: origin of the data.
        num_transitions: number of transitions in `rows`.
        num_episodes: number of episodes in `rows`.
        mean_return: mean undiscounted return, as recorded, of whole episodes, or of all if none is whole.
        has_ends: whether the ends of episodes are known: one is recorded, or offpcc made the recording.
        recorded_in: the environment's name, if the data has it.
        return_range: gin's dataset.return_range: the scaled difference of the largest and the smallest return.
        reward_scale: factor on rewards that gives this difference.
        notices: warnings about the data.
        action_range: lowest and highest action of the recording, which `rows` maps to -1 and 1. None if actions were
            recorded in [-1, 1].
        identity: name, size and hashes of `rows`. It differs for other data and for another view of the same data.
        packed: the space of Dict observations, which `rows` holds packed; else None.
        discrete: the space of discrete actions, which `rows` holds one-hot; else None.
        is_shuffled: whether the transitions have no order, so that agents with memory cannot learn from them.
        fingerprint: hash of the recorded data, without the last next observation of each episode. It does not depend on
            the environment's wrappers or their noise.
    """

    rows: TransitionTable = field(repr=False)
    name: str
    source: str
    num_transitions: int
    num_episodes: int
    mean_return: float
    has_ends: bool
    recorded_in: str | None
    return_range: float | None
    reward_scale: float
    notices: tuple[Notice, ...]
    action_range: Range | None
    identity: str
    fingerprint: str
    packed: PackedDict | None = None
    discrete: spaces.Discrete | None = None
    is_shuffled: bool = False

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes of all arrays."""
        return self.rows.num_bytes

    @property
    def observation_space(self) -> spaces.Box:
        """Return the observation space, derived from the data: shape and dtype, without real bounds."""
        return self.packed or space_of(self.rows.observations)

    @property
    def action_space(self) -> spaces.Box | spaces.Discrete:
        """Return the space of the recorded actions, in their own units."""
        if self.discrete is not None:
            return self.discrete
        if self.action_range is None:
            return spaces.Box(-1.0, 1.0, self.rows.actions.shape[1:], np.float32)
        low, high = self.action_range
        return spaces.Box(np.asarray(low), np.asarray(high), dtype=np.float32)

    def for_agent(self, algorithm: Any) -> OfflineDataset:
        """Return a copy with further notices, for data that do not suit this agent."""
        notices = [*self.notices]
        if self.is_shuffled and not algorithm.memoryless:
            raise UserError(
                f"{self.name} holds transitions without order, and {type(algorithm).__name__} has a memory, which "
                f"needs whole episodes; convert them with `offpcc convert rl-unplugged --ordered`, or choose an agent "
                f"without memory"
            )
        if self.is_shuffled and algorithm.n_step > 1:
            raise UserError(
                f"{self.name} holds transitions without order, so targets have one step, but ActorCritic.n_step is "
                f"{algorithm.n_step}; leave it out, or convert whole episodes with --ordered"
            )
        if not algorithm.memoryless:
            notices += length_notices(self.rows.stops - self.rows.starts - 1)  # the last row has only an observation
        is_raw = algorithm.normalization is None and not is_image(self.rows.observations.shape[1:])
        is_raw &= self.packed is None or self.packed.unpacked_shape.num_numbers > 0
        names = [] if self.packed is None else self.packed.unpacked_shape.number_names
        if is_raw and (text := unlike_scales(*self.statistics(), names)):
            remedy = f'--gin "{type(algorithm).__name__}.normalize_observations=True" brings them to one scale'
            notices.append(Notice("scales", f"observations are not normalised, though {text}; {remedy}"))
        return replace(self, notices=tuple(notices))

    def statistics(self) -> tuple[Array, Array]:
        """Return mean and standard deviation, float64, of the observations at which transitions start.

        Of Dict observations, these are the statistics of the vectors.
        """
        mean = self._mean_of(lambda observations: observations)
        return mean, np.sqrt(self._mean_of(lambda observations: np.square(observations - mean)))

    def _mean_of(self, function: Callable[[Array], Array]) -> Array:
        """Return the mean of `function` of these observations, float64. It works in blocks to save memory."""
        observations, is_start = self.rows.observations, self.rows.is_start
        parts = (observations[rows][is_start[rows]] for rows in blocks(observations))
        if (packed := self.packed) is not None:
            parts = (np.ascontiguousarray(part[:, : packed.num_vector_bytes]).view(np.float32) for part in parts)
        total = sum(function(part.astype(np.float64)).sum(0) for part in parts)
        return np.asarray(total / self.num_transitions)

    def scale_warning(self) -> str:
        """Return a warning if the scaled rewards are so large that learning may fail, or ""."""
        if self.return_range is None:
            return ""
        spread, size = self.return_range / self.reward_scale, abs(self.mean_return)
        if spread >= SMALL_SPREAD * size:
            return ""
        return (
            f"returns of whole episodes differ by {spread:.3g} at most, {spread / size:.1%} of their mean "
            f"{self.mean_return:.1f}, and dataset.return_range={self.return_range:g} multiplies rewards by "
            f"{self.reward_scale:.3g} to make this difference {self.return_range:g}: advantages of this size may "
            f"prevent learning; --gin dataset.return_range=None keeps rewards as they are"
        )

    def facts(self) -> dict[str, Any]:
        """Return the facts for run.json."""
        named = ("name", "source", "num_transitions", "num_episodes", "mean_return", "reward_scale", "identity")
        return {name: getattr(self, name) for name in (*named, "fingerprint")}

    def lines(self, reads_rewards: bool = True) -> Iterator[str]:
        """Yield lines of text about the data for the user."""
        kind = "without order"  # so their returns and their episodes are unknown
        if not self.is_shuffled:
            score = format_score(self.name, self.mean_return)
            kind = f"in {counted(self.num_episodes, 'episode')}, mean return {self.mean_return:.1f}{score}"
        num_transitions = counted(self.num_transitions, "transition")
        yield f"learning from {self.name}: {num_transitions} {kind}; {self.num_bytes:,} bytes"
        if folder := folder_of_frames(self.rows.observations):
            size = self.rows.num_frame_bytes / 1e9
            yield f"its frames, {size:.3g} GB, are in a temporary file in {folder}, as they exceed the memory_limit"
        if reads_rewards and self.reward_scale != 1.0:
            yield f"rewards are multiplied by {self.reward_scale:.6g} (dataset.return_range)"
            if warning := self.scale_warning():
                yield f"note: {warning}"
        yield from (f"note: {notice.text}" for notice in self.notices)


@settings("dataset")
class DatasetOptions(Settings):
    """Settings of a dataset, which gin binds as ``dataset.return_range`` and so on; see `read`.

    Args:
        return_range: scale rewards, so that the largest and the smallest return of whole episodes differ by this
            number; None to keep them.
        max_episode_steps: time limit of the recorded environment, for data that marks no truncations.
        action_range: lowest and highest action of the recording, which are scaled to -1 and 1; default: the bounds of
            the environment.
        best_fraction: learn only from this part of the whole episodes, those with the largest returns.
    """

    return_range: PositiveNumber | None = None
    max_episode_steps: PositiveInteger | None = None
    action_range: Range | None = None
    best_fraction: PositiveFraction = 1.0


DEFAULT_OPTIONS = DatasetOptions()


def space_of(observations: Array) -> spaces.Box:
    """Return the space of recorded observations (S, *obs) by their shape and dtype, without real bounds."""
    shape = observations.shape[1:]
    if observations.dtype == np.uint8:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def unused_dataset_parameters(algorithm: Any) -> dict[str, str]:
    """Return bindings of ``dataset`` that have no effect on an algorithm, each with the reason."""
    return {} if algorithm.has_critics else {"return_range": f"{type(algorithm).__name__} reads no rewards"}


def load_unchanged(
    source: str | Path | Dataset,
    options: DatasetOptions,
    progress: Progress | None = None,
    memory_limit: int | None = None,
) -> Dataset:
    """Load a dataset with its time limit and its range of actions, unchanged otherwise; see `load_dataset`."""
    if isinstance(source, Dataset):
        if options.max_episode_steps is not None:
            raise UserError(
                f"dataset.max_episode_steps is {options.max_episode_steps}, but the data are a Dataset, whose episodes "
                f"are known; give max_episode_steps to Dataset.from_arrays instead"
            )
        data = source.with_range(options.action_range)
        data = data if memory_limit is None else data.limited(memory_limit)
    else:
        data = load_dataset(
            source,
            max_episode_steps=options.max_episode_steps,
            action_range=options.action_range,
            progress=progress,
            memory_limit=memory_limit,
        )
    if told := unused_range(options.action_range, data.action_range, data.name):
        return replace(data, notices=(*data.notices, Notice("remark", told)))
    return data


def read(
    source: str | Path | Dataset,
    env: gymnasium.Env[Any, Any] | None = None,
    options: DatasetOptions = DEFAULT_OPTIONS,
    *,
    fraction: float = 1.0,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    state: str | None = None,
    memory_limit: int | None = None,
) -> OfflineDataset:
    """Load a dataset for training.

    Args:
        source: an argument or a result of `offpcc.data.load_dataset`.
        env: an environment from `offpcc.make`, or None to use the recorded observations unchanged. Its action bounds
            scale the actions if the data has none. Its wrappers transform the recorded observations. Do not use the
            environment afterwards.
        options: ``return_range`` scales rewards, so that the largest and the smallest return of whole episodes differ
            by this number (1000 in IQL, arXiv:2110.06169). ``best_fraction``: see `Dataset.best`; it is a part of the
            episodes that `fraction` keeps. For the others see `offpcc.data.load_dataset`.
        fraction: part of the steps to keep: the fewest whole episodes from the start that hold it, rounded up.
        steps: number of steps to keep, from the start; the last episode is cut. None for all.
        seed: seed of the wrappers' random numbers, such as noise.
        progress: callback for the progress of a download.
        state: without an environment, None to leave out the states that only critics see; see ``make.state``.
        memory_limit: maximum size of images in memory, in bytes, while they are read and afterwards; see
            `offpcc.data.load_dataset`.
    """
    data = load_unchanged(source, options, progress, memory_limit)
    called = data.name if isinstance(source, Dataset) else str(source)
    _check_actions(data, env, called)
    data = match_frame_stack(data, env)
    data = data.fraction(fraction) if steps is None else data.first_steps(steps)
    if options.best_fraction < 1.0 and data.num_episodes == 1:
        raise UserError(
            f"dataset.best_fraction is {options.best_fraction:g}, but {called} has one episode only; mark the ends of "
            f"episodes, as by dataset.max_episode_steps=N, or leave best_fraction out"
        )
    for name, usual in (("best_fraction", 1.0), ("return_range", None)):
        if data.is_shuffled and (value := getattr(options, name)) != usual:
            raise UserError(
                f"dataset.{name} is {value:g}, but {called} holds transitions without order, so the returns of its "
                f"episodes are unknown; leave {name} out, or convert whole episodes with --ordered"
            )
    if data.is_shuffled and env is not None and shows_return_to_go(env):
        raise UserError(
            f"{called} holds transitions without order, so the returns that follow them are unknown; leave ReturnToGo "
            f"out, or convert whole episodes with --ordered"
        )
    data = data.best(options.best_fraction)
    bounds = bounds_for(data, env)
    data, wrappers = match_states_and_wrappers(data, env, state, memory_limit)
    if env is None and state is not None and getattr(data.observation_space, "state_key", None) is None:
        raise UserError(without_states(called))
    facts = _facts(data, env, bounds, options.return_range)
    passing = COPIES * min(BLOCK_BYTES, data.bytes_of_rows()) + BYTES_PER_EPISODE * data.num_episodes
    needed = data.bytes_of_rows(memory_limit) + passing
    has_images = data.observations.dtype == np.uint8
    check_room(needed, f"{data.name}: {data.num_transitions:,} transitions, as agents draw them,", has_images)
    rows = data.rows(bounds, memory_limit)
    if not len(rows.starts):
        raise UserError(f"{data.name}: the dataset has no transitions; give longer episodes, or next_observations")
    space, rewards_after = data.observation_space, _rewards_after(data)
    del data  # frees memory for the observations that the agent sees
    if env is not None:
        check_entries(env, space, rows.observations.shape[1:], called)
        changing = [one for one in observation_wrappers(env) if not one.startswith(PACKING)]
        if space is not None and wrappers is None and changing:
            raise UserError(
                f"{called} does not say with which wrappers its Dict observations were recorded, but {name_of(env)} "
                f"has {', '.join(changing)}; record with them, as offpcc collect does, or let the environment itself "
                f"return such observations, without wrappers"
            )
    recorded = rows.observations
    if env is not None:
        rows = rows.with_observations(_seen(rows, env, seed, wrappers, rewards_after, facts["name"], memory_limit))
    for notice in facts["notices"]:
        if notice.kind == "unknown range":
            raise UserError(f"{called}: {notice.text}")
    facts |= {"num_transitions": int(rows.is_start.sum()), "num_episodes": len(rows.starts)}
    if env is not None:
        space = env.observation_space if isinstance(env.observation_space, PackedDict) else None
    return OfflineDataset(rows, **facts, packed=space, identity=_identity(rows, facts, rows.observations is recorded))


def _facts(
    data: Dataset, env: gymnasium.Env[Any, Any] | None, bounds: Range | None, return_range: float | None
) -> dict[str, Any]:
    """Return the fields of `OfflineDataset` that do not depend on its rows."""
    of_env = without_channels(data) if env is None else env_notices(data, env)
    notices = [*data.notices, *data.action_warnings(bounds), *of_env]
    first, num = data.choices(bounds) if data.discrete_actions else (0, 0)
    discrete = spaces.Discrete(num, start=first) if data.discrete_actions else None
    return {
        "name": data.name,
        "source": data.source,
        "mean_return": float(data.whole_returns.mean()),
        "has_ends": has_known_ends(data),
        "recorded_in": recorded_in(data.metadata, data.name),
        "is_shuffled": data.is_shuffled,
        "fingerprint": _hash([*_parts_of(data), data.actions, data.rewards, data.terminations, data.stops]),
        "return_range": return_range,
        "reward_scale": _reward_scale(data, return_range),
        "notices": tuple(notices),
        "action_range": None if data.discrete_actions else bounds if data.action_range is None else data.action_range,
        "discrete": discrete,
    }


def has_known_ends(data: Dataset) -> bool:
    """Check whether the data say where episodes end.

    A recording of offpcc does, also if its own end cut all its episodes. The wrappers in its metadata identify it.
    """
    is_marked = data.is_whole & (data.terminations | data.truncations)[data.stops - 1]
    return bool(is_marked.any()) or recorded_wrappers(data.metadata, data.name) is not None


def _parts_of(data: Dataset) -> list[Array]:
    """Return the arrays that hold the observations."""
    if data.stacks is None:
        return [data.observations]
    begin, windows = data.stacks.windows()
    return [windows[:, 0], windows[-1], data.stacks.first - begin]


def format_score(name: str, mean_return: float) -> str:
    """Return D4RL's normalised score of a return as text, or "" if D4RL has no reference for the name."""
    score = catalog.normalized_score(name, mean_return)
    return "" if score is None else f", D4RL score {score:.1f}"


def _check_actions(data: Dataset, env: gymnasium.Env[Any, Any] | None, called: str) -> None:
    if env is not None and (fault := why_other_actions(data, env)):
        remedy = f"give data of {name_of(env)}, or name the environment of the recording by --env"
        takes_choices = isinstance(raw_actions(env), spaces.Discrete)
        if data.discrete_actions and data.action_range is None and not takes_choices:
            remedy += "; if they are not choices, bind dataset.action_range (in Python: from_arrays(action_range=...))"
        raise UserError(f"{called} does not fit: {fault}; {remedy}")


def _rewards_after(data: Dataset) -> Array:
    """Return, for each episode of `Dataset.rows`, the reward of its last step if it is no transition, else 0, (N,)."""
    rewards = np.where(data.last_is_transition, np.float32(0.0), data.rewards[data.stops - 1])
    return np.asarray(rewards[data.lengths > ~data.last_is_transition])


def _seen(
    rows: TransitionTable,
    env: gymnasium.Env[Any, Any],
    seed: int,
    wrappers: Sequence[str] | None,
    rewards_after: Array,
    name: str,
    memory_limit: int | None,
) -> Array:
    """Return the recorded observations as the agent sees them through the environment's wrappers."""
    space = env.observation_space
    if space.shape and (space.shape, space.dtype) != (rows.observations.shape[1:], rows.observations.dtype):
        one = np.dtype(space.dtype).itemsize * math.prod(space.shape)
        shape = len(rows.observations), *space.shape
        # Held twice: as the wrappers return them, and packed into rows.
        seen = 0 if exceeds(memory_limit, shape, np.dtype(space.dtype)) else 2 * len(rows.observations) * one
        check_room(
            seen + len(rows.actions) * bytes_per_row(0, rows.actions.shape[1]),
            f"{name}: the observations of {name_of(env)}",
        )
    observations, actions, rewards = rows.observations, rows.actions, rows.rewards
    given = observations, actions, rewards, rows.starts, rows.stops
    zeros = partial(recorded_frames, memory_limit=memory_limit, name=name)
    options: dict[str, Any] = {"recorded_wrappers": wrappers, "rewards_after": rewards_after, "zeros": zeros}
    return transform_observations(env, *given, seed=seed, **options)


def _reward_scale(data: Dataset, return_range: float | None) -> float:
    if return_range is None:
        return 1.0
    returns = data.whole_returns
    difference = float(returns.max() - returns.min())
    if difference <= 0.0:
        raise UserError(
            f"dataset.return_range is {return_range}, but all whole episodes of {data.name} have the return "
            f"{returns[0]:.6g}; leave rewards as they are by --gin dataset.return_range=None"
        )
    return return_range / difference


def _identity(rows: TransitionTable, facts: Mapping[str, Any], shows_recorded: bool) -> str:
    """Return the identity of rows. What the fingerprint covers is not hashed again, because this takes seconds."""
    shared = rows.observations.strides[0] < rows.observations[:1].nbytes  # stacks, of which the fingerprint has all
    observations = rows.observations[:0] if shared else rows.observations
    if shows_recorded and not shared:
        observations = rows.observations[rows.stops - 1]
    view = _hash([observations, rows.is_start, rows.starts, rows.stops])
    bounds = "" if facts["action_range"] is None else f", actions in {np.asarray(facts['action_range']).tolist()}"
    num_transitions = f"{facts['num_transitions']:,} transitions"
    return f"{facts['name']} ({num_transitions}, {facts['fingerprint']}, {view}{bounds})"


def comparable(identity: str) -> str:
    """Return an identity without the name, and without bounds of actions that are [-1, 1].

    Data are the same under any name; the bounds are known only with an environment.
    """
    return UNIT_ACTIONS.sub("", content_of(identity))


def _hash(arrays: Sequence[Array]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        for rows in blocks(array):  # non-contiguous columns are copied, block by block
            digest.update(np.ascontiguousarray(array[rows]).data)
    return f"SHA-256 {digest.hexdigest()[:16]}"
