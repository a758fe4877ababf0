"""`NonFiniteGuard`: keeps NaN and infinity out of updates, and names the first tensor that had one.

In an agent's update, every optimizer calls the agent's guard before its step. The guard checks the batch, the loss and
the gradients; non-finite weights make these non-finite, too. On a CPU, the check is synchronous: a bad value ends the
update by an exception, so nothing after it changes. On a GPU, and in a compiled update, the host does not wait for the
result. The flag `found` stays on the device, and this and all later steps have no effect. When the host reads the flag,
the guard repeats the bad update to name the tensor.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offpcc.core import Batch, Stats
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.rng import forked_torch_generators
from offpcc.utils.tensor_files import write_tensors
from offpcc.utils.torch_private import find_nonfinite_, is_traced

GIVEN = (
    "observations",
    "states",
    "actions",
    "rewards",
    "terminations",
    "first_action",
    "first_reward",
    "weights",
    "next_actions",
    "returns_to_go",
)
IN_DATA = "`offpcc check --env NAME` and `offpcc check --dataset FILE` look for such numbers"
IN_WEIGHTS = "this comes from the weights, not from an update: resume from a checkpoint, or load other weights"
IN_LEARNING = "a smaller learning rate, max_grad_norm or a smaller reward_scale may keep it in bounds"
INTERVAL = 20  # updates between two reports of a GPU; a report is read when the next one is started
LARGEST_KEPT = 2**28  # bytes of unchecked batches that the guard may keep; it reports earlier to stay below
PENDING = ("_agent", "_batch", "_unchecked", "_before", "_stepped", "_batches", "_reported")  # left out of a copy
MOST_SKIPPED = 100  # skipped updates in a row, at which the guard raises


class NonFiniteError(UserError):
    """Raised if an update has NaN or infinity. From the first such tensor on, the update changed nothing.

    Args:
        update: number of the update.
        finding: name of the first tensor with such a value, and the value.
        remedy: advice to the user.
        batch: the update's batch.
        step: environment step at which the error was found, if known.
    """

    def __init__(self, update: int, finding: str, remedy: str, batch: Batch, step: int | None = None) -> None:
        self.update, self.finding, self.remedy, self.batch, self.step = update, finding, remedy, batch, step
        self.kept = "the error's attribute `batch` holds the batch, and `save(file)` writes it"
        super().__init__(str(self))

    def at(self, step: int) -> NonFiniteError:
        """Return a new error with this environment step. It is new because gin may have wrapped this one in a proxy."""
        return NonFiniteError(self.update, self.finding, self.remedy, self.batch, step)

    def save(self, file: Path) -> None:
        """Write the batch to `file`, as a dict of plain tensors and facts, and name the file in the message."""
        facts = {"kind": "bad_batch", "update": self.update, "step": self.step, "finding": self.finding}
        # Clone each tensor: it may be a view of a much larger one, and `torch.save` would write all of that.
        batch = {name: x.cpu().clone() if isinstance(x, Tensor) else x for name, x in self.batch._asdict().items()}
        try:
            write_tensors(file, facts | {"batch": batch})
            self.kept = f"its batch is in {file}; torch.load(FILE, weights_only=True) reads it"
        except OSError as error:
            self.kept = f"its batch could not be written to {file} ({first_line(error)})"
        self.message = str(self)

    def __str__(self) -> str:
        """Return the message, with the step and the file if they are known."""
        at = "" if self.step is None else f" at step {self.step:,}"
        return f"update {self.update:,}{at}: {self.finding}, so training stopped; {self.remedy}; {self.kept}"


class SkippedUpdate(Exception):  # noqa: N818  # no error
    """Ends an update with a bad value on a CPU, if bad updates are skipped."""


class _Thread(threading.local):
    """Holds the guard of the current update, for each thread. An update may call that of another agent."""

    guard: NonFiniteGuard | None = None


_thread = _Thread()


def current_guard() -> NonFiniteGuard | None:
    """Return the guard of this thread's current update; None outside of updates."""
    return _thread.guard


class NonFiniteGuard:
    """Checks the updates of one agent for NaN and infinity ("bad" values).

    Args:
        device: the agent's device.
        skips: True to skip and count bad updates, False to raise an error.
        is_awaited: whether the guard reads each check's result at once, instead of some updates later. On a GPU,
            waiting would take time, and a compiled update computes all its steps before the host can read a result.

    Attributes:
        statistics: tensors that change without an optimizer step, such as those of a normalisation.
        infinite: more such tensors, not checked: they had infinity from the start, such as the mask of an attention.
        found: 0-d tensor. On a GPU, it is 1 from the first bad value on, else 0. If bad updates are skipped, each
            update resets it.
        num_updates: number of updates, skipped ones included.
        bad_in_a_row: number of consecutive bad updates up to the last one that the host knows of.
        is_search: whether the current update repeats a bad one without effect, to name its first bad tensor.
        is_prepared: whether an update called the agent's `prepare`, which calls `check_batch`.
    """

    def __init__(self, device: torch.device, skips: bool = False, is_awaited: bool = True) -> None:
        self.skips, self.is_awaited = skips, is_awaited
        self.statistics: list[Tensor] = []
        self.infinite: list[Tensor] = []
        self.found, self._one = torch.zeros((), device=device), torch.ones((), device=device)
        self._count = torch.zeros((), device=device)  # bad updates in a row, on a GPU
        self.num_updates = self.bad_in_a_row = 0
        self.is_prepared = False
        self._clear()

    def set_statistics(self, statistics: Iterable[Tensor]) -> None:
        """Set the tensors that change without an optimizer step; one may be given twice, because layers are nested."""
        found = list({id(statistic): statistic for statistic in statistics}.values())
        self.statistics = [one for one in found if torch.isfinite(one).all()]
        self.infinite = [one for one in found if not torch.isfinite(one).all()]

    @property
    def _restored(self) -> list[Tensor]:
        """The tensors that a bad update must not change."""
        return [*self.statistics, *self.infinite]

    def _clear(self) -> None:
        """Forget the current update and the reports."""
        self._agent: Any = None  # the agent of the current update
        self._batch: Any = None
        self.is_search = False
        self._unchecked: list[Tensor] = []
        self._before: list[Tensor] = []  # the statistics before the update
        self._stepped: dict[Any, int] = {}  # optimizers of the update, and the number of updates before their step
        # The batch and `_stepped` of each update whose result the host does not know yet.
        self._batches: deque[tuple[Batch, dict[Any, int]]] = deque()
        self._num_bytes = 0  # of the batches since the last report
        self._reported: tuple[int, Tensor, dict[Any, int], Any] | None = None

    # An update ------------------------------------------------------------------------------------------------

    @contextmanager
    def update(self, agent: Any, batch: Batch) -> Iterator[None]:
        """Check the update of `agent` in the body of the `with`. The body must pass its statistics to `finish`."""
        self._agent, self._batch, self._unchecked, self._stepped = agent, batch, [], {}
        self._before = [statistic.clone() for statistic in self._restored]
        if self.skips and not self.is_awaited and not self.is_search:
            self.found.zero_()
        outer, _thread.guard = _thread.guard, self
        try:
            yield
        finally:
            _thread.guard = outer
            self._agent = self._batch = None
            self._unchecked = []

    def check_batch(self, *given: Tensor) -> None:
        """Register tensors of the batch, without padding, for the check before the first optimizer step."""
        if self._agent is not None:
            self.is_prepared = True
            numbers = [x for x in given if x.is_floating_point()]
            self._unchecked += numbers if self.is_awaited else [x.sum() for x in numbers]

    def note_steps(self, optimizers: Iterable[Any]) -> None:
        """Note that these optimizers make steps in this update, before they count them."""
        for optimizer in optimizers:
            self._stepped.setdefault(optimizer, optimizer.num_updates)

    def check_step(
        self, optimizer: Any, loss: Tensor | None, gradients: Sequence[Tensor | None], flat: Sequence[Tensor]
    ) -> Tensor | None:
        """Check the batch, and the loss and the gradients of an optimizer's step.

        Args:
            optimizer: the optimizer.
            loss: the loss, 0-d, if known.
            gradients: the gradient of each parameter, to name a bad one.
            flat: tensors with all gradients, before or after clipping: clipping does not make a bad value finite.

        Returns:
            `found` on a GPU, for operations that read it there; else None.

        Raises:
            NonFiniteError: on a CPU, a value is bad; or this is the repetition of a bad update.
            SkippedUpdate: on a CPU, a value is bad, and bad updates are skipped.
        """
        if not self.is_awaited and optimizer.groups:
            self.note_steps([optimizer])
        self._unchecked += flat if loss is None else [*flat, loss.detach()]
        self._check(optimizer, loss, gradients)
        return self.found_inf

    @property
    def found_inf(self) -> Tensor | None:
        """Return `found` on a GPU, for operations that read it there; None on a CPU, where exceptions do this."""
        return None if self.is_awaited else self.found

    def finish(self, stats: Stats) -> Stats:
        """Make the last check of an update, and return its statistics.

        The agent's `host_stats` are added. The statistics of a skipped update are NaN. If bad updates are skipped,
        `skipped`, 1 or 0, is added, too.

        Raises:
            NonFiniteError: a statistic of a normalisation is bad; or, on a GPU, a recent update was bad.
            SkippedUpdate: see `check_step`.
            UserError: no update called `prepare`, which would have changed the batch.
        """
        agent, batch = self._agent, self._batch
        if not self.is_prepared:
            agent.check_unprepared(batch)
        stats = {**stats, **agent.host_stats()}
        self._unchecked += [statistic for statistic in self.statistics if statistic.dim()]  # no counts
        self._check(None, None, ())
        self.num_updates += not self.is_search
        if self.is_awaited:
            self.bad_in_a_row = 0
        else:
            for statistic, old in zip(self._restored, self._before, strict=True):
                statistic.copy_(torch.where(self.found > 0, old, statistic))
            if not self.is_search:
                self._keep(agent, batch)
            if self.skips:
                stats = {name: torch.where(self.found > 0, math.nan, value) for name, value in stats.items()}
        return {**stats, "skipped": self.found.clone()} if self.skips else stats

    def stats_of_skipped(self, agent: Any, batch: Batch) -> Stats:
        """Return the statistics of an update that `SkippedUpdate` ended."""
        stats = {name: torch.full((), math.nan) for name in agent.stat_names}
        if batch.weights is not None and agent.has_critics:
            stats["td_error"] = torch.full_like(batch.loss_mask, math.nan)
        return {**stats, "skipped": torch.ones(())}

    def _check(self, optimizer: Any, loss: Tensor | None, gradients: Sequence[Tensor | None]) -> None:
        """Check the registered tensors; on a GPU in one operation and without waiting.

        On a CPU it checks sums first: a sum is not finite if one of its terms is not. The sum of large finite numbers
        may overflow, so each tensor is checked if a sum is bad.
        """
        given, self._unchecked = self._unchecked, []
        if not self.is_awaited and not self.is_search:
            if is_traced():  # 0 times a number is 0 if it is finite; in plain operations, which a compiler joins
                zero = sum([(0.0 * x).sum() for x in given])
                self.found.copy_(torch.maximum(self.found, torch.as_tensor(zero != 0.0).float()))
            elif given:  # this operation also multiplies them by 1
                find_nonfinite_(given, self.found, self._one)
            return
        total = sum([(x.sum() if x.dim() else x).item() for x in given])
        if math.isfinite(total) or not any(bool(bad(x)) for x in given):
            return
        agent, batch = self._agent, self._batch
        for statistic, old in zip(self._restored, self._before, strict=True):
            statistic.copy_(old)
        if self.is_search:
            raise NonFiniteError(0, *find_nonfinite(agent, batch, optimizer, loss, gradients), batch)
        self.num_updates += 1
        self.bad_in_a_row += 1
        if self.skips and self.bad_in_a_row < MOST_SKIPPED:
            raise SkippedUpdate
        raise self._error(agent, batch, self.num_updates, *find_nonfinite(agent, batch, optimizer, loss, gradients))

    def _error(self, agent: Any, batch: Batch, number: int, finding: str, remedy: str) -> NonFiniteError:
        """Return the error, and reset the guard: a caller that catches the error may continue."""
        if self.skips:
            finding = f"{MOST_SKIPPED} updates in a row were skipped, and in this one {finding}"
        elif remedy != IN_WEIGHTS:
            remedy += (
                f'; nonfinite = "skip" skips such updates; to resume this run with it from its last checkpoint: '
                f"--resume --gin \"{type(agent).__name__}.nonfinite='skip'\""
            )
        self.load_state_dict({"num_updates": self.num_updates, "bad_in_a_row": 0})
        return NonFiniteError(number, finding, remedy, batch)

    # Reports of a GPU -----------------------------------------------------------------------------------------

    def synchronize(self, agent: Any) -> None:
        """Wait for the checks of all updates, before a save; raise `NonFiniteError` for a recent bad update."""
        for _ in range(2 * bool(self._batches)):
            self._report(agent)

    def _keep(self, agent: Any, batch: Batch) -> None:
        """Keep the update's batch until the host knows whether it was bad; report from time to time."""
        self._count.add_(1.0).mul_(self.found)
        self._batches.append((batch, self._stepped))
        self._num_bytes += sum(part.nbytes for part in batch if isinstance(part, Tensor))
        if self.num_updates % INTERVAL == 0 or self._num_bytes > LARGEST_KEPT // 2:
            self._report(agent)

    def _report(self, agent: Any) -> None:
        """Read the previous report and start the next one, without waiting for its result."""
        if self._reported is not None:
            number, counts, before, event = self._reported
            if event is not None:
                event.synchronize()
            self.bad_in_a_row, *made = map(int, counts)
            if self.bad_in_a_row >= (MOST_SKIPPED if self.skips else 1):
                if not self.skips:  # after the first bad update, all count as bad; name the first
                    number -= self.bad_in_a_row - 1
                batch, stepped = self._batches[max(number - self.num_updates - 1, -len(self._batches))]
                raise self._error(agent, batch, number, *self._search(agent, batch, stepped))
            while len(self._batches) > self.num_updates - number:  # drop the checked batches
                self._batches.popleft()
            for (optimizer, num_updates), num_made in zip(before.items(), made, strict=True):
                optimizer.num_updates += num_made - optimizer.num_before - num_updates  # without skipped steps
        optimizers = [optimizer for _, stepped in self._batches for optimizer in stepped] if self.skips else []
        updates = {optimizer: optimizer.num_updates for optimizer in optimizers}
        counts = torch.stack([self._count, *(part.num_made() for part in updates)]).to("cpu", non_blocking=True)
        event = torch.cuda.current_stream(self.found.device).record_event() if self.found.is_cuda else None
        self._reported, self._num_bytes = (self.num_updates, counts, updates, event), 0

    def _search(self, agent: Any, batch: Batch, stepped: dict[Any, int]) -> tuple[str, str]:
        """Repeat a bad update, without effect, to name its first bad tensor. The run's generators do not change.

        `stepped` are the numbers of updates of its optimizers before it. Delays and schedules depend on them.
        """
        noise, updates = agent.noise.state_dict(), {optimizer: optimizer.num_updates for optimizer in stepped}
        for optimizer, num_updates in stepped.items():
            optimizer.num_updates = num_updates
        self.found.fill_(1.0)  # no step has an effect
        self.is_search = True
        try:
            with forked_torch_generators([self.found.device] if self.found.is_cuda else []):
                agent.update_networks(batch)
        except NonFiniteError as error:
            return error.finding, error.remedy
        finally:
            self.is_search = False
            agent.noise.load_state_dict(noise)
            for optimizer, num_updates in (self._stepped | updates).items():
                optimizer.num_updates = num_updates
        return "a loss or a gradient was NaN or infinite, but not when the update was repeated", IN_LEARNING

    # Saving and copying ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later updates need. Call `synchronize` first."""
        return {"num_updates": self.num_updates, "bad_in_a_row": self.bad_in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self.num_updates = state["num_updates"]
        self.bad_in_a_row = state["bad_in_a_row"] if self.skips else 0  # the run may have skipped updates until now
        self.found.zero_()
        self._count.fill_(self.bad_in_a_row)
        self._clear()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without pending checks, which belong to this agent's own updates."""
        return {name: value for name, value in vars(self).items() if name not in PENDING}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, with no pending checks."""
        vars(self).update(state)
        if not self.skips:  # the original will report a bad update that is not reported yet
            self.found, self._count = torch.zeros_like(self.found), torch.zeros_like(self._count)
        self._clear()


def find_nonfinite(
    agent: Any, batch: Batch, optimizer: Any, loss: Tensor | None, gradients: Sequence[Tensor | None]
) -> tuple[str, str]:
    """Return a description of the first non-finite tensor of an update, and the remedy.

    The search order is the order of computation: batch, weights, then loss and gradients of the current step.
    """
    given = agent.unpack(batch.without_padding())._asdict()
    for name in GIVEN:
        if given[name] is not None and (held := bad(given[name]) or too_large(given[name])):
            return f"the batch's {name} {held}", IN_DATA
    parts = agent.stateful_parts()
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    for name, weight in _weights(modules):
        if held := bad(weight):
            return f"{name} {held}", IN_WEIGHTS
    owner = next((name for name, part in parts.items() if part is optimizer), "an optimizer")
    if loss is not None and not torch.isfinite(loss):
        return f"the loss of {owner} is {loss.item()}", IN_LEARNING
    names = {id(p): f"{name}.{key}" for name, module in modules.items() for key, p in module.named_parameters()}
    for parameter, gradient in zip(optimizer.parameters if gradients else (), gradients, strict=True):
        if gradient is not None and (held := bad(gradient)):
            return f"the gradient of {names.get(id(parameter), owner)} {held}", IN_LEARNING
    return "a statistic of a normalisation was NaN or infinite", IN_LEARNING


def why_no_action(parts: dict[str, nn.Module], observation: Any) -> str:
    """Return the error message for an action that is NaN or infinite, with the reason."""
    fault = "the action is NaN or infinite, because"
    if held := bad(torch.as_tensor(observation)):
        return f"{fault} the observation {held}; correct the environment, or the argument of `act`"
    held = next((f"{name} {held}" for name, weight in _weights(parts) if (held := bad(weight))), "a sum is infinite")
    return f"{fault} {held}; load other weights, or resume from a checkpoint"


def _weights(modules: dict[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Yield all floating-point weights and buffers by name, with 0 in place of infinity where it may be intended.

    It may be intended in buffers, such as the mask of an attention, and in parameters that are not trained, such as the
    log of a temperature of 0, but not in those of targets.
    """
    for name, module in modules.items():
        for key, weight in module.state_dict(keep_vars=True).items():
            if weight.is_floating_point():
                is_target = name.startswith("target_") and isinstance(weight, nn.Parameter)
                meant = not weight.requires_grad and not is_target
                yield f"{name}.{key}", weight.detach().nan_to_num(torch.nan, 0.0, 0.0) if meant else weight.detach()


def too_large(x: Tensor) -> str:
    """Describe a finite `x` whose sum is not finite, or return "". On a GPU, the guard checks the sum."""
    return "" if torch.isfinite(x.sum()) else f"is finite, but its sum is not: it reaches {x.abs().max().item():.3g}"


def bad(x: Tensor) -> str:
    """Return a description of the first non-finite value of `x`, as the end of a sentence; "" if there is none."""
    wrong = ~torch.isfinite(x)
    count = int(wrong.sum())
    if not count:
        return ""
    place = wrong.nonzero()[0].tolist()
    where = f" at {place}, the first of {count:,} such numbers in {x.numel():,}" if x.dim() else ""
    return f"is {x[tuple(place)].item()}{where}"
