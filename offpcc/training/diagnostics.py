"""Callbacks that warn once if learning goes wrong: saturated actions, overestimated values."""

from typing import ClassVar

import numpy as np
from torch import nn

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.acting import AT_BOUND
from offpcc.core import Batch, Buffer
from offpcc.data.buffers.storage import RecordedEpisodes, TransitionTable, returns_to_go
from offpcc.networks.layers import EnsembleLayerNorm
from offpcc.training.callbacks import Callback, Run
from offpcc.training.loggers import report_errors
from offpcc.utils.errors import print_to_stderr
from offpcc.utils.rng import forked_torch_generators
from offpcc.utils.spaces import has_vectors

NEARLY_ALL = 0.95  # share of the outputs; good bang-bang policies reach 0.7
FEWER_BETWEEN = 0.25  # share between the bounds, relative to that of the actions in the batch


class WarningCallback(Callback):
    """Checks the run at each epoch's end until it has warned. If the check fails, the run continues."""

    checked: ClassVar[str]

    def __init__(self) -> None:
        self.has_warned, self.failed = False, set[str]()

    def on_epoch(self, run: Run) -> None:
        """Print the warning, if there is one."""
        if self.has_warned:
            return
        with report_errors(f"the check for {self.checked}", self.failed):
            if warning := self.warning(run):
                self.has_warned = True
                print_to_stderr(warning)

    def warning(self, run: Run) -> str:
        """Return what is wrong, or ""."""
        raise NotImplementedError


class Saturation(WarningCallback):
    """Checks whether the tanh outputs that actions are made of are saturated.

    It previews the next batch, so the results of a run do not depend on it. A buffer without `peek` is not checked.
    """

    checked = "saturation"

    def __init__(self, algorithm: ActorCritic, buffer: Buffer) -> None:
        super().__init__()
        self.algorithm, self.buffer = algorithm, buffer

    def warning(self, run: Run) -> str:
        """Return a warning if nearly all outputs are at the bounds, unlike the actions of the batch."""
        if not run.loop.num_updates or not len(self.buffer):
            return ""
        with forked_torch_generators():  # a user's encoder may draw random numbers, for example in dropout
            batch = self._peek()
            shares = None if batch is None else self.algorithm.shares_at_bounds(batch)
        if shares is None:
            return ""
        made, recorded = (float(share) for share in shares)
        if made <= NEARLY_ALL or 1.0 - made >= FEWER_BETWEEN * (1.0 - recorded):
            return ""
        name = type(self.algorithm).__name__
        remedies = [f"lower {name}.lr"]
        if self.algorithm.normalization is None and has_vectors(self.algorithm.observation_shape):
            remedies.insert(0, f'normalise observations (--gin "{name}.normalize_observations=True")')
        return (
            f"after epoch {run.loop.epoch:,}, {made:.1%} of {name}'s outputs of tanh lie beyond +/- {AT_BOUND}, but "
            f"only {recorded:.1%} of the actions that it learns from: tanh is saturated and passes hardly any "
            f"gradient, so the agent may stop learning; in a new run, {' or '.join(remedies)}"
        )

    def _peek(self) -> Batch | None:
        """Return the next batch, or None if the buffer has no `peek`, which `Buffer` does not require."""
        peek = getattr(self.buffer, "peek", None)
        if not callable(peek):
            return None
        try:
            batch: Batch = peek()
        except NotImplementedError:  # a subclass of `BufferBase` that overrides `sample`
            return None
        return batch


class Overestimation(WarningCallback):
    """Checks whether the critics' mean value exceeds what the rewards of the recorded `rows` make plausible.

    The limit is the largest discounted return of the recording plus the largest absolute one. An episode without a
    termination goes on with its last reward (`returns_to_go`). Values of SAC may also have the entropy of the policy,
    forever. Without rewards there is no limit.
    """

    checked = "overestimation"

    def __init__(self, algorithm: ActorCritic, rows: TransitionTable) -> None:
        super().__init__()
        self.algorithm, self.rows = algorithm, rows
        self.returns: tuple[float, float] | None = None  # smallest and largest; known after the first epoch

    def warning(self, run: Run) -> str:
        """Return a warning if the mean of ``update/q`` in the epoch exceeds the limit."""
        row = run.loop.rows[-1] if run.loop.rows else {}
        q, alpha, entropy = (row.get(f"update/{name}") for name in ("q", "alpha", "entropy"))
        if q is None or self.algorithm.gamma == 1.0:  # without discount, a return that goes on is infinite
            return ""
        if self.returns is None:
            self.returns = self._smallest_and_largest()
        low, high = self.returns
        size, bonus = max(abs(low), abs(high)), max((alpha or 0.0) * (entropy or 0.0), 0.0)
        if size == 0.0 or not q > high + size + bonus / (1.0 - self.algorithm.gamma):
            return ""
        name = type(self.algorithm).__name__
        choices = "dbcq, dbc" if self.algorithm.is_discrete else "iql, td3_bc"
        norms = (nn.LayerNorm, EnsembleLayerNorm)
        has_norm = any(isinstance(module, norms) for module in self.algorithm.critics.modules())
        other = f"lower {name}.lr" if has_norm else f"bind {name}.layer_norm = True"
        return (
            f"after epoch {run.loop.epoch:,}, the mean Q of {name} is {q:.3g}, but discounted returns of the recording "
            f"are between {low:.3g} and {high:.3g}: Q is overestimated, so the policy may fail; in a new run, choose "
            f"an algorithm that stays near the recorded actions ({choices}), or {other}"
        )

    def _smallest_and_largest(self) -> tuple[float, float]:
        """Return the smallest and the largest discounted return from any step on, of rewards as in targets."""
        algorithm, low, high = self.algorithm, np.inf, -np.inf
        for episode in RecordedEpisodes(self.rows):
            rewards = episode.rewards[:, 0].astype(np.float64)
            rewards = np.sign(rewards) if algorithm.clip_rewards else rewards
            rewards = algorithm.reward_scale * rewards + algorithm.reward_shift
            returns = returns_to_go(rewards, episode.terminated, algorithm.gamma)[:, 0]
            low, high = min(low, float(returns.min())), max(high, float(returns.max()))
        return low, high
