"""Episodes that name themselves in all they push, and what both buffers' tests share."""

import io
import itertools
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box

ACTIONS = Box(-1, 1, (2,), np.float32)
OBSERVATIONS = Box(-np.inf, np.inf, (2,), np.float32)
ENDS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True), "left": (False, False)}
KINDS = ("numbers", "with NaN", "pictures")  # of frames


class Pushed(NamedTuple):
    observation: np.ndarray
    action: np.ndarray
    reward: float
    next_observation: np.ndarray
    terminated: bool
    truncated: bool
    env: int = 0
    is_first: bool = False


class Recorded(NamedTuple):
    """An episode: frames, actions and rewards tell its number and the step."""

    number: int
    length: int
    end: str
    frame_stack: int = 1
    kind: str = "numbers"
    repeats_first: bool = False  # in the place of frames before the first, where otherwise zeros are

    def frame(self, t):
        if t < 0:
            return self.frame(0) if self.repeats_first else np.zeros_like(self.frame(0))
        if self.kind == "pictures":
            return np.array([self.number, t], np.uint8)[:, None, None].repeat(8, 1).repeat(9, 2)
        if self.kind == "with NaN":
            return np.array([self.number, np.nan if t % 3 == 1 else -t, t], np.float32)
        return np.array([self.number, t], np.float32)

    def observation(self, t):
        return np.concatenate([self.frame(s) for s in range(t - self.frame_stack + 1, t + 1)])

    def action(self, t):
        return np.array([100 * self.number + t, -t - 1], np.float32)

    def reward(self, t):
        return 1000.0 * self.number + t

    def pushes(self):
        for t in range(self.length):
            end = ENDS[self.end] if t == self.length - 1 else (False, False)
            around = self.observation(t), self.action(t), self.reward(t), self.observation(t + 1)
            yield Pushed(*around, *end, is_first=t == 0)


def recorded(*episodes):
    return [Recorded(number, *episode) for number, episode in enumerate(episodes, 1)]


def pushes(*episodes):
    return [pushed for episode in recorded(*episodes) for pushed in episode.pushes()]


def push_all(buffer, steps):
    """Push steps into a buffer or a recorder, one after another."""
    for step in steps:
        buffer.push(*step)


def interleaved(episodes, num_pushes, num_envs, seed, **looks):
    """Each environment plays `episodes` round and round; (env, its episode, what it pushes), in a random order."""
    numbers = itertools.count(1)

    def played():
        for length, end in itertools.cycle(episodes):
            episode = Recorded(next(numbers), length, end, **looks)
            for pushed in episode.pushes():
                yield episode, pushed

    streams = [played() for _ in range(num_envs)]
    for env in np.random.default_rng(seed).integers(0, num_envs, num_pushes).tolist():
        yield env, *next(streams[env])


def space_of(kind, frame_stack):
    """Of the observations of episodes that look so."""
    shape = Recorded(1, 1, "left", frame_stack, kind).observation(0).shape
    return Box(0, 255, shape, np.uint8) if kind == "pictures" else Box(-np.inf, np.inf, shape, np.float32)


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def equal(a, b):
    """Also in shape, dtype and where NaN are."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def same(a, b):
    return all(equal(x, y) for x, y in zip(a[:-1], b[:-1], strict=True)) and a.burn_in == b.burn_in
