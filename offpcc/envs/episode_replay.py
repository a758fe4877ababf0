"""Replays an unfinished episode from its seed and actions, because simulators cannot be saved."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from offpcc.envs.aliases import Array, Info
from offpcc.utils.rng import generator_state, set_generator_state

BLOCK = 1_000  # actions; one array takes less memory than many small ones


class EpisodeReplay(gym.Wrapper[Array, Array, Array, Array]):
    """Wrapper that records what is needed to repeat the current episode, and repeats it on request.

    A simulator cannot be saved. So at each reset, this wrapper records the state of the environment's generator, and
    then each executed action. A new environment with the same seed can be reset with that generator state and take the
    same actions. It then reaches the same state, unless the environment draws random numbers from another generator. In
    that case observations or rewards differ, and `restore` reports it.

    Args:
        env: An environment whose observations and actions are arrays.
        seed: Seed of the first reset; later resets continue with the environment's own generator.

    Attributes:
        records_actions: Whether actions are recorded. Without them, no snapshot can be restored.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        gym.Wrapper.__init__(self, env)
        self.records_actions = True
        self._seed = seed
        self._num_episodes = 0
        self._start: Info | None = None  # the generator's state before this episode's reset

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; `seed` is ignored, and the constructor's seed is used."""
        # Before the first reset seeds it, its state is arbitrary
        self._start = self._generator() if self._num_episodes else None
        observation, info = self.env.reset(seed=None if self._num_episodes else self._seed, options=options)
        self._num_episodes += 1
        self._blocks: list[Array] = []  # of `BLOCK` actions each
        self._newest: list[Array] = []  # the actions since then
        self._checksum, self._of_rewards = checksum(observation), 0
        self._is_over = False
        return observation, info

    def step(self, action: Array) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Take an environment step and record it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.records_actions:
            self._newest.append(np.array(action))
        if len(self._newest) == BLOCK:
            self._blocks.append(np.stack(self._newest))
            self._newest = []
        self._checksum = checksum(observation, self._checksum)
        self._of_rewards = checksum(np.float64(reward), self._of_rewards)
        self._is_over = bool(terminated or truncated)
        return observation, reward, terminated, truncated, info

    def reseed(self, seed: int) -> None:
        """Set a seed for the next reset, as the constructor does for the first one."""
        self._seed, self._num_episodes = seed, 0

    def snapshot(self) -> Info | None:
        """Return the state for `restore`: plain data and an array of actions. None before the first reset."""
        if not self._num_episodes:
            return None
        actions = [*self._blocks, *([np.stack(self._newest)] if self._newest else [])]
        return {
            "seed": self._seed,
            "num_episodes": self._num_episodes,
            "start": self._start,
            "actions": np.concatenate(actions) if actions else None,
            "has_actions": self.records_actions,
            "checksum": self._checksum,
            "checksum_of_rewards": self._of_rewards,
            "is_over": self._is_over,
            "generator": self._generator(),
        }

    @contextmanager
    def untouched(self) -> Iterator[gym.Env[Any, Any]]:
        """Yield the environment for episodes that are not recorded; its generator's state is restored afterwards."""
        generator = self._generator()
        try:
            yield self.env
        finally:
            self._set_generator(generator)

    def restore(self, snapshot: Info) -> tuple[Array, bool, bool]:
        """Repeat the episode of a snapshot, which replaces the environment's whole past, including its seed.

        Returns:
            The episode's current observation, whether the episode is over, and whether it is the same as before.
        """
        self.reseed(snapshot["seed"])
        observation, _ = self.reset()
        if snapshot["num_episodes"] > 1:
            self._set_generator(snapshot["start"])
            observation, _ = self.reset()
        for action in () if snapshot["actions"] is None else snapshot["actions"]:
            if self._is_over:
                break
            observation, *_ = self.step(action)
        same = self._checksum == snapshot["checksum"] and self._is_over == snapshot["is_over"]
        same = same and self._of_rewards == snapshot.get("checksum_of_rewards", self._of_rewards)
        # Without a generator of NumPy, the start of the next episode is unknown.
        same = same and snapshot["generator"] is not None
        self._set_generator(snapshot["generator"])
        self._is_over = self._is_over or snapshot["is_over"]
        self._num_episodes = snapshot["num_episodes"]
        return observation, self._is_over, same

    def _generator(self) -> Info | None:
        """Return the state of the environment's generator; None if it is not a `np.random.Generator`."""
        try:
            generator = self.env.unwrapped.np_random
        except Exception:  # a user's property may raise any exception
            return None
        return generator_state(generator) if isinstance(generator, np.random.Generator) else None

    def _set_generator(self, state: Info | None) -> None:
        if state is not None and self._generator() is not None:
            set_generator_state(self.env.unwrapped.np_random, state)


def checksum(numbers: Array | np.float64, before: int = 0) -> int:
    """Return a running checksum of an episode's observations and rewards; `before` is the previous checksum."""
    return zlib.crc32(np.ascontiguousarray(numbers).tobytes(), before)
