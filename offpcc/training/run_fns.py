"""`train`: the loop of environment steps, updates and test episodes, online and offline."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import gin

from offpcc.algorithms import ActorCritic
from offpcc.config.synonyms import CALLBACK_METHODS
from offpcc.config.validation import (
    NonnegativeInteger,
    NonnegativeSize,
    Number,
    NumEnvs,
    PositiveInteger,
    at_least,
    check_arguments,
    format_value,
    rules_of,
)
from offpcc.core import Algorithm, Buffer
from offpcc.training.evaluation import Evaluation
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import Logger, Loggers
from offpcc.training.metrics import (
    EXPLORING,
    SKIPPED,
    Clock,
    Loop,
    columns,
    report_skipped_updates,
    summarize_episodes,
    warn_no_updates,
)
from offpcc.utils import signals
from offpcc.utils.errors import UserError, format_error, print_to_stderr, warn_of_data

ALMOST_ONE = 1.0 - 1e-6  # an update is due from here on; as floats, ten times 0.1 adds up to less than one

TD_ERROR = "td_error"  # |Q - y|, (B, T, 1), among the statistics of an update with importance weights

MOST_UPDATES = 10_000  # per environment step; published methods use some tens at most
UpdatesPerStep = Annotated[float, at_least(0.0, MOST_UPDATES)]


class Run(NamedTuple):
    """The parts of a run that callbacks receive."""

    algorithm: Algorithm
    buffer: Buffer
    interaction: Interaction | None
    tests: Evaluation | None
    loop: Loop
    error: Exception | None = None  # what an earlier callback raised at the end of this epoch


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
        is_called = any(name in vars(cls) for name in METHODS)  # others may be helpers of these
        for name, ours in CALLBACK_METHODS.items():
            if name in vars(cls) and not is_called:
                raise UserError(
                    f"{cls.__name__} has the method {name}, which offpcc never calls; in offpcc that is {ours}"
                )

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
        """Called after the last update."""


def callback_columns(callbacks: Iterable[Callback]) -> list[str]:
    """Return the columns of a run's table that these callbacks fill.

    Raises:
        UserError: a name cannot be that of a column, or two callbacks have one name.
    """
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


def _values_of(callback: Callback, run: Run) -> dict[str, float | None]:
    """Return the values of a callback for an epoch's row, by column.

    Raises:
        UserError: a name is not in its `stat_names`, or a value is no number.
    """
    values = dict[str, float | None]()
    owner, returned = f"{type(callback).__name__}.statistics", callback.statistics(run)
    if not isinstance(returned, Mapping):
        raise UserError(f"{owner} returned {format_value(returned)}; return a dict of numbers by name")
    for name, value in returned.items():
        if name not in callback.stat_names:
            raise UserError(f"{owner} returned {name!r}, which its stat_names lacks; add it there")
        try:
            values[f"callback/{name}"] = None if value is None else float(value)
        except (TypeError, ValueError) as error:
            raise UserError(f"{owner} returned {format_value(value)} for {name!r}; return a number or None") from error
    return values


class EpochCallback(Callback):
    """Callback that calls a function at the end of each epoch.

    Args:
        function: gets the `Run`.
    """

    def __init__(self, function: Callable[[Run], Any]) -> None:
        self.function = function

    def on_epoch(self, run: Run) -> Any:
        """Call the function, and return its result."""
        return self.function(run)


AnyCallback = Callback | Callable[[], Callback] | Callable[[Run], Any]


def as_callback(given: Any, owner: str = "callbacks") -> Callback:
    """Return a callback: an object as it is, and a class or a partial of one as an object, built without arguments.

    Any other function becomes a callback that calls it with the run at the end of each epoch.

    Args:
        given: one of these.
        owner: what gave it, for messages.

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
    return EpochCallback(given)


@gin.configurable(  # type: ignore[untyped-decorator]
    denylist=["algorithm", "buffer", "interaction", "tests", "logger", "callbacks", "loop"]
)
def train(
    algorithm: Algorithm,
    buffer: Buffer,
    interaction: Interaction | None,
    tests: Evaluation | None,
    logger: Logger,
    callbacks: Sequence[AnyCallback] = (),
    loop: Loop | None = None,
    *,
    num_epochs: NonnegativeInteger = gin.REQUIRED,
    num_steps_per_epoch: PositiveInteger = 1_000,
    num_test_episodes_per_epoch: NonnegativeSize = 10,
    num_test_envs: NumEnvs = 10,
    update_after: NonnegativeInteger = 10_000,
    update_every: PositiveInteger = 1,
    updates_per_step: UpdatesPerStep = 1.0,
    stop_return: Number | None = None,
    stop_tests: PositiveInteger = 1,
) -> Loop:
    """Train until `num_epochs` epochs are done or `stop_tests` tests in a row reach `stop_return`.

    With a dataset, updates follow each step. A memoryless agent in an environment does its updates every `update_every`
    steps. An agent with memory does the pending updates when an episode ends, so its networks never change within an
    episode. With several parallel environments, it does them when any episode ends. The other episodes continue with
    the new networks and the old hidden states (as in R2D2, Kapturowski et al. 2019). Updates that are pending at the
    end of the run are done then. Each step of each environment counts as one environment step. An epoch ends with the
    first parallel step that completes it.

    In the online phase of a run with recorded data (`Loop.switch_step`), `update_after` counts from the switch, and
    `OfflineToOnline` gives it and the numbers of updates. The policy acts in these steps, too, if it has learned from
    the data. A run that begins with the online phase explores at random.

    Args:
        algorithm: the agent that learns and acts.
        buffer: the buffer to sample from; `interaction` adds transitions to it.
        interaction: takes the environment steps; None to learn only from the buffer.
        tests: the test episodes at each epoch's end; None for no tests.
        logger: receives one row per epoch. Its exceptions are reported once and do not end the run; see `Logger`.
        callbacks: callbacks, called in this order. Each is an object; a class, which is built without arguments; or a
            function of the `Run`, which is called at the end of each epoch, after its row was logged:
            ``lambda run: print(run.loop.rows[-1])``.
        loop: the state to start from, in order to continue a run.
        num_epochs: total number of epochs; with `then_env_steps`, those of the recorded data alone. Then 0 is allowed:
            the run begins in the environment at once, and part of each batch is recorded, as in RLPD.
        num_steps_per_epoch: environment steps per epoch.
        num_test_episodes_per_epoch: test episodes per epoch.
        num_test_envs: number of parallel test episodes.
        update_after: environment steps of random exploration, before the policy acts and updates start. A run with no
            more steps than this learns nothing.
        update_every: environment steps between two rounds of updates. An agent with memory has one round per episode.
        updates_per_step: updates per environment step; may be a fraction.
        stop_return: mean test return at which to stop; None to never stop early.
        stop_tests: number of tests in a row that have to reach `stop_return`.

    Returns:
        The state of the loop at the end.

    Raises:
        UserError: a setting is invalid, a test episode or an episode of an agent with memory does not end, or all
            updates of an epoch were skipped.
        Interrupted: the user stopped the run; `loop` and the parts can be saved and resumed.
    """
    check_settings(
        num_epochs=num_epochs,
        num_steps_per_epoch=num_steps_per_epoch,
        num_test_episodes_per_epoch=num_test_episodes_per_epoch,
        num_test_envs=num_test_envs,
        update_after=update_after,
        update_every=update_every,
        updates_per_step=updates_per_step,
        stop_return=stop_return,
        stop_tests=stop_tests,
    )
    check_num_envs(interaction, num_steps_per_epoch)
    loop, logger = loop or Loop(), Loggers([logger])
    check_num_epochs(num_epochs, goes_online=loop.switch_step is not None)
    start = loop.switch_step or 0
    num_steps_in_all = (num_epochs - loop.switch_epoch) * num_steps_per_epoch
    if isinstance(algorithm, ActorCritic):
        plan = interaction, num_steps_in_all, update_after, updates_per_step
        if warning := explain_no_updates(*plan) or algorithm.updates_warning(planned_updates(*plan)):
            warn_of_data(warning)
    called = [as_callback(given) for given in callbacks]
    callback_columns(called)  # raises
    ignored: list[Callback] = []  # those that returned False
    run = Run(algorithm, buffer, interaction, tests, loop)
    clock = Clock(loop, start + num_steps_in_all, updates_per_step, logger)
    for callback in called:
        callback.on_start(run)

    def take_step() -> None:
        waiting = interaction is not None and loop.step - start < update_after
        exploring = waiting and not loop.switch_step  # the policy is untrained: no step was taken before the switch
        num_steps = interaction.step(exploring) if interaction else 1
        loop.step += num_steps
        loop.pending_updates += updates_per_step * num_steps * (not waiting)
        round_ends = loop.step // update_every > (loop.step - num_steps) // update_every
        loop.updating = interaction is None or bool(round_ends if algorithm.memoryless else interaction.over.any())
        clock.report(EXPLORING if exploring else "learning")
        if loop.updating:
            begin_round()

    def begin_round() -> None:
        """Call `before_updates` once a round: in the iteration that starts it, so also in a run that resumes within."""
        if loop.pending_updates >= ALMOST_ONE and len(buffer):
            for callback in called:
                callback.before_updates(run)

    def update() -> None:
        batch = buffer.sample()
        stats = dict(algorithm.update_networks(batch))
        if batch.weights is not None:
            td_error = stats.pop(TD_ERROR, None)  # not a number, but one for each step
            if td_error is None:
                raise UserError(
                    f"{type(buffer).__name__} draws by TD errors, but an update of {type(algorithm).__name__} gives "
                    f"none; leave build.buffer_class out, or choose an algorithm such as sac or td3"
                )
            skipped = stats.get(SKIPPED)
            if skipped is None or skipped.device.type != "cpu" or not skipped:  # a GPU is not waited for
                buffer.update_priorities(batch, td_error)
        loop.stats.add(stats)
        loop.pending_updates -= 1.0
        loop.num_updates += 1
        clock.report("learning")

    def end_epoch() -> None:
        report_skipped_updates(loop.stats, loop.epoch + 1, type(algorithm).__name__)
        of_callbacks = [_values_of(callback, run) for callback in called]  # the user's code comes first: it may raise
        clock.report("testing", now=True)
        # Tests come first and change no state of the loop: a run that stops here repeats them after a resume.
        tested = tests.run(algorithm, num_test_episodes_per_epoch, num_test_envs) if tests else []
        if interaction is not None and not algorithm.memoryless and interaction.over.any():
            loop.updating = True  # a test in the training environment truncated its episode
            begin_round()
        loop.epoch += 1
        values: dict[str, float | None] = {
            "step": loop.step,
            "update": loop.num_updates,
            "epoch": loop.epoch,
            "env_step": None if loop.switch_step is None else loop.step - start,
            **summarize_episodes("train", interaction.take_finished() if interaction else []),
            **summarize_episodes("test", tested, tests.references if tests else None),
            **{f"update/{name}": value for name, value in loop.stats.means().items()},
            **clock.row(),
        }
        for found in of_callbacks:
            values |= found
        if interaction is not None:
            values["train/dropped_episodes"] = interaction.num_dropped
        names = columns_of(algorithm, tests, interaction, goes_online=loop.switch_step is not None)
        names += callback_columns(called)
        row: dict[str, float | None] = {name: values.get(name) for name in names}
        lost = [name.removeprefix("update/") for name in values if name.startswith("update/") and name not in names]
        if lost and loop.epoch == 1:
            print_to_stderr(
                f"{type(algorithm).__name__} returns the statistics {', '.join(lost)}, which its stat_names lacks, so "
                f"they are in no table; add them there"
            )
        tested_return = row["test/return"]
        if tested_return is not None:
            better = loop.best_return is None or tested_return > loop.best_return
            loop.is_best = better and not math.isnan(tested_return)
            loop.best_return = tested_return if loop.is_best else loop.best_return
        clock.latest(row)
        loop.rows.append(row)
        loop.stopped = loop.stopped or (stop_return is not None and loop.last_tests_reach(stop_return, stop_tests))
        logger.epoch(row)
        call_on_epoch()

    def call_on_epoch() -> None:
        """Call all callbacks, also if one raises, because one of them saves the run; then raise its exception."""
        error: Exception | None = None
        for callback in called:
            on_epoch: Callable[[Run], Any] = callback.on_epoch
            try:
                if on_epoch(run._replace(error=error)) is False and callback not in ignored:
                    ignored.append(callback)
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

    # All state is in `loop`, so a run can stop and resume after any iteration. The exceptions are the updates at the
    # end of the run: they change networks within an episode, and a run that is resumed with more epochs must not have
    # them.
    in_last_round = False
    while True:
        signals.poll()
        is_last = loop.epoch >= num_epochs or loop.stopped
        if is_last and not (loop.updating or in_last_round):
            in_last_round = True
            begin_round()
        is_due = (loop.updating or is_last) and loop.pending_updates >= ALMOST_ONE
        if is_due and len(buffer):  # the buffer is empty before the first episode ends
            update()
        elif is_last:
            break
        elif loop.step - start >= (loop.epoch - loop.switch_epoch + 1) * num_steps_per_epoch:
            end_epoch()
        else:
            take_step()
        if is_last:  # no checkpoint here: a resume with more epochs starts before these updates
            continue
        for callback in called:
            callback.on_progress(run)
    report_skipped_updates(loop.stats, None, type(algorithm).__name__)
    if interaction is not None and not loop.num_updates:
        warn_no_updates(loop, update_after, updates_per_step, has_data=len(buffer) > 0)
    for callback in called:
        callback.on_end(run)
    return loop


TRAIN_SETTINGS = [name for name, one in inspect.signature(train).parameters.items() if one.kind is one.KEYWORD_ONLY]


def check_settings(**settings: Any) -> None:
    """Validate settings of `train`.

    Raises:
        UserError: a setting is invalid; the message names the first.
    """
    check_arguments("train", rules_of(train), settings)


def check_num_epochs(num_epochs: int | None, goes_online: bool) -> None:
    """Raise if a run has no epoch at all.

    Args:
        num_epochs: the epochs before the online phase, or of a run without one; None if they are not known.
        goes_online: whether there is an online phase.

    Raises:
        UserError: there is none.
    """
    if num_epochs == 0 and num_epochs is not False and not goes_online:
        raise UserError(
            "train.num_epochs is 0, so the run would learn nothing; raise it, or give recorded data, an environment "
            "and --then_env_steps: the run then begins in the environment at once"
        )


def check_num_envs(interaction: Interaction | None, num_steps_per_epoch: int) -> None:
    """Raise if there are more environments than steps per epoch.

    Raises:
        UserError: there are more.
    """
    if interaction is not None and interaction.num_envs > num_steps_per_epoch:
        raise UserError(
            f"environments.num_envs is {interaction.num_envs}, more than the {num_steps_per_epoch} steps of an epoch; "
            f"raise train.num_steps_per_epoch"
        )


def explain_no_updates(
    interaction: Interaction | None, num_steps: int, update_after: int, updates_per_step: float
) -> str:
    """Return a warning if a run in environments ends before its first update, else "".

    Args:
        interaction: takes the steps; None for learning from a dataset, where updates start at once.
        num_steps: environment steps of the whole run.
        update_after: see `train`.
        updates_per_step: see `train`; with 0 there is no warning.
    """
    if interaction is None or not updates_per_step or update_after < num_steps:
        return ""
    return (
        f"no update will be made: train.update_after is {update_after:,}, and the run ends after {num_steps:,} steps; "
        f"raise train.num_epochs, or lower train.update_after"
    )


def planned_updates(
    interaction: Interaction | None, num_steps: int, update_after: int, updates_per_step: float
) -> float:
    """Return the number of updates of a full run; for the arguments see `explain_no_updates`."""
    return updates_per_step * max(num_steps - (update_after if interaction else 0), 0)


def columns_of(
    algorithm: Algorithm,
    tests: Evaluation | None,
    interaction: Interaction | None = None,
    goes_online: bool = False,
) -> list[str]:
    """Return the columns of a run's table."""
    return columns(
        (*algorithm.stat_names, *getattr(algorithm, "model_stats", ())),
        goes_online=goes_online,
        scored=tests is not None and tests.references is not None,
        dropping=interaction is not None and interaction.environments.loses_episodes,
    )


def unused_train_parameters(
    algorithm: Algorithm, interaction: Interaction | None, tests: Evaluation | None, settings: Mapping[str, Any]
) -> dict[str, str]:
    """Return the settings of `train` that have no effect on this run, with the reasons."""
    reasons = {} if algorithm.memoryless else {"update_every": "an agent with memory learns when an episode ends"}
    if interaction is None:
        reasons = dict.fromkeys(("update_after", "update_every"), "the agent learns from recorded data")
    if tests is None:
        reasons["num_test_episodes_per_epoch"] = "there is no environment to test in"
    if tests is None or settings["num_test_episodes_per_epoch"] == 0:
        reasons |= dict.fromkeys(("num_test_envs", "stop_return", "stop_tests"), "there are no test episodes")
    elif settings["stop_return"] is None:
        reasons["stop_tests"] = "train.stop_return is None"
    return reasons
