"""Where an environment is at fault."""

from pathlib import Path
from traceback import FrameSummary

import gymnasium
import pytest

import offpcc
from offpcc.domains.faults import place_in

DOMAINS = Path(offpcc.__file__).parent / "domains"


def stack(*files):
    return [FrameSummary(str(file), number, "step") for number, file in enumerate(files, start=1)]


@pytest.mark.parametrize(
    "between",
    [
        *sorted((DOMAINS / "wrappers").glob("*.py")),
        DOMAINS / "guard.py",
        DOMAINS / "making.py",
        DOMAINS / "recall.py",
        DOMAINS / "watchdog.py",
        Path(gymnasium.__file__).parent / "core.py",
    ],
    ids=lambda file: file.name,
)
def test_what_only_wrappers_were_in_is_no_place_in_an_environment(between):
    assert between.is_file()
    assert place_in(stack(between)) is None
    assert place_in(stack(between, "/lab/env.py", between)) == "/lab/env.py:2"


def test_a_line_of_the_users_own_is_named_before_a_librarys():
    library = DOMAINS / "pendulum.py"
    assert place_in(stack("/lab/env.py", library)) == "/lab/env.py:1"
    assert place_in(stack(library)) == f"{library}:1"
