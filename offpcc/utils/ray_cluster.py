"""The connection to a Ray cluster, of sweeps and of environments on many machines."""

import importlib.util
import logging
import os
import signal
import socket
import threading

from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line

ANSWERS_WITHIN = 10.0  # seconds


def check_address(address: str, option: str) -> None:
    """Raise if Ray is not installed, or if nothing listens at HOST:PORT: Ray itself would try for minutes.

    Ray replaces the address "auto" by the variable RAY_ADDRESS, if there is one. `option` is for messages.
    """
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"{option} needs Ray: run `pip install ray`, or leave {option} out")
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto" and not (host and port.isdecimal() and int(port) < 2**16):
        raise UserError(f"{option} {address} has to be auto or HOST:PORT, such as 10.0.0.1:6379")
    try:
        if host:
            socket.create_connection((host, int(port)), ANSWERS_WITHIN).close()
    except OSError as error:
        raise _unreachable(address, option, error) from error


def connect(address: str, option: str) -> None:
    """Connect this process to the cluster. The processes there get the variables of offpcc from the environment."""
    check_address(address, option)
    import ray

    passed_on = {name: value for name, value in os.environ.items() if name.startswith(("OFFPCC_", "WANDB_", "D4RL_"))}
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in signals.HANDLED if is_main}
    try:
        ray.init(address=address, runtime_env={"env_vars": passed_on}, logging_level=logging.WARNING)
    except Exception as error:
        is_here = address == "auto" and not os.environ.get("RAY_ADDRESS")
        is_missing = is_here and isinstance(error, ConnectionError) and "find any running" in str(error)
        cause = ConnectionError("none runs on this machine") if is_missing else error  # Ray's names other options
        raise _unreachable(address, option, cause) from error
    finally:
        for number, handler in handlers.items():  # only the main thread may set them
            signal.signal(number, handler)  # Ray replaces that of SIGTERM by one that ends the process at once


def _unreachable(address: str, option: str, error: Exception) -> UserError:
    return UserError(
        f"{option} {address}: there is no Ray cluster ({first_line(error)}); start one with `ray start --head`, or set "
        f"RAY_AUTH_MODE=token if it asks for a token"
    )
