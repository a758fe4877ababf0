"""`try_updates`: a user's algorithm makes some updates with random numbers before its run begins."""

from __future__ import annotations

import copy
import sysconfig
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.core import PackedDict
from offpcc.training.run_fns import update_priorities
from offpcc.utils.errors import UserError, format_error
from offpcc.utils.paths import PACKAGE
from offpcc.utils.spaces import random_action
from offpcc.utils.system import is_shortage

STEPS, EPISODES = 12, 3  # of random numbers
OF_NUMBERS = (NonFiniteError, ArithmeticError)  # errors that other numbers may not cause


def try_updates(algorithm: Any, buffer: Any) -> None:
    """Let a copy of a user's algorithm update from random numbers, so that a fault in a loss shows before the run.

    Otherwise it would show at the first update, after the steps of random exploration. The copies of algorithm and
    buffer are dropped, and no random state changes. Algorithms of offpcc are not tried.

    Args:
        algorithm: the algorithm.
        buffer: its empty buffer.

    Raises:
        UserError: an update fails; the message names the user's line.
    """
    if not isinstance(algorithm, ActorCritic) or type(algorithm).__module__.startswith("offpcc."):
        return
    devices = [algorithm.device] if algorithm.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            algorithm, buffer = copy.deepcopy((algorithm, buffer))
            _fill(buffer, algorithm)
        except Exception:  # the user's parts cannot be copied or filled like this; the run shows whether they work
            return
        algorithm.execution = replace(algorithm.execution, compile=False)
        try:
            for _ in range(1 + getattr(algorithm, "policy_delay", 1)):  # the actor may learn in the last one only
                batch = buffer.sample()
                stats = dict(algorithm.update_networks(batch))
                if batch.weights is not None:
                    update_priorities(algorithm, buffer, batch, stats)
        except OF_NUMBERS:
            return
        except UserError:
            raise
        except Exception as error:
            line = line_of_user(error)
            last = traceback.extract_tb(error.__traceback__)[-1]
            refuses = isinstance(error, ValueError | AssertionError) and line == f"{last.filename}:{last.lineno}"
            if refuses or is_shortage(error):  # the user's own check may refuse random numbers
                return
            raise UserError(
                f"{type(algorithm).__name__} cannot learn: a trial update with random numbers failed with "
                f"{format_error(error)}{f' ({line}); correct this line' if line else ''}"
            ) from error


def _fill(buffer: Any, algorithm: ActorCritic) -> None:
    """Store short episodes of random numbers."""
    generator = np.random.default_rng(0)
    space: Any = algorithm.privileged or algorithm.observation_space
    low = np.maximum(space.low.astype(np.float64), -1.0)
    high = np.minimum(space.high.astype(np.float64), 255.0 if space.dtype == np.uint8 else 1.0)
    # Stacked observations follow each other if all are equal; any bytes may be no numbers of a packed Dict.
    are_zeros = getattr(buffer, "receiver", buffer).frame_stack > 1 or isinstance(space, PackedDict)
    for episode in range(EPISODES):
        observation = np.zeros(space.shape, space.dtype)
        for step in range(STEPS):
            after = observation if are_zeros else generator.uniform(low, high).astype(space.dtype)
            is_last = step == STEPS - 1
            ends = {"terminated": is_last and episode == 0, "truncated": is_last and episode > 0}
            action = random_action(algorithm.action_space, generator)
            buffer.push(observation, action, float(generator.normal()), after, **ends)
            observation = after


def line_of_user(error: Exception) -> str:
    """Return the last line of an error's traceback outside offpcc and installed packages, or ""."""
    libraries = PACKAGE, Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or frame.filename.startswith("<")
        if not is_installed and not any(map(file.is_relative_to, libraries)):
            return f"{frame.filename}:{frame.lineno}"
    return ""
