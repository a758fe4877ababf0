"""`Dataset`: recorded steps of all episodes, concatenated; made from columns or from episodes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from offpcc.config.bindings import explains_calls
from offpcc.config.synonyms import no_attribute
from offpcc.config.validation import is_whole_number
from offpcc.core import PackedDict, entries_of
from offpcc.data.buffers.storage import Storage, TransitionTable, bytes_per_row, convert_recorded, recorded_frames
from offpcc.data.datasets.actions import action_warnings, checked_range, in_units
from offpcc.data.datasets.boundaries import last_steps, read_last, shows_ends, time_limits
from offpcc.data.datasets.columns import (
    REQUIRED,
    STATES,
    Array,
    Column,
    Range,
    SpoiledData,
    as_column,
    blocks,
    bytes_needed,
    bytes_of_ends,
    check_room,
    check_shapes,
    dtype_in_memory,
    exceeds,
    name_unread,
    read_flags,
    read_numbers,
    rounded_columns,
    with_our_names,
)
from offpcc.data.datasets.dict_columns import DictColumn, PackedRows, choice_notices, join_states
from offpcc.data.datasets.episode_parts import EpisodeParts, read_episode_parts
from offpcc.data.datasets.frame_stacks import (
    FRAME_STACK,
    SHUFFLED,
    FrameFile,
    FrameStacks,
    first_rows,
    pick_observations,
)
from offpcc.data.datasets.metadata import (
    ACTION_KEYS,
    STATE_KEY,
    action_range,
    if_valid,
    infos_of_steps,
    num_whole_episodes,
    recorded_in,
    recorded_wrappers,
    state_key,
)
from offpcc.data.datasets.notices import (
    Notice,
    notices_on_copies,
    notices_on_images,
    notices_on_limits,
    notices_on_rounding,
)
from offpcc.data.recording.episode_log import Ending, Episode
from offpcc.data.recording.hdf5_writer import NUM_ACTIONS, NUM_WHOLE, check_output, write_recording
from offpcc.utils.errors import UserError
from offpcc.utils.files import writing_to
from offpcc.utils.paths import as_path
from offpcc.utils.spaces import one_hot, packed_space
from offpcc.utils.version import __version__

FEW = 100  # rows that are looked at


class DatasetInfo(NamedTuple):
    """Information about a dataset other than its steps; see `Dataset`."""

    name: str
    source: str = "arrays"
    max_episode_steps: int | None = None
    action_range: Range | None = None
    infos: Mapping[str, Array] | None = None
    metadata: Mapping[str, Any] | None = None
    given: str | None = None  # the path or the name that the user gave
    is_discrete: bool = False  # whether `action_range` are the first and the last of discrete actions
    memory_limit: int | None = None  # see `offpcc.data.load_dataset`

    @property
    def label(self) -> str:
        """The name of the data in messages."""
        return self.given or self.name


MOST_ACTIONS = 100_000  # networks have an output for each


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """S recorded steps of E episodes, concatenated.

    An episode ends after a terminated or truncated step, and at the end of the recording. The next observation of a
    step is the observation of the following row; that of an episode's last step is in `final_observations`. For a
    recording without ``next_observations``:

    * The last step of a truncated episode is not a transition, because its next observation is unknown. The step
      counts in `lengths` and `returns`, and its observation is the episode's final observation.
    * The last step of a terminated episode is a transition, because the value of its next observation is not used.
      The observation of the step, which is a valid one, takes the place of the next observation.

    Some recorders read the last next observation after the reset, so it is the first one of the next episode. No step
    leads there. So the last step of an episode that such a recorder truncated is not a transition, either.

    Attributes:
        observations: (S, *obs), float32; or uint8 for recorded bytes with more than one axis, such as images; or packed
            Dict observations, uint8.
        actions: (S, A), float32, as recorded, in the recorder's units.
        rewards: (S,), float32.
        terminations: (S,), bool: True if the task ended; False for a time limit.
        truncations: (S,), bool: True if the episode was truncated, or the recording jumps.
        stops: (E,), the index after each episode's last step.
        final_observations: (E, *obs), the last observation of each episode.
        last_is_transition: (E,), whether the next observation of an episode's last step is known, or not needed.
        is_whole: (E,), whether the episode ended before the recording did, and begins where the recorded one does.
        action_range: lowest and highest action, which are scaled to -1 and 1; None if neither data nor user gives them.
        discrete_actions: True if actions are discrete. Then A is 1, and `action_range` are the first and the last one.
        notices: notices for users of the dataset.
        name: the name of the dataset, for messages.
        source: the origin of the dataset.
        infos: other recorded arrays, usually one row per step; read on access.
        metadata: recorded facts about the whole dataset; read on access.
        observation_space: the space of Dict observations, else None.
    """

    observations: Array
    actions: Array
    rewards: Array
    terminations: Array
    truncations: Array
    stops: Array
    final_observations: Array
    last_is_transition: Array
    is_whole: Array
    action_range: Range | None = None
    discrete_actions: bool = False
    notices: tuple[Notice, ...] = ()
    name: str = "data"
    source: str = "arrays"
    infos: Mapping[str, Array] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    observation_space: PackedDict | None = None

    if not TYPE_CHECKING:  # type checkers find names that do not exist by themselves

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("dataset", name, "the dataset", dir(self))

        def __getitem__(self, index: Any) -> Any:
            raise TypeError(
                "a dataset has no items; select(EPISODES), such as data.select(range(100)), takes episodes, "
                "first_steps(N) takes steps, and data.observations and so on are arrays of all steps"
            )

    @property
    def num_steps(self) -> int:
        """S, the number of steps."""
        return len(self.rewards)

    @property
    def num_episodes(self) -> int:
        """E, the number of episodes."""
        return len(self.stops)

    @property
    def num_transitions(self) -> int:
        """The number of steps whose next observation is known, or not needed."""
        return self.num_steps - int((~self.last_is_transition).sum())

    @property
    def starts(self) -> Array:
        """(E,), the index of each episode's first step."""
        return np.concatenate([[0], self.stops[:-1]])

    @property
    def lengths(self) -> Array:
        """(E,), the number of steps of each episode."""
        return np.diff(self.stops, prepend=0)

    @property
    def episodes(self) -> list[tuple[int, int]]:
        """The index of each episode's first step, and the index after its last step."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    @property
    def returns(self) -> Array:
        """(E,), float64: the sum of all recorded rewards, including those of steps that are not transitions."""
        return np.add.reduceat(self.rewards, self.starts, dtype=np.float64)

    @property
    def whole_returns(self) -> Array:
        """(W,), float64: the returns of whole episodes, or of all episodes if none is whole."""
        returns = self.returns
        return returns[self.is_whole] if self.is_whole.any() else returns

    @property
    def is_transition(self) -> Array:
        """(S,), bool: whether a step is a transition."""
        mask = np.ones(self.num_steps, np.bool_)
        mask[self.stops - 1] = self.last_is_transition
        return mask

    @property
    def next_observations(self) -> Array:
        """(S, *obs), a new array. For a step that is not a transition, it holds the observation of the step."""
        after = np.empty(self.observations.shape, self.observations.dtype)
        after[:-1] = self.observations[1:]
        after[self.stops - 1] = self.final_observations
        return after

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes."""
        arrays: list[Any] = [value for value in vars(self).values() if isinstance(value, np.ndarray)]
        return sum(array.nbytes for array in [*arrays, *([self.stacks] if self.stacks else [])])

    @property
    def stacks(self) -> FrameStacks | None:
        """The observations, if each of their frames is stored once; else None."""
        return self.observations if isinstance(self.observations, FrameStacks) else None

    def newest_frames(self, number: int) -> Dataset:
        """Return data whose observations have only the newest frames of stacks of frames; see `FrameStacks`."""
        if self.stacks is None or number >= self.stacks.depth:
            return self
        final: Any = self.final_observations
        observations: Any = self.stacks.newest(number)
        return replace(self, observations=observations, final_observations=final.newest(number))

    def limited(self, memory_limit: int) -> Dataset:
        """Return data whose stacks of frames take at most these bytes of memory; further ones are in a file."""
        if self.stacks is None:
            return self
        final, old = self.final_observations, self.stacks.file
        file = FrameFile(old.path, old.shape, old.name, memory_limit)
        parts: Any = [replace(part, file=file) for part in (self.stacks, final) if isinstance(part, FrameStacks)]
        return replace(self, observations=parts[0], final_observations=parts[1])

    @property
    def is_shuffled(self) -> bool:
        """Whether the steps are transitions without order, each of which is an episode of its own."""
        return bool(self.metadata.get(SHUFFLED))

    def bytes_of_rows(self, memory_limit: int | None = None) -> int:
        """Return the bytes of memory of the arrays that `rows` returns."""
        num_rows = self.num_transitions + int((self.lengths > ~self.last_is_transition).sum())
        size = self.observations[:1].nbytes
        if self.stacks:  # the table has a row per frame, and shares the frames
            num_rows, size = self.stacks.nbytes // math.prod(self.stacks.shape[2:]), 0
        elif exceeds(memory_limit, (num_rows, size), self.observations.dtype):
            size = 0
        return num_rows * bytes_per_row(size, self.actions.shape[1])

    def __repr__(self) -> str:
        space, actions = self.observation_space, self.actions
        seen = f"{self.observations.shape} {self.observations.dtype}"
        if space is not None:
            entries = (f"{part.key} {part.shape}" for part in space.unpacked_shape.parts if part != space.state_part)
            seen = f"Dict({', '.join(entries)})"
        states = (
            "" if space is None or space.state_part is None else f" and states {space.state_part.shape} for critics"
        )
        return (
            f"<Dataset {self.name!r} from {self.source}: num_transitions={self.num_transitions:,}, "
            f"num_episodes={self.num_episodes:,}, observations={seen}{states}, actions={actions.shape} {actions.dtype}>"
        )

    @staticmethod
    @explains_calls
    def from_arrays(
        *,
        observations: ArrayLike | Mapping[str, ArrayLike],
        actions: ArrayLike,
        rewards: ArrayLike,
        terminations: ArrayLike | None = None,
        truncations: ArrayLike | None = None,
        next_observations: ArrayLike | Mapping[str, ArrayLike] | None = None,
        terminals: ArrayLike | None = None,
        timeouts: ArrayLike | None = None,
        states: ArrayLike | None = None,
        next_states: ArrayLike | None = None,
        max_episode_steps: int | None = None,
        action_range: Range | None = None,
        observation_space: spaces.Dict | None = None,
        name: str = "data",
    ) -> Dataset:
        """Make a dataset from arrays of all steps, concatenated. Arrays that need no conversion are not copied.

        Args:
            observations: (S, *obs); or a mapping from the keys of Dict observations to such arrays.
            actions: (S, A).
            rewards: (S,).
            terminations: (S,), True if the task ended after the step. Required, under this name or as `terminals`; all
                False if the task never ends.
            truncations: (S,), True if the episode was truncated after the step, by a time limit or otherwise.
            next_observations: (S, *obs). An episode is cut where they differ from the following row. Without them, the
                last step of a truncated episode is not a transition; see `Dataset`.
            terminals: D4RL's name for `terminations`.
            timeouts: D4RL's name for `truncations`.
            max_episode_steps: the time limit of the recorded environment, if there are no truncations.
            action_range: lowest and highest action of the recording, which are scaled to -1 and 1. Each is one number,
                or has A numbers, as in ((-0.3, -2.0), (1.2, 2.0)). By default the bounds of the environment that the
                agent is trained for.
            states: (S, F), what only critics see; see ``make.state``. Agents leave them out if it is None.
            next_states: (S, F). They are needed if `next_observations` are given.
            observation_space: the space of Dict observations. Needed if there are choices, such as `Discrete`, that
                are not one-hot, or images of other integers than uint8. Without it, arrays of uint8 with three axes
                per step are images, and all others are vectors.
            name: the name for messages.

        Raises:
            UserError: an array is missing, has the wrong shape or is not numeric.
        """
        given = {
            "observations": observations, "actions": actions, "rewards": rewards, "terminations": terminations,
            "truncations": truncations, "next_observations": next_observations, "terminals": terminals,
            "timeouts": timeouts, "states": states, "next_states": next_states,
        }  # fmt: skip
        columns: dict[str, Column] = {}
        space = packed_space(observation_space, name)
        for key, value in given.items():
            if isinstance(value, Mapping):
                if "observations" not in key:
                    raise UserError(f"{name}: {key} is a mapping; give one array of all steps")
                parts = {part: as_column(array, f"{name}: {key}/{part}") for part, array in entries_of(value)}
                columns[key] = packed = DictColumn(parts, space, f"{name}: {key}")
                space = packed.space
            elif value is not None:
                columns[key] = as_column(value, f"{name}: {key}")
        if observation_space is not None and not isinstance(observations, Mapping):
            raise UserError(f"{name}: observations are one array, but the observation space is a Dict; give a mapping")
        info = DatasetInfo(name, max_episode_steps=max_episode_steps, action_range=action_range)
        return Dataset.from_columns(columns, info)

    @staticmethod
    def from_columns(
        columns: dict[str, Column], info: DatasetInfo, found: Iterable[str] = (), *, are_episodes: bool = False
    ) -> Dataset:
        """Check and read columns; see `from_arrays`. The reference to a column is dropped once it is read.

        Args:
            columns: the columns by their names, ours or D4RL's.
            info: information other than the columns.
            found: names of other arrays, for messages.
            are_episodes: True if ends and next observations are known to be right.

        Raises:
            UserError: a column is missing, has the wrong shape, is not numeric, or is too large for this machine.
        """
        name, limit, metadata = info.label, info.max_episode_steps, info.metadata or {}
        if limit is not None and not is_whole_number(limit, 1):
            raise UserError(f"{name}: max_episode_steps is {limit!r}; it has to be a whole number above 0, or None")
        found = list(found)
        columns = with_our_names(columns, name, found)
        unread = name_unread(columns, found)
        join_states(columns, name)
        space: PackedDict | None = getattr(columns["observations"], "space", None)
        if space is not None and (key := state_key(metadata, name)) in space.entries:
            space = PackedDict(space.dict_space, key)
        integers: list[str] = getattr(columns["observations"], "integers", [])
        if hasattr(columns.get("next_observations", columns["observations"]), "space") != (space is not None):
            raise UserError(
                f"{name}: only one of observations and next_observations is a mapping; give both as mappings"
            )
        num_steps = check_shapes(columns, name)
        needed = bytes_needed(columns, info.memory_limit)
        has_images = dtype_in_memory(columns["observations"], is_observed=True) == np.uint8
        check_room(needed, f"{name}: {num_steps:,} steps", has_images)
        terminations = read_flags(columns.pop("terminations"), f"{name}: terminations")
        flags = columns.pop("truncations", None)
        truncations = time_limits(terminations, limit) if flags is None else read_flags(flags, f"{name}: truncations")
        num_cut = int(truncations.sum())
        are_copies = num_cut > 1 and bool(terminations[truncations].all())
        is_end = terminations | truncations
        of_ends = bytes_of_ends(columns["observations"], int(is_end.sum()) + 1)
        check_room(needed + of_ends, f"{name}: {num_steps:,} steps, and the last observations of episodes,")
        rewards = read_numbers(columns.pop("rewards"), f"{name}: rewards").reshape(num_steps)
        has_integers = columns["actions"].dtype.kind in "iub"
        actions = read_numbers(columns.pop("actions"), f"{name}: actions").reshape(num_steps, -1)
        allocate = partial(recorded_frames, memory_limit=info.memory_limit, name=name)
        rounded = [] if space is not None else rounded_columns(columns["observations"])
        of_type = columns["observations"].dtype
        observations = read_numbers(columns.pop("observations"), f"{name}: observations", True, allocate)
        num_whole = None if are_episodes else num_whole_episodes(metadata, name)
        following = columns.pop("next_observations", None)
        is_sure = are_episodes or num_whole is not None
        num_bytes = 0 if space is None else space.num_vector_bytes
        if flags is None and limit and limit > 1 and following is not None:  # it counts from ends that jumps show, too
            _, jumps = read_last(following, observations, terminations, name, num_bytes)
            truncations = time_limits(terminations, limit, jumps)
            is_end = terminations | truncations
        last = last_steps(observations, terminations, truncations, following, name, is_sure, num_bytes)
        if flags is None and not limit:  # jumps are the only sign of a time limit
            is_end = terminations | truncations
        is_whole = is_end[last.stops - 1]
        is_whole[num_whole:] &= num_whole is None
        is_joined = flags is None and (limit or following is None or not shows_ends(last, observations, num_bytes))
        notices = [
            *(notices_on_limits(limit) if is_joined else []),
            *([Notice("remark", unread)] if unread else []),
            *last.notices,
            *([] if space is None else choice_notices(space, integers, observations)),
            *notices_on_rounding(rounded),
            *notices_on_images(observations[:: max(num_steps // FEW, 1)], of_type, name),
            *(notices_on_copies(num_cut) if are_copies else []),
        ]
        if len(observations) == (~last.is_transition).sum():
            raise SpoiledData(
                f"{name}: every episode is cut after one step, and the next observations of these steps are unknown; "
                f"give next_observations from before a reset, or longer episodes"
            )
        bounds = action_range(metadata, name) or info.action_range
        return Dataset(
            observations,
            actions,
            rewards,
            terminations,
            truncations,
            stops=last.stops,
            final_observations=last.final_observations,
            last_is_transition=last.is_transition,
            is_whole=is_whole,
            action_range=None if bounds is None else checked_range(bounds, actions.shape[1], name),
            discrete_actions=has_integers and (bounds is None or info.is_discrete or NUM_ACTIONS in metadata),
            notices=tuple(notices),
            name=info.name,
            source=info.source,
            infos=info.infos or {},
            metadata=metadata,
            observation_space=space,
        )

    @staticmethod
    def from_frames(
        columns: dict[str, Column], frames: Column, info: DatasetInfo, found: Iterable[str] = ()
    ) -> Dataset:
        """Check and read the columns of a file of frames (R, H, W), except the frames; see `FrameStacks`.

        Raises:
            UserError: a column is missing or wrong, or the number of frames is wrong.
        """
        name = info.label
        stack: Any = (info.metadata or {}).get(FRAME_STACK)
        if not is_whole_number(stack, 1) or frames.dtype != np.uint8 or len(frames.shape) != 3:
            raise UserError(
                f"{name}: frames of shape {frames.shape}, {frames.dtype}, with metadata/{FRAME_STACK} {stack!r}; they "
                f"have to be (rows, height, width), uint8, and frame_stack a whole number; convert the data again"
            )
        unseen = np.zeros((columns.get("rewards", frames).shape[0], 1), np.float32)  # in place of the observations
        kept = {key: column for key, column in columns.items() if key not in STATES}
        data = Dataset.from_columns({**kept, "observations": unseen, "next_observations": unseen}, info, found)
        file = FrameFile(Path(info.source), frames.shape, name, info.memory_limit)
        first = first_rows(data.terminations | data.truncations, frames.shape[0], int(stack), name)
        observations: Any = FrameStacks(file, first, int(stack))
        final_observations: Any = FrameStacks(file, first[data.stops - 1] + 1, int(stack))
        return replace(data, observations=observations, final_observations=final_observations)

    @staticmethod
    @explains_calls
    def from_episodes(
        episodes: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        action_range: Range | None = None,
        observation_space: spaces.Dict | None = None,
        name: str = "data",
        source: str = "episodes",
        metadata: Mapping[str, Any] | None = None,
        is_discrete: bool = False,
    ) -> Dataset:
        """Make a dataset from episodes. Each has one more observation than actions: the first, and one per action.

        For example, an episode of 200 steps that a time limit ended, with observations of shape (3,) and actions of
        shape (1,)::

            episode = {
                "observations": np.zeros((201, 3), np.float32),  # the last one follows the last step
                "actions": np.zeros((200, 1), np.float32),
                "rewards": np.zeros(200, np.float32),
                "terminated": False,  # True if the task ended; False for a time limit
            }
            data = offpcc.Dataset.from_episodes([episode])

        Args:
            episodes: episodes of L steps each. An episode is a mapping with the keys ``observations`` (L+1, *obs),
                ``actions`` (L, A), ``rewards`` (L,) and ``terminated``; ``terminations`` or ``terminals`` (L,) may
                replace ``terminated``. There may be L observations, if ``next_observations`` (L, *obs) are given. Or
                it is a sequence ``(observations, actions, rewards, terminated)``.
            action_range: see `from_arrays`.
            observation_space: see `from_arrays`.
            name: the name for messages.
            source: the origin of the data.
            metadata: metadata of the whole dataset.
            is_discrete: whether actions that are whole numbers are discrete, though `action_range` is given: its bounds
                are then the first and the last one.

        Raises:
            UserError: an array is missing, has the wrong shape or is not numeric.
        """
        space = packed_space(observation_space, name)
        read: list[EpisodeParts] = []
        for number, episode in enumerate(episodes):
            read.append(read_episode_parts(episode, f"{name}, episode {number}", space))
            space, integers = read[0].space, read[0].integers
        if not read:
            raise UserError(f"{name}: there are no episodes; give one or more")
        for number, episode in enumerate(read):
            for part in ("observations", "actions"):
                here, first = getattr(episode, part), getattr(read[0], part)
                if here.shape[1:] != first.shape[1:] or here.dtype != first.dtype:
                    raise UserError(
                        f"{name}, episode {number}: {part} of shape {here.shape[1:]} ({here.dtype}), but episode 0 has "
                        f"{first.shape[1:]} ({first.dtype}); these must be equal in all episodes"
                    )
        stops = np.cumsum([len(episode.actions) for episode in read])
        terminations, truncations = np.zeros((2, stops[-1]), np.bool_)
        terminations[stops - 1] = [episode.terminated for episode in read]
        truncations[stops - 1] = ~terminations[stops - 1]
        observed: dict[str, Column] = {}
        for key, rows in (("observations", slice(-1)), ("next_observations", slice(1, None))):
            joined = np.concatenate([episode.observations[rows] for episode in read])
            observed[key] = joined if space is None else PackedRows(joined, space, integers)
        columns: dict[str, Column] = {
            **observed,
            "actions": np.concatenate([episode.actions for episode in read]),
            "rewards": np.concatenate([episode.rewards for episode in read]),
            "terminations": terminations,
            "truncations": truncations,
        }
        del read, observed
        info = DatasetInfo(name, source, action_range=action_range, metadata=metadata, is_discrete=is_discrete)
        return Dataset.from_columns(columns, info, are_episodes=True)

    def without_states(self, memory_limit: int | None = None) -> Dataset:
        """Return the data without the states that only critics see; itself, if there are none.

        Args:
            memory_limit: see `offpcc.data.load_dataset`.
        """
        if (space := self.observation_space) is None or space.state_key is None:
            return self
        seen, split = space.agent_space, space.split_state

        def shown(packed: Array) -> Array:
            return convert_recorded(packed, lambda rows: split(rows)[0], memory_limit, self.name)

        return replace(
            self,
            observations=shown(self.observations),
            final_observations=shown(self.final_observations),
            observation_space=seen if isinstance(seen, PackedDict) else None,
        )

    def as_numbers(self) -> Dataset:
        """Return the data with the vectors of packed Dict observations, in float32; or else with their first image."""
        if (space := self.observation_space) is None:
            return self
        shape = space.unpacked_shape

        def numbers(packed: Array) -> Array:
            if not shape.vectors:
                return space.split(packed)[shape.images[0].key]
            return np.ascontiguousarray(packed[:, : space.num_vector_bytes]).view(np.float32)

        final = numbers(self.final_observations)
        return replace(self, observations=numbers(self.observations), final_observations=final, observation_space=None)

    def select(self, episodes: Sequence[int] | Array) -> Dataset:
        """Return a dataset of the given episodes, in the given order. A contiguous range is not copied.

        Raises:
            UserError: no episode is given, or one does not exist.
        """
        chosen = np.asarray(episodes, np.int64)
        if not chosen.size or chosen.min() < 0 or chosen.max() >= self.num_episodes:
            raise UserError(
                f"{self.name}: episodes {chosen.tolist()[:10]} are wanted, but there are {self.num_episodes}, numbered "
                f"from 0; choose one or more of them"
            )
        starts, stops = self.starts[chosen], self.stops[chosen]
        if (np.diff(chosen) == 1).all():
            steps: slice | Array = slice(int(starts[0]), int(stops[-1]))
        else:
            steps = np.concatenate([np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)])
        is_part = len(np.unique(chosen)) < self.num_episodes
        part = slice(int(chosen[0]), int(chosen[-1]) + 1) if isinstance(steps, slice) else chosen
        return replace(
            self,
            **{name: pick_observations(getattr(self, name), steps) for name in (*REQUIRED, "truncations")},
            stops=np.cumsum(stops - starts),
            final_observations=pick_observations(self.final_observations, part),
            last_is_transition=self.last_is_transition[part],
            is_whole=self.is_whole[part],
            notices=tuple(notice.in_part() for notice in self.notices) if is_part else self.notices,
            infos=infos_of_steps(self.infos, steps, self.num_steps) if self.infos else self.infos,
        )

    def fraction(self, part: float) -> Dataset:
        """Return as few whole episodes from the start as hold this part of the steps, rounded up; all of them for 1.

        Raises:
            UserError: `part` is not in (0, 1].
        """
        self._check_part(part, "a fraction")
        wanted = math.ceil(part * self.num_steps - 1e-6)  # as floats, 0.1 * 30 is above 3
        return self.select(np.arange(int(np.searchsorted(self.stops, wanted)) + 1))

    def _check_part(self, part: float, words: str) -> None:
        if not isinstance(part, int | float) or not 0.0 < part <= 1.0:
            raise UserError(f"{self.name}: {words} of {part!r} is wanted; it has to be a number above 0 and at most 1")

    def first_steps(self, number: int) -> Dataset:
        """Return this many steps from the start. The last episode is cut, as by the end of a recording.

        Raises:
            UserError: there are fewer steps.
        """
        if not is_whole_number(number, 1, self.num_steps):
            raise UserError(
                f"{self.name}: the first {number!r} steps are wanted; it has to be a whole number from 1 to "
                f"{self.num_steps:,}, the number of all steps"
            )
        data = self.select(np.arange(int(np.searchsorted(self.stops, number)) + 1))
        if data.num_steps == number:
            return data
        steps, last = slice(0, number), data.num_episodes - 1
        parts = (data.truncations[steps], data.is_whole, data.last_is_transition)
        truncations, is_whole, known = (part.copy() for part in parts)
        truncations[-1], is_whole[-1], known[-1] = True, False, True
        final: Any = data.final_observations
        if isinstance(final, FrameStacks):
            final = replace(final, first=np.append(final.first[:last], final.first[last] - data.num_steps + number))
        else:
            final = np.concatenate([data.final_observations[:last], data.observations[number : number + 1]])
        return replace(
            data,
            **{name: pick_observations(getattr(data, name), steps) for name in REQUIRED},
            truncations=truncations,
            stops=np.append(data.stops[:last], number),
            final_observations=final,
            last_is_transition=known,
            is_whole=is_whole,
            infos=infos_of_steps(data.infos, steps, data.num_steps) if data.infos else data.infos,
        )

    def best(self, part: float) -> Dataset:
        """Return the whole episodes with the largest returns, in their order.

        `part` is a part of their number, rounded down, at least one episode. Episodes that the recording's end cut are
        left out, unless all are, because their returns lack steps.

        Raises:
            UserError: `part` is not in (0, 1].
        """
        self._check_part(part, "a best fraction")
        if part == 1.0:
            return self
        numbers = np.flatnonzero(self.is_whole) if self.is_whole.any() else np.arange(self.num_episodes)
        wanted = max(int(part * len(numbers) + 1e-6), 1)  # as floats, 0.29 * 100 is below 29
        order = np.argsort(-self.returns[numbers], kind="stable")
        return self.select(np.sort(numbers[order[:wanted]]))

    def __len__(self) -> int:
        """S, the number of steps."""
        return self.num_steps

    def __add__(self, other: Dataset) -> Dataset:
        """Return a dataset of the episodes of both, first those of this one. Infos, and metadata that differ, are lost.

        A notice says if they were recorded in different environments, or through different wrappers.

        Raises:
            UserError: observations or actions are unlike.
        """
        if not isinstance(other, Dataset):
            return NotImplemented
        return concat_datasets(self, other)

    def save(self, file: str | Path) -> None:
        """Write an HDF5 file in D4RL's format, with action bounds and small metadata.

        `offpcc.data.load_dataset` reads it. A step that is not a transition is left out, because its next observation
        is unknown. Episodes that the recording's end cut come last. Infos are left out.

        Raises:
            UserError: the file exists, or cannot be written.
        """
        save_dataset(self, as_path(file, "file"))

    def with_range(self, action_range: Range | None) -> Dataset:
        """Return the dataset with these action bounds, unless it already has bounds; see `from_arrays`.

        Raises:
            UserError: the bounds do not fit the actions.
        """
        if action_range is None or self.action_range is not None:
            return self
        bounds = checked_range(action_range, self.actions.shape[1], self.name)
        return replace(self, action_range=bounds, discrete_actions=False)

    def unit_actions(self, action_bounds: Range | None = None) -> Array:
        """Return a new array of actions for agents, (S, A) in [-1, 1]; discrete ones one-hot, (S, number of actions).

        Actions are scaled by `action_range`, else by `action_bounds`, else not at all. Then they are clipped.

        Args:
            action_bounds: lowest and highest action of the environment that the agent is trained for.

        Raises:
            UserError: the bounds do not fit the actions.
        """
        return self._in_units(self.actions, action_bounds)

    def _in_units(self, actions: Array, action_bounds: Range | None) -> Array:
        if self.discrete_actions:
            first, num = self.choices(action_bounds)
            if num > MOST_ACTIONS:
                raise UserError(
                    f"{self.name}: its actions would be {num:,} choices, from {first} on; give the environment of the "
                    f"recording, or dataset.action_range if these numbers are not choices"
                )
            return one_hot(actions[:, 0] - first, num)
        given = action_bounds if self.action_range is None else self.action_range
        bounds = None if given is None else checked_range(given, actions.shape[1], self.name)
        scaled = in_units(actions, bounds)
        return np.clip(scaled, -1.0, 1.0, out=scaled)

    def choices(self, action_bounds: Range | None = None) -> tuple[int, int]:
        """Return the first of the discrete actions, and their number.

        Args:
            action_bounds: the first and the last action of the environment, which count if the data do not tell them;
                without both, the actions are 0, or the least one, to the largest one.

        Raises:
            UserError: an action is not among them, or an action has several numbers.
        """
        if self.actions.shape[1] != 1:
            raise UserError(
                f"{self.name}: each action has {self.actions.shape[1]} whole numbers, but a discrete action is one "
                f"number; number all combinations, or give action_range if the numbers are not choices"
            )
        least, most = int(self.actions.min()), int(self.actions.max())
        given = action_bounds if self.action_range is None else self.action_range
        first, last = (min(least, 0), max(most, 1)) if given is None else (int(np.ravel(one)[0]) for one in given)
        if least < first or most > last:
            moved = (
                f"give actions {'-' if least > first else '+'} {abs(least - first)} if they count from {least} on, or "
            )
            moved *= most - least <= last - first
            raise UserError(
                f"{self.name}: actions are from {least} to {most}, but only {first} to {last} are possible; "
                f"{moved}give the environment of the recording"
            )
        return first, last - first + 1

    def action_warnings(self, action_bounds: Range | None = None) -> list[Notice]:
        """Return notices about the scaling of actions in `rows`.

        Args:
            action_bounds: see `unit_actions`.

        Raises:
            UserError: the bounds do not fit the actions.
        """
        if self.discrete_actions:
            first, num = self.choices(action_bounds)
            if self.action_range is not None or action_bounds is not None:
                return []
            text = f"actions are whole numbers, so they are taken to be discrete, {num} of them from {first} on"
            if (least := int(self.actions.min())) > first:
                text += f"; the least recorded one is {least}: if they count from {least} on, give actions - {least}"
            return [Notice("choices", f"{text}; give action_range if they are not")]
        is_own = self.name.startswith("minari:") or ACTION_KEYS[0] in self.metadata
        return action_warnings(self.actions, self.action_range, action_bounds, self.name, is_own)

    def rows(self, action_bounds: Range | None = None, memory_limit: int | None = None) -> TransitionTable:
        """Return all transitions in the format of the buffers. Episodes without a transition are left out.

        Args:
            action_bounds: see `unit_actions`.
            memory_limit: see `offpcc.data.load_dataset`.

        Raises:
            UserError: the bounds do not fit the actions.
        """
        if self.stacks:
            actions = self._in_units(self.actions, action_bounds)
            return self.stacks.table(self.starts, self.stops, actions, self.rewards, self.terminations)
        lengths = self.lengths - ~self.last_is_transition
        kept = lengths > 0
        stops = np.cumsum(lengths[kept] + 1)
        shape = self.observations.shape[1:]
        num_rows = int(stops[-1]) if len(stops) else 0
        size = self.choices(action_bounds)[1] if self.discrete_actions else self.actions.shape[1]
        dtype, frames = self.observations.dtype, None
        if dtype == np.uint8:
            frames = recorded_frames((num_rows, *shape), dtype, memory_limit, self.name)
        storage = Storage.of(num_rows, shape, dtype, size, observations=frames)
        storage.is_start[:] = True
        storage.is_start[stops - 1] = False

        taken = np.where(kept, lengths + 1, 0)
        offsets = np.cumsum(taken) - taken - self.starts  # row number minus step number, per episode
        mask = self.is_transition
        for steps in blocks(self.observations):  # in blocks, as a copy of everything would double the memory
            numbers = np.arange(steps.start, steps.stop)[mask[steps]]
            rows = numbers + offsets[np.searchsorted(self.stops, numbers, side="right")]
            storage.observations[rows] = self.observations[numbers]
            storage.actions[rows] = self._in_units(self.actions[numbers], action_bounds)
            storage.rewards[rows, 0] = self.rewards[numbers]
            storage.terminations[rows, 0] = self.terminations[numbers]
        last = np.cumsum(taken) - 1  # row of each kept episode's last observation
        for part in blocks(self.final_observations):
            storage.observations[last[part][kept[part]]] = self.final_observations[part][kept[part]]
        starts = np.concatenate([[0], stops[:-1]]) if len(stops) else stops
        return TransitionTable(**vars(storage), starts=starts, stops=stops)


def concat_datasets(one: Dataset, other: Dataset) -> Dataset:
    """Return a dataset of the episodes of both; see `Dataset.__add__`."""
    origins = [if_valid(recorded_in, each.metadata, each.name) for each in (one, other)]
    first, second = (
        each.name if origin in (None, each.name) else f"{each.name}, recorded in {origin},"
        for each, origin in zip((one, other), origins, strict=True)
    )
    has_entries = any(each.observation_space is not None for each in (one, other))
    facts = {
        **({"entries": [_entries_text(each) for each in (one, other)]} if has_entries else {}),
        "observations": [f"{each.observations.dtype} {each.observations.shape[1:]}" for each in (one, other)],
        "actions": [f"{each.actions.shape[1:]}" for each in (one, other)],
        "action_range": [_range_text(each.action_range) for each in (one, other)],
        "discrete_actions": [str(each.discrete_actions) for each in (one, other)],
        SHUFFLED: [str(each.is_shuffled) for each in (one, other)],
    }
    for name, (ours, theirs) in facts.items():
        if ours != theirs:
            is_missing = name == "action_range" and "None" in (ours, theirs)
            remedy = "give it to the other by with_range" if is_missing else "join data of one environment"
            raise UserError(f"{first} has {name} {ours}, but {second} has {theirs}; {remedy}")
    wrappers = [if_valid(recorded_wrappers, each.metadata, each.name) for each in (one, other)]
    origin_notices = []
    for what, (ours, theirs) in (("recorded in", origins), ("seen through", wrappers)):
        if ours != theirs and None not in (ours, theirs):
            shapes = f"observations {facts['observations'][0]} and actions {facts['actions'][0]}"
            text = f"{one.name} was {what} {ours}, but {other.name} {what} {theirs}, both with {shapes}"
            origin_notices = [Notice("origins", f"{text}: an agent learns from both as from one task")]
            break
    names = (*REQUIRED, "truncations", "final_observations", "last_is_transition", "is_whole")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in (one, other)]) for name in names}
    others = _plain_metadata(other)
    both = {key: value for key, value in _plain_metadata(one).items() if (key, value) in others.items()}  # in order
    both.pop(NUM_WHOLE, None)
    return replace(
        one,
        **arrays,
        stops=np.concatenate([one.stops, other.stops + one.num_steps]),
        notices=tuple(dict.fromkeys([*one.notices, *other.notices, *origin_notices])),
        name=one.name if one.name == other.name else f"{one.name}+{other.name}",
        source=f"{one.source} + {other.source}",
        infos={},
        metadata=both,
    )


def _entries_text(data: Dataset) -> str:
    space = data.observation_space
    return f"none, but arrays {data.observations.shape[1:]}" if space is None else str(space.unpacked_shape)


def _range_text(bounds: Range | None) -> str:
    return "None" if bounds is None else str([np.asarray(bound).tolist() for bound in bounds])


def _plain_metadata(data: Dataset) -> dict[str, Any]:
    """Return texts and numbers of the metadata."""
    known = {}
    for key in data.metadata:
        with contextlib.suppress(UserError):  # it cannot be read
            known[key] = data.metadata[key]
    plain = {key: value.decode() if isinstance(value, bytes) else value for key, value in known.items()}
    return {key: value for key, value in plain.items() if isinstance(value, str | int | float | np.number)}


def save_dataset(data: Dataset, file: Path) -> None:
    """Write a dataset to an HDF5 file; see `Dataset.save`."""
    check_output(file)
    if file.exists():
        raise UserError(f"{file} exists and is not overwritten; give another file, or remove it")
    lengths = data.lengths - ~data.last_is_transition
    order = [*np.flatnonzero((lengths > 0) & data.is_whole), *np.flatnonzero((lengths > 0) & ~data.is_whole)]

    def episodes() -> Iterator[Episode]:
        for number in order:
            start, length = int(data.starts[number]), int(lengths[number])
            steps, last = slice(start, start + length), data.final_observations[number][None]
            ending = Ending.TRUNCATED if data.is_whole[number] else Ending.UNFINISHED
            if data.terminations[start + length - 1]:
                ending = Ending.TERMINATED
            observations = np.concatenate([data.observations[steps], last])
            yield Episode(observations, data.actions[steps], data.rewards[steps], ending)

    settings = {"offpcc": __version__, **_plain_metadata(data)}
    for name in (NUM_WHOLE, FRAME_STACK, STATE_KEY):  # the file has whole stacks
        settings.pop(name, None)
    if data.observation_space is not None and data.observation_space.state_key is not None:
        settings[STATE_KEY] = data.observation_space.state_key
    if data.action_range is not None:
        low, high = (np.asarray(bound, np.float32).reshape(-1).tolist() for bound in data.action_range)
        settings |= {"action_low": low, "action_high": high}
    else:
        settings.pop(NUM_ACTIONS, None)
    if data.discrete_actions and data.action_range is not None:  # else the largest recorded action is not the last one
        first, num = data.choices()
        settings |= {"action_low": [first], "action_high": [first + num - 1], NUM_ACTIONS: num}
    facts: Any = {"settings": settings, "space": data.observation_space, "is_discrete": data.discrete_actions}
    with writing_to(file):
        num_whole = int(data.is_whole[order].sum())
        write_recording(file, episodes(), num_steps=int(lengths.sum()), num_whole=num_whole, **facts)
