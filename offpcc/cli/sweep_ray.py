"""`offpcc sweep --address`: trains each run of a sweep as a task of a Ray cluster."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from offpcc.cli.jobs import Ended, OutOfTimeError
from offpcc.utils import signals
from offpcc.utils.errors import UserError, command_line, first_line, format_error, print_to_stderr
from offpcc.utils.ray_cluster import connect

MOST_RETRIES = 10  # of a run whose machine or process was lost
SAVING = 120  # seconds for the runs to save their checkpoints after Ctrl-C


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to the Ray cluster of `--address` inside the block."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # Ray merges similar lines, such as those of two seeds
    if sys.stdout is None or not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    connect(address, "--address")
    import ray

    try:
        yield
    finally:
        ray.shutdown()


def run_on_ray(
    function: Callable[..., int],
    runs: Sequence[tuple[str, dict[str, Any]]],
    ended: Ended,
    deadline: float | None,
) -> None:
    """Call a function for each run, each as a task of the `connected` cluster, as `run_in_processes` does on a machine.

    A task whose machine or process is lost starts again elsewhere, so the function has to resume its run. All machines
    need the same version of offpcc, and the folder of results under the same path. With "cuda" as `device`, a run takes
    a GPU, which Ray chooses.

    Raises:
        Interrupted: the user asked to stop; the tasks were asked to save their runs.
        OutOfTimeError: the deadline has come; the same.
    """
    import ray

    names: dict[Any, str] = {}
    try:
        for name, arguments in runs:
            needs: dict[str, Any] = {"num_cpus": arguments["threads"], "max_retries": MOST_RETRIES, "name": name}
            if arguments["device"] == "cuda":
                needs["num_gpus"] = 1
            names[ray.remote(**needs)(_call).remote(function, arguments)] = name
        while names:
            rest = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            done, _ = ray.wait(list(names), timeout=rest)
            if not done:
                raise OutOfTimeError(f"{len(names)} runs are not finished")
            try:
                code = ray.get(done[0])
            except ray.exceptions.RayError as error:
                print_to_stderr(f"{names[done[0]]}: {_reason(error)}")
                code = 1
            ended(names.pop(done[0]), code)
    except (KeyboardInterrupt, OutOfTimeError) as error:  # Ray's calls may raise the first in place of `Interrupted`
        for task in names:
            ray.cancel(task)
        ray.wait(list(names), num_returns=len(names), timeout=SAVING)
        if isinstance(error, OutOfTimeError):
            raise
        stop = signals.interrupted()
        stop.message = f"stopped; {len(names)} runs were not finished"
        raise stop from error


def _reason(error: Exception) -> str:
    """Return why a task failed: the error inside of it, if it raised one."""
    cause = getattr(error, "cause", None)
    return format_error(cause) if isinstance(cause, BaseException) else first_line(error)


def _call(function: Callable[..., int], arguments: dict[str, Any]) -> int:
    """Call the function in a process of Ray; return its exit code."""
    with command_line():
        try:
            return function(**arguments)
        except (UserError, signals.Interrupted) as error:
            return error.report()
