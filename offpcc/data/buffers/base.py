"""What both buffers share."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces

from offpcc.config.validation import NumEnvs, NumParts
from offpcc.core import Batch, channels_first, channels_first_shape, channels_last
from offpcc.data.buffers.device import RowLayout, sent
from offpcc.data.buffers.snapshot import Snapshotable
from offpcc.data.buffers.storage import TransitionTable
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator


class BufferBase(Snapshotable):
    """What both buffers share: spaces, frames, the generator, checks and the statement of size.

    An observation that is a stack of the last `frame_stack` frames shares all but its newest with the one before,
    so frames are stored, each once, and joined again when they are sampled. Where an episode begins the older ones
    are whatever the environment puts there (zeros, the first frame repeated); they are stored as well.

    Args:
        observation_space: of one environment; images may have channels first or last.
        action_space: of one environment, whose shape counts; actions are stored in [-1, 1].
        device: where batches go.
        seed: of the buffer's own generator.
        num_envs: environments that transitions come from.
        frame_stack: frames that an observation joins along its first axis, oldest first; 1 for no stack.

    Raises:
        UserError: observations are no such stacks.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        device: str | torch.device,
        seed: int,
        num_envs: NumEnvs,
        frame_stack: NumParts,
    ) -> None:
        self.space_shape = observation_space.shape
        self.observation_shape = channels_first_shape(observation_space.shape)
        self.dtype = np.dtype(np.uint8 if observation_space.dtype == np.uint8 else np.float32)
        self.action_dim = int(np.prod(action_space.shape))
        self.device = torch.device(device)
        self.randomness = NumpyGenerator(seed, 2)
        self.num_envs, self.frame_stack = num_envs, frame_stack
        self.frame_shape = self._frame_shape()
        self.recorded = ""  # what tells recorded data from other data, if the buffer was filled with it

    def __len__(self) -> int:
        """What can be sampled."""
        raise NotImplementedError

    def sample(self) -> Batch:
        """A batch, drawn by the buffer's own generator; see the class.

        Raises:
            ValueError: there is nothing to draw from.
        """
        return self._sample()

    def _sample(self) -> Batch:
        raise NotImplementedError

    def peek(self) -> Batch:
        """The batch that `sample` gives next; nothing is changed, nor is a `sample` of one's own called."""
        generator = self.randomness.generator
        self.randomness.generator = copy.deepcopy(generator)
        try:
            return self._sample()
        finally:
            self.randomness.generator = generator

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
                f"{fault} are no stack of so many frames: the first axis is to be a multiple of frame_stack, which "
                f"is 1 for observations that are no stack"
            )
        return (shape[0] // number, *shape[1:])

    @property
    def layout(self) -> RowLayout:
        """What rows on the device are made of."""
        return RowLayout(self.frame_shape, self.dtype, self.action_dim, self.frame_stack, self.num_envs)

    @property
    def bytes_per_frame(self) -> int:
        """Bytes that one frame takes."""
        return math.prod(self.frame_shape) * self.dtype.itemsize

    @property
    def bytes_per_step(self) -> int:
        """Bytes that one step takes: a frame, the action and the reward."""
        return self.bytes_per_frame + 4 * self.action_dim + 4

    def read(self, observation: np.ndarray) -> np.ndarray:
        """An observation as it is stored: its frames, (frame_stack, *frame).

        Raises:
            ValueError: its shape is not the space's.
        """
        observation = np.asarray(observation)
        if observation.shape == self.space_shape:
            observation = channels_first(observation, self.space_shape)
        elif observation.shape != self.observation_shape:
            raise ValueError(
                f"observation of shape {observation.shape} pushed into a buffer of shape {self.space_shape}"
            )
        return observation.astype(self.dtype, copy=False).reshape(self.frame_stack, *self.frame_shape)

    def read_action(self, action: np.ndarray) -> np.ndarray:
        """An action as it is stored.

        Raises:
            ValueError: it has another number of dimensions than the space.
        """
        return np.asarray(action, np.float32).reshape(self.action_dim)

    def check_transition(self, frames: np.ndarray, next_frames: np.ndarray, env: int) -> None:
        """Refuse what could not be stored.

        Raises:
            ValueError: what is held is recorded data, there is no such environment, or `next_frames` are not `frames`
                moved on by one.
        """
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

    def continues(self, frames: np.ndarray, stored: Iterable[np.ndarray]) -> bool:
        """Whether an observation's `frames` are those stored last, which are given newest first.

        All of them: an episode that was left may be followed by one that begins with the very frame it stood at,
        yet with other frames before it. The newest, which nearly always tells them apart, is compared first.
        """
        return all(map(self._equal, stored, frames[::-1]))

    def _equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        # Bytes compare several times as fast, and hardly ever differ; 0.0 and -0.0, or two kinds of NaN, are equal.
        return a.tobytes() == b.tobytes() or np.array_equal(a, b, equal_nan=self.dtype.kind == "f")

    def unused_parameters(self) -> dict[str, str]:
        """Parameters that change nothing of this buffer, and why."""
        idle = {"capacity": "recorded data is held whole"} if self.recorded else {}
        if self.device.type == "cpu":
            idle["on_device"] = "batches go to the CPU, where the buffer is"
        return idle

    def episodes_per_env(self, num_steps: int, longest_episode: int | None) -> int:
        """Fewest episodes that each environment takes a part in; 0 where nothing limits their length."""
        return math.ceil(math.ceil(num_steps / self.num_envs) / longest_episode) if longest_episode else 0

    def _adopt(self, rows: TransitionTable, recorded: str) -> TransitionTable:
        """Begin to hold recorded data, and nothing else; its rows as they are stored.

        Raises:
            ValueError: the buffer is of several environments or of stacks, or holds something already.
        """
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
        if self.dtype == np.uint8:  # they are apart, so that a view of them will do
            return replace(rows, observations=observations)
        return rows.showing(observations)

    def tensor(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        """`array` on the device, without waiting for a GPU; a tensor is there already."""
        return sent(torch.from_numpy(array), self.device) if isinstance(array, np.ndarray) else array
