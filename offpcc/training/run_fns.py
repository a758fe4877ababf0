"""`train`: the loop of environment steps, updates and test episodes, online and offline."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import gin
from torch import Tensor

from offpcc.algorithms import ActorCritic
from offpcc.config.validation import (
    NonnegativeInteger,
    NonnegativeSize,
    Number,
    NumEnvs,
    PositiveInteger,
    at_least,
    check_arguments,
    rules_of,
)
from offpcc.core import Algorithm, Batch, Buffer
from offpcc.training.callbacks import (
    AnyCallback,
    Callback,
    Run,
    as_callback,
    call_at_end,
    callback_columns,
    statistics_of,
)
from offpcc.training.evaluation import Evaluation
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import Logger, Loggers
from offpcc.training.metrics import (
    EXPLORING,
    SKIPPED,
    SUCCESS_RATE,
    Clock,
    Loop,
    report_skipped_updates,
    summarize_episodes,
    warn_no_updates,
)
from offpcc.utils import signals
from offpcc.utils.errors import UserError, print_to_stderr, warn_of_data

ALMOST_ONE = 1.0 - 1e-6  # an update is due from here on; as floats, ten times 0.1 adds up to less than one

TD_ERROR = "td_error"  # |Q - y|, (B, T, 1), among the statistics of an update with importance weights

MOST_UPDATES = 10_000  # per environment step; published methods use some tens at most
UpdatesPerStep = Annotated[float, at_least(0.0, MOST_UPDATES)]


@gin.configurable(  # type: ignore[untyped-decorator]
    denylist=["algorithm", "buffer", "interaction", "tests", "logger", "callbacks", "loop", "folder"]
)
def train(
    algorithm: Algorithm,
    buffer: Buffer,
    interaction: Interaction | None,
    tests: Evaluation | None,
    logger: Logger,
    callbacks: Sequence[AnyCallback] = (),
    loop: Loop | None = None,
    folder: Path | None = None,
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
        folder: the run's folder, for callbacks.
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
        warn_of_data(explain_no_updates(*plan) or algorithm.updates_warning(planned_updates(*plan)))
    called = [as_callback(one) for one in callbacks]
    own_columns = callback_columns(called)
    told = set[str]()  # names of values that are reported if they have no column
    returned_false = list[Callback]()  # callbacks that are told that this has no effect
    run = Run(algorithm, buffer, interaction, tests, loop, folder=folder)
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
            update_priorities(algorithm, buffer, batch, stats)
        loop.stats.add(stats)
        loop.pending_updates -= 1.0
        loop.num_updates += 1
        clock.report("learning")

    def end_epoch() -> None:
        report_skipped_updates(loop.stats, loop.epoch + 1, type(algorithm).__name__)
        of_callbacks = statistics_of(called, run)  # the user's code comes first: it may raise
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
            **of_callbacks,
        }
        if interaction is not None:
            values["train/dropped_episodes"] = interaction.num_dropped
        succeeds = SUCCESS_RATE in values or any(SUCCESS_RATE in earlier for earlier in loop.rows)
        if succeeds and tested:
            values.setdefault(SUCCESS_RATE, 0.0)  # the environment tells only successes
        names = columns_of(algorithm, tests, interaction, loop.switch_step is not None, succeeds) + own_columns
        row: dict[str, float | None] = {name: values.get(name) for name in names}
        report_unnamed_stats(algorithm, [name for name in values if name not in {*names, *told}])
        told.update(values)
        loop.note_test(row["test/return"])
        clock.latest(row)
        loop.rows.append(row)
        loop.stopped = loop.stopped or (stop_return is not None and loop.last_tests_reach(stop_return, stop_tests))
        logger.epoch(row)
        call_at_end(called, "on_epoch", run, returned_false)

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
    call_at_end(called, "on_end", run, returned_false)
    return loop


def update_priorities(algorithm: Algorithm, buffer: Buffer, batch: Batch, stats: dict[str, Tensor]) -> None:
    """Give the buffer the TD errors of its batch, and remove them from `stats`; those of a skipped update do not count.

    Raises:
        UserError: the algorithm gave none.
    """
    td_error = stats.pop(TD_ERROR, None)  # not a number, but one for each step
    if td_error is None:
        raise no_td_errors(buffer, algorithm)
    skipped = stats.get(SKIPPED)
    if skipped is None or skipped.device.type != "cpu" or not skipped:  # a GPU is not waited for
        buffer.update_priorities(batch, td_error)


def no_td_errors(buffer: Buffer, algorithm: Algorithm) -> UserError:
    """Return the error for a prioritised buffer whose algorithm gives no TD errors."""
    return UserError(
        f"{type(buffer).__name__} draws by TD errors, but an update of {type(algorithm).__name__} gives none; "
        f"leave build.buffer_class out, or choose an algorithm such as sac or td3"
    )


def report_unnamed_stats(algorithm: Algorithm, names: Iterable[str]) -> None:
    """Print which of these names are statistics of updates that are in no table, as `stat_names` lacks them."""
    prefix = "update/"
    if lost := [name.removeprefix(prefix) for name in names if name.startswith(prefix)]:
        print_to_stderr(
            f"{type(algorithm).__name__} returns the statistics {', '.join(lost)}, which its stat_names lacks, so "
            f"they are in no table; add them there"
        )


TRAIN_SETTINGS = [name for name, one in inspect.signature(train).parameters.items() if one.kind is one.KEYWORD_ONLY]


def check_settings(**settings: Any) -> None:
    """Validate settings of `train`."""
    check_arguments("train", rules_of(train), settings)


def check_num_epochs(num_epochs: int | None, goes_online: bool) -> None:
    """Raise if a run has no epoch at all, neither before its online phase nor in it.

    `num_epochs` are those before it, or those of a run without one; None if they are not known.
    """
    if num_epochs == 0 and num_epochs is not False and not goes_online:
        raise UserError(
            "train.num_epochs is 0, so the run would learn nothing; raise it, or give recorded data, an environment "
            "and --then_env_steps: the run then begins in the environment at once"
        )


def check_num_envs(interaction: Interaction | None, num_steps_per_epoch: int) -> None:
    """Raise if there are more environments than steps per epoch."""
    if interaction is not None and interaction.num_envs > num_steps_per_epoch:
        raise UserError(
            f"environments.num_envs is {interaction.num_envs}, more than the {num_steps_per_epoch} steps of an epoch; "
            f"raise train.num_steps_per_epoch"
        )


def explain_no_updates(
    interaction: Interaction | None, num_steps: int, update_after: int, updates_per_step: float
) -> str:
    """Return a warning if a run in environments, of `num_steps` steps, ends before its first update, else "".

    There is none without an interaction, where updates start at once, or without updates. See `train` for the settings.
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
    """Return the number of updates of a full run; see `train` for the settings."""
    return updates_per_step * max(num_steps - (update_after if interaction else 0), 0)


def columns_of(
    algorithm: Algorithm,
    tests: Evaluation | None,
    interaction: Interaction | None = None,
    goes_online: bool = False,
    succeeds: bool = False,
) -> list[str]:
    """Return the columns of a run's table. All but the rate of successes are known before the run starts.

    If learning goes on in an environment, ``env_step`` is the number of steps since the switch, and empty before it.
    `succeeds` is whether test episodes tell that they were a success.
    """
    optional = {
        "env_step": goes_online,
        "train/dropped_episodes": interaction is not None and interaction.environments.loses_episodes,
        "test/normalized_score": tests is not None and tests.references is not None,
        SUCCESS_RATE: succeeds,
    }
    names = [
        *("step", "update", "epoch", "env_step"),
        *("train/return", "train/length", "train/dropped_episodes"),
        *("test/return", "test/return_std", "test/normalized_score", "test/length", SUCCESS_RATE),
        *(f"update/{name}" for name in (*algorithm.stat_names, *getattr(algorithm, "model_stats", ()))),
        *("time/hours", "time/steps_per_second"),
    ]
    return [name for name in names if optional.get(name, True)]


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
