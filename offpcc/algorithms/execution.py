"""Execution of updates: fused or plain, compiled, in bfloat16, and guarded against NaN."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Annotated, Any

import torch

from offpcc.config.validation import one_of
from offpcc.core import Batch, Stats

PRECISIONS = ("float32", "bfloat16")
NONFINITE_POLICIES = ("raise", "skip")
Precision = Annotated[str, one_of(PRECISIONS)]
NonFinitePolicy = Annotated[str, one_of(NONFINITE_POLICIES)]


def with_execution_mode(update: Callable[[Any, Batch], Stats]) -> Callable[[Any, Batch], Stats]:
    """Wrap `update_networks`, so that it follows the agent's options (fused, compile, precision, nonfinite).

    Autocast caches no cast weights, because weights change during an update.
    """

    def chosen(agent: Any, batch: Batch) -> Stats:
        if agent._fused is not None and batch.weights is None and agent._fused.fits(agent):
            stats: Stats = agent._fused(agent, batch)
            return stats
        if agent.compile:
            compile_losses(agent)
        if agent.precision == "float32":
            return update(agent, batch)
        with torch.autocast(agent.device.type, torch.bfloat16, cache_enabled=False):
            return update(agent, batch)

    @functools.wraps(update)
    def wrapped(self: Any, batch: Batch) -> Stats:
        stats: Stats = self.watch.run(self, chosen, batch)
        return stats

    return wrapped


def compile_losses(agent: Any) -> None:
    """Replace the agent's losses, which are functions of summaries and batch, by compiled ones."""
    for name in loss_names(agent.__class__):
        if name not in vars(agent):
            setattr(agent, name, torch.compile(getattr(agent, name)))


@functools.cache
def loss_names(cls: Hashable) -> tuple[str, ...]:
    """Names of the class's methods that are losses."""
    return tuple(name for name in dir(cls) if name.endswith("_loss"))
