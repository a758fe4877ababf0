"""Several environments in this process, and the choice between them, worker processes and Ray actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import gin

from offpcc.config.bindings import explains_calls
from offpcc.config.validation import Flag, NumEnvs, Rule
from offpcc.envs.episode_replay import EpisodeReplay
from offpcc.envs.guard import guarded
from offpcc.envs.vector.base import EnvInfo, Environments, MakeEnv, answer
from offpcc.envs.vector.ray_actors import RayEnvironments
from offpcc.envs.vector.workers import WorkerEnvironments
from offpcc.utils.errors import UserError
from offpcc.utils.rng import derived_seed

Address = Annotated[str, Rule('"auto" or HOST:PORT, such as "10.0.0.1:6379"', lambda value: isinstance(value, str))]


class LocalEnvironments(Environments):
    """Environments in this process, stepped one after the other. They are built when they are first used."""

    shared_with_tests = False

    def __init__(self, make_env: MakeEnv, seeds: Sequence[int]) -> None:
        super().__init__(make_env, seeds)
        self._envs: list[EpisodeReplay] = []

    @classmethod
    def around(cls, env: EpisodeReplay) -> LocalEnvironments:
        """Return one environment that exists already."""
        made = cls(lambda: env, [0])
        made._envs = [env]
        return made

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

    def close(self) -> None:
        """See `Environments.close`."""
        for env in self._envs:
            env.close()

    def _ask(self, command: str, given: Mapping[int, Any]) -> dict[int, Any]:
        return {number: answer(self.envs[number], command, what) for number, what in given.items()}


@gin.configurable(denylist=["make_env", "seed", "timeout", "bindings"])  # type: ignore[untyped-decorator]
@explains_calls
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
    ray_address: Address | None = None,
    lockstep: Flag = False,
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
            it continues exactly. On a real machine, these actions would run blindly. With False, no actions are
            recorded, the unfinished episodes end as truncated, and new ones begin.
        shared_with_tests: whether test episodes use the environment that the agent learns in, so that there is never a
            second one. Use this for a real machine. The current training episode is truncated before each test. Tests
            run one after another, and no video is recorded at the end of the run.
        ray_address: address of a Ray cluster, "auto" or HOST:PORT such as "10.0.0.1:6379"; None for none. Each
            environment then gets an actor on one of the machines. This is for environments whose steps take 2 ms or
            more; `num_envs` is the number of actors. Each actor plays with its own copy of the policy, and sends whole
            episodes, or stretches of them to agents without memory. A resumed run continues with new episodes, so it
            is not exact. If an actor is lost, it is started again; its unfinished episode is dropped and counted.
        lockstep: whether the agent acts for all environments of `ray_address` at once, as for worker processes. This
            is slower, but the results and a resumed run are the same as with worker processes.
    """
    if shared_with_tests and (num_envs > 1 or worker_processes):
        raise UserError(
            f"environments.shared_with_tests is for one environment in this process, but num_envs is {num_envs} and "
            f"worker_processes is {worker_processes}; set them to 1 and False"
        )
    if ray_address is None and lockstep:
        raise UserError(
            "environments.lockstep is for the actors of a Ray cluster; give the cluster's address in "
            "environments.ray_address"
        )
    if ray_address is not None and (worker_processes or shared_with_tests):
        other = "worker_processes" if worker_processes else "shared_with_tests"
        raise UserError(
            f"environments.ray_address and environments.{other} cannot be combined; leave out one of the two"
        )
    seeds = [environment_seed(seed, number) for number in range(num_envs)]
    made: LocalEnvironments | WorkerEnvironments
    if ray_address is not None:
        made = RayEnvironments(make_env, seeds, ray_address, timeout, bindings, lockstep)
    elif worker_processes:
        made = WorkerEnvironments(make_env, seeds, timeout, bindings)
    else:
        made = LocalEnvironments(make_env, seeds)
        made.shared_with_tests = shared_with_tests
    made.replay_on_resume = replay_on_resume
    return made


def environment_seed(seed: int, number: int) -> int:
    """Return the seed of environment `number` of a run; the first one has the run's seed."""
    return seed if number == 0 else derived_seed(seed, number)
