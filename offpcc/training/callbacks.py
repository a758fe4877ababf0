"""Callbacks of the training loop: the base class, and how the loop calls those of a run."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from offpcc.config.synonyms import CALLBACK_METHODS, refuse_uncalled
from offpcc.config.validation import format_value
from offpcc.core import Algorithm, Buffer
from offpcc.training.evaluation import Evaluation
from offpcc.training.interaction import Interaction
from offpcc.training.metrics import Loop
from offpcc.utils.errors import UserError, format_error, print_to_stderr


class Run(NamedTuple):
    """The parts of a run that callbacks receive."""

    algorithm: Algorithm  # with its networks; `offpcc.Agent(run.algorithm)` acts
    buffer: Buffer  # `len` is its number of transitions, or of episodes for agents with memory
    interaction: Interaction | None  # the environments; None while the run learns from recorded data
    tests: Evaluation | None  # the test episodes; None without an environment
    loop: Loop  # counters, and the rows of the table
    error: Exception | None = None  # what an earlier callback raised at this end of an epoch, or of the training
    folder: Path | None = None  # the run's folder; None without one, as in `learner.train`


NAME = re.compile(r"[^,\s]+")  # of a column
METHODS = ("on_start", "before_updates", "on_progress", "on_epoch", "on_end", "statistics")  # of a callback


class Callback:
    """Base class of callbacks of the training loop; each method does nothing unless a subclass overrides it.

    Anything that a callback learns has to resume exactly, too. Keep it in the algorithm, whose modules and optimizers a
    checkpoint holds. The class of the algorithm creates them in `__init__`: a checkpoint is loaded before `on_start`,
    and refused if the algorithm lacks a part that was saved.

    ``run.loop.stopped = True`` in `on_epoch` or `on_progress` ends the training, as `stop_return` does. A callback that
    decides this from `run.loop.rows`, which a checkpoint holds, decides the same after a resume.

    Attributes:
        stat_names: names of the values that `statistics` returns. They are columns of the run's table, named
            ``callback/NAME``, which are fixed before the run starts. TensorBoard and Weights & Biases get them, too.
            The callbacks of a run need different names.
    """

    stat_names: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse methods of callbacks in other libraries, which nothing would call."""
        super().__init_subclass__(**kwargs)
        refuse_uncalled(cls, Callback, METHODS, CALLBACK_METHODS)

    def statistics(self, run: Run) -> Mapping[str, float | None]:
        """Return values for the row of the epoch that ends now, by the names in `stat_names`; None for no value.

        It is called before the test episodes of the epoch.
        """
        return {}

    def on_start(self, run: Run) -> None:
        """Called before the first step, when gin has recorded all parameters that the run uses."""

    def before_updates(self, run: Run) -> None:
        """Called before each round of updates (see `train`), for example to fit a model to `run.buffer`."""

    def on_progress(self, run: Run) -> None:
        """Called after each step, update and epoch at which a checkpoint may be written; must be cheap."""

    def on_epoch(self, run: Run) -> None:
        """Called at the end of each epoch, after its row was logged.

        If it raises, the other callbacks are still called, and `offpcc.fit` saves the run. A resumed run begins with
        the next epoch.
        """

    def on_end(self, run: Run) -> None:
        """Called after the last update; if it raises, the other callbacks are still called, and the run is saved."""


def callback_columns(callbacks: Iterable[Callback]) -> list[str]:
    """Return the columns of a run's table that these callbacks fill."""
    owners = dict[str, str]()
    for callback in callbacks:
        owner, names = type(callback).__name__, callback.stat_names
        are_names = isinstance(names, list | tuple) and all(isinstance(one, str) for one in names)
        if not are_names or not all(map(NAME.fullmatch, names)):
            raise UserError(
                f"{owner}.stat_names is {format_value(names)}; it has to be a tuple of names without commas, such as "
                f'("energy",)'
            )
        for name in names:
            if name in owners:
                raise UserError(f"{owners[name]} and {owner} both have a value {name!r}; rename one in its stat_names")
            owners[name] = owner
    return [f"callback/{name}" for name in owners]


def statistics_of(callbacks: Iterable[Callback], run: Run) -> dict[str, float | None]:
    """Return the values of all `statistics`, by column.

    Raises:
        UserError: a name is not in the `stat_names` of its callback, or a value is no number.
    """
    values = dict[str, float | None]()
    for callback in callbacks:
        owner, returned = f"{type(callback).__name__}.statistics", callback.statistics(run)
        if not isinstance(returned, Mapping):
            raise UserError(f"{owner} returned {format_value(returned)}; return a dict of numbers by name")
        for name, value in returned.items():
            if name not in callback.stat_names:
                raise UserError(f"{owner} returned {name!r}, which its stat_names lacks; add it there")
            try:
                values[f"callback/{name}"] = None if value is None else float(value)
            except (TypeError, ValueError) as error:
                raise UserError(
                    f"{owner} returned {format_value(value)} for {name!r}; return a number or None"
                ) from error
    return values


class EpochCallback(Callback):
    """Callback that calls a function of the run at the end of each epoch."""

    def __init__(self, function: Callable[[Run], Any]) -> None:
        self.function = function

    def on_epoch(self, run: Run) -> Any:
        """Call the function, and return its result."""
        return self.function(run)


AnyCallback = Callback | Callable[[], Callback] | Callable[[Run], Any]


def as_callback(given: Any, owner: str = "callbacks") -> Callback:
    """Return a callback: an object as it is, and a class or a partial of one as an object, built without arguments.

    Any other function becomes a callback that calls it with the run at the end of each epoch. `owner` is what gave the
    callback, for messages.

    Raises:
        UserError: it is none of these, or the class cannot be built.
    """
    if isinstance(given, Callback):
        return given
    name = getattr(given, "__name__", format_value(given))
    if isinstance(getattr(given, "func", given), type):  # a class, or a partial of one
        try:
            given = given()
        except Exception as error:  # of the user's code
            raise UserError(
                f"{owner}: {name} cannot be built: {format_error(error)}; correct it, or give an object"
            ) from error
        if not isinstance(given, Callback):
            raise UserError(f"{owner} has {name}, which is no callback; derive it from Callback, or remove it")
        return given
    if not callable(given):
        raise UserError(f"{owner} has {name}, which is no callback; give a function of a run, or derive from Callback")
    with contextlib.suppress(ValueError):  # a function in C may have no signature
        try:
            inspect.signature(given).bind(None)
        except TypeError as error:
            raise UserError(f"{owner}: {name} is called with the run: {error}; give it one argument") from error
    return EpochCallback(given)


def call_at_end(callbacks: Iterable[Callback], method: str, run: Run, returned_false: list[Callback]) -> None:
    """Call `on_epoch` or `on_end` of all, even if one raises, because one of them saves the run; then raise that error.

    A callback whose `on_epoch` returns False gets a message once; `returned_false` are those that had theirs.
    """
    error: Exception | None = None
    for callback in callbacks:
        try:
            returned = getattr(callback, method)(run._replace(error=error))
            if returned is False and method == "on_epoch" and callback not in returned_false:
                returned_false.append(callback)
                of = getattr(callback, "function", callback)
                print_to_stderr(
                    f"the callback {getattr(of, '__name__', type(of).__name__)} returned False, which has no "
                    f"effect; to end the training, it has to set run.loop.stopped = True"
                )
        except Exception as raised:
            if error is None:
                error = raised
            else:
                error.add_note(f"another callback raised, too: {format_error(raised)}")
    if error is not None:
        raise error
