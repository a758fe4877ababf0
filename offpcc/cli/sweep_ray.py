"""`offpcc sweep --address`: trains each run of a sweep as a task of a Ray cluster."""

import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from offpcc.cli.jobs import Ended
from offpcc.utils import signals
from offpcc.utils.errors import UserError, command_line, first_line, tell

MOST_RETRIES = 10  # of a run whose machine or process was lost
SAVING = 120  # seconds for the runs to save their checkpoints after Ctrl-C


def check_address(address: str) -> None:
    """Raise if Ray is not installed, or if nothing listens at HOST:PORT: Ray itself would try for minutes."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("--address needs Ray: pip install the extra offpcc[ray], or leave --address out")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto" and not (host and port.isdecimal() and int(port) < 2**16):
        raise UserError(f"--address {address} has to be auto or HOST:PORT, such as 10.0.0.1:6379")
    try:
        if host:
            socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> UserError:
    return UserError(
        f"--address {address}: there is no Ray cluster ({first_line(error)}); start one with `ray start --head`"
    )


def run_on_ray(
    function: Callable[..., int], runs: Sequence[tuple[str, dict[str, Any]]], address: str, ended: Ended
) -> None:
    """Call a function for each run, each as a task of a Ray cluster, as `run_in_processes` does on one machine.

    A task whose machine or process is lost starts again elsewhere, so the function has to resume its run. All machines
    need the same version of offpcc, and the folder of results under the same path.

    Raises:
        UserError: there is no cluster at the address.
        Interrupted: the user asked to stop; the tasks were asked to save their runs.
    """
    import ray

    passed_on = {name: value for name, value in os.environ.items() if name.startswith(("OFFPCC_", "WANDB_", "D4RL_"))}
    handlers = {number: signal.getsignal(number) for number in signals.HANDLED}
    try:
        ray.init(address=address, runtime_env={"env_vars": passed_on}, logging_level=logging.WARNING)
    except Exception as error:
        raise _unreachable(address, error) from error
    for number, handler in handlers.items():
        signal.signal(number, handler)  # Ray replaces that of SIGTERM by one that ends the process at once
    names: dict[Any, str] = {}
    try:
        for name, arguments in runs:
            needs: dict[str, Any] = {"num_cpus": arguments["threads"], "max_retries": MOST_RETRIES, "name": name}
            if str(arguments["device"]).startswith("cuda"):
                needs["num_gpus"] = 1
            names[ray.remote(**needs)(_call).remote(function, arguments)] = name
        while names:
            done, _ = ray.wait(list(names))
            try:
                code = ray.get(done[0])
            except ray.exceptions.RayError as error:
                tell(f"{names[done[0]]}: {first_line(error)}")
                code = 1
            ended(names.pop(done[0]), code)
    except KeyboardInterrupt as error:  # Ray's calls may raise it in place of `Interrupted`
        stop = signals.interrupted()
        stop.message = f"stopped; {len(names)} runs were not finished"
        for task in names:
            ray.cancel(task)
        ray.wait(list(names), num_returns=len(names), timeout=SAVING)
        raise stop from error
    finally:
        ray.shutdown()


def _call(function: Callable[..., int], arguments: dict[str, Any]) -> int:
    """Call the function in a process of Ray; return its exit code."""
    with command_line():
        try:
            return function(**arguments)
        except (UserError, signals.Interrupted) as error:
            return error.report()
