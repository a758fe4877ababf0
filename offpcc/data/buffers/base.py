"""`BufferBase`: the base class of both replay buffers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from offpcc.config.validation import NumEnvs, NumParts, PositiveInteger, Rule
from offpcc.core import Batch, Chunk, channels_first, channels_first_shape, channels_last
from offpcc.data.buffers.device import RowLayout, sent
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator
from offpcc.utils.spaces import OneHot, action_size


def _builds_buffers(value: Any) -> bool:
    if isinstance(value, type):
        return hasattr(value, "push") and hasattr(value, "sample")
    return callable(value) and not isinstance(value, BufferBase)


def _without_parentheses(value: Any) -> str:
    return f"write @{type(value).__name__} without parentheses" if isinstance(value, BufferBase) else ""


BufferBuilder = Annotated[
    Callable[..., Any], Rule("a class of buffers such as @ReplayBuffer", _builds_buffers, _without_parentheses)
]


class BufferBase:
    """Base class of both replay buffers: spaces, frames, random generator, checks, memory size and saving.

    A subclass that draws in another way overrides `draw`. It may also override `importance_weights`,
    `update_priorities`, and, to follow what is stored, `item_changed` and `items_replaced`. An item is a place
    below `max_items`: of a row in a `ReplayBuffer`, or of an episode in a `RecurrentReplayBuffer`. There the newest
    episode replaces the oldest one. `offpcc.data.buffers.prioritized` overrides them all. An item drawn there by
    `PrioritizedRecurrentReplayBuffer` is a sequence: its episode's place and its number in the episode.

    A stacked observation consists of the last `frame_stack` frames. It shares all frames except the newest with the
    observation before it. So the buffer stores each frame once and stacks frames again in `sample`. At the start of an
    episode the environment chooses the older frames (zeros, or the first frame repeated). The buffer stores them, too.

    A discrete action is stored as one number: its index plus 1, or 0 where there is no action. Batches hold it one-hot.

    Args:
        observation_space: Observation space of one environment. Images may have channels first or last.
        action_space: Action space of one environment. Only its size is used: actions are in [-1, 1], or one-hot.
        device: Device of the batches.
        seed: Seed of the buffer's own generator.
        num_envs: Number of environments that send transitions.
        frame_stack: Number of frames in an observation, stacked along its first axis, oldest first. 1 for no stack.
        memory_limit: Maximum size of images in memory, in bytes; further ones are in temporary files. None for no
            limit. The images of recorded data obey it, too: beyond it, all of them are in one file. Batches and
            checkpoints are the same.

    Raises:
        UserError: The observations cannot be such stacks.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box | spaces.Discrete,
        device: str | torch.device,
        seed: int,
        num_envs: NumEnvs,
        frame_stack: NumParts,
        memory_limit: PositiveInteger | None = None,
    ) -> None:
        self.space_shape = observation_space.shape
        self.observation_shape = channels_first_shape(observation_space.shape)
        self.dtype = np.dtype(np.uint8 if observation_space.dtype == np.uint8 else np.float32)
        self.num_choices = action_size(action_space) if isinstance(action_space, spaces.Discrete | OneHot) else 0
        self.action_dim = 1 if self.num_choices else action_size(action_space)  # numbers of a stored action
        self.device = torch.device(device)
        self.randomness = NumpyGenerator(seed, 2)
        self.num_envs, self.frame_stack, self.memory_limit = num_envs, frame_stack, memory_limit
        self.frame_shape = self._frame_shape()
        self.recorded = ""  # identifies the recorded data that fills the buffer; empty if none does
        self.drawn = np.zeros(0, np.int64)  # items of the last batch, as `draw` returned them

    batch_size: int
    gives_next_actions = False  # whether batches have `next_actions`; True for algorithms that read them
    gives_few_shapes = False  # whether to pad sequences to few lengths, as on a GPU; True for compiled updates
    return_discount: float | None = None  # discount of `Batch.returns_to_go`; None for batches without it
    num_loaded = 0  # number of loads, each of which replaces all content; part of a chunk's version
    holds_episodes: ClassVar[bool]  # whether `sample` returns sequences, for agents with memory
    empty: ClassVar[str]  # why an empty buffer has nothing to sample

    def __len__(self) -> int:
        """Number of items that `sample` can draw: transitions or episodes."""
        raise NotImplementedError

    def sample(self) -> Batch:
        """Return a random batch, drawn with the buffer's own generator. See the class for its content.

        Raises:
            ValueError: The buffer has nothing to sample.
        """
        if not len(self):
            raise ValueError(self.empty)
        self.drawn = self.draw()
        if not self.draw.__module__.startswith("offpcc."):
            self._check_drawn()
        batch, weights = self.batch(self.drawn), self.importance_weights(self.drawn)
        if weights is None:
            return batch
        return batch._replace(weights=self.tensor(weights.astype(np.float32)[:, None, None]))

    def _check_drawn(self) -> None:
        """Raise if a user's `draw` returned a place that holds no item."""
        places = np.asarray(self.drawn)
        places = places if places.ndim == 1 else places[:, 0]
        if (is_empty := self.shares(places) == 0.0).any():
            name, item = type(self).__name__, "finished episode" if self.holds_episodes else "transition"
            raise UserError(
                f"{name}.draw returned the place {places[is_empty][0]}, which has no {item}; draw only places whose "
                f"self.shares(places) is above 0, or choose among those of super().draw()"
            )

    def batch(self, items: Array) -> Batch:
        """Return the batch of items, with discrete actions one-hot."""
        batch = self.batch_of(items)
        if not self.num_choices:
            return batch
        numbers = torch.arange(1, self.num_choices + 1, dtype=torch.float32, device=self.device)
        following = None if batch.next_actions is None else (batch.next_actions == numbers).float()
        return batch._replace(
            actions=(batch.actions == numbers).float(),
            first_action=(batch.first_action == numbers).float(),
            next_actions=following,
        )

    def _stacked(self, frames: torch.Tensor, length: int) -> torch.Tensor:
        """Return the observations (B, length, *obs) of frames (B, frame_stack - 1 + length, *frame), without a copy."""
        strides = frames.stride()
        if self.frame_stack > 1:  # observations overlap
            strides = (*strides[:2], frames.shape[2:].numel() // self.frame_shape[0], *strides[3:])
        return frames.as_strided((len(frames), length, *self.observation_shape), strides)

    def stored_actions(self, actions: Array) -> Array:
        """Return actions (..., A) as they are stored."""
        if not self.num_choices:
            return actions
        return np.where(actions.any(-1, keepdims=True), actions.argmax(-1, keepdims=True) + 1, 0).astype(np.float32)

    def draw(self) -> Array:
        """Return B items for the next batch, drawn with the buffer's own generator: (B,), or (B, 2) for sequences."""
        raise NotImplementedError

    def batch_of(self, items: Array) -> Batch:
        """Return the batch of these items, which `draw` returned."""
        raise NotImplementedError

    def importance_weights(self, items: Array) -> Array | None:
        """Return the importance weights (B,) of items that `draw` returned; None if all weigh the same."""
        return None

    def update_priorities(self, batch: Batch, td_error: torch.Tensor) -> None:
        """Receive the TD errors (B, T, 1) of the update with the last batch; called if the batch had weights.

        If the update was skipped, they are NaN on a GPU; on the CPU there is no call.
        """

    @property
    def max_items(self) -> int:
        """Number of places for items."""
        raise NotImplementedError

    def shares(self, items: Array) -> Array:
        """Return how often each item is drawn by default, relative to the others; 0 for places that hold none."""
        raise NotImplementedError

    def item_changed(self, item: int) -> None:
        """Called after an item was stored, replaced or removed; a subclass may override it. `shares` is up to date."""

    def items_replaced(self) -> None:
        """Called after recorded data or a checkpoint replaced all items; a subclass may override it."""

    def peek(self) -> Batch:
        """Return the batch that `sample` returns next, without a change of the buffer."""
        generator, drawn = self.randomness.generator, self.drawn
        self.randomness.generator = copy.deepcopy(generator)
        try:
            return BufferBase.sample(self)
        finally:
            self.randomness.generator, self.drawn = generator, drawn

    def _frame_shape(self) -> tuple[int, ...]:
        shape, number = self.observation_shape, self.frame_stack
        if number == 1:
            return shape
        fault = f"{type(self).__name__}.frame_stack is {number}, but observations of shape {self.space_shape}"
        if channels_last(self.space_shape):
            raise UserError(
                f"{fault} are images whose channels are last; frames are joined along the first axis: stack "
                f"images whose channels are first"
            )
        if not shape or shape[0] % number:
            raise UserError(
                f"{fault} are not a stack of that many frames: the first axis must be a multiple of frame_stack; for "
                f"observations that are not stacked, frame_stack is 1"
            )
        return (shape[0] // number, *shape[1:])

    @property
    def layout(self) -> RowLayout:
        """Layout of a row on the device."""
        return RowLayout(self.frame_shape, self.dtype, self.action_dim, self.num_envs)

    @property
    def bytes_per_frame(self) -> int:
        """Size of one frame in bytes."""
        return math.prod(self.frame_shape) * self.dtype.itemsize

    @property
    def bytes_per_step(self) -> int:
        """Size of one step in bytes: a frame, an action and a reward."""
        return self.bytes_per_frame + 4 * self.action_dim + 4

    def in_memory(self, num_frames: int) -> int:
        """Return the bytes of memory that so many frames take, up to `memory_limit`."""
        num_bytes = num_frames * self.bytes_per_frame
        if self.memory_limit is None or self.dtype != np.uint8:
            return num_bytes
        return min(num_bytes, self.memory_limit)

    def planned_file_bytes(self, num_steps: int, longest_episode: int | None) -> int:
        """Return the bytes of disk that a run needs at once; 0 if files are written one after another, or never."""
        del num_steps, longest_episode
        return 0

    def read(self, observation: np.ndarray) -> np.ndarray:
        """Return an observation in the stored format: its frames, (frame_stack, *frame).

        Raises:
            ValueError: The observation has another shape than the space.
        """
        observation = np.asarray(observation)
        if observation.shape == self.space_shape:
            observation = channels_first(observation, self.space_shape)
        elif observation.shape != self.observation_shape:
            raise ValueError(
                f"observation of shape {observation.shape} pushed into a buffer of shape {self.space_shape}"
            )
        return observation.astype(self.dtype, copy=False).reshape(self.frame_stack, *self.frame_shape)

    def read_transition(
        self, observation: np.ndarray, action: np.ndarray, next_observation: np.ndarray, env: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the frames of both observations and the action, float32, in the stored format.

        Raises:
            ValueError: A shape differs from the space's, the buffer holds recorded data, `env` does not exist, or the
                frames of `next_observation` are not those of `observation` shifted by one frame.
        """
        frames, next_frames = self.read(observation), self.read(next_observation)
        if self.recorded:
            raise ValueError(f"a transition pushed into a buffer of recorded data ({self.recorded}), which takes none")
        if not 0 <= env < self.num_envs:
            raise ValueError(
                f"a transition of environment {env} pushed into a buffer of num_envs = {self.num_envs}; "
                f"environments are numbered from 0"
            )
        if self.frame_stack > 1 and not self._equal(frames[1:], next_frames[:-1]):
            raise ValueError(
                f"the older frames of next_observation are not the newer ones of observation, so these are no stacks "
                f"of frame_stack = {self.frame_stack} frames, oldest first; give the buffer frame_stack = 1"
            )
        size = self.num_choices or self.action_dim
        return frames, next_frames, self.stored_actions(np.asarray(action, np.float32).reshape(size))

    def _equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        # Comparing bytes is several times as fast, and equal arrays nearly always have equal bytes. The exceptions are
        # 0.0 and -0.0, and different NaNs: `array_equal` takes them as equal.
        return a.tobytes() == b.tobytes() or np.array_equal(a, b, equal_nan=self.dtype.kind == "f")

    def unused_parameters(self) -> dict[str, str]:
        """Return the parameters that have no effect on this buffer, each with the reason."""
        idle = {"capacity": "recorded data is held whole"} if self.recorded else {}
        if self.device.type == "cpu":
            idle["on_device"] = "batches go to the CPU, where the buffer is"
        if self.dtype != np.uint8:
            idle["memory_limit"] = "observations are not images"
        return idle

    def episodes_per_env(self, num_steps: int, longest_episode: int | None) -> int:
        """Return the smallest number of episodes per environment; 0 if episodes have no maximum length."""
        return math.ceil(math.ceil(num_steps / self.num_envs) / longest_episode) if longest_episode else 0

    def _adopt(self, rows: TransitionTable, recorded: str) -> TransitionTable:
        """Mark the buffer as filled with recorded data, and return the rows in the stored format."""
        if self.num_envs > 1 or self.frame_stack > 1 or len(self):
            raise ValueError(
                f"recorded data fills a new buffer of num_envs = 1 and frame_stack = 1, not one of {self.num_envs} and "
                f"{self.frame_stack} that holds {len(self)}"
            )
        if rows.observations.dtype != self.dtype:
            raise ValueError(
                f"rows of {rows.observations.dtype} observations fill no buffer of {self.dtype}; convert them first"
            )
        self.recorded = recorded
        observations = channels_first(rows.observations, self.space_shape)
        if self.num_choices:
            return rows.with_observations(observations, self.stored_actions(rows.actions))
        if self.dtype == np.uint8:  # images are stored apart from the other columns, so a view is enough
            return replace(rows, observations=observations)
        return rows.with_observations(observations)

    def tensor(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return `array` on the device, without waiting for the GPU. A tensor is on the device already."""
        return sent(torch.from_numpy(array), self.device) if isinstance(array, np.ndarray) else array

    def chunks(self) -> list[Chunk]:
        """Return the content as chunks; none for recorded data.

        Equal metadata gives arrays of the same shapes in the same order.
        """
        raise NotImplementedError

    def metadata(self) -> dict[str, Any]:
        """Return everything that a checkpoint needs besides the chunks, as plain data and small tensors."""
        return {
            "num_envs": self.num_envs,
            "frame_stack": self.frame_stack,
            "recorded": self.recorded,
            "randomness": self.randomness.state_dict(),
        }

    def _outlined_bytes(self, metadata: Mapping[str, Any]) -> int:
        """Return the size in bytes of the chunks that `metadata` describes."""
        raise NotImplementedError

    def _allocate(self, metadata: Mapping[str, Any]) -> None:
        """Allocate the chunks that `metadata` describes, with arbitrary content."""
        raise NotImplementedError

    def _finalize(self) -> None:
        """Compute what depends on the content; `load` calls it after all chunks are filled."""
        raise NotImplementedError

    def load(self, metadata: Mapping[str, Any], num_bytes: int, fill: Callable[[int, Chunk], None]) -> None:
        """Replace the content with the saved content, chunk by chunk and without a second copy.

        Args:
            metadata: Return value of `metadata` when the buffer was saved.
            num_bytes: Total size of the saved chunks.
            fill: Function that gets a chunk's index and the chunk, and writes the saved data into the chunk's arrays.

        Raises:
            UserError: The saved buffer has other sizes, environments or frame stacks, or other recorded data.
        """
        if content_of(saved := metadata["recorded"]) != content_of(self.recorded):
            way = "continue with the data of that run" if saved else "leave the dataset out"
            raise UserError(
                f"the saved buffer held {saved or 'no recorded data'}, but this one holds "
                f"{self.recorded or 'none'}: {way}, or start another run"
            )
        for name in ("num_envs", "frame_stack"):
            if metadata[name] != getattr(self, name):
                raise UserError(
                    f"the saved buffer's {name} is {metadata[name]}, but this one's is {getattr(self, name)}: "
                    f"continue with {name} = {metadata[name]}, or start another run"
                )
        if not self.recorded:
            outlined = self._outlined_bytes(metadata)
            if outlined != num_bytes:  # check first, so damaged metadata cannot allocate too much memory
                raise UserError(
                    f"the saved buffer would be {outlined:,} bytes, but {num_bytes:,} were saved: it is damaged, or "
                    f"from another environment; start another run"
                )
            self.num_loaded += 1
            self._allocate(metadata)
            for number, chunk in enumerate(self.chunks()):
                fill(number, chunk)
            self._finalize()
            self.items_replaced()
        self.restore(metadata)

    def restore(self, metadata: Mapping[str, Any]) -> None:
        """Restore all of `metadata` that does not describe chunks; a subclass that adds to `metadata` extends this."""
        self.randomness.load_state_dict(metadata["randomness"])

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the content and the generator's state; for recorded data, its identifier only."""
        chunks = [[torch.from_numpy(array.copy()) for array in chunk.arrays] for chunk in self.chunks()]
        return {**self.metadata(), "chunks": chunks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the buffer from `state`; see `load`."""

        def fill(number: int, chunk: Chunk) -> None:
            for array, saved in zip(chunk.arrays, state["chunks"][number], strict=True):
                array[...] = saved.numpy().reshape(array.shape)

        self.load(state, sum(saved.nbytes for saved_chunk in state["chunks"] for saved in saved_chunk), fill)


def content_of(recorded: str) -> str:
    """Return the identity of recorded data without their name: they are the same if their file is renamed."""
    return recorded.rpartition(" (")[2]
