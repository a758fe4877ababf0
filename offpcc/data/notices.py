"""What a reader of recorded data should be told of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal[
    "choices",  # actions are whole numbers
    "clipped",  # actions lie outside of their bounds
    "units",  # actions are taken to be in the environment's units
    "scaled",  # they may be so no more
    "jumps",  # next observations are not the following ones
    "no next observations",
    "no time limits",  # nothing tells where one ended an episode
    "time limit",  # one is assumed
    "single steps",  # nearly all episodes last but one
    "resets",  # last observations are those of the next episode's start
    "rewards",  # tests have others
    "remark",  # what is known of this data
]


class Notice(NamedTuple):
    """One thing that is odd about recorded data.

    Attributes:
        kind: what it is about, for programs.
        text: one sentence, for persons.
    """

    kind: Kind
    text: str
