"""Collection of the episodes of a dataset. Episode i depends only on the seed and on i.

The initial state and all random numbers of an episode come from generators that are seeded with these two. So a
recording that was killed and resumed is byte for byte equal to one without a break. This holds only if the environment
keeps no state from one episode to the next; `offpcc check` reports whether it does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.discrete import without_random_actions
from offpcc.core import Memory, Step
from offpcc.envs.check import LONGEST_EPISODE
from offpcc.envs.wrapper_chain import name_of
from offpcc.networks.noise import Noise
from offpcc.training.interaction import refuse_endless
from offpcc.utils.rng import seed_global_generators
from offpcc.utils.spaces import random_action

STREAM = 5  # separates these generators from others with the same seed


class Seeds(NamedTuple):
    """The seeds of an episode."""

    reset: int
    actions: int  # of random actions
    noise: int  # of the agent's noise
    others: int  # of the global generators, which a user's environments and networks may use

    @classmethod
    def of(cls, seed: int, episode: int) -> Seeds:
        """Return the seeds of an episode; episodes count from 0."""
        drawn = np.random.SeedSequence((seed, episode, STREAM)).generate_state(4) >> 1
        return cls(*(int(number) for number in drawn))


class Transition(NamedTuple):
    """A transition with the arguments of `Recorder.push`."""

    observation: np.ndarray
    action: np.ndarray  # (A,) in [-1, 1]
    reward: float
    next_observation: np.ndarray
    terminated: bool
    truncated: bool


class EpsilonGreedyActor:
    """Acts with the mode of an actor's policy, or with probability epsilon by a random action.

    Epsilon holds for each action by itself. Random actions are uniform in `space`, which has ``scale_actions``. The
    actor's own share of random actions in tests does not count.
    """

    def __init__(
        self, actor: ActorCritic, epsilon: float, space: gymnasium.Space[Any], generator: np.random.Generator
    ) -> None:
        self.memoryless = actor.memoryless
        self._actor, self._epsilon, self._space, self._generator = actor, epsilon, space, generator

    def act(self, step: Step, memory: Memory = None, **_: bool) -> tuple[np.ndarray, Memory]:
        """Return actions (N, A) and the memory; see `Algorithm.act`."""
        with without_random_actions(self._actor):
            actions, memory = self._actor.act(step, memory, deterministic=True)
        actions = np.array(actions)
        for number in np.flatnonzero(self._generator.random(len(actions)) < self._epsilon):
            actions[number] = random_action(self._space, self._generator)
        return actions, memory


def play_episode(
    env: gymnasium.Env[Any, Any],
    actor: ActorCritic | None,
    seeds: Seeds,
    deterministic: bool = False,
    longest_episode: int = LONGEST_EPISODE,
    epsilon: float | None = None,
) -> Iterator[Transition]:
    """Run an episode in an environment with ``scale_actions``, and yield its transitions.

    Without an actor, actions are random. With `epsilon`, an `EpsilonGreedyActor` acts; else the mode of the policy if
    `deterministic`. An episode that does not end within `longest_episode` steps is refused.
    """
    seed_global_generators(seeds.others)
    draws = np.random.default_rng(seeds.actions)
    acting: ActorCritic | EpsilonGreedyActor | None = actor
    if actor is not None:
        actor.noise = Noise(seeds.noise, actor.device)
        if epsilon is not None:
            acting = EpsilonGreedyActor(actor, epsilon, env.action_space, draws)
    observation = np.array(env.reset(seed=seeds.reset)[0])
    action, reward = np.zeros((1, *(env.action_space.shape or ())), np.float32), 0.0
    memory: Memory = None
    length = 0
    while True:
        if acting is None:
            action = random_action(env.action_space, draws)[None]
        else:
            step = Step(observation[None], action, np.full((1, 1), reward, np.float32), np.array([length == 0]))
            with without_random_actions(actor, deterministic):
                action, memory = acting.act(step, memory, deterministic=deterministic)
        following, received, terminated, truncated, _ = env.step(action[0])
        following, reward = np.array(following), float(received)
        yield Transition(observation, action[0], reward, following, bool(terminated), bool(truncated))
        observation, length = following, length + 1
        if terminated or truncated:
            return
        refuse_endless(functools.partial(name_of, env), length, longest_episode)
