"""`try_updates`: a user's algorithm makes some updates with random numbers before its run begins."""

from __future__ import annotations

import copy
import inspect
import random
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.core import PackedDict
from offpcc.data import default_buffer
from offpcc.utils.errors import UserError, format_error, warn_of_data
from offpcc.utils.paths import PACKAGE
from offpcc.utils.spaces import random_action
from offpcc.utils.system import is_shortage

STEPS, EPISODES = 30, 3  # of random numbers
MOST_UPDATES = 10
OF_CODE = (TypeError, AttributeError, NameError, NotImplementedError)  # errors that any numbers cause
KEPT = ("batch_size", "num_steps", "segment_len", "burn_in", "draw_by", "frame_stack")  # of the run's buffer


def try_updates(algorithm: Any, buffer: Any, is_complete: bool = True) -> None:
    """Let a copy of a user's algorithm update from random numbers, so that a fault in a loss shows before the run.

    Otherwise it would show at the first update, after the steps of random exploration. The copy is dropped, and the
    random states of torch, NumPy and Python do not change. Not tried are algorithms of offpcc, those without
    `ActorCritic`, those on a GPU, where an invalid index would end the process, and those with a buffer of the user.

    Args:
        algorithm: the algorithm.
        buffer: its empty buffer.
        is_complete: False if callbacks may still change the algorithm; then a fault is a warning.

    Raises:
        UserError: an update fails whatever the numbers are; the message names the user's line. If a fault may come from
            the random numbers, there is a warning instead.
    """
    is_own = isinstance(algorithm, ActorCritic) and not type(algorithm).__module__.startswith("offpcc.")
    if not is_own or algorithm.device.type != "cpu" or not type(buffer).__module__.startswith("offpcc."):
        return
    with _same_random_states():
        try:
            algorithm = copy.deepcopy(algorithm)
            algorithm._graphed, algorithm.nonfinite_guard.is_awaited = None, True  # to compile takes longer
            buffer = _filled(algorithm, getattr(buffer, "receiver", buffer))
            num_updates = 1 + min(int(getattr(algorithm, "policy_delay", 1)), MOST_UPDATES)  # the actor learns in one
        except Exception:  # the user's parts cannot be copied; the run shows whether they work
            return
        try:
            for _ in range(num_updates):
                algorithm.update_networks(buffer.sample())
        except (NonFiniteError, ArithmeticError):  # may come from the random numbers alone
            return
        except UserError as error:
            if is_complete:
                raise
            warn_of_data(f"{type(algorithm).__name__} may be unable to learn: {error.message}")
        except Exception as error:
            _tell(algorithm, error, is_complete)


def _tell(algorithm: ActorCritic, error: Exception, is_complete: bool) -> None:
    """Raise or warn because an update failed."""
    if is_shortage(error):
        return
    line, name = line_of_user(error), type(algorithm).__name__
    text = f"a trial update with random numbers failed with {format_error(error)}{f' ({line})' if line else ''}"
    is_ours = Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(PACKAGE)
    if is_complete and (isinstance(error, OF_CODE) or (isinstance(error, ValueError) and is_ours)):
        raise UserError(f"{name} cannot learn: {text}{'; correct this line' * bool(line)}") from error
    warn_of_data(f"{name} may be unable to learn: {text}; the first update shows whether it is so")


@contextmanager
def _same_random_states() -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _filled(algorithm: ActorCritic, real: Any) -> Any:
    """Return a small buffer with the settings of a run's buffer, and with short episodes of random numbers."""
    kind = default_buffer(algorithm.memoryless, False)
    taken = inspect.signature(kind).parameters
    settings = {name: getattr(real, name) for name in KEPT if name in taken}
    capacity = EPISODES * (2 if not algorithm.memoryless else 2 * STEPS * settings["frame_stack"])
    space: Any = algorithm.privileged or algorithm.observation_space
    buffer: Any = kind(space, algorithm.action_space, capacity=capacity, memory_limit=None, **settings)
    for name in ("gives_next_actions", "gives_few_shapes", "return_discount"):
        setattr(buffer, name, getattr(real, name))
    generator = np.random.default_rng(0)
    low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
    low = np.where(low > -1.0, low, np.minimum(-1.0, high - 1.0))
    high = np.minimum(high, 255.0 if space.dtype == np.uint8 else np.maximum(low + 1.0, 1.0))
    # Stacked observations follow each other if all are equal. Random bytes may be invalid in a packed Dict.
    are_zeros = buffer.frame_stack > 1 or isinstance(space, PackedDict)
    for episode in range(EPISODES):
        observation = np.zeros(space.shape, space.dtype)
        for step in range(STEPS):
            after = observation if are_zeros else generator.uniform(low, high).astype(space.dtype)
            is_last = step == STEPS - 1
            ends = {"terminated": is_last and episode == 0, "truncated": is_last and episode > 0}
            action = random_action(algorithm.action_space, generator)
            buffer.push(observation, action, float(generator.uniform()), after, **ends)
            observation = after
    return buffer


def line_of_user(error: Exception) -> str:
    """Return the last line of an error's traceback outside offpcc and installed packages, or ""."""
    libraries = PACKAGE, Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or frame.filename.startswith("<")
        if not is_installed and not any(map(file.is_relative_to, libraries)):
            return f"{frame.filename}:{frame.lineno}"
    return ""
