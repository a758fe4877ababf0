"""What a reader of recorded data should be told of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal[
    "choices",  # actions are whole numbers
    "clipped",  # actions lie outside of their bounds
    "unknown range",  # actions lie outside of the bounds that are taken where nothing tells them
    "units",  # actions are taken to be in the environment's units
    "scaled",  # they may be so no more
    "jumps",  # next observations are not the following ones
    "no next observations",
    "no time limits",  # nothing tells where one ended an episode
    "time limit",  # one is assumed
    "single steps",  # nearly all episodes last but one
    "resets",  # last observations are those of the next episode's start
    "rewards",  # tests have others
    "scales",  # columns of observations that are not normalised have unlike ones
    "remark",  # what is known of this data
]


COUNTING: tuple[Kind, ...] = ("jumps", "no next observations", "resets")  # when data is read, all of it
OF_WHOLE = " (counted in the whole data set, of which this is a part)"


class Notice(NamedTuple):
    """One thing that is odd about recorded data.

    Attributes:
        kind: what it is about, for programs.
        text: one sentence, for persons.
    """

    kind: Kind
    text: str

    def in_part(self) -> Notice:
        """The same of a part of the data: what was counted is said to be of the whole."""
        if self.kind not in COUNTING or self.text.endswith(OF_WHOLE):
            return self
        return self._replace(text=self.text + OF_WHOLE)
