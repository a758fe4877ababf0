"""Prioritised replay: a buffer of a user's, in one file.

Schaul et al. 2016 (arXiv:1511.05952), proportional variant; for sequences with the priority of Kapturowski et al. 2019
(R2D2, section 2.3). In a gin file, beside this one::

    import prioritized_replay
    build.buffer_class = @PrioritizedReplayBuffer            # @PrioritizedRecurrentReplayBuffer for agents with memory
    PrioritizedReplayBuffer.alpha = 0.6

Differs from the papers: a recurrent agent's priority belongs to the episode, from which a segment is drawn as always.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import offpcc
from offpcc.config.validation import Fraction, PositiveInteger, PositiveNumber
from offpcc.core import Batch
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.base import BufferBase
from offpcc.utils.errors import UserError

BLOCK = 32  # leaves; a change costs one pass over its block and one over all blocks


class SumTree:
    """A sum tree of two levels, for draws in proportion to the weights of `num_leaves` leaves.

    Each block of leaves keeps their cumulative weights, and the root keeps the cumulative weights of the blocks. So a
    leaf is found by one search among the blocks and one inside a block, for all numbers at once.
    """

    def __init__(self, num_leaves: int) -> None:
        self.leaves = np.zeros((-(-num_leaves // BLOCK), BLOCK))
        self.inside = np.zeros_like(self.leaves)
        self.sums, self.ends = np.zeros(len(self.leaves)), np.zeros(len(self.leaves))

    def set(self, leaves: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights (M,) of leaves (M,)."""
        self.leaves.reshape(-1)[leaves] = weights
        blocks = leaves // BLOCK
        inside = self.inside[blocks] = self.leaves[blocks].cumsum(1)
        self.sums[blocks] = inside[:, -1]
        np.cumsum(self.sums, out=self.ends)

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """Return the leaves of numbers (B,) in [0, 1), as if the weights lay side by side on this interval."""
        sought = np.minimum(numbers * self.ends[-1], np.nextafter(self.ends[-1], 0.0))
        blocks = self.ends.searchsorted(sought, "right")
        inside, sums = self.inside.take(blocks, 0), self.sums.take(blocks)
        rest = np.clip(sought - self.ends.take(blocks) + sums, 0.0, np.nextafter(sums, 0.0))  # rounding may cross edges
        leaves: np.ndarray = blocks * BLOCK + (inside <= rest[:, None]).argmin(1)  # the first that is not
        return leaves


class Prioritized(BufferBase):
    """Draws items in proportion to their default share times priority ** alpha; new items have the largest priority.

    The priority of an item is ``eta * max |TD error| + (1 - eta) * mean |TD error| + epsilon`` over its counted steps.

    Args:
        alpha: 0 draws as without priorities.
        beta: first exponent of the importance weights.
        beta_updates: number of updates in which it grows to 1.
        eta: share of the maximum; the rest is the mean. A transition has one TD error, so eta has no effect.
        epsilon: smallest priority.
        args, kwargs: see the buffer that is prioritised.
    """

    def __init__(
        self,
        *args: Any,
        alpha: Fraction = 0.6,
        beta: Fraction = 0.4,
        beta_updates: PositiveInteger = 100_000,
        eta: Fraction = 0.9,
        epsilon: PositiveNumber = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.alpha, self.beta, self.beta_updates, self.eta, self.epsilon = alpha, beta, beta_updates, eta, epsilon
        self.num_updates, self.largest = 0, 1.0  # priority ** alpha
        self.tree, self.changed = SumTree(self.max_items), set[int]()
        self.powers = np.ones(self.max_items)  # priority ** alpha of each item

    def item_changed(self, item: int) -> None:
        """Remember an item that was stored, replaced or removed."""
        self.changed.add(item)

    def items_replaced(self) -> None:
        """Give all items the largest priority."""
        self.tree, self.powers = SumTree(self.max_items), np.ones(self.max_items)
        self.changed.clear()
        self.set_powers(np.arange(self.max_items), self.largest)

    def settle(self) -> None:
        """Give items that changed since the last call the largest priority; places without an item get weight 0."""
        if self.changed:
            self.set_powers(np.fromiter(self.changed, np.int64), self.largest)
            self.changed.clear()

    def set_powers(self, items: np.ndarray, powers: np.ndarray | float) -> None:
        """Set priority ** alpha of items."""
        self.powers[items] = powers
        self.tree.set(items, self.powers[items] * self.shares(items))

    def draw(self) -> np.ndarray:
        """Return the items (B,) of a batch, one from each of B equal parts of the total weight (appendix B.2.1)."""
        self.settle()
        numbers = np.arange(self.batch_size) + self.randomness.generator.random(self.batch_size)
        return self.tree.find(numbers / self.batch_size)

    def importance_weights(self, items: np.ndarray) -> np.ndarray:
        """Return (P(i) / default share) ** -beta, divided by its maximum over the batch.

        In section 3.4 the default share is 1 / N. Here it is the probability of `draw` without priorities.
        """
        beta = self.beta + (1.0 - self.beta) * min(self.num_updates / self.beta_updates, 1.0)
        powers = self.powers.take(items)
        weights: np.ndarray = (powers / powers.min()) ** -beta
        return weights

    def update_priorities(self, batch: Batch, td_error: torch.Tensor) -> None:
        """Set the priorities of the last batch from its TD errors (B, T, 1); `cpu()` waits for a GPU."""
        counted = batch.loss_mask.to(td_error).flatten(1)
        errors = torch.where(counted > 0, td_error.flatten(1), 0.0)
        mean = errors.sum(1) / counted.sum(1)
        mixed = (self.eta * errors.amax(1) + (1.0 - self.eta) * mean).double().cpu().numpy() + self.epsilon
        items, first = np.unique(self.drawn, return_index=True)
        powers = mixed[first] ** self.alpha
        is_finite = np.isfinite(powers)  # a skipped update has none
        self.set_powers(items[is_finite], powers[is_finite])
        self.largest = max(self.largest, float(powers[is_finite].max(initial=0.0)))
        self.num_updates += bool(is_finite.any())

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the content, with all priorities."""
        self.settle()
        used = self.powers[: self.tree.leaves.reshape(-1).nonzero()[0].max(initial=-1) + 1]
        powers = torch.from_numpy(used.copy())
        own = {"max_items": self.max_items, "num_updates": self.num_updates, "largest": self.largest}
        return super().metadata() | own | {"powers": powers}

    def restore(self, metadata: Mapping[str, Any]) -> None:
        """Resume from `metadata`.

        Raises:
            UserError: the buffer had another capacity, so its priorities belong to other items.
        """
        if metadata["max_items"] != self.max_items:
            raise UserError(
                f"{type(self).__name__} has {self.max_items:,} places for items, but {metadata['max_items']:,} were "
                f"saved with their priorities: set the capacity that it was saved with"
            )
        super().restore(metadata)
        self.num_updates, self.largest = metadata["num_updates"], metadata["largest"]
        self.changed.clear()
        self.set_powers(np.arange(len(metadata["powers"])), metadata["powers"].numpy())


@offpcc.configurable
class PrioritizedReplayBuffer(Prioritized, ReplayBuffer):
    """Prioritised replay of transitions, for agents without memory."""


@offpcc.configurable
class PrioritizedRecurrentReplayBuffer(Prioritized, RecurrentReplayBuffer):
    """Prioritised replay of episodes or segments, for agents with memory."""
