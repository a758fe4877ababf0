"""Environments that misbehave at one step, for the tests of several parts."""

import ctypes
import os
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Walk(gymnasium.Env):
    """A random walk, whose episodes end after 10 steps; at step `at`, `odd` gets what is to be returned."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    at = 4

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.normal(), 0
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        self.place += float(action[0]) + self.np_random.normal()
        returned = (self.seen(), self.place, False, self.time == 10, {})
        return self.odd(*returned) if self.time == self.at else returned

    def seen(self):
        return np.array([self.place, self.time], np.float32)

    def odd(self, *returned):
        return returned


def walk(odd, **attributes):
    """A class of walks in which `odd(self, *returned)` happens."""
    return type("Odd", (Walk,), {"odd": odd, **attributes})


class Raises(Walk):
    def odd(self, *returned):
        raise ValueError("too far\nand more of it")


class Leaves(Walk):
    def odd(self, *returned):
        raise SystemExit(3)


class Exits(Walk):
    """Takes its process with it."""

    def odd(self, *returned):
        os._exit(7)


class ExitsAtOnce(Exits):
    at = 1


class Clumsy(Exits):
    """One of some seed comes through its first episode alone."""

    def __init__(self, seed):
        self.doomed = seed

    def reset(self, *, seed=None, options=None):
        self.at = 4 if seed is None and self.np_random_seed == self.doomed else None
        return super().reset(seed=seed)


class Unclosable(Walk):
    """Raises when it is closed."""

    def close(self):
        raise RuntimeError("the door is stuck\nand more of it")


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raising(error):
    def odd(self, *returned):
        raise error

    return odd


HARD_TO_TELL = {  # what an environment does at a step, and words of what is told
    "str raises": (raising(SpeechlessError()), "raised SpeechlessError: (its message cannot be read: "),
    "surrogate": (raising(ValueError("lone \ud800")), "raised ValueError: lone \\ud800 ("),
    "terminal": (raising(ValueError("\x1b[2J")), "raised ValueError: \\x1b[2J ("),
    "long": (raising(ValueError("x" * 10_000)), "x... ("),
}


class Naps(Walk):
    """Never comes back, in Python."""

    def odd(self, *returned):
        while True:
            try:
                time.sleep(0.05)
            except Exception:
                continue


class Shut(Walk):
    """Never comes back when it is closed."""

    close = Naps.odd


class Locks(Walk):
    """Never comes back, in C."""

    def odd(self, *returned):
        lock, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        for _ in range(2):
            library.pthread_mutex_lock(lock)
