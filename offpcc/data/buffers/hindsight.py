"""Hindsight experience replay: `HindsightReplayBuffer` and `HindsightRecurrentReplayBuffer` for tasks with goals.

Andrychowicz et al. 2017 (arXiv:1707.01495), with the strategy "future". In a gin file::

    build.buffer_class = @HindsightReplayBuffer              # @HindsightRecurrentReplayBuffer for agents with memory
    HindsightReplayBuffer.num_goals = 4
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from offpcc.config.registry import configurable
from offpcc.config.validation import PositiveInteger
from offpcc.data.buffers.base import BufferBase
from offpcc.data.buffers.replay import ReplayBuffer
from offpcc.data.buffers.sequence_replay import RecurrentReplayBuffer
from offpcc.data.buffers.storage import PartialEpisode
from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator
from offpcc.utils.spaces import DictShape, PackedDict

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # keys of Gymnasium-Robotics' goal environments
GOALS = (spaces.Box, spaces.MultiBinary)


class Hindsight(BufferBase):
    """Stores each finished episode `num_goals` times more, with a goal that it reached later.

    Such a copy begins with the episode's first step. Its goal is what the episode had achieved after a random number of
    steps, and the copy ends there, as truncated. So each transition gets a goal that its own future reached. All steps
    of a copy have one goal, so a memory reads a history as it could have been. The environment computes the rewards; if
    it has ``compute_terminated``, a copy ends at the first step that this says ends the task. The termination of an
    episode is one in its copies, too.

    Args:
        observation_space: the space of packed Dict observations with the keys "achieved_goal" and "desired_goal".
        num_goals: number of copies of an episode.
        args: further positional arguments of the buffer.
        kwargs: its other arguments.

    Attributes:
        make_env: makes the environment that computes rewards; `offpcc.build` sets it.

    Raises:
        UserError: the observations have no such goals.
    """

    make_env: Callable[[], Any] | None = None

    def __init__(
        self, observation_space: spaces.Box, *args: Any, num_goals: PositiveInteger = 4, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, *args, **kwargs)
        entries = observation_space.entries if isinstance(observation_space, PackedDict) else {}
        goals: list[Any] = [entries.get(key) for key in (ACHIEVED, DESIRED)]
        shape = observation_space.unpacked_shape if isinstance(observation_space, PackedDict) else DictShape((), ())
        parts = {part.key: part.columns for part in shape.vectors}  # without images
        if not {ACHIEVED, DESIRED} <= parts.keys() or not all(isinstance(goal, GOALS) for goal in goals):
            raise UserError(
                f"{type(self).__name__} needs Dict observations with the vectors {ACHIEVED!r} and {DESIRED!r}, but "
                f"observations are {observation_space}; choose another buffer for this environment"
            )
        if goals[0].shape != goals[1].shape:
            raise UserError(
                f"{ACHIEVED!r} has the shape {goals[0].shape}, but {DESIRED!r} has {goals[1].shape}; give "
                f"both the same shape"
            )
        self.num_goals, self.num_bytes = num_goals, 4 * shape.num_numbers
        self.achieved, self.desired, self.goals = parts[ACHIEVED], parts[DESIRED], goals
        self.goal_randomness = NumpyGenerator(int(kwargs.get("seed", 0)), 4)
        self._env: Any = None
        self._is_checked = False
        self.to_copy = [PartialEpisode() for _ in range(self.num_envs)]
        self.is_terminated = [False] * self.num_envs  # whether the last step of `to_copy` ended the task

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the environment, which may not be picklable; it is made again."""
        inherited: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return inherited | {"_env": None}

    def _with_copies(self, num_steps: int) -> int:
        """Return so many steps and those of their copies, which have half of an episode's steps on average."""
        return num_steps + num_steps * self.num_goals // 2

    def planned_bytes(self, num_steps: int, longest_episode: int | None) -> int:
        """Return the bytes of so many steps and of their copies."""
        return int(cast(Any, super()).planned_bytes(self._with_copies(num_steps), longest_episode))

    def planned_file_bytes(self, num_steps: int, longest_episode: int | None) -> int:
        """See `BufferBase`; with the copies."""
        return int(cast(Any, super()).planned_file_bytes(self._with_copies(num_steps), longest_episode))

    def unused_parameters(self) -> dict[str, str]:
        """See `BufferBase`."""
        idle = {"num_goals": "recorded data get no other goals"} if self.recorded else {}
        return super().unused_parameters() | idle

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
        is_first: bool = False,
    ) -> None:
        """Store a transition, and the copies of its episode if it ends one. See `ReplayBuffer.push`."""
        if is_first:
            self.truncate(env)
        self.to_copy[env].append([observation], action, reward, next_observation)
        self.is_terminated[env] = terminated
        cast(Any, super()).push(observation, action, reward, next_observation, terminated, truncated, env)
        if terminated or truncated:
            self._store_copies(env)

    def drop(self, env: int) -> None:
        """See `ReplayBuffer.drop`; the episode gets no copies."""
        self.to_copy[env] = PartialEpisode()
        cast(Any, super()).drop(env)

    def truncate(self, env: int) -> None:
        """End an unfinished episode, and store its copies."""
        cast(Any, super()).truncate(env)
        self._store_copies(env)

    def _store_copies(self, env: int) -> None:
        """Store the finished episode of an environment again, once for each goal, unless it is stored already."""
        parent: Any = super()
        episode, self.to_copy[env] = self.to_copy[env], PartialEpisode()
        actions = episode.actions
        if not actions:
            return
        packed = np.stack(episode.frames)
        numbers = np.ascontiguousarray(packed[:, : self.num_bytes]).view(np.float32)
        achieved = numbers[:, self.achieved].copy()
        if not self._is_checked:
            self._check_rewards(achieved[1:], numbers[1:, self.desired].copy(), episode.rewards)
        for reached in self.goal_randomness.generator.integers(1, len(packed), self.num_goals):
            goal, length = achieved[reached], int(reached)
            numbers[:, self.desired] = goal
            packed[:, : self.num_bytes] = numbers.view(np.uint8)
            rewards = self._rewards(achieved[1 : length + 1], goal)
            ends = self._ends(achieved[1 : length + 1], goal)
            ends[-1] |= self.is_terminated[env] and length == len(actions)
            length = int(ends.argmax()) + 1 if ends.any() else length
            for i in range(length):
                is_last = i == length - 1
                terminated = is_last and bool(ends.any())
                parent.push(
                    packed[i], actions[i], float(rewards[i]), packed[i + 1], terminated, is_last, env, is_first=i == 0
                )

    @property
    def env(self) -> Any:
        """The environment that computes the rewards, without wrappers.

        Raises:
            UserError: there is none, or it computes no rewards.
        """
        if self._env is None:
            if self.make_env is None:
                raise UserError(
                    f"{type(self).__name__} has no environment that computes rewards; set its attribute make_env to a "
                    f"function that makes one, as offpcc.build does"
                )
            made = self.make_env()
            self._env = made.unwrapped
            made.close()
            if not callable(getattr(self._env, "compute_reward", None)):
                raise UserError(
                    f"{type(self).__name__} needs an environment with compute_reward(achieved_goal, desired_goal, "
                    f"info), as those of gymnasium-robotics, but {type(self._env).__name__} has none; add it, or "
                    f"choose another buffer"
                )
            own = getattr(self._env.observation_space, "spaces", {}).get(ACHIEVED)
            if own is not None and own.shape != self.goals[0].shape:
                raise UserError(
                    f"{type(self).__name__}: {ACHIEVED!r} has the shape {self.goals[0].shape}, but compute_reward of "
                    f"{type(self._env).__name__} takes {own.shape}; remove the wrapper that changes goals, such as "
                    f"Concatenate"
                )
        return self._env

    def _rewards(self, achieved: Array, goal: Array) -> Array:
        """Return the rewards (T,) of states with these achieved goals (T, G), for one desired goal or one each."""
        goals, env = self._as_given(achieved, np.broadcast_to(goal, achieved.shape)), self.env
        try:
            rewards = np.asarray(env.compute_reward(*goals, {}), np.float64)
        except Exception as error:  # of the user's code
            raise UserError(
                f"compute_reward of {type(env).__name__} raised {type(error).__name__}: {error}; it has to take the "
                f"goals {goals[0].shape} of {len(achieved)} steps at once, and an empty info"
            ) from error
        if rewards.shape != (len(achieved),):
            raise UserError(
                f"compute_reward of {type(self.env).__name__} returned the shape {rewards.shape} for {len(achieved)} "
                f"goals; it has to return one reward for each row"
            )
        return rewards

    def _ends(self, achieved: Array, goal: Array) -> Array:
        """Return which of the states (T,) end the task."""
        ends = getattr(self.env, "compute_terminated", None)
        if ends is None:
            return np.zeros(len(achieved), bool)
        return np.array([bool(ends(*self._as_given(one, goal), {})) for one in achieved])

    def _as_given(self, *goals: Array) -> list[Array]:
        """Return achieved and desired goals (..., G) with the shapes and dtypes of the environment's."""
        given = zip(goals, self.goals, strict=True)
        return [goal.reshape(*goal.shape[:-1], *space.shape).astype(space.dtype) for goal, space in given]

    def _check_rewards(self, achieved: Array, goal: Array, rewards: list[float]) -> None:
        """Raise unless `compute_reward` gives the rewards of an episode, up to the first one whose rewards differ."""
        self._is_checked = len(set(rewards)) > 1
        computed = self._rewards(achieved, goal)
        if (differs := ~np.isclose(computed, rewards, rtol=1e-4, atol=1e-4)).any():
            step = int(differs.argmax())
            raise UserError(
                f"{type(self).__name__}: the reward of step {step} is {rewards[step]:g}, but compute_reward of "
                f"{type(self.env).__name__} gives {computed[step]:g}, so episodes with other goals would have wrong "
                f"rewards; remove the wrapper that changes rewards or goals, or choose another buffer"
            )

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the content, with the steps of unfinished episodes."""
        unfinished = [episode.state_dict() for episode in self.to_copy]
        return super().metadata() | {"unfinished_goals": unfinished, "goals": self.goal_randomness.state_dict()}

    def restore(self, metadata: Mapping[str, Any]) -> None:
        """Restore what `metadata` returned."""
        super().restore(metadata)
        self.goal_randomness.load_state_dict(metadata["goals"])
        self.is_terminated = [False] * self.num_envs  # else the episode would have been finished
        for episode, saved in zip(self.to_copy, metadata["unfinished_goals"], strict=True):
            episode.load_state_dict(saved)


@configurable
class HindsightReplayBuffer(Hindsight, ReplayBuffer):
    """Hindsight experience replay of transitions, for agents without memory."""


@configurable
class HindsightRecurrentReplayBuffer(Hindsight, RecurrentReplayBuffer):
    """Hindsight experience replay of sequences, for agents with memory."""
