"""`train`: the loop of interaction, updates and test episodes, online and offline."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

import gin

from offpcc.algorithms import ActorCritic
from offpcc.config.validation import (
    NonnegativeInteger,
    NonnegativeSize,
    Number,
    NumEnvs,
    PositiveInteger,
    at_least,
    check,
    rules_of,
)
from offpcc.core import Algorithm, Buffer
from offpcc.training.evaluation import Evaluation
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import Logger, Loggers
from offpcc.training.metrics import EXPLORING, Clock, Loop, columns, report_skipped_updates, summary, warn_no_updates
from offpcc.utils import signals
from offpcc.utils.errors import DataWarning, UserError

ALMOST_ONE = 1.0 - 1e-6  # an update that is due: ten times 0.1, as floats add up, is a little less than one

MOST_UPDATES = 10_000  # a step; the most that the field makes are some tens
UpdatesPerStep = Annotated[float, at_least(0.0, MOST_UPDATES)]


class Run(NamedTuple):
    """What callbacks get to see."""

    algorithm: Algorithm
    buffer: Buffer
    interaction: Interaction | None
    tests: Evaluation | None
    loop: Loop


class Callback(Protocol):
    """Something that happens beside the loop."""

    def on_start(self, run: Run) -> None:
        """Called before the first step, when gin knows all that the run uses."""
        ...

    def on_progress(self, run: Run) -> None:
        """Called after each step, update and epoch of which a checkpoint could be taken; it has to be cheap."""
        ...

    def on_epoch(self, run: Run) -> None:
        """Called at each epoch's end, after its row has been logged."""
        ...

    def on_end(self, run: Run) -> None:
        """Called after the last update."""
        ...


@gin.configurable(  # type: ignore[untyped-decorator]
    denylist=["algorithm", "buffer", "interaction", "tests", "logger", "callbacks", "loop"]
)
def train(
    algorithm: Algorithm,
    buffer: Buffer,
    interaction: Interaction | None,
    tests: Evaluation | None,
    logger: Logger,
    callbacks: Sequence[Callback] = (),
    loop: Loop | None = None,
    *,
    num_epochs: PositiveInteger = gin.REQUIRED,
    num_steps_per_epoch: PositiveInteger = 1_000,
    num_test_episodes_per_epoch: NonnegativeSize = 10,
    num_test_envs: NumEnvs = 10,
    update_after: NonnegativeInteger = 10_000,
    update_every: PositiveInteger = 1,
    updates_per_step: UpdatesPerStep = 1.0,
    stop_return: Number | None = None,
) -> Loop:
    """Train until `num_epochs` have ended, or a test reaches `stop_return`.

    From recorded data, each step makes the updates that it owes. A memoryless agent in an environment makes its updates
    every `update_every` steps. One with memory makes those it owes when its episode ends, so that its networks never
    change in mid-episode, and what is owed at the end is paid. With several environments side by side, it does so when
    any of their episodes ends; the others go on with the new networks and the old memory (as in R2D2, Kapturowski et
    al. 2019). Each step of each environment counts, and an epoch ends with the first step of all of them that
    completes it.

    Args:
        algorithm: learns and acts.
        buffer: is pushed to by `interaction` and sampled from.
        interaction: takes the steps; None to learn from the buffer alone.
        tests: run at each epoch's end; None for no tests.
        logger: gets one row per epoch; what it raises is reported once and does not end the run, see `Logger`.
        callbacks: called in this order.
        loop: where to start; continues a run.
        num_epochs: to end with, in all.
        num_steps_per_epoch: environment steps.
        num_test_episodes_per_epoch: episodes.
        num_test_envs: test episodes that run side by side.
        update_after: environment steps of random exploration before the policy acts and updates begin; a run
            of no more learns nothing.
        update_every: environment steps between two rounds of updates; an agent with memory has a round per episode.
        updates_per_step: updates per environment step; may be a fraction.
        stop_return: mean test return that is good enough, if any.

    Returns:
        Where the loop stands at its end.

    Raises:
        UserError: a setting makes no sense, a test episode or one of an agent with memory does not end, or all of an
            epoch's updates were skipped.
        Interrupted: the command line was asked to stop; `loop` and the parts are where they can be gone on with.
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
    )
    check_num_envs(interaction, num_steps_per_epoch)
    if isinstance(algorithm, ActorCritic):
        planned = planned_updates(interaction, num_epochs * num_steps_per_epoch, update_after, updates_per_step)
        if told := algorithm.about_updates(planned):
            warnings.warn(told, DataWarning, stacklevel=2)
    loop, logger = loop or Loop(), Loggers([logger])
    run = Run(algorithm, buffer, interaction, tests, loop)
    clock = Clock(loop, num_epochs * num_steps_per_epoch, updates_per_step, logger)
    for callback in callbacks:
        callback.on_start(run)

    def take_step() -> None:
        exploring = interaction is not None and loop.step < update_after
        num_steps = interaction.step(exploring) if interaction else 1
        loop.step += num_steps
        loop.pending_updates += updates_per_step * num_steps * (not exploring)
        round_ends = loop.step // update_every > (loop.step - num_steps) // update_every
        loop.updating = interaction is None or bool(round_ends if algorithm.memoryless else interaction.over.any())
        clock.report(EXPLORING if exploring else "learning")

    def update() -> None:
        loop.stats.add(algorithm.update_networks(buffer.sample()))
        loop.pending_updates -= 1.0
        loop.num_updates += 1
        clock.report("learning")

    def end_epoch() -> None:
        report_skipped_updates(loop.stats, loop.epoch + 1, type(algorithm).__name__)
        clock.report("testing", now=True)
        # First, since they change nothing of the run: one that is stopped here tests anew when it goes on.
        tested = tests.run(algorithm, num_test_episodes_per_epoch, num_test_envs) if tests else []
        if interaction is not None and not algorithm.memoryless and interaction.over.any():
            loop.updating = True  # a test in the training environment has truncated its episode
        loop.epoch += 1
        told: dict[str, float | None] = {
            "step": loop.step,
            "update": loop.num_updates,
            "epoch": loop.epoch,
            **summary("train", interaction.take_finished() if interaction else []),
            **summary("test", tested, tests.references if tests else None),
            **{f"update/{name}": value for name, value in loop.stats.means().items()},
            **clock.row(),
        }
        if interaction is not None:
            told["train/dropped_episodes"] = interaction.num_dropped
        row: dict[str, float | None] = {name: told.get(name) for name in columns_of(algorithm, tests, interaction)}
        tested_return = row["test/return"]
        if tested_return is not None:
            better = loop.best_return is None or tested_return > loop.best_return
            loop.is_best = better and not math.isnan(tested_return)
            loop.best_return = tested_return if loop.is_best else loop.best_return
            loop.stopped = stop_return is not None and tested_return >= stop_return
        clock.latest(row)
        loop.rows.append(row)
        logger.epoch(row)
        for callback in callbacks:
            callback.on_epoch(run)

    # All that is under way is in `loop`, so that a run may be left at any turn of this, and gone on with. The exception
    # is what is paid at the end: it changes networks in mid-episode, and a run that is given more epochs does without.
    while True:
        signals.poll()
        is_last = loop.epoch >= num_epochs or loop.stopped
        is_due = (loop.updating or is_last) and loop.pending_updates >= ALMOST_ONE
        if is_due and len(buffer):  # before a first episode has ended there is nothing to learn from
            update()
        elif is_last:
            break
        elif loop.step >= (loop.epoch + 1) * num_steps_per_epoch:
            end_epoch()
        else:
            take_step()
        if is_last:  # what is paid now is paid in mid-episode: a run with more epochs goes on from before it
            continue
        for callback in callbacks:
            callback.on_progress(run)
    report_skipped_updates(loop.stats, None, type(algorithm).__name__)
    if interaction is not None and not loop.num_updates:
        warn_no_updates(loop, update_after, updates_per_step, has_data=len(buffer) > 0)
    for callback in callbacks:
        callback.on_end(run)
    return loop


def check_settings(**settings: Any) -> None:
    """Refuse settings of `train` that make no sense.

    Raises:
        UserError: naming the first.
    """
    check("train", rules_of(train), settings)


def check_num_envs(interaction: Interaction | None, num_steps_per_epoch: int) -> None:
    """Refuse more environments than an epoch has steps.

    Raises:
        UserError: there are.
    """
    if interaction is not None and interaction.num_envs > num_steps_per_epoch:
        raise UserError(
            f"environments.num_envs is {interaction.num_envs}, more than the {num_steps_per_epoch} steps of an epoch; "
            f"raise train.num_steps_per_epoch"
        )


def explain_no_updates(
    interaction: Interaction | None, num_steps: int, update_after: int, updates_per_step: float
) -> str:
    """What a person should know of a run in environments that ends before its first update, "" if it does not.

    Args:
        interaction: takes the steps; None to learn from recorded data, where no update waits.
        num_steps: of the whole run, in environments.
        update_after: see `train`.
        updates_per_step: see `train`; 0 wants none.
    """
    if interaction is None or not updates_per_step or update_after < num_steps:
        return ""
    return (
        f"nothing will be learned: train.update_after is {update_after:,}, and the run ends after {num_steps:,} steps; "
        f"raise train.num_epochs, or lower train.update_after"
    )


def planned_updates(
    interaction: Interaction | None, num_steps: int, update_after: int, updates_per_step: float
) -> float:
    """How many updates a run comes to, if nothing stops it; see `explain_no_updates`."""
    return updates_per_step * max(num_steps - (update_after if interaction else 0), 0)


def columns_of(algorithm: Algorithm, tests: Evaluation | None, interaction: Interaction | None = None) -> list[str]:
    """The columns of a run's table."""
    return columns(
        algorithm.stat_names,
        scored=tests is not None and tests.references is not None,
        dropping=interaction is not None and interaction.environments.loses_episodes,
    )


def unused_parameters(
    algorithm: Algorithm, interaction: Interaction | None, tests: Evaluation | None, settings: Mapping[str, Any]
) -> dict[str, str]:
    """Settings of `train` that change nothing for this run, among all of them, and why."""
    reasons = {} if algorithm.memoryless else {"update_every": "an agent with memory learns when an episode ends"}
    if interaction is None:
        reasons = dict.fromkeys(("update_after", "update_every"), "the agent learns from recorded data")
    if tests is None:
        reasons["num_test_episodes_per_epoch"] = "there is no environment to test in"
    if tests is None or settings["num_test_episodes_per_epoch"] == 0:
        reasons |= dict.fromkeys(("num_test_envs", "stop_return"), "there are no test episodes")
    return reasons
