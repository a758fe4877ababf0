"""Small recordings whose every number is known."""

import numpy as np


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
