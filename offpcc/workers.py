"""Environments in processes of their own, which may die, and are then started anew."""

from __future__ import annotations

import multiprocessing
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np
from gymnasium import spaces

from offpcc.domains.faults import EnvironmentFault
from offpcc.domains.worker import Made
from offpcc.domains.worker_process import DeadWorkerError, Worker, end
from offpcc.errors import UserError, tell
from offpcc.side_by_side import MakeEnv, Observations, Outcome, Recalled, recalled, resumed_seeds, to_arrays, to_tensors

MOST_RESTARTS = 3  # of one environment, in a row without a finished step

__all__ = ["WorkerEnvironments"]


class WorkerEnvironments:
    """Environments in processes of their own.

    Args:
        make_env: builds one; can be pickled.
        seeds: one for each.
        timeout: seconds that a reset, a step or the closing may take; None for any time.

    Raises:
        UserError: an environment cannot be made, or the processes do not start.
    """

    loses_episodes = True
    replay_on_resume = True

    def __init__(self, make_env: MakeEnv, seeds: Sequence[int], timeout: float | None = None) -> None:
        self.make_env, self.seeds, self.num_envs, self.timeout = make_env, list(seeds), len(seeds), timeout
        multiprocessing.set_forkserver_preload(["offpcc.domains.worker"])
        self.workers: list[Worker] = []
        weakref.finalize(self, end, self.workers, timeout)  # also at exit, before they are waited for there
        self.workers += [self._new(number) for number in range(self.num_envs)]
        try:
            made: list[Made] = [worker.answer() for worker in self.workers]
        except DeadWorkerError as death:
            raise UserError(
                f"the worker processes did not start: one {death}; a script of yours starts them below "
                f"`if __name__ == '__main__':`, and registers its environments above it"
            ) from death
        self.name = made[0].name
        assert isinstance(made[0].action_space, spaces.Box)
        self.action_space = made[0].action_space
        self._restarts = [0] * self.num_envs  # in a row
        self._firsts: Observations = [np.empty(0)] * self.num_envs  # of episodes that a restart began
        self._lost = np.zeros(self.num_envs, np.bool_)  # whose episode is lost, which nobody was told yet

    def start(self, over: np.ndarray, observations: Observations) -> np.ndarray:
        """See `Environments.start`."""
        numbers = np.flatnonzero(over).tolist()
        firsts = self._ask("reset", dict.fromkeys(numbers), self.timeout)
        for number in numbers:
            observations[number] = firsts.get(number, self._firsts[number])
        self._lost[over] = False
        return np.ones(self.num_envs, np.bool_)

    def step(self, actions: np.ndarray) -> Outcome:
        """See `Environments.step`."""
        shape = self.action_space.shape
        given = {number: actions[number].reshape(shape) for number in np.flatnonzero(~self._lost).tolist()}
        answers = self._ask("step", given, self.timeout)
        for number in answers:
            self._restarts[number] = 0
        lost, self._lost = ~np.isin(np.arange(self.num_envs), list(answers)), np.zeros(self.num_envs, np.bool_)
        results = [answers.get(number, (self._firsts[number], 0.0, False, False)) for number in range(self.num_envs)]
        observations, rewards, terminated, truncated = zip(*results, strict=True)
        return Outcome(
            list(observations),
            np.array(rewards, np.float64),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            lost,
        )

    def note(self) -> list[dict[str, Any] | None]:
        """See `Environments.note`."""
        notes: dict[int, dict[str, Any] | None] = {}
        while missing := [number for number in range(self.num_envs) if number not in notes]:
            answers = self._ask("note", dict.fromkeys(missing))
            self._lost[[number for number in missing if number not in answers]] = True
            notes |= answers
        told = [to_tensors(notes[number]) for number in range(self.num_envs)]
        return [
            {**note, "is_lost": True} if note and lost else note for note, lost in zip(told, self._lost, strict=True)
        ]

    def repeat(self, notes: list[dict[str, Any] | None]) -> Recalled:
        """See `Environments.repeat`."""
        arrays = dict(enumerate(to_arrays(note) for note in notes))
        self.seeds = [note["seed"] for note in arrays.values()]
        self._lost = np.array([note.get("is_lost", False) for note in arrays.values()], np.bool_)
        answers = self._ask("repeat", arrays)
        self._lost[[number for number in arrays if number not in answers]] = True
        found = recalled([answers.get(number, (self._firsts[number], False, False)) for number in arrays])
        self._firsts = list(found.observations)  # one that is lost has begun another
        return found

    def begin_anew(self, num_steps: int) -> None:
        """See `Environments.begin_anew`."""
        self.seeds = resumed_seeds(self.seeds, num_steps)
        self._ask("begin_anew", dict(enumerate(self.seeds)))

    def close(self) -> None:
        """See `Environments.close`."""
        end(self.workers, self.timeout)

    def _new(self, number: int) -> Worker:
        return Worker(self.make_env, self.seeds[number], f"environment {number}", gin.config_str())

    def _ask(self, command: str, given: Mapping[int, Any], timeout: float | None = None) -> dict[int, Any]:
        """Have the environments do something at the same time; the answers of those that did not die over it."""
        for number, what in given.items():
            self.workers[number].send(command, what)
        deadline = time.monotonic() + (timeout or 0.0)
        answers = {}
        for number in given:
            left = None if timeout is None else max(deadline - time.monotonic(), 0.0)
            try:
                answers[number] = self.workers[number].answer(left)
            except DeadWorkerError as death:
                self._restart(number, death)
        return answers

    def _restart(self, number: int, death: DeadWorkerError) -> None:
        """Begin an episode in a new process, whose seed follows from the old one's.

        Raises:
            EnvironmentFault: none comes to a finished step.
        """
        env = f"{self.name} (environment {number})"
        self.workers[number].kill()
        self._restarts[number] += 1
        if self._restarts[number] > MOST_RESTARTS:
            raise EnvironmentFault(
                env,
                f"died {self._restarts[number]} times without a finished step between; at last its process {death}",
                "in an episode's first steps",
                "mend it, or see to the machine's memory",
            ) from death
        tell(f"the process of {env} {death}; it is started anew, and its unfinished episode is dropped")
        self.seeds[number] = next_seed(self.seeds[number])
        self.workers[number] = worker = self._new(number)
        try:
            worker.answer()
            worker.send("reset")
            self._firsts[number] = worker.answer(self.timeout)
        except DeadWorkerError as another:
            self._restart(number, another)


def next_seed(seed: int) -> int:
    """The seed of the environment that takes the place of one with this seed."""
    # Of another length than what the seeds of environments side by side are made from.
    return int(np.random.SeedSequence((seed, 0, 1)).generate_state(1)[0] >> 1)
