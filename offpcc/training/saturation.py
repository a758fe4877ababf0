"""A callback that warns when the tanh of a policy or decoder is saturated."""

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.acting import AT_BOUND
from offpcc.core import Batch, Buffer
from offpcc.training.callbacks import Callback, Run
from offpcc.training.loggers import report_errors
from offpcc.utils.errors import print_to_stderr
from offpcc.utils.rng import forked_torch_generators
from offpcc.utils.spaces import has_vectors

NEARLY_ALL = 0.95  # share of the outputs; good bang-bang policies reach 0.7
FEWER_BETWEEN = 0.25  # share between the bounds, relative to that of the actions in the batch


class Saturation(Callback):
    """Checks the tanh outputs that actions are made of at each epoch's end, and warns once if they are saturated.

    It previews the next batch, so the results of a run do not depend on it. If the check fails, the run continues.

    Args:
        algorithm: the agent to check.
        buffer: the buffer that provides the batch; a buffer without `peek` is not checked.
    """

    def __init__(self, algorithm: ActorCritic, buffer: Buffer) -> None:
        self.algorithm, self.buffer = algorithm, buffer
        self.has_warned, self.failed = False, set[str]()

    def on_epoch(self, run: Run) -> None:
        """Check the outputs, and warn if they are saturated."""
        with report_errors("the check for saturation", self.failed):
            self._look(run)

    def _look(self, run: Run) -> None:
        if self.has_warned or not run.loop.num_updates or not len(self.buffer):
            return
        with forked_torch_generators():  # a user's encoder may draw random numbers, for example in dropout
            batch = self._peek()
            shares = None if batch is None else self.algorithm.shares_at_bounds(batch)
        if shares is None:
            return
        made, recorded = (float(share) for share in shares)
        if made > NEARLY_ALL and 1.0 - made < FEWER_BETWEEN * (1.0 - recorded):
            self.has_warned = True
            print_to_stderr(self._message(run.loop.epoch, made, recorded))

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

    def _message(self, epoch: int, made: float, recorded: float) -> str:
        name = type(self.algorithm).__name__
        remedies = [f"lower {name}.lr"]
        if self.algorithm.normalization is None and has_vectors(self.algorithm.observation_shape):
            remedies.insert(0, f'normalise observations (--gin "{name}.normalize_observations=True")')
        return (
            f"after epoch {epoch:,}, {made:.1%} of {name}'s outputs of tanh lie beyond +/- {AT_BOUND}, but only "
            f"{recorded:.1%} of the actions that it learns from: tanh is saturated and passes hardly any gradient, so "
            f"the agent may stop learning; in a new run, {' or '.join(remedies)}"
        )
