"""`NonFiniteGuard`: keeps NaN and infinity out of updates, and reports the first tensor that had one.

While an agent's update runs, `current` returns its guard, and optimizers and targets ask this guard before they change
anything. After the first non-finite value, no step has an effect, so that weights, moments, targets and statistics stay
finite. The check is synchronous on a CPU and asynchronous on a GPU.

The guard checks batches, losses and gradients; non-finite weights make these non-finite, too. To name the first bad
tensor, `find` searches the batch, weights, losses and gradients. It runs only after the guard has found a bad value. On
a GPU, the guard first repeats the bad update.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from offpcc.core import Batch, Stats
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.tensor_files import write_tensors

GIVEN = ("observations", "actions", "rewards", "terminations", "first_action", "first_reward", "weights")
IN_DATA = "`offpcc check` looks for such numbers in an environment (--env) or in recorded data (--dataset)"
IN_WEIGHTS = "no update makes them so: go on from a checkpoint, or load other weights"
IN_LEARNING = "a smaller learning rate, max_grad_norm or a smaller reward_scale may keep it in bounds"


class GradientCheck(NamedTuple):
    """Loss, parameters and gradients of one optimizer step."""

    loss: Tensor | None  # 0-d
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor | None]


class NonFiniteError(UserError):
    """Raised if an update has NaN or infinity; from there on, the update changed nothing.

    Args:
        update: number of the update.
        finding: name of the first tensor with such a value, and the value.
        remedy: advice to the user.
        batch: the update's batch.
        step: environment step at which the error was found, if known.
    """

    def __init__(self, update: int, finding: str, remedy: str, batch: Batch, step: int | None = None) -> None:
        self.update, self.finding, self.remedy, self.batch, self.step = update, finding, remedy, batch, step
        self.kept = "the batch is this error's `batch`, to be written by `save(file)`"
        super().__init__(self._told())

    def at(self, step: int) -> NonFiniteError:
        """Return a copy of this error with its environment step.

        It is a new object, because gin wraps exceptions that pass through it in a proxy.
        """
        return NonFiniteError(self.update, self.finding, self.remedy, self.batch, step)

    def save(self, file: Path) -> None:
        """Write the batch to `file`, as a dict of plain tensors and facts, and name the file in the message."""
        facts = {"kind": "bad_batch", "update": self.update, "step": self.step, "finding": self.finding}
        # Clone each tensor: it may be a view of a much larger one, and `torch.save` would write all of that.
        batch = {name: x.cpu().clone() if isinstance(x, Tensor) else x for name, x in self.batch._asdict().items()}
        try:
            write_tensors(file, facts | {"batch": batch})
        except OSError as error:
            self.kept = f"its batch could not be written to {file} ({first_line(error)})"
        else:
            self.kept = f"its batch is in {file}, read by torch.load(FILE, weights_only=True)"
        self.message = self._told()

    def __str__(self) -> str:
        """Return the message, with the step and the file if they are known."""
        return self.message

    def _told(self) -> str:
        at = "" if self.step is None else f" at step {self.step:,}"
        return f"update {self.update:,}{at}: {self.finding}, so nothing more was learned; {self.remedy}; {self.kept}"


def find(agent: Any, batch: Batch, looks: Sequence[GradientCheck]) -> tuple[str, str]:
    """Return a description of the first non-finite tensor of an update, and the remedy.

    The search order is the order of computation: batch, weights, then losses and gradients of each optimizer step.
    """
    for name in GIVEN:
        given = getattr(batch.without_padding(), name)
        if given is not None and (held := bad(given) or too_large(given)):
            return f"the batch's {name} {held}", IN_DATA
    modules = {name: part for name, part in vars(agent).items() if isinstance(part, nn.Module)}
    for name, weight in _weights(modules):
        if held := bad(weight):
            return f"{name} {held}", IN_WEIGHTS
    names = {id(p): f"{name}.{key}" for name, module in modules.items() for key, p in module.named_parameters()}
    owners = {id(part.parameters): name for name, part in vars(agent).items() if hasattr(part, "minimize")}
    for loss, parameters, gradients in looks:
        owner = owners.get(id(parameters), "an optimizer")
        if loss is not None and not torch.isfinite(loss):
            return f"the loss of {owner} is {loss.item()}", IN_LEARNING
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None and (held := bad(gradient)):
                return f"the gradient of {names.get(id(parameter), owner)} {held}", IN_LEARNING
    return "a loss or a gradient was NaN or infinite, but not when the update was repeated", IN_LEARNING


def why_no_action(parts: dict[str, nn.Module], observation: Any) -> str:
    """Return the error message for an action that is NaN or infinite, with the reason.

    Args:
        parts: the actor's modules by name.
        observation: what they got.
    """
    if held := bad(torch.as_tensor(observation)):
        return f"there is no action, as the observation {held}; mend the environment, or what is handed to `act`"
    held = next((f"{name} {held}" for name, weight in _weights(parts) if (held := bad(weight))), "a sum is infinite")
    return f"there is no action, as {held}; load other weights, or go on from a checkpoint"


def _weights(modules: dict[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Yield all floating-point weights and buffers by name, with infinity replaced by 0 where it may be intended.

    That is the case for tensors that are not trained, such as the log of a temperature of 0; but not for targets.
    """
    for name, module in modules.items():
        for key, weight in module.state_dict(keep_vars=True).items():
            if weight.is_floating_point():
                meant = not weight.requires_grad and not name.startswith("target_")
                yield f"{name}.{key}", weight.detach().nan_to_num(torch.nan, 0.0, 0.0) if meant else weight.detach()


def too_large(x: Tensor) -> str:
    """Describe finite `x` whose sum is not finite, or return "": on a GPU, the guard checks the sum."""
    return "" if torch.isfinite(x.sum()) else f"is finite, but its sum is not: it reaches {x.abs().max().item():.3g}"


def bad(x: Tensor) -> str:
    """Describe the first non-finite value of `x`, as the end of a sentence; "" if there is none."""
    wrong = ~torch.isfinite(x)
    count = int(wrong.sum())
    if not count:
        return ""
    place = wrong.nonzero()[0].tolist()
    where = f" at {place}, the first of {count:,} such numbers in {x.numel():,}" if x.dim() else ""
    return f"is {x[tuple(place)].item()}{where}"


INTERVAL = 20  # updates between two reports of a GPU; a report is read when the next one is started
LARGEST_KEPT = 2**28  # bytes of unchecked batches that the guard may keep; it reports earlier to stay below
MOST_SKIPPED = 100  # skipped updates in a row, at which the guard raises
UNDER_WAY = ("_looks", "_awaiting_a_look", "_update", "_batches", "_num_bytes", "_reported")

Update = Callable[[Any, Batch], Stats]
_CURRENT: ContextVar[NonFiniteGuard | None] = ContextVar("watch", default=None)


def current() -> NonFiniteGuard | None:
    """Return the guard of the agent whose update is running; None outside of updates."""
    return _CURRENT.get()


class NonFiniteGuard:
    """Checks the updates of one agent for NaN and infinity ("bad" values).

    Args:
        device: the agent's device.
        statistics: tensors that change without an optimizer step, such as those of a normalisation.
        skips: True to skip and count bad updates, False to raise an error.

    Attributes:
        found: 0-d tensor: 1 from the first bad value on, else 0. If bad updates are skipped, each update resets it.
        num_updates: number of updates, skipped ones included.
        bad_in_a_row: number of latest updates in a row that were bad, as far as the host knows.
        is_awaited: True if the guard reads each check's result at once, as on a CPU. On a GPU that would cost time.
    """

    _looks: list[GradientCheck]  # of the latest update
    _awaiting_a_look: list[Tensor]
    _update: Update
    _batches: deque[Batch]  # batches of updates whose result the host does not know yet
    _num_bytes: int  # bytes of the batches since the last report
    _reported: tuple[int, Tensor, Any] | None  # number of the last update in the report, bad updates in a row, event

    def __init__(self, device: torch.device, statistics: Sequence[Tensor] = (), skips: bool = False) -> None:
        self.statistics, self.skips = list(statistics), skips
        self.is_awaited = device.type == "cpu"
        self.found = torch.zeros((), device=device)
        self.num_updates = self.bad_in_a_row = 0
        self._one = torch.ones((), device=device)
        self._count = torch.zeros((), device=device)  # bad updates in a row, on a GPU
        self._begin_reports()

    def run(self, agent: Any, update: Update, batch: Batch) -> Stats:
        """Run `update(agent, batch)` with checks, and return its statistics.

        Raises:
            NonFiniteError: this update or a recent one was bad; if bad updates are skipped, too many in a row were.
        """
        if _CURRENT.get() is self:  # the update calls its parent's
            return update(agent, batch)
        if self.skips:
            self.found.zero_()
        stats = self._watched(agent, update, batch)
        self.num_updates += 1
        if self.skips:
            stats = self._of_made_update(stats)
        if self.is_awaited:
            self.bad_in_a_row = self.bad_in_a_row + 1 if self.found.item() else 0
            if self._are_too_many:
                self._raise_error(agent, update, batch, self.num_updates)
        else:
            self._count.add_(self._one).mul_(self.found)
            self._batches.append(batch)
            self._update = update
            self._num_bytes += _num_bytes(batch)
            if self.num_updates % INTERVAL == 0 or self._num_bytes > LARGEST_KEPT // 2:
                self._report(agent)
        return stats

    def synchronize(self, agent: Any) -> None:
        """Wait for the results of all updates of `agent`. It is called before a save.

        Raises:
            NonFiniteError: see `run`.
        """
        if self._batches:
            self._report(agent)
            self._report(agent)

    # Used inside updates -------------------------------------------------------------------------------------

    @property
    def blocks_update(self) -> bool:
        """True if the update must not change anything. Always False on a GPU, where `found_inf` does this."""
        return self.is_awaited and self.found.item() > 0.0

    @property
    def found_inf(self) -> Tensor | None:
        """Return `found` on a GPU, for operations that read it there; None on a CPU, which has `blocks_update`."""
        return None if self.is_awaited else self.found

    def check_batch(self, *given: Tensor) -> None:
        """Register tensors of the batch, without padding, for the check before the first optimizer step."""
        if _CURRENT.get() is self:
            numbers = [x for x in given if x.is_floating_point()]
            self._awaiting_a_look += numbers if self.is_awaited else [x.sum() for x in numbers]

    def check_gradients(self, look: GradientCheck, gradients: Sequence[Tensor]) -> None:
        """Check the loss and the gradients of an optimizer step.

        Args:
            look: the step; `find` searches it later.
            gradients: the gradients, or flat tensors with all of them. They may be those before clipping, as clipping
                makes no bad value finite.
        """
        self._looks.append(look)
        self._awaiting_a_look += gradients
        if look.loss is not None:
            self._awaiting_a_look.append(look.loss)
        self._look()

    def _look(self) -> None:
        """Check the registered tensors and set `found`; on a GPU in one operation and without waiting.

        On a CPU it checks sums first: a sum is not finite if one of its terms is not. The sum of large finite numbers
        may overflow, so a bad sum is followed by a check of each tensor.
        """
        awaiting, self._awaiting_a_look = self._awaiting_a_look, []
        if self.is_awaited:
            total = sum([(x.sum() if x.dim() else x).item() for x in awaiting])
            if not math.isfinite(total) and any(bool(bad(x)) for x in awaiting):
                self.found.fill_(1.0)
        elif awaiting:  # this operation also multiplies them by 1
            awaiting = [x.detach() for x in awaiting]
            torch._amp_foreach_non_finite_check_and_unscale_(awaiting, self.found, self._one)

    def _watched(self, agent: Any, update: Update, batch: Batch) -> Stats:
        before = [statistic.clone() for statistic in self.statistics]
        self._looks, self._awaiting_a_look = [], []
        token = _CURRENT.set(self)
        try:
            stats = update(agent, batch)
        finally:
            _CURRENT.reset(token)
        if before or self._awaiting_a_look:
            self._awaiting_a_look += [statistic for statistic in self.statistics if statistic.dim()]  # no counts
            self._look()
            for statistic, old in zip(self.statistics, before, strict=True):
                statistic.copy_(torch.where(self.found > 0.0, old, statistic))
        return stats

    # Results and errors --------------------------------------------------------------------------------------

    def _of_made_update(self, stats: Stats) -> Stats:
        """Return `stats`, all NaN if the update was skipped, plus `skipped`, which is 1 or 0."""
        skipped = self.found > 0.0
        made = {name: torch.where(skipped, math.nan, value) for name, value in stats.items()}
        return made | {"skipped": self.found.clone()}

    @property
    def _are_too_many(self) -> bool:
        return self.bad_in_a_row >= (MOST_SKIPPED if self.skips else 1)

    def _raise_error(self, agent: Any, update: Update, batch: Batch, number: int) -> None:
        """Find the first bad tensor, reset the guard and raise.

        Args:
            agent: the agent.
            update: the update function.
            batch: batch of the bad update.
            number: number of the bad update.
        """
        if not self.is_awaited:  # other updates have followed; with `found` set, a repeat changes nothing
            self.found.fill_(1.0)
            self._watched(agent, update, batch)
        finding, remedy = find(agent, batch, self._looks)
        if self.skips:
            finding = f"{MOST_SKIPPED} updates in a row were skipped, and in this one {finding}"
        elif remedy != IN_WEIGHTS:
            remedy += (
                f'; nonfinite = "skip" leaves such updates out, also of this run from its last checkpoint on: '
                f"--resume --gin \"{type(agent).__name__}.nonfinite='skip'\""
            )
        self.bad_in_a_row = 0  # a caller that catches the error may continue
        self.found.zero_()
        self._count.zero_()
        self._begin_reports()
        raise NonFiniteError(number, finding, remedy, batch)

    def _report(self, agent: Any) -> None:
        """Read the previous report and start the next one, without waiting for that."""
        if self._reported is not None:
            number, count, event = self._reported
            if event is not None:
                event.synchronize()
            self.bad_in_a_row = int(count)
            if self._are_too_many:
                if not self.skips:  # after the first bad update, all count as bad; name the first
                    number -= self.bad_in_a_row - 1
                self._raise_error(agent, self._update, self._batches[number - self.num_updates - 1], number)
            while len(self._batches) > self.num_updates - number:  # drop the checked batches
                self._batches.popleft()
        count = self._count.clone().to("cpu", non_blocking=True)
        event = torch.cuda.current_stream(self.found.device).record_event() if self.found.is_cuda else None
        self._reported, self._num_bytes = (self.num_updates, count, event), 0

    def _begin_reports(self) -> None:
        self._looks, self._awaiting_a_look, self._update, self._reported = [], [], _no_update, None
        self._batches, self._num_bytes = deque(), 0

    # Saving and copying --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later updates need. Call `synchronize` first."""
        return {"num_updates": self.num_updates, "bad_in_a_row": self.bad_in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self.num_updates, self.bad_in_a_row = state["num_updates"], state["bad_in_a_row"]
        self.found.zero_()
        self._count.fill_(self.bad_in_a_row)
        self._begin_reports()

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes but pending checks, which belong to this agent's own updates."""
        return {name: part for name, part in vars(self).items() if name not in UNDER_WAY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, with no pending checks."""
        vars(self).update(state)
        self._begin_reports()


def _num_bytes(batch: Batch) -> int:
    return sum(part.nbytes for part in batch if isinstance(part, Tensor))


def _no_update(agent: Any, batch: Batch) -> Stats:
    return {}
