"""What is told, and kept, of an update that met a bad number: the first tensor that holds one, and the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from offpcc.core import Batch
from offpcc.errors import UserError, first_line
from offpcc.tensor_files import write_tensors

GIVEN = ("observations", "actions", "rewards", "terminations", "first_action", "first_reward")  # of a batch
IN_DATA = "`offpcc check` looks for such numbers in an environment (--env) or in recorded data (--dataset)"
IN_WEIGHTS = "no update makes them so: go on from a checkpoint, or load other weights"
IN_LEARNING = "a smaller learning rate, max_gradient_norm or a smaller reward_scale may keep it in bounds"


class Look(NamedTuple):
    """What a step of an optimizer was to be made of."""

    loss: Tensor | None  # 0-d
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor | None]


class BadNumberError(UserError):
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

    def at(self, step: int) -> BadNumberError:
        """This error with its step; another object, as gin hands on a proxy of what passes through it."""
        return BadNumberError(self.update, self.finding, self.remedy, self.batch, step)

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


def find(agent: Any, batch: Batch, looks: Sequence[Look]) -> tuple[str, str]:
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
