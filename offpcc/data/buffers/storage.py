"""Arrays that store transitions and episodes."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from offpcc.data.datasets.columns import Array, blocks, exceeds
from offpcc.utils.errors import UserError, first_line


def bytes_per_row(observation_bytes: int, action_dim: int) -> int:
    """Return the size of a row in bytes: observation, action, reward, termination and start flag."""
    return observation_bytes + 4 * (action_dim + 2) + 1


def wrap_edges(with_edges: Any, num_rings: int) -> None:
    """Copy each ring's last row before its first row, and its first row after its last; for arrays and tensors."""
    with_edges[:num_rings], with_edges[-num_rings:] = (
        with_edges[-2 * num_rings : -num_rings],
        with_edges[num_rings : 2 * num_rings],
    )


def folder_for_frames() -> str:
    """Return the folder of temporary files: ``$TMPDIR``, else /var/tmp, which is on a disk where /tmp may not be."""
    return os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir())


def frames_in_file(shape: tuple[int, ...], what: str = "a replay buffer's frames", less: str = "capacity") -> Array:
    """Return an array of uint8 zeros in a temporary file: the system writes it to disk and frees its memory.

    The file is in `folder_for_frames`. It has no name, so it is gone when the array is. For the message, `what` says
    what the frames are, and `less` what to lower so that there are fewer.
    """
    folder, num_bytes = folder_for_frames(), math.prod(shape)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            # Otherwise, a full disk would end the process later. Some systems have no such function.
            reserve = getattr(os, "posix_fallocate", lambda number, _, size: os.truncate(number, size))
            reserve(file.fileno(), 0, num_bytes)
            # Python's mmap would keep a file descriptor for each episode, and there are few of them.
            content = torch.from_file(file.name, shared=True, size=num_bytes, dtype=torch.uint8)
    except OSError as error:
        raise UserError(
            f"{folder} cannot hold {num_bytes:,} bytes of {what} ({first_line(error)}); name a "
            f"folder on a larger disk in the environment variable TMPDIR, raise memory_limit, or lower {less}"
        ) from error
    frames: Array = content.numpy().reshape(shape)
    return frames


def recorded_frames(shape: tuple[int, ...], dtype: np.dtype[Any], memory_limit: int | None, name: str) -> Array:
    """Return zeros for recorded observations: images that exceed `memory_limit` are in a temporary file."""
    if exceeds(memory_limit, shape, dtype):
        return frames_in_file(shape, f"frames of {name}", "--dataset_fraction or --dataset_steps")
    return np.zeros(shape, dtype)


def convert_recorded(
    observations: Array, convert: Callable[[Array], Array], memory_limit: int | None, name: str
) -> Array:
    """Return recorded observations (N, *obs) as `convert` returns blocks of them; else see `recorded_frames`."""
    like = convert(observations[:1])
    result = recorded_frames((len(observations), *like.shape[1:]), like.dtype, memory_limit, name)
    for rows in blocks(observations):
        result[rows] = convert(observations[rows])
    return result


def folder_of_frames(frames: Array) -> str:
    """Return the folder of the temporary file that holds an array, which may be a view; "" if it is in memory."""
    owner: Any = frames
    while (base := getattr(owner, "base", None)) is not None:
        owner = base
    file = owner.untyped_storage().filename if isinstance(owner, torch.Tensor) else None
    return str(Path(file).parent) if file else ""


DTYPES: dict[type[Any], torch.dtype] = {np.float32: torch.float32, np.uint8: torch.uint8, np.bool_: torch.bool}


@dataclass(frozen=True, eq=False)
class Storage:
    """R rows ``o_t, a_t, r_t, d_t`` in order of time, as `ReplayBuffer` stores them.

    A transition's next observation is in the following row. A row is a start if a transition begins there. The row of
    an episode's last observation, for example, is not a start; its action, reward and termination are 0.

    Vector observations are in the same array as the other columns, so one index operation reads a whole row. The array
    has N extra rows at each end. They hold copies of each ring's last and first row.
    So the neighbours of the row at place p in its ring are always at p - N and p + N. See `wrap_edges`.
    """

    observations: Array  # (R, *obs)
    actions: Array  # (R, A); of discrete actions the index plus 1, (R, 1)
    rewards: Array  # (R, 1)
    terminations: Array  # (R, 1)
    is_start: Array  # (R,), bool
    packed: Array  # (R, [O +] A + 2), float32: the columns side by side; images have their own array
    with_edges: Array  # (N + R + N, ...), float32: `packed` is a view of its middle rows

    packs_observations: bool  # whether `packed` contains the observations

    @classmethod
    def of(
        cls,
        num_rows: int,
        observation_shape: tuple[int, ...],
        dtype: np.dtype,
        action_dim: int,
        num_rings: int = 1,
        device: torch.device | None = None,
        frames_on_disk: bool = False,
        observations: Array | None = None,
    ) -> Storage:
        """Create `num_rows` rows of zeros for N = `num_rings` rings: arrays, or tensors on a device.

        With `frames_on_disk`, images are in a temporary file; see `frames_in_file`. Or `observations` are the images.
        """
        packs = dtype == np.float32
        width = math.prod(observation_shape) if packs else 0

        def zeros(shape: tuple[int, ...], dtype: type[Any]) -> Any:
            return np.zeros(shape, dtype) if device is None else torch.zeros(shape, dtype=DTYPES[dtype], device=device)

        with_edges = zeros((num_rows + 2 * num_rings, width + action_dim + 2), np.float32)
        packed = with_edges[num_rings:-num_rings]
        shape = (num_rows, *observation_shape)
        if packs:
            observations = packed[:, :width].reshape(shape)
        elif observations is None:
            observations = frames_in_file(shape) if frames_on_disk else zeros(shape, np.uint8)
        return Storage(
            observations=observations,
            actions=packed[:, width:-2],
            rewards=packed[:, -2:-1],
            terminations=packed[:, -1:],
            is_start=zeros((num_rows,), np.bool_),
            packed=packed,
            with_edges=with_edges,
            packs_observations=packs,
        )

    @property
    def columns(self) -> list[Array]:
        """All columns; no number appears twice."""
        return [self.observations, self.actions, self.rewards, self.terminations, self.is_start]

    @property
    def contiguous(self) -> list[Array]:
        """All data in C-contiguous arrays; no number appears twice."""
        return [self.packed, *([] if self.packs_observations else [self.observations]), self.is_start]

    def put(self, arrays: Iterable[Array]) -> None:
        """Copy the `contiguous` arrays of another storage, which is not larger, into the first rows."""
        for own, given in zip(self.contiguous, arrays, strict=True):
            own[: len(given)] = given


@dataclass
class Ring:
    """State of one environment's ring."""

    cursor: int = -1  # row of the newest frame; -1 if the ring is empty
    size: int = 0  # rows in use
    unfinished: bool = False  # whether the episode at the cursor can continue


@dataclass(frozen=True, eq=False)
class TransitionTable(Storage):
    """Recorded transitions of all N episodes, one episode after another.

    An episode of L transitions takes L + 1 rows. The last row is not a start; it holds only the episode's last
    observation. A buffer may use these arrays without a copy. For agents with memory, episode i is a view of them: with
    ``a, b = starts[i], stops[i]`` its observations are ``observations[a:b]``, its actions ``actions[a : b - 1]``.
    """

    starts: Array  # (N,), first row of each episode
    stops: Array  # (N,), last row of each episode, plus 1

    @classmethod
    def joined(
        cls, episodes: Sequence[StoredEpisode], shape: tuple[int, ...], dtype: np.dtype, action_dim: int
    ) -> TransitionTable:
        """Return a copy of episodes without stacked frames, one after another."""
        sizes = np.array([len(episode.frames) for episode in episodes], np.int64)
        stops = np.cumsum(sizes)
        rows = Storage.of(int(sizes.sum()), shape, dtype, action_dim)
        for episode, start in zip(episodes, (stops - sizes).tolist(), strict=True):
            episode.pack(rows, start)
            rows.is_start[start : start + len(episode.actions)] = True
        return cls(**vars(rows), starts=stops - sizes, stops=stops)

    @property
    def arrays(self) -> list[Array]:
        """All arrays; no number appears twice, except in stacked observations."""
        return [*self.columns, self.starts, self.stops]

    @property
    def num_frame_bytes(self) -> int:
        """The size in bytes of the observations; a frame that several observations share counts once."""
        shared, one = self.observations.strides[0], self.observations[:1].nbytes
        return self.observations.nbytes - max(len(self.observations) - 1, 0) * max(one - shared, 0)

    @property
    def num_bytes(self) -> int:
        """The size in bytes of all arrays; a frame that several observations share counts once."""
        return self.num_frame_bytes + sum(array.nbytes for array in self.arrays[1:])

    def with_observations(self, observations: Array, actions: Array | None = None) -> TransitionTable:
        """Return the same transitions with other `observations` (R, *obs), and other `actions` (R, A') if given."""
        if observations is self.observations and actions is None:
            return self
        actions = self.actions if actions is None else actions
        num_rows, shape = len(observations), observations.shape[1:]
        is_image = observations.dtype == np.uint8
        storage = Storage.of(num_rows, (0,) if is_image else shape, np.dtype(np.float32), actions.shape[1])
        if is_image:  # without a copy
            storage = replace(storage, observations=observations, packs_observations=False)
        else:
            storage.observations[...] = observations
        for column, array in zip(storage.columns[1:], (actions, *self.columns[2:]), strict=True):
            column[...] = array
        return replace(self, **vars(storage))


class StoredEpisode(NamedTuple):
    """An episode of L steps."""

    frames: np.ndarray  # (L + frame_stack, *frame)
    actions: np.ndarray  # (L, A)
    rewards: np.ndarray  # (L, 1)
    terminated: bool
    group: int = 0  # episodes of the same group are saved in the same file
    num_recorded: int = 0  # leading steps that come before an imagined rollout; they count in no loss

    @property
    def stored(self) -> tuple[np.ndarray, ...]:
        """The arrays to save; no number appears twice."""
        return self.frames, self.actions, self.rewards

    def pack(self, rows: Storage, at: int) -> None:
        """Write the episode into rows from `at` on: a row for each frame.

        The row of an observation's newest frame also holds the action taken after that observation.
        """
        end = at + len(self.frames) - 1  # row of the last observation, which has no action
        steps = slice(end - len(self.actions), end)
        rows.observations[at : end + 1] = self.frames
        rows.actions[steps], rows.rewards[steps] = self.actions, self.rewards
        rows.terminations[end - 1] = self.terminated


def returns_to_go(rewards: Array, is_terminated: bool, discount: float) -> Array:
    """Return the discounted sums of an episode's rewards (L,), and of ones, from each step on: (L, 2), float32.

    If the episode did not terminate, as at a time limit or in a cut recording, its last reward goes on forever. So an
    episode that failed in a task with sparse rewards r has the return r / (1 - discount) at each step. With a discount
    of 1 this sum is infinite, so all numbers are 0 then, which means unknown.
    """
    number = len(rewards)
    if is_terminated:
        tail = 0.0
        ones = np.cumsum(discount ** np.arange(number))[::-1]
    elif discount < 1.0:
        tail = float(rewards[-1]) / (1.0 - discount)
        ones = np.full(number, 1.0 / (1.0 - discount))
    else:
        return np.zeros((number, 2), np.float32)
    sums = [
        *itertools.accumulate(rewards[::-1].tolist(), lambda later, reward: reward + discount * later, initial=tail)
    ]
    return np.stack([sums[:0:-1], ones], 1).astype(np.float32)


class RecordedEpisodes(Sequence[StoredEpisode]):
    """Episodes of recorded data. Indexing creates an episode as a view of the rows."""

    def __init__(self, rows: TransitionTable) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows.starts)

    @property
    def lengths(self) -> np.ndarray:
        """(N,), length of each episode in steps."""
        return self.rows.stops - self.rows.starts - 1

    @property
    def nbytes(self) -> int:
        """Size of observations, actions and rewards in bytes."""
        per_step = self.rows.actions[:1].nbytes + self.rows.rewards[:1].nbytes
        return self.rows.observations.nbytes + int(self.lengths.sum()) * per_step

    def __getitem__(self, number: Any) -> Any:
        start, stop = int(self.rows.starts[number]), int(self.rows.stops[number])
        frames, steps = self.rows.observations[start:stop], slice(start, stop - 1)
        is_terminated = bool(self.rows.terminations[stop - 2, 0])
        return StoredEpisode(frames, self.rows.actions[steps], self.rows.rewards[steps], is_terminated)


@dataclass
class PartialEpisode:
    """An unfinished episode."""

    frames: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def append(self, frames: Iterable[np.ndarray], action: np.ndarray, reward: float, next_frame: np.ndarray) -> None:
        """Add a step. The first step also adds its own frames."""
        if not self.actions:
            self.frames.extend(np.array(frame) for frame in frames)
        self.frames.append(np.array(next_frame))
        self.actions.append(np.array(action, np.float32))
        self.rewards.append(float(reward))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the episode as tensors; None for frames or actions if there are none yet."""
        frames, actions = (torch.from_numpy(np.stack(a)) if a else None for a in (self.frames, self.actions))
        return {"frames": frames, "actions": actions, "rewards": list(self.rewards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the episode from `state`."""
        self.frames, self.actions = ([] if state[n] is None else list(state[n].numpy()) for n in ("frames", "actions"))
        self.rewards = list(state["rewards"])
