"""How buffers store recorded transitions."""

from __future__ import annotations

from typing import NamedTuple

from offpcc.data.columns import Array


class Rows(NamedTuple):
    """Transitions as `ReplayBuffer` stores them, of all N episodes one after another.

    An episode of L transitions takes L + 1 rows, ``o_t, a_t, r_t, d_t``, so that a transition's next observation is
    the following row's; the last row, which is no start, holds the episode's last observation alone. A buffer may
    keep these arrays as they are. Episode i of an agent with memory is a view of them: with
    ``a, b = starts[i], stops[i]`` its observations are ``observations[a:b]``, its actions ``actions[a : b - 1]``.
    """

    observations: Array  # (R, *obs)
    actions: Array  # (R, A)
    rewards: Array  # (R, 1)
    terminations: Array  # (R, 1), bool
    is_start: Array  # (R,), bool
    starts: Array  # (N,), each episode's first row
    stops: Array  # (N,), the row after each episode's last
