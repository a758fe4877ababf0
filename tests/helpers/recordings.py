"""Small recordings whose every number is known, and real ones."""

import os
from pathlib import Path

import numpy as np
import pytest


def recorded(num_steps=6, **changed):
    """Steps whose observation t is (t, 10 t); the arguments of `from_arrays`."""
    t = np.arange(num_steps, dtype=np.float32)
    given = {
        "observations": np.stack([t, 10 * t], 1),
        "actions": np.linspace(-1, 1, num_steps, dtype=np.float32)[:, None],
        "rewards": t + 1,
        "terminations": np.zeros(num_steps, bool),
        "truncations": np.zeros(num_steps, bool),
    }
    return {**given, **changed}


def texts(data, kind=None):
    """What is told of data; of one kind."""
    return [notice.text for notice in data.notices if kind in (None, notice.kind)]


def flags(num_steps, *true):
    return np.isin(np.arange(num_steps), true)


def following(observations):
    """Next observations of data without ends."""
    return np.concatenate([observations[1:], observations[-1:] + 1])


def real_recording(name):
    """A file of the folder OFFPCC_SHARED_DATA; the test is skipped without it."""
    path = Path(os.environ.get("OFFPCC_SHARED_DATA", "no data")) / f"{name}.hdf5"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path
