"""Plays the episodes of a data set. Episode i depends on the seed and i alone.

Where it begins and all that is random in it is drawn from generators that are made from these two. So a recording that
was killed and gone on with holds, byte for byte, what it would have held otherwise, provided that the environment
carries nothing over from one episode to the next (`offpcc check` tells).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from offpcc.algorithms import ActorCritic
from offpcc.core import Memory, Step
from offpcc.envs.wrapper_chain import name_of
from offpcc.networks.noise import Noise
from offpcc.training.interaction import refuse_endless

STREAM = 5  # tells what is drawn here from what else is drawn with the same seed


class Seeds(NamedTuple):
    """What an episode's randomness comes from."""

    reset: int
    actions: int  # random ones
    noise: int  # of the agent
    others: int  # the process's global generators, for environments and networks of a user's own

    @classmethod
    def of(cls, seed: int, episode: int) -> Seeds:
        """Those of an episode, counted from 0."""
        drawn = np.random.SeedSequence((seed, episode, STREAM)).generate_state(4) >> 1
        return cls(*(int(number) for number in drawn))


class Transition(NamedTuple):
    """A step, as `Recorder.push` takes it."""

    observation: np.ndarray
    action: np.ndarray  # (A,) in [-1, 1]
    reward: float
    next_observation: np.ndarray
    terminated: bool
    truncated: bool


def play(
    env: gymnasium.Env[Any, Any], actor: ActorCritic | None, seeds: Seeds, deterministic: bool = False
) -> Iterator[Transition]:
    """The steps of an episode.

    Args:
        env: made by `offpcc.make` with ``scale_actions``.
        actor: acts, its memory kept over the whole episode; None for random actions.
        seeds: of all that is random.
        deterministic: whether the policy's mode is taken.

    Raises:
        UserError: the episode does not end.
    """
    random.seed(seeds.others)
    np.random.seed(seeds.others)
    torch.manual_seed(seeds.others)
    draws = np.random.default_rng(seeds.actions)
    if actor is not None:
        actor.noise = Noise(seeds.noise, actor.device)
    observation = np.array(env.reset(seed=seeds.reset)[0])
    action, reward = np.zeros((1, *(env.action_space.shape or ())), np.float32), 0.0
    memory: Memory = None
    length = 0
    while True:
        if actor is None:
            action = draws.uniform(-1.0, 1.0, action.shape).astype(np.float32)
        else:
            step = Step(observation[None], action, np.full((1, 1), reward, np.float32), np.array([length == 0]))
            action, memory = actor.act(step, memory, deterministic=deterministic)
        following, received, terminated, truncated, _ = env.step(action[0])
        following, reward = np.array(following), float(received)
        yield Transition(observation, action[0], reward, following, bool(terminated), bool(truncated))
        observation, length = following, length + 1
        if terminated or truncated:
            return
        refuse_endless(functools.partial(name_of, env), length)
