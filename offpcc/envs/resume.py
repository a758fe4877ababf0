"""Replays an unfinished episode from its seed and actions, because simulators cannot be saved."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from offpcc.utils.rng import generator_state, set_generator_state

__all__ = ["EpisodeReplay", "checksum"]

Array = NDArray[Any]
Info = dict[str, Any]


class EpisodeReplay(gym.Wrapper[Array, Array, Array, Array]):
    """Notes what an episode came from, and repeats it when asked to.

    A simulator cannot be saved. So at each reset the environment's generator is noted, then the executed actions;
    a new environment of the same seed that is reset with that generator and takes these actions arrives where the
    old one was, unless its randomness comes from elsewhere: then the observations differ, and that is told.

    Args:
        env: Its observation and its action are arrays.
        seed: Of the first reset; later ones go on from the environment's own generator.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        gym.Wrapper.__init__(self, env)
        self._seed = seed
        self._num_episodes = 0
        self._start: Info | None = None  # the generator before this episode's reset

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Starts an episode; only the seed given to the constructor counts."""
        self._start = self._generator() if self._num_episodes else None  # before it is seeded it may be anything
        observation, info = self.env.reset(seed=None if self._num_episodes else self._seed, options=options)
        self._num_episodes += 1
        self._actions: list[Array] = []
        self._checksum = checksum(observation)
        self._is_over = False
        return observation, info

    def step(self, action: Array) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Takes a step, and notes it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._actions.append(np.array(action))
        self._checksum = checksum(observation, self._checksum)
        self._is_over = bool(terminated or truncated)
        return observation, reward, terminated, truncated, info

    def begin_anew(self, seed: int) -> None:
        """Has the next reset take a seed, as the first one does."""
        self._seed, self._num_episodes = seed, 0

    def snapshot(self) -> Info | None:
        """What finds the episode back, plain data and an array of actions; None before the first reset."""
        if not self._num_episodes:
            return None
        return {
            "seed": self._seed,
            "num_episodes": self._num_episodes,
            "start": self._start,
            "actions": np.stack(self._actions) if self._actions else None,
            "checksum": self._checksum,
            "is_over": self._is_over,
            "generator": self._generator(),
        }

    @contextmanager
    def untouched(self) -> Iterator[gym.Env[Any, Any]]:
        """Gives the environment itself, for episodes that are not noted; its generator is then what it was."""
        generator = self._generator()
        try:
            yield self.env
        finally:
            self._set_generator(generator)

    def restore(self, note: Info) -> tuple[Array, bool, bool]:
        """Finds back the episode that a note tells of.

        Args:
            note: As `snapshot` gave it; of the environment's whole past, its seed included.

        Returns:
            The observation where the episode stands, whether it is over, and whether it is the same as before.
        """
        self._seed = note["seed"]
        observation, _ = self.reset()
        if note["num_episodes"] > 1:
            self._set_generator(note["start"])
            observation, _ = self.reset()
        for action in () if note["actions"] is None else note["actions"]:
            if self._is_over:
                break
            observation, *_ = self.step(action)
        same = self._checksum == note["checksum"] and self._is_over == note["is_over"]
        # Without a generator of NumPy's nothing says where the next episode starts from.
        same = same and note["generator"] is not None
        self._set_generator(note["generator"])
        self._is_over = self._is_over or note["is_over"]
        self._num_episodes = note["num_episodes"]
        return observation, self._is_over, same

    def _generator(self) -> Info | None:
        """The state of the environment's generator; None where that is none of NumPy's new ones."""
        try:
            generator = self.env.unwrapped.np_random
        except Exception:  # a property of the user's own
            return None
        return generator_state(generator) if isinstance(generator, np.random.Generator) else None

    def _set_generator(self, state: Info | None) -> None:
        if state is not None and self._generator() is not None:
            set_generator_state(self.env.unwrapped.np_random, state)


def checksum(observation: Array, before: int = 0) -> int:
    """A running checksum of an episode's observations."""
    return zlib.crc32(np.ascontiguousarray(observation).tobytes(), before)
