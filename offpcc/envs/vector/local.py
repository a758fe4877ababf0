"""Several environments in this process, and the choice between them and worker processes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gin
import gymnasium
import numpy as np

from offpcc.config.validation import Flag, NumEnvs, check, rules_of
from offpcc.envs.episode_replay import EpisodeReplay
from offpcc.envs.guard import guarded
from offpcc.envs.vector.base import EnvInfo, Environments, MakeEnv, answer
from offpcc.envs.vector.workers import WorkerEnvironments
from offpcc.utils.errors import UserError


class LocalEnvironments(Environments):
    """Environments in this process, stepped one after the other. They are built when they are first used."""

    shared_with_tests = False

    def __init__(self, make_env: MakeEnv, seeds: Sequence[int]) -> None:
        super().__init__(make_env, seeds)
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
    def info(self) -> EnvInfo:
        """See `Environments`."""
        return EnvInfo.of(self.envs[0])

    @contextmanager
    def lent(self) -> Iterator[gymnasium.Env[Any, Any]]:
        """Yield the first environment for test episodes; its generator's state is restored afterwards."""
        with self.envs[0].untouched() as env:
            yield env

    def close(self) -> None:
        """See `Environments.close`."""
        for env in self._envs:
            env.close()

    def _ask(self, command: str, given: Mapping[int, Any]) -> dict[int, Any]:
        return {number: answer(self.envs[number], command, what) for number, what in given.items()}


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
        num_envs: number of parallel environments.
        worker_processes: whether each environment gets its own process. This is for slow simulators and many cores; on
            two cores it was slower in all tasks that we tried. If a process dies, or takes longer than
            ``make.timeout``, it is restarted; its unfinished episode is dropped and counted. Tests run in the training
            process. A script must start worker processes below ``if __name__ == "__main__":`` and register its
            environments above it, because each process imports the script again. A resumed run restores an
            environment's own generator, but not a process's global generators.
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
            f"worker_processes is {worker_processes}; set them to 1 and False"
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
