"""One case at a time: its libraries, each in a process of its own, measured in turn, round after round.

OpenMP's settings are the user's, alike for all. Its threads look for work for milliseconds to seconds after a product.
So a process is stopped by SIGSTOP while others are measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import Case

ROOT = Path(__file__).resolve().parent.parent
Announce = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        threads: of torch and of all else that computes, in every worker.
        rounds: measurements of each library in each case.
        seconds: that each of them lasts.
        transitions: in each buffer.
        device: "cpu", or "cuda" for a GPU.
        clones: files that measure other code, by the name it is told under.
    """

    threads: int = 2
    rounds: int = 7
    seconds: float = 3.0
    transitions: int = 100_000
    device: str = "cpu"
    clones: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What the rounds of one library in one case gave."""

    library: str
    values: list[float]
    version: str
    note: str


class WorkerError(Exception):
    """A library's process ended; the message is its last words."""


class Worker:
    """A library's process. It starts to build at once. After `warm_up`, it is stopped except while it measures."""

    def __init__(self, case: Case, library: str, plan: Plan) -> None:
        self.library = library
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        threads = str(plan.threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
                **({} if case.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}),
            },
        )
        cores = sorted(os.sched_getaffinity(0))  # JAX takes all cores that a process may use
        os.sched_setaffinity(self.process.pid, cores[: plan.threads])
        self._tell(
            case=asdict(case),
            library=library,
            clone=plan.clones.get(library, ""),
            threads=plan.threads,
            seconds=plan.seconds,
            transitions=plan.transitions,
        )
        self.told: dict[str, Any] = {}

    def warm_up(self) -> None:
        """Wait until it is built and warmed up, and stop it."""
        self.told = self._hear()
        self.process.send_signal(signal.SIGSTOP)

    def measure(self, seconds: float) -> float:
        """A number, in the case's unit."""
        self.process.send_signal(signal.SIGCONT)
        self._tell(seconds=seconds)
        value: float = self._hear()["value"]
        self.process.send_signal(signal.SIGSTOP)
        return value

    def close(self) -> None:
        """End the process."""
        self.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]
        self.errors.close()

    def _tell(self, **content: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # `_hear` says why
            print(json.dumps(content), file=self.process.stdin, flush=True)

    def _hear(self) -> dict[str, Any]:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            self.process.wait()
            self.errors.seek(0)
            words = self.errors.read().strip().splitlines() or ["it said nothing"]
            raise WorkerError(f"its process ended with code {self.process.returncode}: {words[-1]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(case: Case, libraries: Sequence[str], plan: Plan, announce: Announce) -> list[Found]:
    """All rounds of a case; a library that is not there, or fails, is left out and told of."""
    with contextlib.ExitStack() as stack:
        workers = list(_started(case, libraries, plan, announce, stack))
        values: dict[str, list[float]] = {worker.library: [] for worker in workers}
        num_rounds = 1 if case.kind == "bytes" else plan.rounds
        for number in range(num_rounds):
            shift = number % max(len(workers), 1)  # nobody is always after the same one
            for worker in [*workers[shift:], *workers[:shift]]:
                try:
                    values[worker.library].append(worker.measure(plan.seconds))
                except WorkerError as error:
                    announce(f"{case.name}: {worker.library} is left out: {error}")
                    workers, values[worker.library] = [each for each in workers if each is not worker], []
        return [
            Found(worker.library, values[worker.library], worker.told["version"], worker.told["note"])
            for worker in workers
        ]


def _started(
    case: Case, libraries: Sequence[str], plan: Plan, announce: Announce, stack: contextlib.ExitStack
) -> Iterator[Worker]:
    def start(library: str) -> Worker:
        worker = Worker(case, library, plan)
        stack.callback(worker.close)
        return worker

    started: Iterable[Worker] = map(start, libraries)
    if plan.device == "cuda":  # all at once, to save time; on a CPU they would disturb each other's choice of kernels
        started = [*started]
    for worker in started:
        library = worker.library
        try:
            worker.warm_up()
        except WorkerError as error:
            announce(f"{case.name}: {library} is left out: {error}")
            continue
        if fault := worker.told.get("unavailable"):
            announce(f"{case.name}: {library} is left out: {fault}")
            continue
        yield worker
