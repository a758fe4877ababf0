"""Several environments in this process, and the choice between them and worker processes.

In both cases, a step returns the true next observation, even at the end of an episode. A finished episode is reset at
the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from offpcc.config.validation import Flag, NumEnvs, check, rules_of
from offpcc.envs.episode_replay import EpisodeReplay
from offpcc.envs.faults import EnvironmentFault, fault_of, remedy_of
from offpcc.envs.guard import Inspection, UnfitError, close, guarded
from offpcc.envs.vector.base import (
    MakeEnv,
    Observations,
    RestoredEpisodes,
    StepResult,
    restored_episodes,
    resumed_seeds,
    to_arrays,
    to_tensors,
)
from offpcc.envs.vector.workers import WorkerEnvironments
from offpcc.envs.wrapper_chain import name_of
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.foreign import ForeignCall

DEAD = (BrokenPipeError, ConnectionResetError, EOFError)  # raised when a worker process has died


class LocalEnvironments:
    """Environments in this process, stepped one after the other.

    Args:
        make_env: builds one environment; called when the environments are first used.
        seeds: one for each.
    """

    loses_episodes = False
    replay_on_resume = True
    shared_with_tests = False

    def __init__(self, make_env: MakeEnv, seeds: Sequence[int]) -> None:
        self.make_env, self.seeds, self.num_envs = make_env, seeds, len(seeds)
        self._envs: list[EpisodeReplay] = []

    @property
    def envs(self) -> list[EpisodeReplay]:
        """The environments, which the first access builds."""
        if not self._envs:
            self._envs = [
                EpisodeReplay(guarded(self.make_env(), f"environment {number}"), seed)
                for number, seed in enumerate(self.seeds)
            ]
        return self._envs

    @property
    def name(self) -> str:
        """Name of the environment."""
        return name_of(self.envs[0])

    @property
    def action_space(self) -> spaces.Box:
        """Action space of one environment."""
        space = self.envs[0].action_space
        assert isinstance(space, spaces.Box)
        return space

    def start(self, over: np.ndarray, observations: Observations) -> np.ndarray:
        """See `Environments.start`."""
        for number in np.flatnonzero(over):
            observations[number] = np.array(self.envs[number].reset()[0])
        return np.ones(self.num_envs, np.bool_)

    def step(self, actions: np.ndarray) -> StepResult:
        """See `Environments.step`."""
        shape = self.action_space.shape
        return StepResult.of(
            [env.step(action.reshape(shape))[:4] for env, action in zip(self.envs, actions, strict=True)]
        )

    def snapshot(self) -> list[dict[str, Any] | None]:
        """See `Environments.snapshot`."""
        return [to_tensors(env.snapshot()) for env in self._envs] or [None] * self.num_envs

    def restore(self, snapshots: list[dict[str, Any] | None]) -> RestoredEpisodes:
        """See `Environments.restore`."""
        pairs = zip(self.envs, snapshots, strict=True)
        return restored_episodes([env.restore(to_arrays(snapshot)) for env, snapshot in pairs])

    def begin_anew(self, num_steps: int) -> None:
        """See `Environments.begin_anew`."""
        self.seeds = resumed_seeds(self.seeds, num_steps)
        for env, seed in zip(self._envs, self.seeds, strict=False):  # environments that exist already
            env.begin_anew(seed)

    @contextmanager
    def lent(self) -> Iterator[gymnasium.Env[Any, Any]]:
        """Yield the first environment for test episodes; its generator's state is restored afterwards."""
        with self.envs[0].untouched() as env:
            yield env

    def close(self) -> None:
        """See `Environments.close`."""
        for env in self._envs:
            env.close()


class VectorEnvironments:
    """A Gymnasium vector environment, in any autoreset mode.

    Your own can replace the one that `build` made, before the first step::

        learner = offpcc.build("Pendulum-v1", "sac", environments={"num_envs": 4})
        learner.interaction.environments = VectorEnvironments(my_envs, seeds=range(4))

    Actions are scaled from [-1, 1] to its bounds. The bounds must equal those of the environment given to `build`.

    Args:
        envs: its metadata must contain its `autoreset_mode`.
        seeds: one for each environment in it.

    Raises:
        UserError: its metadata has no autoreset mode, or its action space is not a Box with bounds.
    """

    loses_episodes = False
    replay_on_resume = False

    def __init__(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> None:
        self.envs, self.seeds, self.num_envs = envs, list(seeds), envs.num_envs
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
        assert isinstance(envs.single_observation_space, spaces.Box)
        self._inspection = Inspection(envs.single_observation_space)
        self._centre, self._radius = space.high / 2 + space.low / 2, space.high / 2 - space.low / 2
        self._has_started = False
        self._first_observations: Any = None  # first observations of episodes that the last step started

    def start(self, over: np.ndarray, observations: Observations) -> np.ndarray:
        """See `Environments.start`."""
        ready = np.ones(self.num_envs, np.bool_)
        if not over.any():
            return ready
        if not self._has_started:
            firsts, _ = self._guarded("reset", seed=self.seeds)
            self._has_started = True
        elif self.mode == AutoresetMode.DISABLED:
            firsts, _ = self._guarded("reset", options={"reset_mask": over.copy()})
        elif self.mode == AutoresetMode.SAME_STEP:
            firsts = self._first_observations
        else:
            return ~over
        for number in np.flatnonzero(over):
            observations[number] = np.array(firsts[number])
        return ready

    def step(self, actions: np.ndarray) -> StepResult:
        """See `Environments.step`."""
        shaped = self._centre + self._radius * actions.reshape(self.num_envs, *self.action_space.shape)
        batch, rewards, terminated, truncated, infos = self._guarded("step", shaped)
        observations = [np.array(observation) for observation in batch]
        if self.mode == AutoresetMode.SAME_STEP and (ended := terminated | truncated).any():
            self._first_observations = batch
            for index in np.flatnonzero(ended):
                observations[index] = np.array(infos["final_obs"][index])
        for number, observation in enumerate(observations):
            try:
                observations[number] = self._inspection.observation(observation)
                self._inspection.reward(rewards[number])
            except UnfitError as unfit:
                name = f"{self.name} (environment {number})"
                raise EnvironmentFault(name, unfit.what, "in a step", unfit.remedy) from None
        return StepResult(observations, np.asarray(rewards, np.float64), terminated, truncated)

    def _guarded(self, method: str, *given: Any, **named: Any) -> Any:
        try:
            with ForeignCall():
                return getattr(self.envs, method)(*given, **named)
        except DEAD as error:
            raise EnvironmentFault(
                self.name, f"lost a process ({type(error).__name__})", f"in a {method}", "see why it died", error
            ) from error
        except signals.ANYTHING as error:
            signals.pass_on(error)
            raise EnvironmentFault(self.name, fault_of(error), f"in a {method}", remedy_of(error), error) from error

    def snapshot(self) -> None:
        """Return None, because the episodes of a vector environment cannot be restored."""

    def restore(self, snapshots: list[dict[str, Any] | None]) -> RestoredEpisodes:
        """Raise NotImplementedError; nothing calls this, because `snapshot` returns None."""
        raise NotImplementedError

    def begin_anew(self, num_steps: int) -> None:
        """See `Environments.begin_anew`."""
        self.seeds, self._has_started = resumed_seeds(self.seeds, num_steps), False

    def close(self) -> None:
        """See `Environments.close`."""
        close(self.envs)


@gin.configurable(denylist=["make_env", "seed", "timeout", "bindings"])  # type: ignore[untyped-decorator]
def environments(
    make_env: MakeEnv,
    seed: int,
    timeout: float | None = None,
    bindings: str = "",
    *,
    num_envs: NumEnvs = 1,
    worker_processes: Flag = False,
    replay_on_resume: Flag = True,
    shared_with_tests: Flag = False,
) -> LocalEnvironments | WorkerEnvironments:
    """Build the environments that an agent learns in.

    Args:
        make_env: builds one environment; for worker processes, it must be picklable.
        seed: seed of the run.
        timeout: see `make`; for worker processes.
        bindings: gin's bindings as text, which worker processes read before they build environments.
        num_envs: number of environments side by side.
        worker_processes: whether each environment gets its own process. This is for slow simulators and many cores; on
            two cores it was slower for all tasks tried. If a process dies, or takes longer than ``make.timeout``, a new
            one is started; its unfinished episode is dropped and counted. Tests run in the training process. A script
            must start worker processes below ``if __name__ == "__main__":`` and register its environments above it,
            because each process imports the script again. A resumed run restores an environment's own generator, but
            not a process's global generators.
        replay_on_resume: whether a resumed run restores its unfinished episodes by repeating all their actions, so that
            it continues exactly. On a real machine, these actions would run blindly. With False, the unfinished
            episodes end as truncated, and new ones begin.
        shared_with_tests: whether test episodes use the environment that the agent learns in, so that there is never a
            second one. Use this for a real machine. The current training episode is truncated before each test. Tests
            run one after another, and no video is recorded at the end of the run.

    Raises:
        UserError: a setting is invalid, or the processes do not start.
    """
    given = {"num_envs": num_envs, "worker_processes": worker_processes}
    given |= {"replay_on_resume": replay_on_resume, "shared_with_tests": shared_with_tests}
    check("environments", rules_of(environments), given)
    if shared_with_tests and (num_envs > 1 or worker_processes):
        raise UserError(
            f"environments.shared_with_tests is for one environment in this process, but num_envs is {num_envs} and "
            f"worker_processes is {worker_processes}; leave them at 1 and False"
        )
    seeds = [environment_seed(seed, number) for number in range(num_envs)]
    made: LocalEnvironments | WorkerEnvironments
    if worker_processes:
        made = WorkerEnvironments(make_env, seeds, timeout, bindings)
    else:
        made = LocalEnvironments(make_env, seeds)
        made.shared_with_tests = shared_with_tests
    made.replay_on_resume = replay_on_resume
    return made


def environment_seed(seed: int, number: int) -> int:
    """Return the seed of environment `number` of a run; the first one has the run's seed."""
    return seed if number == 0 else int(np.random.SeedSequence((seed, number)).generate_state(1)[0] >> 1)
