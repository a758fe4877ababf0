"""Finding an episode back in a simulator that cannot be saved."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from offpcc.generators import generator_state, set_generator_state

__all__ = ["Recall", "checksum"]

Array = NDArray[Any]
Info = dict[str, Any]


class Recall(gym.Wrapper[Array, Array, Array, Array]):
    """Notes what an episode came from, and repeats it when asked to.

    A simulator cannot be saved. So at each reset the environment's generator is noted, then the executed actions;
    a new environment of the same seed that is reset with that generator and takes these actions arrives where the
    old one was, unless its randomness comes from elsewhere: then the observations differ, and that is told.

    Args:
        env: Its observation and its action are arrays.
        seed: Of the first reset; later ones go on from the environment's own generator.
        number: Which one of several side by side this is.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: int, number: int = 0) -> None:
        gym.Wrapper.__init__(self, env)
        self._seed, self._number = seed, number
        self._is_seeded = False
        self._start: Info | None = None  # the generator before this episode's reset; None for the first

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Starts an episode; only the seed given to the constructor counts."""
        self._start = generator_state(self.env.unwrapped.np_random) if self._is_seeded else None
        observation, info = self.env.reset(seed=None if self._is_seeded else self._seed, options=options)
        self._is_seeded = True
        self._begin(observation)
        return observation, info

    def _begin(self, observation: Array) -> None:
        self._actions: list[Array] = []
        self._checksum = checksum(observation)
        self._is_over = False

    def step(self, action: Array) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Takes a step, and notes it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._actions.append(np.array(action))
        self._checksum = checksum(observation, self._checksum)
        self._is_over = bool(terminated or truncated)
        return observation, reward, terminated, truncated, info

    def note(self) -> Info | None:
        """What finds the episode back, plain data and an array of actions; None before the first reset."""
        if not self._is_seeded:
            return None
        return {
            "start": self._start,
            "actions": np.stack(self._actions) if self._actions else None,
            "checksum": self._checksum,
            "is_over": self._is_over,
            "generator": generator_state(self.env.unwrapped.np_random),
        }

    def repeat(self, notes: Sequence[Info]) -> tuple[Array, bool, bool]:
        """Finds back the episode that `notes[number]` tells of.

        Args:
            notes: Of all that are side by side, each as `note` gave it.

        Returns:
            The observation where the episode stands, whether it is over, and whether it is the same as before.
        """
        note = notes[self._number]
        observation, _ = self.reset()
        generator = self.env.unwrapped.np_random
        if note["is_over"]:  # nothing of it is needed but what the next one starts from
            set_generator_state(generator, note["generator"])
            self._is_over = True
            return observation, True, True
        if note["start"] is not None:
            set_generator_state(generator, note["start"])
            observation, _ = self.reset()
        for action in () if note["actions"] is None else note["actions"]:
            if self._is_over:
                break
            observation, *_ = self.step(action)
        same = self._checksum == note["checksum"] and not self._is_over
        return observation, self._is_over, same and generator_state(generator) == note["generator"]


def checksum(observation: Array, before: int = 0) -> int:
    """A running checksum of an episode's observations."""
    return zlib.crc32(np.ascontiguousarray(observation).tobytes(), before)
