"""Keeps NaN and infinity out of updates, and reports the first tensor that held one.

While an agent's update runs, its `NonFiniteGuard` is the `current` one, which optimizers and targets ask. After the
first non-finite value all steps are frozen, so that weights, moments, targets and statistics stay finite. The check is
synchronous on a CPU and asynchronous on a GPU.

Batches, losses and gradients are checked; bad weights show in them. Which tensor was first is found by repeating the
update, only once there is one.
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

GIVEN = ("observations", "actions", "rewards", "terminations", "first_action", "first_reward")  # of a batch
IN_DATA = "`offpcc check` looks for such numbers in an environment (--env) or in recorded data (--dataset)"
IN_WEIGHTS = "no update makes them so: go on from a checkpoint, or load other weights"
IN_LEARNING = "a smaller learning rate, max_grad_norm or a smaller reward_scale may keep it in bounds"


class GradientCheck(NamedTuple):
    """What a step of an optimizer was to be made of."""

    loss: Tensor | None  # 0-d
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor | None]


class NonFiniteError(UserError):
    """An update met NaN or infinity, and from there on changed nothing.

    Args:
        update: its number.
        finding: what the first tensor with such a number is called, and holds.
        remedy: what to do about it.
        batch: that was to be learned from.
        step: of the environments, at which it was found, if that is known.
    """

    def __init__(self, update: int, finding: str, remedy: str, batch: Batch, step: int | None = None) -> None:
        self.update, self.finding, self.remedy, self.batch, self.step = update, finding, remedy, batch, step
        self.kept = "the batch is this error's `batch`, to be written by `save(file)`"
        super().__init__(self._told())

    def at(self, step: int) -> NonFiniteError:
        """This error with its step; another object, as gin hands on a proxy of what passes through it."""
        return NonFiniteError(self.update, self.finding, self.remedy, self.batch, step)

    def save(self, file: Path) -> None:
        """Write the batch to `file`, a dict of plain tensors and facts, and tell so."""
        facts = {"kind": "bad_batch", "update": self.update, "step": self.step, "finding": self.finding}
        # Each cloned: a tensor may be a view of something much larger, which would be written as a whole.
        batch = {name: x.cpu().clone() if isinstance(x, Tensor) else x for name, x in self.batch._asdict().items()}
        try:
            write_tensors(file, facts | {"batch": batch})
        except OSError as error:
            self.kept = f"its batch could not be written to {file} ({first_line(error)})"
        else:
            self.kept = f"its batch is in {file}, read by torch.load(FILE, weights_only=True)"
        self.message = self._told()

    def __str__(self) -> str:
        """The message, with all that is known by now."""
        return self.message

    def _told(self) -> str:
        at = "" if self.step is None else f" at step {self.step:,}"
        return f"update {self.update:,}{at}: {self.finding}, so nothing more was learned; {self.remedy}; {self.kept}"


def find(agent: Any, batch: Batch, looks: Sequence[GradientCheck]) -> tuple[str, str]:
    """What the first tensor of an update with a bad number is called and holds; and the remedy.

    The batch comes first, then weights, which were there before any loss, then losses and gradients as they came.
    """
    for name in GIVEN:
        given = getattr(batch.without_padding(), name)
        if held := bad(given) or too_large(given):
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
    """Why an actor of these parts gives NaN or infinity for what it was given to see; the whole message."""
    if held := bad(torch.as_tensor(observation)):
        return f"there is no action, as the observation {held}; mend the environment, or what is handed to `act`"
    held = next((f"{name} {held}" for name, weight in _weights(parts) if (held := bad(weight))), "a sum is infinite")
    return f"there is no action, as {held}; load other weights, or go on from a checkpoint"


def _weights(modules: dict[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Weights by name; of what does not learn, such as a temperature of 0, infinity may be meant."""
    for name, module in modules.items():
        for key, weight in module.state_dict(keep_vars=True).items():
            if weight.is_floating_point():
                meant = not weight.requires_grad and not name.startswith("target_")
                yield f"{name}.{key}", weight.detach().nan_to_num(torch.nan, 0.0, 0.0) if meant else weight.detach()


def too_large(x: Tensor) -> str:
    """What is said of finite numbers whose sum, which a GPU is asked for, is none."""
    return "" if torch.isfinite(x.sum()) else f"is finite, but its sum is not: it reaches {x.abs().max().item():.3g}"


def bad(x: Tensor) -> str:
    """What is bad about `x`, as what follows its name in a sentence; "" if nothing is."""
    wrong = ~torch.isfinite(x)
    count = int(wrong.sum())
    if not count:
        return ""
    place = wrong.nonzero()[0].tolist()
    where = f" at {place}, the first of {count:,} such numbers in {x.numel():,}" if x.dim() else ""
    return f"is {x[tuple(place)].item()}{where}"


INTERVAL = 20  # updates between two reports of a device that is not waited for; each is read when the next is made
LARGEST_KEPT = 2**28  # bytes of batches that are kept until it is known that none was bad; reports follow sooner then
MOST_SKIPPED = 100  # updates in a row; more are no accident
UNDER_WAY = ("_looks", "_awaiting_a_look", "_update", "_batches", "_num_bytes", "_reported")

Update = Callable[[Any, Batch], Stats]
_CURRENT: ContextVar[NonFiniteGuard | None] = ContextVar("watch", default=None)


def current() -> NonFiniteGuard | None:
    """The watch of the agent whose update is being made; None outside of updates."""
    return _CURRENT.get()


class NonFiniteGuard:
    """Looks at the updates of one agent.

    Args:
        device: of the agent.
        statistics: tensors that change without a step, such as those of a normalisation.
        skips: whether updates with bad numbers are left out and counted, instead of being an error.

    Attributes:
        found: 0-d: 1 from the first bad number on (until the next update, if updates are skipped), else 0.
        num_updates: that were made, or left out.
        bad_in_a_row: how many of the last ones were bad, as far as is known.
        is_awaited: whether that is known before each step, as on a CPU, where it takes no time.
    """

    _looks: list[GradientCheck]  # of the latest update
    _awaiting_a_look: list[Tensor]
    _update: Update
    _batches: deque[Batch]  # of updates of which it is not known whether they were bad
    _num_bytes: int  # of those since the last report
    _reported: tuple[int, Tensor, Any] | None  # the update after which a report was made, the report, its end

    def __init__(self, device: torch.device, statistics: Sequence[Tensor] = (), skips: bool = False) -> None:
        self.statistics, self.skips = list(statistics), skips
        self.is_awaited = device.type == "cpu"
        self.found = torch.zeros((), device=device)
        self.num_updates = self.bad_in_a_row = 0
        self._one = torch.ones((), device=device)
        self._count = torch.zeros((), device=device)  # bad updates in a row, where that is not awaited
        self._begin_reports()

    def run(self, agent: Any, update: Update, batch: Batch) -> Stats:
        """The statistics of `update(agent, batch)`, watched.

        Raises:
            NonFiniteError: there was one, in this update or in one not long ago, or in too many in a row.
        """
        if _CURRENT.get() is self:  # an update that calls its parent's
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
        """Wait for what is not known yet of the updates of `agent`, before it is saved.

        Raises:
            NonFiniteError: there was one.
        """
        if self._batches:
            self._report(agent)
            self._report(agent)

    # What is asked in an update ------------------------------------------------------------------------------

    @property
    def blocks_update(self) -> bool:
        """Whether it is known that nothing is to be changed any more; see `found_inf`, where that is not awaited."""
        return self.is_awaited and self.found.item() > 0.0

    @property
    def found_inf(self) -> Tensor | None:
        """`found`, for what is changed on a device without waiting for it; None where `blocks_update` tells all."""
        return None if self.is_awaited else self.found

    def check_batch(self, *given: Tensor) -> None:
        """Look at what is to be learned from, without padding; that is done before the first step."""
        if _CURRENT.get() is self:
            numbers = [x for x in given if x.is_floating_point()]
            self._awaiting_a_look += numbers if self.is_awaited else [x.sum() for x in numbers]

    def check_gradients(self, look: GradientCheck, gradients: Sequence[Tensor]) -> None:
        """Look at what an optimizer is about to take: `gradients`, or tensors that hold all of them.

        They may be those from before they were clipped, for clipping makes no bad number good.
        """
        self._looks.append(look)
        self._awaiting_a_look += gradients
        if look.loss is not None:
            self._awaiting_a_look.append(look.loss)
        self._look()

    def _look(self) -> None:
        """Note whether there is a bad number, on a device that is not waited for all at once.

        A sum is NaN or infinite if a number of it is; of large numbers it may be without.
        """
        awaiting, self._awaiting_a_look = self._awaiting_a_look, []
        if self.is_awaited:
            total = sum([(x.sum() if x.dim() else x).item() for x in awaiting])
            if not math.isfinite(total) and any(bool(bad(x)) for x in awaiting):
                self.found.fill_(1.0)
        elif awaiting:  # they are multiplied by 1
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

    # What becomes of it --------------------------------------------------------------------------------------

    def _of_made_update(self, stats: Stats) -> Stats:
        """`stats`, all of them NaN if the update was skipped; and whether it was."""
        skipped = self.found > 0.0
        made = {name: torch.where(skipped, math.nan, value) for name, value in stats.items()}
        return made | {"skipped": self.found.clone()}

    @property
    def _are_too_many(self) -> bool:
        return self.bad_in_a_row >= (MOST_SKIPPED if self.skips else 1)

    def _raise_error(self, agent: Any, update: Update, batch: Batch, number: int) -> None:
        """Refuse to go on; the update to tell of has this number and learned from `batch`."""
        if not self.is_awaited:  # others have followed; as nothing is changed, it can be made again
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
        self.bad_in_a_row = 0  # who catches the error may go on
        self.found.zero_()
        self._count.zero_()
        self._begin_reports()
        raise NonFiniteError(number, finding, remedy, batch)

    def _report(self, agent: Any) -> None:
        """Read the last report, and have the next one made."""
        if self._reported is not None:
            number, count, event = self._reported
            if event is not None:
                event.synchronize()
            self.bad_in_a_row = int(count)
            if self._are_too_many:
                if not self.skips:  # after a first bad update, all are
                    number -= self.bad_in_a_row - 1
                self._raise_error(agent, self._update, self._batches[number - self.num_updates - 1], number)
            while len(self._batches) > self.num_updates - number:  # what has been judged is let go of
                self._batches.popleft()
        count = self._count.clone().to("cpu", non_blocking=True)
        event = torch.cuda.current_stream(self.found.device).record_event() if self.found.is_cuda else None
        self._reported, self._num_bytes = (self.num_updates, count, event), 0

    def _begin_reports(self) -> None:
        self._looks, self._awaiting_a_look, self._update, self._reported = [], [], _no_update, None
        self._batches, self._num_bytes = deque(), 0

    # Saving and copying --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What later updates depend on, once they are settled."""
        return {"num_updates": self.num_updates, "bad_in_a_row": self.bad_in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.num_updates, self.bad_in_a_row = state["num_updates"], state["bad_in_a_row"]
        self.found.zero_()
        self._count.fill_(self.bad_in_a_row)
        self._begin_reports()

    def __getstate__(self) -> dict[str, Any]:
        """All but what is on its way, which is of this agent's updates."""
        return {name: part for name, part in vars(self).items() if name not in UNDER_WAY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy."""
        vars(self).update(state)
        self._begin_reports()


def _num_bytes(batch: Batch) -> int:
    return sum(part.nbytes for part in batch if isinstance(part, Tensor))


def _no_update(agent: Any, batch: Batch) -> Stats:
    return {}
