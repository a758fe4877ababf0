"""Several environments on the machines of a Ray cluster, which are restarted when they are lost."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from offpcc.envs.vector.base import MakeEnv
from offpcc.envs.vector.workers import JOIN_TIMEOUT, DeadWorkerError, Failure, Host, WorkerEnvironments
from offpcc.utils.errors import UserError
from offpcc.utils.ray_cluster import check_address, connect

OPTION = "environments.ray_address"
COLORS = re.compile(r"\x1b\[[0-9;]*m")
START_TIMEOUT = 300.0  # seconds until an actor has imported offpcc and made its environment


class RayWorker:
    """A Ray actor that runs one environment, with the methods of `Worker`.

    Attributes:
        asked: Ray's references to the answers that were not read yet, in order.
    """

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]], seed: int, which: str, bindings: str) -> None:
        import ray

        actor: Any = ray.remote(num_cpus=1)(Host)
        self.host = actor.remote(make_env, seed, which, bindings)
        self.asked: deque[Any] = deque([self.host.answer.remote(_first, None)])
        self.has_started = False

    def send(self, command: str | Callable[[Host, Any], Any], given: Any = None) -> None:
        """Send a command, or a function of the `Host` and its argument."""
        self.asked.append(self.host.answer.remote(command, given))

    def answer(self, timeout: float | None = None) -> Any:
        """See `Worker.answer`."""
        import ray

        limit = timeout if self.has_started else START_TIMEOUT
        try:
            answer = ray.get(self.asked.popleft(), timeout=limit)
        except ray.exceptions.GetTimeoutError:
            what = "has not answered within make.timeout" if self.has_started else f"has not started in {limit:g} s"
            raise DeadWorkerError(what) from None
        except ray.exceptions.RayError as error:
            raise DeadWorkerError(f"was lost ({_reason(error)})") from error
        self.has_started = True
        if isinstance(answer, Failure):
            raise answer.raised()
        return answer

    def kill(self) -> None:
        """Kill the actor."""
        import ray

        ray.kill(self.host)


def _reason(error: Exception) -> str:
    """Return the line of an error of Ray that says why: the last one of a traceback, else the first one."""
    lines = [COLORS.sub("", line).strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1 if "Traceback" in str(error) or "creation task" in lines[0] else 0]


def _first(host: Host, given: None) -> Any:
    return host.first


def _close(host: Host, given: None) -> None:
    host.env.close()


def end_actors(workers: list[RayWorker], timeout: float | None = None) -> None:
    """Ask actors without unanswered commands to close their environments, wait, and kill all."""
    import ray

    if ray.is_initialized():  # otherwise, the connection is closed, which ended all actors
        if asked := [worker.host.answer.remote(_close, None) for worker in workers if not worker.asked]:
            ray.wait(asked, num_returns=len(asked), timeout=JOIN_TIMEOUT + (timeout or 0.0))
        for worker in workers:
            worker.kill()
    workers.clear()


class RayEnvironments(WorkerEnvironments):
    """Environments in the actors of a Ray cluster; for the other arguments see `WorkerEnvironments`.

    `address` is Ray's address, "auto" or HOST:PORT. A connection that this process has already is used. With
    `lockstep`, the agent acts for all of them at once, as in worker processes. Otherwise each actor plays its episodes
    by itself; see `RemoteInteraction`.
    """

    _end = staticmethod(end_actors)  # type: ignore[assignment]
    _option = "ray_address"
    _remedy = "each machine of the cluster needs this version of offpcc, and the module that registers the environment"

    def __init__(
        self,
        make_env: MakeEnv,
        seeds: Sequence[int],
        address: str,
        timeout: float | None = None,
        bindings: str = "",
        lockstep: bool = False,
    ) -> None:
        check_address(address, OPTION)
        import ray

        if not ray.is_initialized():
            connect(address, OPTION)

        num_cpus = ray.cluster_resources().get("CPU", 0)
        if len(seeds) > num_cpus:
            raise UserError(
                f"environments.num_envs is {len(seeds)}, but the Ray cluster has {num_cpus:g} CPUs, one for each "
                f"environment; add machines, or give it more with `ray start --num-cpus` if environments mostly wait"
            )
        self.lockstep = lockstep
        super().__init__(make_env, seeds, timeout, bindings)

    def _new(self, number: int) -> RayWorker:
        return RayWorker(self.make_env, self.seeds[number], f"environment {number}", self.bindings)
