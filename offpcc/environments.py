"""Environments side by side, in this process or in processes of their own, by one set of rules.

Whatever runs them, a step gives the observation that truly followed, also at an episode's end, and an episode that is
over starts anew at the next step.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gin
import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from offpcc.checks import Flag, PositiveInteger, check, rules_of
from offpcc.domains.levels import name_of
from offpcc.domains.recall import Recall, recall_in_worker
from offpcc.errors import UserError

DEAD = (BrokenPipeError, ConnectionResetError, EOFError)  # what a process that died is met with
MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
Observations = list[np.ndarray]  # one per environment


class Outcome(NamedTuple):
    """What a step brought to N environments."""

    observations: Observations
    rewards: np.ndarray  # (N,)
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool


class Recalled(NamedTuple):
    """Where N episodes stand that were found back."""

    observations: Observations
    over: np.ndarray  # (N,) bool
    same: bool  # whether all of them repeated themselves


class Environments(Protocol):
    """N environments side by side."""

    num_envs: int
    name: str
    action_space: spaces.Box  # of one of them

    def start(self, over: np.ndarray, observations: Observations) -> np.ndarray:
        """Begin an episode where one is over: its first observation is put into `observations`.

        Returns:
            (N,) bool, false where that takes the next step, whose outcome is then the first observation.
        """
        ...

    def step(self, actions: np.ndarray) -> Outcome:
        """Act in all of them, (N, A) in [-1, 1]."""
        ...

    def note(self) -> list[dict[str, Any] | None] | None:
        """What finds their episodes back, or None if nothing does."""
        ...

    def repeat(self, notes: list[dict[str, Any] | None]) -> Recalled:
        """Find back the episodes that were noted."""
        ...

    def close(self) -> None:
        """Close them all."""
        ...


class LocalEnvironments:
    """Environments in this process, one after the other.

    Args:
        make_env: builds one, at its first reset.
        seeds: one for each.
    """

    def __init__(self, make_env: MakeEnv, seeds: Sequence[int]) -> None:
        self.make_env, self.seeds, self.num_envs = make_env, seeds, len(seeds)
        self._envs: list[Recall] = []

    @property
    def envs(self) -> list[Recall]:
        """The environments."""
        if not self._envs:
            self._envs = [Recall(self.make_env(), seed, number) for number, seed in enumerate(self.seeds)]
        return self._envs

    @property
    def name(self) -> str:
        """Of the environment."""
        return name_of(self.envs[0])

    @property
    def action_space(self) -> spaces.Box:
        """Of one environment."""
        space = self.envs[0].action_space
        assert isinstance(space, spaces.Box)
        return space

    def start(self, over: np.ndarray, observations: Observations) -> np.ndarray:
        """See `Environments.start`."""
        for number in np.flatnonzero(over):
            observations[number] = np.array(self.envs[number].reset()[0])
        return np.ones(self.num_envs, np.bool_)

    def step(self, actions: np.ndarray) -> Outcome:
        """See `Environments.step`."""
        shape = self.action_space.shape
        results = [env.step(action.reshape(shape)) for env, action in zip(self.envs, actions, strict=True)]
        observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
        return Outcome(
            [np.array(observation) for observation in observations],  # copies: some write into one array for ever
            np.array(rewards, np.float64),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
        )

    def note(self) -> list[dict[str, Any] | None]:
        """See `Environments.note`."""
        return [_to_tensors(env.note()) for env in self._envs] or [None] * self.num_envs

    def repeat(self, notes: list[dict[str, Any] | None]) -> Recalled:
        """See `Environments.repeat`."""
        arrays = [_to_arrays(note) for note in notes]
        return _recalled([env.repeat(arrays) for env in self.envs])

    def close(self) -> None:
        """See `Environments.close`."""
        for env in self._envs:
            env.close()


class VectorEnvironments:
    """A vector environment of Gymnasium's, whichever way it resets what is over.

    One of your own takes the place of what `build` made, before the first step::

        learner = offpcc.build("Pendulum-v1", "sac", environments={"num_envs": 4})
        learner.interaction.environments = VectorEnvironments(my_envs, seeds=range(4))

    Actions are scaled from [-1, 1] to its bounds.

    Args:
        envs: its metadata names its `autoreset_mode`.
        seeds: one for each environment in it.
        recalls: whether each environment in it is a `Recall`, so that episodes can be found back.

    Raises:
        UserError: it does not say how it resets, or its actions are no Box with bounds.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int], recalls: bool = False) -> None:
        self.envs, self.seeds, self.num_envs, self._recalls = envs, list(seeds), envs.num_envs, recalls
        self.mode = envs.metadata.get("autoreset_mode")
        self.name = name_of(envs)
        if not isinstance(self.mode, AutoresetMode):
            raise UserError(
                f"the vector environment {self.name} does not say how it starts episodes anew: its "
                f'metadata["autoreset_mode"] is {self.mode!r}; set it to one of gymnasium.vector.AutoresetMode'
            )
        space = envs.single_action_space
        if not isinstance(space, spaces.Box) or not space.is_bounded():
            raise UserError(f"the vector environment {self.name} has the actions {space}; it needs a Box with bounds")
        self.action_space = space
        self._centre, self._radius = space.high / 2 + space.low / 2, space.high / 2 - space.low / 2
        self._has_started = False
        self._following: Any = None  # first observations of episodes that began within the last step

    def start(self, over: np.ndarray, observations: Observations) -> np.ndarray:
        """See `Environments.start`."""
        ready = np.ones(self.num_envs, np.bool_)
        if not over.any():
            return ready
        if not self._has_started:
            firsts, _ = self.envs.reset(seed=self.seeds)  # type: ignore[arg-type]
            self._has_started = True
        elif self.mode == AutoresetMode.DISABLED:
            firsts, _ = self.envs.reset(options={"reset_mask": over.copy()})
        elif self.mode == AutoresetMode.SAME_STEP:
            firsts = self._following
        else:
            return ~over
        for number in np.flatnonzero(over):
            observations[number] = np.array(firsts[number])
        return ready

    def step(self, actions: np.ndarray) -> Outcome:
        """See `Environments.step`."""
        shaped = self._centre + self._radius * actions.reshape(self.num_envs, *self.action_space.shape)
        try:
            batch, rewards, terminated, truncated, infos = self.envs.step(shaped)
        except DEAD as error:
            raise UserError(f"a process of {self.name} died ({type(error).__name__}); --resume goes on") from error
        observations = [np.array(observation) for observation in batch]
        if self.mode == AutoresetMode.SAME_STEP and (ended := terminated | truncated).any():
            self._following = batch
            for number in np.flatnonzero(ended):
                observations[number] = np.array(infos["final_obs"][number])
        return Outcome(observations, np.asarray(rewards, np.float64), terminated, truncated)

    def note(self) -> list[dict[str, Any] | None] | None:
        """See `Environments.note`."""
        if not self._recalls:
            return None
        if not self._has_started:
            return [None] * self.num_envs
        return [_to_tensors(note) for note in self.envs.call("note")]  # type: ignore[attr-defined]

    def repeat(self, notes: list[dict[str, Any] | None]) -> Recalled:
        """See `Environments.repeat`."""
        self._has_started = True
        return _recalled(self.envs.call("repeat", [_to_arrays(note) for note in notes]))  # type: ignore[attr-defined]

    def close(self) -> None:
        """See `Environments.close`."""
        self.envs.close()


@gin.configurable(denylist=["make_env", "seed"])  # type: ignore[untyped-decorator]
def environments(
    make_env: MakeEnv, seed: int, *, num_envs: PositiveInteger = 1, worker_processes: Flag = False
) -> LocalEnvironments | VectorEnvironments:
    """The environments an agent learns in.

    Args:
        make_env: builds one; for worker processes it can be pickled.
        seed: of the run.
        num_envs: environments side by side.
        worker_processes: whether each gets a process of its own, for slow simulators and many cores: on two cores it
            was slower for all tasks tried. A script uses them below ``if __name__ == "__main__":``
            and registers its environments above it, as each process imports it anew. Of a process's global
            generators a resumed run knows nothing; an environment's own are found back.

    Raises:
        UserError: a setting makes no sense, or the processes do not start.
    """
    check("environments", rules_of(environments), {"num_envs": num_envs, "worker_processes": worker_processes})
    seeds = [environment_seed(seed, number) for number in range(num_envs)]
    if not worker_processes:
        return LocalEnvironments(make_env, seeds)
    # Not forked from this process: a fork in the midst of torch's threads may hang.
    multiprocessing.set_forkserver_preload(["offpcc.domains.recall", "offpcc.domains.making"])
    bindings = gin.config_str()
    workers = [functools.partial(recall_in_worker, make_env, one, number, bindings) for number, one in enumerate(seeds)]
    try:
        envs = AsyncVectorEnv(workers, context="forkserver", autoreset_mode=AutoresetMode.DISABLED)
    except DEAD as error:
        raise UserError(
            f"the worker processes did not start ({type(error).__name__}); a script of yours starts them below "
            f"`if __name__ == '__main__':`, and registers its environments above it"
        ) from error
    return VectorEnvironments(envs, seeds, recalls=True)


def environment_seed(seed: int, number: int) -> int:
    """The seed of environment `number` of a run; the first one's is the run's."""
    return seed if number == 0 else int(np.random.SeedSequence((seed, number)).generate_state(1)[0] >> 1)


def _to_tensors(note: dict[str, Any] | None) -> dict[str, Any] | None:
    """A note as a checkpoint keeps it."""
    if note is None or note["actions"] is None:
        return note
    return {**note, "actions": torch.from_numpy(note["actions"])}


def _to_arrays(note: dict[str, Any] | None) -> dict[str, Any]:
    assert note is not None
    return note if note["actions"] is None else {**note, "actions": note["actions"].numpy()}


def _recalled(results: Sequence[tuple[np.ndarray, bool, bool]]) -> Recalled:
    observations, over, same = zip(*results, strict=True)
    return Recalled([np.array(observation) for observation in observations], np.array(over, np.bool_), all(same))
