"""Where an environment is at fault."""

from pathlib import Path
from traceback import FrameSummary

import gymnasium
import numpy as np
import pytest

import offpcc
from offpcc.envs.faults import kind_of, locate_env_line

ENVS = Path(offpcc.__file__).parent / "envs"


def stack(*files):
    return [FrameSummary(str(file), number, "step") for number, file in enumerate(files, start=1)]


@pytest.mark.parametrize(
    "between",
    [
        *sorted((ENVS / "wrappers").glob("*.py")),
        ENVS / "guard.py",
        ENVS / "make.py",
        ENVS / "episode_replay.py",
        ENVS / "faults.py",
        ENVS / "recorded_observations.py",
        Path(gymnasium.__file__).parent / "core.py",
    ],
    ids=lambda file: file.name,
)
def test_what_only_wrappers_were_in_is_no_place_in_an_environment(between):
    assert between.is_file()
    assert locate_env_line(stack(between)) is None
    assert locate_env_line(stack(between, "/lab/env.py", between)) == "/lab/env.py:2"


def test_a_line_of_the_users_own_is_named_before_a_librarys():
    library = ENVS / "tasks" / "pendulum.py"
    assert locate_env_line(stack("/lab/env.py", library)) == "/lab/env.py:1"
    assert locate_env_line(stack(library)) == f"{library}:1"


@pytest.mark.parametrize(
    "value, words",
    [
        (None, "None"),
        ("ab", "a str"),
        ({}, "a dict"),
        ([1, 2], "a list of 2"),
        ((), "a tuple of 0"),
        (np.zeros((2, 1), np.float32), "an array of shape (2, 1) and type float32"),
    ],
    ids=str,
)
def test_what_is_something_else_is_told(value, words):
    assert kind_of(value) == words
