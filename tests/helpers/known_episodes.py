"""Episodes whose observations name their episode and step, for what a buffer knows of the later steps of an episode."""

import numpy as np
from gymnasium.spaces import Box

from offpcc.data import Dataset

ACTIONS = Box(-1, 1, (2,), np.float32)
VECTORS, IMAGES = Box(-np.inf, np.inf, (2,), np.float32), Box(0, 255, (2, 3, 3), np.uint8)
# The number of steps, and whether the task ended. The last episode is not finished.
EPISODES = [(3, True), (1, False), (5, False), (2, True), (1, True), (4, False), (3, None)]


def observation_of(space, episode, t):
    if space is IMAGES:  # two stacked frames, of which the newer one names the step
        return np.stack([np.full((3, 3), 20 * episode + max(t - 1 + k, 0), np.uint8) for k in range(2)])
    return np.float32([episode, t])


def action_of(episode, t):
    return np.float32([0.01 * episode + 0.001, -0.1 * t - 0.001])  # never zero


def reward_of(episode, t):
    return 0.5 * episode + 0.1 * t - 1.0


def named_by(space, observation):
    """The episode and the step of an observation."""
    if space is IMAGES:
        return divmod(int(observation[-1].flatten()[0]), 20)
    return tuple(int(x) for x in observation)


def push(buffer, space, number, env=0, **first):
    """Push an episode; `first` are further arguments of its first step."""
    length, terminated = EPISODES[number]
    for t in range(length):
        last = t == length - 1 and terminated is not None
        ends = last and terminated, last and not terminated
        seen, following = observation_of(space, number, t), observation_of(space, number, t + 1)
        more = first if t == 0 else {}
        buffer.push(seen, action_of(number, t), reward_of(number, t), following, *ends, env=env, **more)


def filled(buffer, space, env=0):
    for number in range(len(EPISODES)):
        push(buffer, space, number, env)
    return buffer


def small_recording(**changes):
    """A data set of 40 steps, whose episodes of 10 terminate."""
    columns = {
        "observations": np.random.default_rng(0).normal(size=(40, 3)),
        "actions": np.random.default_rng(1).uniform(-1, 1, (40, 1)),
        "rewards": np.arange(40.0),
        "terminations": np.arange(40) % 10 == 9,
        "truncations": np.zeros(40, bool),
    }
    return Dataset.from_arrays(**columns | changes)
