"""Prioritised replay: `PrioritizedReplayBuffer` and `PrioritizedRecurrentReplayBuffer` draw by TD errors.

Schaul et al. 2016 (arXiv:1511.05952), proportional variant. For agents with memory, the priorities are those of
sequences: Kapturowski et al. 2019 (R2D2, section 2.3). In a gin file::

    build.buffer_class = @PrioritizedReplayBuffer            # @PrioritizedRecurrentReplayBuffer for agents with memory
    PrioritizedReplayBuffer.alpha = 0.6
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from offpcc.config.registry import configurable
from offpcc.config.validation import Fraction, PositiveInteger, PositiveNumber, Size
from offpcc.core import Batch
from offpcc.data.buffers.base import BufferBase
from offpcc.data.buffers.replay import ReplayBuffer
from offpcc.data.buffers.sequence_replay import RecurrentReplayBuffer
from offpcc.data.datasets.columns import Array
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

    def set(self, leaves: Array, weights: Array) -> None:
        """Set the weights (M,) of leaves (M,)."""
        self.leaves.reshape(-1)[leaves] = weights
        blocks = np.unique(leaves // BLOCK)
        inside = self.inside[blocks] = self.leaves[blocks].cumsum(1)
        self.sums[blocks] = inside[:, -1]
        np.cumsum(self.sums, out=self.ends)

    def find(self, numbers: Array) -> Array:
        """Return the leaves of numbers (B,) in [0, 1), as if the weights lay side by side on this interval."""
        sought = np.minimum(numbers * self.ends[-1], np.nextafter(self.ends[-1], 0.0))
        blocks = self.ends.searchsorted(sought, "right")
        inside, sums = self.inside.take(blocks, 0), self.sums.take(blocks)
        rest = np.clip(sought - self.ends.take(blocks) + sums, 0.0, np.nextafter(sums, 0.0))  # rounding may cross edges
        leaves: Array = blocks * BLOCK + (inside <= rest[:, None]).argmin(1)  # the first that is not
        return leaves


class Prioritized(BufferBase):
    """Draws items in proportion to their default share times priority ** alpha; new items have the largest priority.

    The priority of an item is ``eta * max |TD error| + (1 - eta) * mean |TD error| + epsilon`` over its counted steps.

    Args:
        alpha: exponent of the priorities; 0 draws as without priorities.
        beta: first exponent of the importance weights.
        beta_updates: number of updates in which `beta` grows to 1; None for a constant exponent.
        eta: share of the maximum; the rest is the mean. A transition has one TD error, so eta has no effect.
        epsilon: smallest priority.
        args: positional arguments of the buffer that is prioritised.
        kwargs: its other arguments.
    """

    def __init__(
        self,
        *args: Any,
        alpha: Fraction = 0.6,
        beta: Fraction = 0.4,
        beta_updates: PositiveInteger | None = 100_000,
        eta: Fraction = 0.9,
        epsilon: PositiveNumber = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.alpha, self.beta, self.beta_updates, self.eta, self.epsilon = alpha, beta, beta_updates, eta, epsilon
        self.num_updates, self.largest = 0, 1.0  # priority ** alpha
        self.tree, self.changed = SumTree(self.max_items), set[int]()
        self.powers = np.ones(self.max_items)  # priority ** alpha of each item

    def unused_parameters(self) -> dict[str, str]:
        """See `BufferBase`."""
        return super().unused_parameters() | ({} if self.holds_episodes else {"eta": "a transition has one TD error"})

    def item_changed(self, item: int) -> None:
        """Remember an item that was stored, replaced or removed."""
        self.changed.add(item)

    def items_replaced(self) -> None:
        """Give all items the largest priority."""
        self.tree, self.powers = SumTree(self.max_items), np.ones(self.max_items)
        self.changed.clear()
        self.set_powers(np.arange(self.max_items), self.largest)

    def apply_changes(self) -> None:
        """Give items that changed since the last call the largest priority; places without an item get weight 0."""
        if self.changed:
            self.set_powers(np.fromiter(self.changed, np.int64), self.largest)
            self.changed.clear()

    def powers_of(self, items: Array) -> Array:
        """Return priority ** alpha of drawn items."""
        return self.powers.take(items)

    def set_powers(self, items: Array, powers: Array | float) -> None:
        """Set priority ** alpha of items."""
        self.powers[items] = powers
        self.tree.set(items, self.powers[items] * self.shares(items))

    def draw(self) -> Array:
        """Return the items (B,) of a batch, one from each of B equal parts of the total weight (appendix B.2.1)."""
        self.apply_changes()
        numbers = np.arange(self.batch_size) + self.randomness.generator.random(self.batch_size)
        return self.tree.find(numbers / self.batch_size)

    def importance_weights(self, items: Array) -> Array:
        """Return (P(i) / default share) ** -beta, divided by its maximum over the batch.

        In section 3.4 the default share is 1 / N. Here it is the probability of `draw` without priorities.
        """
        grown = min(self.num_updates / self.beta_updates, 1.0) if self.beta_updates else 0.0
        beta = self.beta + (1.0 - self.beta) * grown
        powers = self.powers_of(items)
        weights: Array = (powers / powers.min()) ** -beta
        return weights

    def update_priorities(self, batch: Batch, td_error: torch.Tensor) -> None:
        """Set the priorities of the last batch from its TD errors (B, T, 1); `cpu()` waits for a GPU."""
        counted = batch.loss_mask.to(td_error).flatten(1)
        errors = torch.where(counted > 0, td_error.flatten(1), 0.0)
        mean = errors.sum(1) / counted.sum(1)
        mixed = (self.eta * errors.amax(1) + (1.0 - self.eta) * mean).double().cpu().numpy() + self.epsilon
        items, first = np.unique(self.drawn, return_index=True, axis=0)
        powers = mixed[first] ** self.alpha
        is_finite = np.isfinite(powers)  # a skipped update has none
        self.set_powers(items[is_finite], powers[is_finite])
        self.largest = max(self.largest, float(powers[is_finite].max(initial=0.0)))
        self.num_updates += bool(is_finite.any())

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the content, with all priorities."""
        self.apply_changes()
        used = self.powers[: self.tree.leaves.reshape(-1).nonzero()[0].max(initial=-1) + 1]
        powers = torch.from_numpy(used.copy())
        own = {"max_items": self.max_items, "num_updates": self.num_updates, "largest": self.largest}
        return super().metadata() | own | {"powers": powers}

    def restore(self, metadata: Mapping[str, Any]) -> None:
        """Restore what `metadata` returned."""
        if metadata["max_items"] != self.max_items:
            raise UserError(
                f"{type(self).__name__} has room for {self.max_items:,} items, but {metadata['max_items']:,} were "
                f"saved with their priorities: set the capacity of the saved buffer"
            )
        super().restore(metadata)
        self.num_updates, self.largest = metadata["num_updates"], metadata["largest"]
        self.changed.clear()
        self.set_powers(np.arange(len(metadata["powers"])), metadata["powers"].numpy())


@configurable
class PrioritizedReplayBuffer(Prioritized, ReplayBuffer):
    """Prioritised replay of transitions, for agents without memory."""


@configurable
class PrioritizedRecurrentReplayBuffer(Prioritized, RecurrentReplayBuffer):
    """Prioritised replay of sequences, for agents with memory; R2D2 learns from it.

    An episode is cut into sequences of `segment_len` steps, which begin every `period` steps; the last ones end with
    the episode. Each sequence has its own priority. The `burn_in` steps before it come as in `RecurrentReplayBuffer`.
    With whole episodes, an episode is one sequence. Without priorities (`alpha` = 0), all sequences are equally likely;
    with `draw_by` = "episodes", all episodes are.

    Args:
        period: number of steps from the start of one sequence to that of the next; default: half of `segment_len`, as
            in R2D2.
        args: see `RecurrentReplayBuffer` and `Prioritized`.
        kwargs: see `args`.

    Attributes:
        sequences: priority ** alpha of each sequence of an episode, by the episode's place; `powers` has their means.
    """

    def __init__(self, *args: Any, period: Size | None = None, **kwargs: Any) -> None:
        self.sequences: dict[int, Array] = {}
        super().__init__(*args, **kwargs)
        if period is not None and (self.segment_len is None or period > self.segment_len):
            raise UserError(
                f"{type(self).__name__}.period is {period} but segment_len is {self.segment_len}; steps between two "
                f"sequences would never be drawn: leave period out, or set segment_len to {period} or more"
            )
        self.period = period or (self.segment_len or 0) // 2 or 1

    def _first_start(self, place: int) -> int:
        """Return the first step of an episode's first sequence: 0, or later if leading steps count in no loss."""
        assert self.segment_len is not None
        return max(self._episode(place).num_recorded + 1 - self.segment_len, 0)

    def num_sequences(self, place: int) -> int:
        """Return the number of sequences of the episode at this place."""
        if self.segment_len is None:
            return 1
        return -(-(len(self._episode(place).actions) - self._first_start(place)) // self.period)

    def shares(self, items: Array) -> Array:
        """Return the numbers of sequences of episodes, so that all sequences are equally likely; see the base class."""
        if self.segment_len is None or self.draw_by == "episodes":
            return super().shares(items)
        numbers = [self.num_sequences(place) if self._holds(place) else 0 for place in items.tolist()]
        return np.array(numbers, np.float64)

    def set_powers(self, items: Array, powers: Array | float) -> None:
        """Set priority ** alpha of episodes (M,), the same for all sequences of each; or of sequences (M, 2)."""
        if items.ndim == 1:
            values = np.broadcast_to(powers, items.shape)
            for place, power in zip(items.tolist(), values.tolist(), strict=True):
                self.sequences[place] = np.full(self.num_sequences(place), power) if self._holds(place) else np.ones(0)
            super().set_powers(items, values)
            return
        for (place, number), power in zip(items.tolist(), np.asarray(powers).tolist(), strict=True):
            self.sequences[place][number] = power
        places = np.unique(items[:, 0])
        super().set_powers(places, np.array([self.sequences[place].mean() for place in places.tolist()]))

    def powers_of(self, items: Array) -> Array:
        """Return priority ** alpha of drawn sequences (B, 2)."""
        return np.array([self.sequences[place][number] for place, number in items.tolist()])

    def draw(self) -> Array:
        """Return `batch_size` sequences: the place of the episode and the number of the sequence, (B, 2)."""
        places = super().draw()
        numbers = []
        for place, drawn in zip(places.tolist(), self.randomness.generator.random(len(places)).tolist(), strict=True):
            sums = self.sequences[place].cumsum()
            numbers.append(int(sums[:-1].searchsorted(drawn * sums[-1], "right")))
        return np.stack([places, numbers], 1)

    def batch_of(self, items: Array, firsts: Array | None = None) -> Batch:
        """Return the batch of these sequences (B, 2), padded with zeros to the longest one."""
        if self.segment_len is not None:
            firsts = np.array([self._first_start(place) + number * self.period for place, number in items.tolist()])
        return super().batch_of(items[:, 0], firsts)

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the content, with the priorities of all sequences."""
        own = super().metadata()
        kept = [self.sequences[place] for place in range(len(own["powers"])) if place in self.sequences]
        return own | {"sequences": torch.from_numpy(np.concatenate([np.zeros(0), *kept]))}

    def restore(self, metadata: Mapping[str, Any]) -> None:
        """Restore what `metadata` returned; see `Prioritized`."""
        super().restore(metadata)
        rest = metadata["sequences"].numpy()
        needed = sum(len(self.sequences[place]) for place in range(len(metadata["powers"])))
        if len(rest) != needed:
            raise UserError(
                f"{type(self).__name__} has {needed:,} sequences, but {len(rest):,} were saved with their priorities: "
                f"an older version cut episodes in another way; start another run"
            )
        for place in range(len(metadata["powers"])):
            size = len(self.sequences[place])
            self.sequences[place], rest = rest[:size].copy(), rest[size:]


def default_buffer(memoryless: bool, draws_by_priority: bool) -> type[ReplayBuffer] | type[RecurrentReplayBuffer]:
    """Return the class of the buffer that suits an algorithm."""
    if memoryless:
        return PrioritizedReplayBuffer if draws_by_priority else ReplayBuffer
    return PrioritizedRecurrentReplayBuffer if draws_by_priority else RecurrentReplayBuffer
