"""An agent in an environment: the episode under way, and finding it back when a run is resumed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from offpcc.core import (
    Algorithm,
    Buffer,
    Memory,
    NumpyGenerator,
    Step,
    UserError,
    generator_state,
    set_generator_state,
)

LONGEST_EPISODE = 20_000  # steps; no task of the field comes near it
MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


class EpisodeResult(NamedTuple):
    """How an episode went."""

    episode_return: float  # sum of rewards, undiscounted
    length: int  # environment steps


class Interaction:
    """An environment, the episode under way in it, and the agent's memory of that episode.

    Args:
        make_env: builds the environment, at its first reset.
        algorithm: acts.
        buffer: gets every transition.
        seed: of the environment and of random exploration.
    """

    def __init__(self, make_env: MakeEnv, algorithm: Algorithm, buffer: Buffer, seed: int = 0) -> None:
        self.make_env, self.algorithm, self.buffer, self.seed = make_env, algorithm, buffer, seed
        self.randomness = NumpyGenerator(seed, 3)
        self.finished: list[EpisodeResult] = []  # since they were last taken
        self.episode_over = True
        self._env: gymnasium.Env[Any, Any] | None = None
        self._seeded = False
        self._start: dict[str, Any] | None = None  # the environment's generator before this episode's reset

    @property
    def env(self) -> gymnasium.Env[Any, Any]:
        """The environment."""
        if self._env is None:
            self._env = self.make_env()
            self.action_dim = int(np.prod(self._env.action_space.shape or (1,)))
        return self._env

    def _reset(self) -> None:
        self._start = generator_state(self.env.unwrapped.np_random) if self._seeded else None
        self._begin(self.env.reset(seed=None if self._seeded else self.seed)[0])
        self._seeded = True

    def _begin(self, observation: np.ndarray) -> None:
        self.observation = np.array(observation)  # a copy, for environments that write into one array for ever
        self.memory: Memory = None
        self.previous_action = np.zeros(self.action_dim, np.float32)
        self.previous_reward = 0.0
        self.actions: list[np.ndarray] = []  # executed ones, to find back here when a run is resumed
        self.checksum = checksum(observation)
        self.episode_return = 0.0
        self.episode_over = False

    def step(self, explore_at_random: bool) -> bool:
        """Act once; whether that ended the episode.

        Raises:
            UserError: an episode does not end.
        """
        if self.episode_over:
            self._reset()
        if explore_at_random:
            action = self.randomness.generator.uniform(-1.0, 1.0, self.action_dim).astype(np.float32)
        if not explore_at_random or not self.algorithm.memoryless:  # a memory needs every step, random ones too
            chosen, self.memory = self.algorithm.act(self._seen(), self.memory)
            action = action if explore_at_random else chosen[0]
        observation, reward, terminated, truncated, _ = self.env.step(action.reshape(self.env.action_space.shape))
        observation, reward = np.array(observation), float(reward)
        self.buffer.push(self.observation, action, reward, observation, terminated, truncated)
        self.observation, self.previous_action, self.previous_reward = observation, action, reward
        self.actions.append(action)
        self.checksum = checksum(observation, self.checksum)
        self.episode_return += reward
        self.episode_over = bool(terminated or truncated)
        if self.episode_over:
            self.finished.append(EpisodeResult(self.episode_return, len(self.actions)))
        else:
            refuse_endless(self.env, len(self.actions))
        return self.episode_over

    def _seen(self) -> Step:
        return Step(
            self.observation[None],
            self.previous_action[None],
            np.full((1, 1), self.previous_reward, np.float32),
            np.array([not self.actions], np.float32),
        )

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()

    def take_finished(self) -> list[EpisodeResult]:
        """Episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def state_dict(self) -> dict[str, Any]:
        """What finds the episode back: the environment's generator at its reset, then the executed actions."""
        state = {
            "randomness": self.randomness.state_dict(),
            "episode_over": self.episode_over,
            "started": self._seeded,
            "finished": [tuple(result) for result in self.finished],
        }
        if self._seeded:
            state |= {
                "start": self._start,
                "actions": torch.from_numpy(np.stack(self.actions)) if self.actions else None,
                "checksum": self.checksum,
                "memory": self.memory,
                "previous_reward": self.previous_reward,
                "episode_return": self.episode_return,
                "generator": generator_state(self.env.unwrapped.np_random),
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Find the episode back by replaying it; a message if the environment did not repeat itself."""
        self.randomness.load_state_dict(state["randomness"])
        self.finished = [EpisodeResult(*result) for result in state["finished"]]
        if not state["started"]:
            return None
        env = self.env
        observation, _ = env.reset(seed=self.seed)
        self._seeded = True
        if state["episode_over"]:
            set_generator_state(env.unwrapped.np_random, state["generator"])
            self._begin(observation)
            self.episode_over = True
            return None
        self._start = state["start"]
        if self._start is not None:
            set_generator_state(env.unwrapped.np_random, self._start)
            observation, _ = env.reset()
        self._begin(observation)
        actions = [] if state["actions"] is None else list(state["actions"].numpy())
        over = False
        for action in actions:
            if over:
                break
            self.observation, _, terminated, truncated, _ = env.step(action.reshape(env.action_space.shape))
            self.checksum = checksum(self.observation, self.checksum)
            over = bool(terminated or truncated)
        self.actions, self.memory = actions, state["memory"]
        if actions:
            self.previous_action = actions[-1]
        self.previous_reward, self.episode_return = state["previous_reward"], state["episode_return"]
        repeated = self.checksum == state["checksum"] and not over
        repeated = repeated and generator_state(env.unwrapped.np_random) == state["generator"]
        self.checksum = state["checksum"]
        if repeated:
            return None
        self.episode_over = over
        return (
            "this resume is not exact: the environment did not repeat its unfinished episode from the same seed "
            "and actions, so the run goes on from where the repeated episode stands"
        )


def checksum(observation: np.ndarray, before: int = 0) -> int:
    """A running checksum of an episode's observations."""
    return zlib.crc32(np.ascontiguousarray(observation).tobytes(), before)


def refuse_endless(env: gymnasium.Env[Any, Any], length: int) -> None:
    """Refuse an environment whose episode has not ended after `length` steps, if those are too many.

    Raises:
        UserError: naming the wrapper that gives it an end.
    """
    if length < LONGEST_EPISODE:
        return
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    raise UserError(
        f"an episode of {name} has not ended after {length} steps; agents learn and are tested by "
        f"episodes: give it an end with gymnasium.wrappers.TimeLimit, or max_episode_steps when registering it"
    )
