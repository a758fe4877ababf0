"""A process of its own for one library in one case: it builds, and then measures for as long as it is asked to.

It is asked by lines of JSON on its standard input and answers by lines on its standard output; what libraries print
goes to its standard error. Between two questions it is blocked on the pipe.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cases import EPISODE_LENGTH, Case, Sizes
from benchmarks.libraries import UnavailableError, Work, load, version

WARM_UP = 3  # calls at least, before the first measurement
STATUS = Path("/proc/self/status")
STORED = 300_000  # transitions whose bytes are counted: what a process grows by otherwise does not show beside them


def main() -> None:
    """Answer until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**content: Any) -> None:
        print(json.dumps(content), file=answers, flush=True)

    task = json.loads(sys.stdin.readline())
    case = Case(**{**task["case"], "sizes": _sizes(task["case"]["sizes"])})
    _seed(task["threads"])
    try:
        measure, note = prepare(case, task)
    except UnavailableError as fault:
        answer(unavailable=str(fault))
        return
    answer(ready=True, note=note, version=version(task["library"], task["clone"]))
    while line := sys.stdin.readline():
        answer(value=measure(json.loads(line)["seconds"]))


def prepare(case: Case, task: dict[str, Any]) -> tuple[Callable[[float], float], str]:
    """What measures for so many seconds, in the case's unit, and a note."""
    (module, options), num_transitions = load(task["library"], task["clone"]), task["transitions"]
    if case.kind == "bytes":
        size = stored_bytes(module.store, STORED)
        return lambda seconds: size, "growth of the process"
    work: Work = module.prepare(case, num_transitions, **options)
    warm_up(work, task["seconds"])
    if case.higher_is_better:
        return lambda seconds: rate(work, seconds, case.device), work.note
    return lambda seconds: 1e6 / rate(work, seconds, case.device), work.note


def rate(work: Work, seconds: float, device: str = "cpu") -> float:
    """Units per second. A GPU has finished all of them at the end."""
    wait(device)
    calls, started, passed = 0, time.perf_counter(), 0.0
    while passed < seconds:
        work.run()
        calls += 1
        passed = time.perf_counter() - started
    wait(device)
    return calls * work.units / (time.perf_counter() - started)


def wait(device: str) -> None:
    """Wait until a GPU has finished its work."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def warm_up(work: Work, seconds: float) -> None:
    """Run until caches are filled and kernels chosen."""
    started, calls = time.perf_counter(), 0
    while calls < WARM_UP or time.perf_counter() - started < seconds / 2.0:
        work.run()
        calls += 1


def stored_bytes(store: Callable[[int], Callable[..., None]], num_transitions: int) -> float:
    """Bytes that the process grows by for each transition of whole episodes.

    Raises:
        UnavailableError: the system does not tell.
    """
    import numpy as np

    from benchmarks.recorded import transitions

    if not STATUS.exists():
        raise UnavailableError("this system has no /proc/self/status, which tells a process's memory")
    made = transitions(EPISODE_LENGTH)
    # Numbers of its own for each transition, so that no library can keep references to one array instead of copies.
    rows = [tuple(np.array(x) for x in row) for row in zip(*made, strict=True)]

    def push_all(push: Callable[..., None], number: int) -> None:
        for _ in range(number // EPISODE_LENGTH):
            for observation, action, reward, following, *ends in rows:
                push(observation.copy(), action.copy(), float(reward), following.copy(), *map(bool, ends))

    push_all(store(10 * EPISODE_LENGTH), 10 * EPISODE_LENGTH)  # what is allocated once
    before, push = resident(), store(num_transitions)
    push_all(push, num_transitions)
    return (resident() - before) / (num_transitions // EPISODE_LENGTH * EPISODE_LENGTH)


def resident() -> float:
    """Bytes of the process's own memory that are in use."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return 1024.0 * int(line.split()[1])


def _sizes(given: dict[str, Any]) -> Sizes:
    """From JSON, which knows no tuples."""
    return Sizes(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _seed(threads: int) -> None:
    import numpy as np
    import torch

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
