"""The main function of a worker process: serves one environment through a pipe.

It has its own module, so that a worker imports neither torch nor the agents.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gin
import gymnasium as gym
import numpy as np

from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import Guard
from offpcc.envs.make import cannot_be_made
from offpcc.envs.resume import EpisodeReplay
from offpcc.envs.wrapper_chain import name_of
from offpcc.utils import signals
from offpcc.utils.errors import UserError

__all__ = ["CLOSE", "Failure", "WorkerInfo", "serve"]

CLOSE = "close"


class WorkerInfo(NamedTuple):
    """Facts about an environment, known once it is made."""

    name: str
    action_space: gym.Space[Any]


class Failure(NamedTuple):
    """An answer that reports an error instead of a result."""

    message: str
    parts: tuple[str, str, str, str] | None  # `EnvironmentFault.parts`; None for other errors
    traceback: str


def serve(
    pipe: Connection[Any, Any], make_env: Callable[[], gym.Env[Any, Any]], seed: int, which: str, bindings: str
) -> None:
    """Make an environment, send its `WorkerInfo`, and answer commands until the close command or the end of the parent.

    The worker ignores SIGINT and SIGTERM, which reach all processes. Only the parent process decides when to stop.

    Args:
        pipe: Receives (command, argument) and sends an answer to each.
        make_env: Builds the environment.
        seed: See `EpisodeReplay`. It also seeds the process's global generators, which a user's environment may use.
        which: See `Guard`.
        bindings: Gin's bindings as text; those of agents are skipped.
    """
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    random.seed(seed)
    np.random.seed(seed)
    gin.parse_config(bindings, skip_unknown=True)
    try:
        env = EpisodeReplay(Guard(make_env(), which), seed)
    except signals.ANYTHING as error:
        _send_failure(pipe, error if isinstance(error, UserError) else cannot_be_made(which, error), error)
        return
    try:
        pipe.send(WorkerInfo(name_of(env), env.action_space))
        while (message := pipe.recv())[0] != CLOSE:
            pipe.send(_answer(env, *message))
        env.close()
    except (EOFError, ConnectionError):  # the parent process has ended
        return
    except UserError as fault:
        _send_failure(pipe, fault, fault.__cause__ or fault)
    except OSError:  # the environment closed the pipe
        os._exit(1)


def _send_failure(pipe: Connection[Any, Any], fault: UserError, cause: BaseException) -> None:
    parts = fault.parts if isinstance(fault, EnvironmentFault) else None
    pipe.send(Failure(fault.message, parts, "".join(traceback.format_exception(cause))))


def _answer(env: EpisodeReplay, command: str, given: Any) -> Any:
    match command:
        case "reset":
            return env.reset()[0]
        case "step":
            return env.step(given)[:4]
        case "note":
            return env.snapshot()
        case "begin_anew":
            return env.begin_anew(given)
        case _:
            return env.restore(given)


def _end_with_parent() -> None:
    """End this process when its parent ends. Otherwise, a process that hangs in a step would outlive the parent."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
