"""Several environments in worker processes, which are restarted when they die.

A worker process imports this module, so it imports neither torch nor the agents.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gin
import gymnasium as gym
from gymnasium.vector.utils import CloudpickleWrapper

from offpcc.envs.episode_replay import EpisodeReplay
from offpcc.envs.faults import EnvironmentFault, RemoteTracebackError
from offpcc.envs.guard import Guard
from offpcc.envs.unsuitable import cannot_be_made
from offpcc.envs.vector.base import EnvInfo, Environments, MakeEnv, answer
from offpcc.utils.errors import UserError, format_error, print_to_stderr
from offpcc.utils.rng import derived_seed, seed_global_generators

CLOSE = "close"
JOIN_TIMEOUT = 5.0  # seconds that a process has to end by itself


class Failure(NamedTuple):
    """An answer that reports an error instead of a result."""

    message: str
    parts: tuple[str, str, str, str] | None  # `EnvironmentFault.parts`; None for other errors
    traceback: str

    @classmethod
    def of(cls, fault: UserError, cause: BaseException) -> Failure:
        """Return the answer for an error and its cause."""
        parts = fault.parts if isinstance(fault, EnvironmentFault) else None
        return cls(fault.message, parts, "".join(traceback.format_exception(cause)))

    def raised(self) -> UserError:
        """Return the error again, in the process that asked."""
        cause = RemoteTracebackError(self.traceback)
        error = UserError(self.message) if self.parts is None else EnvironmentFault(*self.parts, cause)
        error.__cause__ = cause
        return error


class Host:
    """An environment in a process of its own, and its answers; an error becomes a `Failure`.

    The seed also seeds the process's global generators, which a user's environment may use. `bindings` are gin's, as
    text; those of agents are skipped.

    Attributes:
        first: The first answer, an `EnvInfo`.
        kept: Storage for the functions that `answer` runs, from one call to the next.
    """

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]], seed: int, which: str, bindings: str) -> None:
        seed_global_generators(seed, imports_torch=False)
        gin.parse_config(bindings, skip_unknown=True)
        self.first: EnvInfo | Failure
        self.kept: Any = None
        try:
            env = make_env()
            seed_global_generators(seed, imports_torch=False)  # again, because the environment may have imported torch
            self.env = EpisodeReplay(Guard(env, which), seed)
            self.first = EnvInfo.of(self.env)
        except (Exception, SystemExit) as error:
            self.first = Failure.of(error if isinstance(error, UserError) else cannot_be_made(which, error), error)

    def answer(self, command: str | Callable[[Host, Any], Any], given: Any) -> Any:
        """Run a command of `answer`, or a function of this object and the argument."""
        try:
            return command(self, given) if callable(command) else answer(self.env, command, given)
        except UserError as fault:
            return Failure.of(fault, fault.__cause__ or fault)


def serve_host(pipe: Connection[Any, Any], *given: Any) -> None:
    """Send the first answer of a `Host` with the arguments `given`, and answer commands until the close command.

    The worker also ends with its parent. It ignores SIGINT and SIGTERM, which reach all processes. Only the parent
    process decides when to stop. `pipe` receives (command, argument) and sends the answers.
    """
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    os.setpgid(0, 0)  # so that `Worker.kill` also ends the processes that the environment has started
    threading.Thread(target=_end_with_parent, daemon=True).start()
    host = Host(*given)
    answered = host.first
    try:
        pipe.send(answered)
        while not isinstance(answered, Failure) and (message := pipe.recv())[0] != CLOSE:
            pipe.send(answered := host.answer(*message))
        if not isinstance(answered, Failure):
            host.env.close()
    except (EOFError, ConnectionError):  # the parent process has ended
        return
    except OSError:  # the environment closed the pipe
        os._exit(1)


def _end_with_parent() -> None:
    """End this process when its parent ends. Otherwise, a process that hangs in a step would outlive the parent."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


class DeadWorkerError(Exception):
    """A process died or does not answer; the message says what happened."""


class Worker:
    """A process that runs one environment, by `serve_host`."""

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]], seed: int, which: str, bindings: str) -> None:
        # No fork of this process: forking a process with torch's threads may hang.
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        given = (theirs, CloudpickleWrapper(make_env), seed, which, bindings)
        self.process = context.Process(target=serve_host, args=given, name=which, daemon=True)
        try:
            self.process.start()
        finally:
            theirs.close()  # so that this process notices when the other end is closed
        self.num_unanswered = 1  # the first answer is the `EnvInfo`

    def send(self, command: str, given: Any = None) -> None:
        """Send a command. If the process is dead, `answer` reports it."""
        if command != CLOSE and self.num_unanswered:  # Ctrl-C came first, so the next answer would not be to this one
            self.kill()
        self.num_unanswered += command != CLOSE
        try:
            self.pipe.send((command, given))
        except OSError:
            return

    def answer(self, timeout: float | None = None) -> Any:
        """Return the answer to a command; wait at most `timeout` seconds, or without a limit.

        Raises:
            DeadWorkerError: the process is dead or does not answer in time.
        """
        try:
            if timeout is not None and not self.pipe.poll(timeout):
                raise DeadWorkerError("has not answered within make.timeout")
            answer = self.pipe.recv()
            self.num_unanswered -= 1
        except (EOFError, OSError):
            self.process.join(JOIN_TIMEOUT)
            raise DeadWorkerError(_how_it_ended(self.process.exitcode)) from None
        if isinstance(answer, Failure):
            raise answer.raised()
        return answer

    def kill(self) -> None:
        """Kill the process, and those that its environment has started."""
        with contextlib.suppress(OSError):  # it has ended, or has no group of its own yet
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.kill()
        with contextlib.suppress(OSError):  # an environment in this process may have closed their file descriptors
            self.process.join()
            self.pipe.close()


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is None:
        return "has closed its pipe"
    if exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended with exit code {exitcode}"


def end_processes(workers: list[Worker], timeout: float | None = None) -> None:
    """Ask processes to close their environments, wait, and kill those that remain; busy ones get `JOIN_TIMEOUT`."""
    for worker in workers:
        worker.send(CLOSE)
    now = time.monotonic()
    # Processes with less time come first, so that they do not wait for others.
    for worker in sorted(workers, key=lambda worker: worker.num_unanswered == 0):
        patience = JOIN_TIMEOUT + (timeout or 0.0) * (worker.num_unanswered == 0)
        if worker.process.is_alive():
            worker.process.join(max(now + patience - time.monotonic(), 0.0))
        worker.kill()
    workers.clear()


MOST_RESTARTS = 3  # of one environment, without a finished step between them


class WorkerEnvironments(Environments):
    """Environments in worker processes.

    Args:
        make_env: builds one environment; must be picklable.
        seeds: one for each.
        timeout: maximum seconds of a reset, a step or the closing; None for no limit.
        bindings: gin's bindings as text, which each process reads before it builds its environment.
    """

    loses_episodes = True
    _end = staticmethod(end_processes)
    _option = "worker_processes"
    _remedy = "in a script, start them below `if __name__ == '__main__':`, and register environments above it"

    def __init__(
        self, make_env: MakeEnv, seeds: Sequence[int], timeout: float | None = None, bindings: str = ""
    ) -> None:
        try:
            pickle.dumps(CloudpickleWrapper(make_env))
        except Exception as error:  # objects of users raise anything
            raise UserError(
                f"the environment cannot be sent to worker processes: the function that builds it cannot be pickled "
                f"({format_error(error)}); use a function at the top of a module that creates all it needs, or remove "
                f"environments.{self._option}"
            ) from error
        super().__init__(make_env, seeds)
        self.timeout, self.bindings = timeout, bindings
        multiprocessing.set_forkserver_preload(["offpcc.envs.vector.workers"])
        self.workers: list[Any] = []  # `Worker`, or one of a child class
        weakref.finalize(self, self._end, self.workers, timeout)  # also at exit, before multiprocessing waits for them
        self.workers += [self._new(number) for number in range(self.num_envs)]
        try:
            self._infos: list[EnvInfo] = [worker.answer() for worker in self.workers]
        except DeadWorkerError as death:
            raise UserError(f"the worker processes did not start: one {death}; {self._remedy}") from death
        self._restarts = [0] * self.num_envs  # per environment, since its last finished step

    @property
    def info(self) -> EnvInfo:
        """See `Environments`."""
        return self._infos[0]

    def close(self) -> None:
        """See `Environments.close`."""
        self._end(self.workers, self.timeout)

    def _new(self, number: int) -> Any:
        return Worker(self.make_env, self.seeds[number], f"environment {number}", self.bindings)

    def _ask(self, command: str, given: Mapping[int, Any]) -> dict[int, Any]:
        for number, what in given.items():
            self.workers[number].send(command, what)
        started = time.monotonic()
        answers: dict[int, Any] = {}
        faults: list[UserError] = []  # raised after all answers are read, so that none is taken for a later one
        for number, what in given.items():
            timeout = self.timeout if command in ("reset", "step", "restore") else None
            if timeout is not None and command == "restore":
                timeout *= 2 + len(what["actions"] if what["actions"] is not None else ())  # it may reset twice
            left = None if timeout is None else max(started + timeout - time.monotonic(), 0.0)
            try:
                try:
                    answers[number] = self.workers[number].answer(left)
                except DeadWorkerError as death:
                    self._restart(number, death)
                else:
                    if command == "step":
                        self.has_answered(number)
            except UserError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return answers

    def has_answered(self, number: int) -> None:
        """Note a finished step of an environment; see `replace`."""
        self._restarts[number] = 0

    def _restart(self, number: int, death: DeadWorkerError) -> None:
        """Start a new process and an episode in it; its seed is derived from the old one."""
        worker = self.replace(number, death)
        try:
            worker.answer()
            worker.send("reset", self.replay_on_resume)
            self._firsts[number] = worker.answer(self.timeout)
        except DeadWorkerError as another:
            self._restart(number, another)

    def replace(self, number: int, death: DeadWorkerError) -> Any:
        """Start a new process in place of a dead one, and return it; its seed is derived from the old one.

        Raises:
            EnvironmentFault: too many died since the last finished step.
        """
        env = f"{self.name} (environment {number})"
        self.workers[number].kill()
        self._restarts[number] += 1
        if self._restarts[number] > MOST_RESTARTS:
            raise EnvironmentFault(
                env,
                f"died {self._restarts[number]} times without a finished step; the last time, its process {death}",
                "in an episode's first steps",
                "fix it, or check whether the machine's memory is full",
            ) from death
        print_to_stderr(f"the process of {env} {death}; it is restarted, and its unfinished episode is dropped")
        self.seeds[number] = next_seed(self.seeds[number])
        self.workers[number] = worker = self._new(number)
        return worker


def next_seed(seed: int) -> int:
    """Return the seed of the environment that replaces one with this seed."""
    # This tuple is longer than the tuple in `environment_seed`, so that the seeds differ.
    return derived_seed(seed, 0, 1)
