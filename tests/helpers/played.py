"""Recordings of an environment that tells spaces alone; the tests make up what is played in it."""

import itertools

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from pushing import push_all

from offpcc.data.recording.recorder import Recorder
from offpcc.envs.make import make

LOW, HIGH = np.float32([-2, 0]), np.float32([4, 1])
VECTOR, IMAGE = {}, {"shape": (1, 16, 16), "dtype": "uint8"}


class Shown(gymnasium.Env):
    """Tells spaces; the tests make up what happens."""

    action_space = Box(LOW, HIGH)

    def __init__(self, shape=(3,), dtype="float32"):
        bounds = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
        self.observation_space = Box(*bounds, shape, np.dtype(dtype).type)


gymnasium.register("recorded-v0", entry_point=Shown)


def transitions(lengths, num_envs=1, shape=(3,), dtype="float32", seed=0):
    """What `Recorder.push` takes, of environments side by side; every third episode terminates, others are cut."""
    draws = np.random.default_rng(seed)

    def observation():
        return draws.integers(0, 255, shape, np.uint8) if dtype == "uint8" else draws.normal(size=shape).astype(dtype)

    def episodes(env):
        for number, length in enumerate(lengths[env::num_envs]):
            before = observation()
            for t in range(length):
                after, over = observation(), t == length - 1
                terminated = over and number % 3 == 0
                action = draws.uniform(-1, 1, 2).astype(np.float32)
                yield before, action, draws.normal(), after, terminated, over and not terminated, env
                before = after

    streams = [list(episodes(env)) for env in range(num_envs)]
    return [step for steps in itertools.zip_longest(*streams) for step in steps if step]


def recorder(file, resume=False, num_envs=1, metadata=None, **shown):
    made = make("recorded-v0", kwargs=shown)
    return Recorder(file, made, metadata=metadata or {"seed": 3}, num_envs=num_envs, resume=resume)


def whole(file, steps, **options):
    """A recording that nothing disturbed; its bytes."""
    one = recorder(file, **options)
    push_all(one, steps)
    one.cut()
    one.merge()
    return file.read_bytes()
