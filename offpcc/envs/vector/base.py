"""`Environments`, the base class of parallel environments, in this process or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from offpcc.envs.aliases import LIFE_LOST
from offpcc.envs.episode_replay import EpisodeReplay
from offpcc.envs.wrapper_chain import name_of
from offpcc.utils.rng import derived_seed

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
Observations = list[np.ndarray]  # one per environment


class StepResult(NamedTuple):
    """The results of one step in N environments."""

    observations: Observations
    rewards: np.ndarray  # (N,)
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool
    # (N,) bool: True where an episode was lost and this step did not count. The observation is then the first of a new
    # episode.
    crashed: np.ndarray
    life_lost: np.ndarray  # (N,) bool: True where the `info` of the step has ``life_lost = True``; see `Atari`


class RestoredEpisodes(NamedTuple):
    """The states of N restored episodes."""

    observations: Observations
    over: np.ndarray  # (N,) bool
    same: bool  # whether all episodes were repeated exactly


class EnvInfo(NamedTuple):
    """Facts about an environment, known once it is made."""

    name: str
    action_space: gymnasium.Space[Any]

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any]) -> EnvInfo:
        """Return the facts about `env`."""
        return cls(name_of(env), env.action_space)


class Environments:
    """N parallel environments. A step returns the true next observation, even at the end of an episode.

    A child class implements `info`, `_ask` and `close`.
    """

    loses_episodes = False  # whether an environment may crash and be restarted
    replay_on_resume = True  # whether actions are recorded, and a resumed run calls `restore`, which repeats them

    def __init__(self, make_env: MakeEnv, seeds: Sequence[int]) -> None:
        self.make_env, self.seeds, self.num_envs = make_env, list(seeds), len(seeds)
        self._firsts: Observations = [np.empty(0)] * self.num_envs  # of episodes that a crash began
        self._lost = np.zeros(self.num_envs, np.bool_)  # lost episodes that no step has reported yet

    @property
    def info(self) -> EnvInfo:
        """Facts about each environment."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name of the environment."""
        return self.info.name

    @property
    def action_space(self) -> spaces.Box:
        """Action space of one environment."""
        space = self.info.action_space
        assert isinstance(space, spaces.Box)
        return space

    def start(self, over: np.ndarray, observations: Observations) -> None:
        """Start an episode where one is over, and write its first observation into `observations`."""
        numbers = np.flatnonzero(over).tolist()
        firsts = self._ask("reset", dict.fromkeys(numbers, self.replay_on_resume))
        for number in numbers:
            observations[number] = np.array(firsts.get(number, self._firsts[number]))
        self._lost[over] = False

    def step(self, actions: np.ndarray) -> StepResult:
        """Take a step in all environments; `actions` has the shape (N, A) and is in [-1, 1]."""
        numbers, shape = range(self.num_envs), self.action_space.shape
        answers = self._ask(
            "step", {number: actions[number].reshape(shape) for number in numbers if not self._lost[number]}
        )
        self._lost[:] = False
        results = [answers.get(number, (self._firsts[number], 0.0, False, False, False)) for number in numbers]
        observations, rewards, terminated, truncated, lives_lost = zip(*results, strict=True)
        return StepResult(
            [np.array(observation) for observation in observations],  # copies: some environments reuse one array
            np.array(rewards, np.float64),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            np.array([number not in answers for number in numbers]),
            np.array(lives_lost, np.bool_),
        )

    def snapshot(self) -> list[dict[str, Any] | None]:
        """Return the state for `restore`, one item per environment."""
        answers: dict[int, dict[str, Any] | None] = {}
        while missing := [number for number in range(self.num_envs) if number not in answers]:
            answers |= self._ask("snapshot", dict.fromkeys(missing))
            self._lost[[number for number in missing if number not in answers]] = True
        return [_to_tensors(answers[number], bool(is_lost)) for number, is_lost in enumerate(self._lost)]

    def restore(self, snapshots: list[dict[str, Any] | None]) -> RestoredEpisodes:
        """Restore the episodes of a snapshot."""
        arrays = dict(enumerate(map(_to_arrays, snapshots)))
        self.seeds = [snapshot["seed"] for snapshot in arrays.values()]
        self._lost = np.array([snapshot.get("is_lost", False) for snapshot in arrays.values()], np.bool_)
        answers = self._ask("restore", arrays)
        self._lost[[number for number in arrays if number not in answers]] = True
        results = [answers.get(number, (self._firsts[number], False, False)) for number in arrays]
        observations, over, same = zip(*results, strict=True)
        self._firsts = [np.array(observation) for observation in observations]  # the first one where it is lost
        return RestoredEpisodes(list(self._firsts), np.array(over, np.bool_), all(same))

    def reseed(self, num_steps: int) -> None:
        """Set new seeds for the next episodes, derived from the first seeds and the run's number of steps so far."""
        # This tuple is longer than those of other seeds, so that they differ.
        self.seeds = [derived_seed(seed, 0, 2, num_steps) for seed in self.seeds]
        self._ask("reseed", dict(enumerate(self.seeds)))

    def close(self) -> None:
        """Close all environments."""
        raise NotImplementedError

    def _ask(self, command: str, given: Mapping[int, Any]) -> dict[int, Any]:
        """Run a command with its arguments by environment number, and return the results; none for a crash."""
        raise NotImplementedError


def answer(env: EpisodeReplay, command: str, given: Any) -> Any:
    """Run a command in one environment: reset, step, snapshot, restore or reseed.

    Its argument for "reset" is whether to record the episode's actions.
    """
    if command == "reset":
        env.records_actions = given
        return env.reset()[0]
    if command == "step":
        *result, info = env.step(given)
        return (*result, bool(info.get(LIFE_LOST)))
    return env.snapshot() if command == "snapshot" else getattr(env, command)(given)


def _to_tensors(snapshot: dict[str, Any] | None, is_lost: bool) -> dict[str, Any] | None:
    """Return the snapshot of an environment as a checkpoint stores it."""
    if snapshot is None:
        return None
    if is_lost:
        snapshot = {**snapshot, "is_lost": True}
    if snapshot["actions"] is None:
        return snapshot
    import torch  # here, because worker processes do not import it

    return {**snapshot, "actions": torch.tensor(snapshot["actions"])}


def _to_arrays(snapshot: dict[str, Any] | None) -> dict[str, Any]:
    """Return the snapshot in a checkpoint as `EpisodeReplay.restore` takes it."""
    assert snapshot is not None
    return snapshot if snapshot["actions"] is None else {**snapshot, "actions": snapshot["actions"].numpy()}
