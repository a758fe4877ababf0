import math
import re
from pathlib import Path

import numpy as np
import pytest
from exact_resume import assert_equal_runs
from gymnasium.spaces import Box
from runs import progress_rows

import offpcc
from offpcc.algorithms import SAC
from offpcc.config import loading
from offpcc.data import ReplayBuffer
from offpcc.training import checkpoint
from offpcc.training.callbacks import Callback, Run, call_at_end
from offpcc.training.checkpoint import Checkpoints, read_checkpoint
from offpcc.training.experiment import Experiment
from offpcc.training.loggers import Loggers
from offpcc.training.metrics import Loop
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import CheckpointOptions, RunSpec
from offpcc.utils.errors import UserError


class Clock:
    """Seconds that pass when they are told to."""

    now = 1_000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(checkpoint, "time", clock := Clock())
    return clock


def watched(tmp_path, loop=None, last_epoch=100, **settings):
    """A run, its checkpoints, and at which steps those were written so far."""
    spaces = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
    learner = Experiment(SAC(*spaces, hidden_dims=(4,)), ReplayBuffer(*spaces, capacity=10), None, None, loop or Loop())
    folder = RunFolder(tmp_path, "env", "sac", 1)
    folder.path.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder, learner, "", last_epoch, intervals=CheckpointOptions(**settings))
    return Run(learner.algorithm, learner.buffer, None, None, learner.loop), checkpoints


def steps_of(run, checkpoints, steps, clock=None, seconds=0.0):
    """At which of these steps a checkpoint is written."""
    written = []
    for step in steps:
        run.loop.step = step
        if clock:
            clock.now += seconds
        checkpoints.folder.checkpoint.unlink(missing_ok=True)
        checkpoints.on_progress(run)
        if checkpoints.folder.checkpoint.exists():
            assert read_checkpoint(checkpoints.folder.checkpoint)["loop"]["step"] == step
            written.append(step)
    return written


def test_by_steps_a_checkpoint_is_written_when_as_many_have_passed(tmp_path, clock):
    run, checkpoints = watched(tmp_path, every_steps=10)
    assert steps_of(run, checkpoints, [1, 9, 10, 11, 19, 23, 24, 29, 30, 55, 56]) == [10, 23, 30, 55]


def test_where_a_run_goes_on_its_steps_are_the_same(tmp_path, clock):
    run, checkpoints = watched(tmp_path, Loop(step=17), every_steps=10)
    assert steps_of(run, checkpoints, [18, 19, 20, 21]) == [20]


def test_by_minutes_a_checkpoint_is_written_when_as_many_have_passed(tmp_path, clock):
    run, checkpoints = watched(tmp_path, every_minutes=0.5)
    assert steps_of(run, checkpoints, range(1, 8), clock, 10.0) == [3, 6]


def test_the_default_is_a_minute(tmp_path, clock):
    run, checkpoints = watched(tmp_path)
    assert steps_of(run, checkpoints, range(1, 14), clock, 10.0) == [6, 12]


def test_none_of_them_leaves_the_end_alone(tmp_path, clock):
    run, checkpoints = watched(tmp_path, last_epoch=4, every_minutes=None)
    assert steps_of(run, checkpoints, range(1, 9), clock, 1e6) == []
    assert checkpoints.every_steps == math.inf
    for epoch in range(1, 5):
        run.loop.epoch = epoch
        checkpoints.on_epoch(run)
        assert checkpoints.folder.checkpoint.exists() == (epoch == 4)


@pytest.mark.parametrize("every, written", [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (None, [5])])
def test_by_epochs_a_checkpoint_is_written_at_their_ends_and_at_the_last(tmp_path, every, written):
    run, checkpoints = watched(tmp_path, last_epoch=5, every=every)
    found = []
    for epoch in range(1, 6):
        checkpoints.folder.checkpoint.unlink(missing_ok=True)
        run.loop.epoch, run.loop.step = epoch, 10 * epoch
        checkpoints.on_epoch(run)
        found += [epoch] * checkpoints.folder.checkpoint.exists()
    assert found == written


def test_a_run_that_was_good_enough_ends_with_a_checkpoint(tmp_path):
    run, checkpoints = watched(tmp_path)
    run.loop.epoch, run.loop.stopped = 3, True
    checkpoints.on_epoch(run)
    assert read_checkpoint(checkpoints.folder.checkpoint)["loop"]["stopped"]


def test_an_error_at_the_end_of_the_first_of_two_phases_is_raised_after_the_run_is_saved(tmp_path):
    run, checkpoints = watched(tmp_path, last_epoch=5)
    run.loop.epoch = 2

    class Raising(Callback):
        def on_end(self, run):
            raise ValueError("no disk")

    with pytest.raises(ValueError, match="no disk"):
        call_at_end([Raising(), checkpoints], "on_end", run, [])
    assert read_checkpoint(checkpoints.folder.checkpoint)["loop"]["epoch"] == 2
    assert checkpoints.folder.actor_last.exists()


@pytest.mark.parametrize(
    "name, value", [("every", 0), ("every_steps", 0.5), ("every_minutes", 0), ("every_minutes", "1")]
)
def test_what_makes_no_sense_is_refused(tmp_path, name, value):
    with pytest.raises(UserError, match=rf"Checkpoints\.{name} is"):
        watched(tmp_path, **{name: value})


def test_gin_says_how_often(tmp_path):
    loading.load_gin_config(None, ["Checkpoints.every=3", "Checkpoints.every_steps=500", "Checkpoints.every_minutes=2"])
    spec = RunSpec.make("pendulum-p-v0", "sac")
    _, checkpoints = watched(tmp_path, **spec.checkpoints.values())
    assert (checkpoints.every, checkpoints.every_steps, checkpoints.every_seconds) == (3, 500, 120.0)


# Values of callbacks --------------------------------------------------------------------------------------------------


class Measuring(Callback):
    stat_names = ("items", "nothing")

    def statistics(self, run):
        return {"items": len(run.buffer), "nothing": None}


TINY = {"num_epochs": 2, "num_steps_per_epoch": 20, "update_after": 10, "num_test_episodes_per_epoch": 0}


def test_values_of_callbacks_are_columns_of_the_table(tmp_path):
    spec = RunSpec.make("pendulum-v0", "sac", algorithm={"hidden_dims": (4,)}, training=TINY, results=tmp_path)
    folder = Path(offpcc.fit(spec, callbacks=[Measuring()]).folder)
    found = [(row["callback/items"], row["callback/nothing"]) for row in progress_rows(folder)]
    assert found == [("20.0", ""), ("40.0", "")]


def test_values_of_callbacks_given_where_a_learner_is_built_are_in_its_rows():
    learner = offpcc.SAC("pendulum-v0", hidden_dims=(4,), callbacks=[Measuring])
    learner.train(Loggers([]), **TINY)
    assert [row["callback/items"] for row in learner.loop.rows] == [20.0, 40.0]
    assert "callback/items" in learner.columns


@pytest.mark.parametrize(
    "values, told",
    [
        ({"other": 1.0}, "Faulty.statistics returned 'other', which its stat_names lacks; add it there"),
        ({"items": "many"}, "Faulty.statistics returned 'many' for 'items'; return a number or None"),
        (None, "Faulty.statistics returned None; return a dict of numbers by name"),
    ],
)
def test_a_wrong_value_of_a_callback_is_told(values, told):
    class Faulty(Measuring):
        def statistics(self, run):
            return values

    learner = offpcc.SAC("pendulum-v0", hidden_dims=(4,))
    with pytest.raises(UserError, match=told):
        learner.train(Loggers([]), [Faulty()], **TINY)
    assert learner.loop.epoch == len(learner.loop.rows) == 0, "the epoch has not ended"
    learner.train(Loggers([]), **TINY)
    assert learner.loop.epoch == len(learner.loop.rows) == 2


@pytest.mark.parametrize("names", ["items", ("a,b",), (3,), ("",)])
def test_names_that_cannot_be_columns_are_refused(names):
    learner = offpcc.SAC("pendulum-v0", hidden_dims=(4,))
    with pytest.raises(UserError, match=r"Wrong.stat_names is .*; it has to be a tuple of names without commas"):
        learner.train(Loggers([]), [type("Wrong", (Callback,), {"stat_names": names})()], **TINY)


def test_two_callbacks_with_one_name_are_refused(tmp_path):
    learner = offpcc.SAC("pendulum-v0", hidden_dims=(4,), callbacks=[Measuring])
    with pytest.raises(UserError, match="Measuring and Measuring both have a value 'items'; rename one"):
        learner.train(Loggers([]), [Measuring()], **TINY)


def test_a_run_resumes_with_and_without_columns_of_callbacks(tmp_path):
    given = {"algorithm": {"hidden_dims": (4,)}, "results": tmp_path}
    first, longer = (RunSpec.make("pendulum-v0", "sac", training=TINY | {"num_epochs": n}, **given) for n in (1, 2))
    offpcc.fit(first, callbacks=[Measuring()])
    folder = Path(offpcc.fit(longer, resume=True).folder)
    assert [row["callback/items"] for row in progress_rows(folder)] == ["20.0", ""]


def test_columns_of_callbacks_are_in_both_phases(pendulum_file):
    offpcc.configure(None, "OfflineToOnline.warm_up_steps = 10")
    given = {"dataset": pendulum_file, "then_env_steps": 40, "callbacks": [Measuring], "hidden_dims": (4,)}
    learner = offpcc.TD3BC("pendulum-v0", **given)
    learner.train(Loggers([]), num_epochs=2, num_steps_per_epoch=20, num_test_episodes_per_epoch=0)
    assert [row["callback/items"] is None for row in learner.loop.rows] == [False] * 4


@pytest.mark.parametrize(
    "name, ours", [("_on_step", "on_progress"), ("on_train_end", "on_end"), ("on_epcoh", "on_epoch")]
)
def test_a_method_of_another_librarys_callbacks_is_refused(name, ours):
    told = f"Theirs has the method {name}, which offpcc never calls; in offpcc that is {ours}"
    theirs = {name: lambda self: True}
    for given in (theirs, theirs | {"before_updates": lambda self, run: None}):
        with pytest.raises(UserError, match=told):
            type("Theirs", (Callback,), given)
    both = type("Both", (Callback,), theirs | {ours: lambda self, run: None})
    type("Child", (both,), theirs)
    type("Base", (Callback,), dict.fromkeys(("get_statistics", "print_progress", "finish_epoch"), lambda self: None))


# The end of a run ----------------------------------------------------------------------------------------------------


def short_run(results, **training):
    settings = TINY | {"num_epochs": 3, "num_test_episodes_per_epoch": 1, **training}
    return RunSpec.make(
        "pendulum-v0", "sac", algorithm={"hidden_dims": (4,)}, training=settings, results=results, seed=1
    )


def fit_quietly(spec, **given):
    told = []
    run = offpcc.fit(spec, announce=told.append, **given)
    return RunFolder.at(Path(run.folder)), "\n".join(told)


def stop_after(epoch):
    def stop(run):
        run.loop.stopped = run.loop.epoch == epoch

    return stop


class Stopping(Callback):
    """Ends a run within its second epoch."""

    def on_progress(self, run):
        run.loop.stopped = run.loop.step == 27


@pytest.mark.parametrize("stop, epochs", [(stop_after(2), 2), (Stopping(), 1)])
def test_a_callback_ends_a_run_which_continues_exactly(tmp_path, stop, epochs):
    whole, told = fit_quietly(short_run(tmp_path / "whole", num_epochs=4))
    assert "early" not in told
    folder, told = fit_quietly(short_run(tmp_path), callbacks=[stop])
    assert f"the run ended early, after epoch {epochs} of 3: a callback set run.loop.stopped" in told
    details = folder.details()
    assert (details["status"], details["epochs"], details["stopped"]) == ("finished", epochs, True)
    assert "run 1 is finished" in fit_quietly(short_run(tmp_path), resume=True)[1]
    folder.note(status="stopped")  # as if a signal had come after the last checkpoint
    fit_quietly(short_run(tmp_path), resume=True)
    assert folder.details()["epochs"] == epochs, "the run does not continue after its end"
    fit_quietly(short_run(tmp_path, num_epochs=4), resume=True)
    assert_equal_runs(whole.path, folder.path)


def test_a_run_says_that_it_reached_its_return(tmp_path):
    _, told = fit_quietly(short_run(tmp_path, stop_return=-1e6, stop_tests=2))
    assert "ended early, after epoch 2 of 3: the last 2 tests reached train.stop_return, which is -1e+06" in told


def test_a_run_that_reached_its_return_continues_exactly_with_another_return(tmp_path):
    whole, _ = fit_quietly(short_run(tmp_path / "whole", stop_tests=2))
    folder, _ = fit_quietly(short_run(tmp_path, stop_return=-1e6))
    assert folder.details()["epochs"] == 1
    for same in (-1e6, -1_000_000):
        assert "run 1 is finished" in fit_quietly(short_run(tmp_path, stop_return=same), resume=True)[1]
    _, told = fit_quietly(short_run(tmp_path, stop_return=-1e6, stop_tests=2), resume=True)
    assert "train.stop_tests is 2 from here on" in told and folder.details()["epochs"] == 2
    _, told = fit_quietly(short_run(tmp_path, stop_tests=2), resume=True)
    assert "train.stop_return is None from here on" in told and folder.details()["epochs"] == 3
    assert_equal_runs(whole.path, folder.path)


@pytest.mark.parametrize("ended", [True, False])
def test_a_resumed_run_whose_tests_reach_its_new_return_ends_at_once(tmp_path, ended):
    high = 1e6 if not ended else -1e6
    given = {"callbacks": [stop_after(1)]} if not ended else {}
    folder, _ = fit_quietly(short_run(tmp_path, stop_return=high), **given)
    if not ended:
        folder.note(status="stopped")  # as if a signal had come
    before = folder.progress.read_text()
    _, told = fit_quietly(short_run(tmp_path, stop_return=-2e6), resume=True)
    assert ("run 1 is finished" if ended else "after epoch 1 of 3: the last test reached train.stop_return") in told
    assert folder.progress.read_text() == before and folder.status() == "finished"
    assert "run 1 is finished" in fit_quietly(short_run(tmp_path, stop_return=-2e6), resume=True)[1]
    with pytest.raises(UserError, match=r"train.stop_return is 'low'; it has to be a number"):
        fit_quietly(short_run(tmp_path, stop_return="low"), resume=True)


def test_a_callback_that_raises_costs_no_epoch(tmp_path):
    called = []

    def fail(run):
        raise RuntimeError("no network")

    def note(run):
        called.append((run.loop.epoch, str(run.error)))

    whole, _ = fit_quietly(short_run(tmp_path / "whole"))
    with pytest.raises(RuntimeError, match="no network"):
        fit_quietly(short_run(tmp_path), callbacks=[fail, note, fail])
    folder = RunFolder(tmp_path, "pendulum-v0", "sac", 1)
    assert read_checkpoint(folder.checkpoint)["loop"]["epoch"] == 1 and folder.actor_best.is_file()
    assert called == [(1, "no network")], "the others are called"
    fit_quietly(short_run(tmp_path), resume=True, callbacks=[note])
    assert called[1:] == [(2, "None"), (3, "None")]
    assert_equal_runs(whole.path, folder.path)


def test_a_result_false_has_no_effect_and_is_told_once(capsys):
    learner = offpcc.SAC("pendulum-v0", hidden_dims=(4,))

    class Stop(Callback):
        def on_epoch(self, run):
            return False

    def stop(run):
        return False

    learner.train(Loggers([]), [stop, Stop(), lambda run: 0], **TINY)
    told = capsys.readouterr().err
    for name in ("stop", "Stop"):
        assert told.count(f"the callback {name} returned False, which has no effect") == 1
    assert "it has to set run.loop.stopped = True" in told and learner.loop.epoch == 2 and told.count("callback") == 2


def test_the_callback_of_the_guide_stops_without_improvement():
    page = (Path(offpcc.__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    function, found = re.search(r"^def stop_without_improvement.*?\n\n", page, re.DOTALL | re.MULTILINE)[0], {}
    exec(function, found)
    ended = []
    for returns in ([1.0, 3.0, 2.0, 3.0], [1.0, 2.0, 2.0], [3.0, 2.0]):
        run = Run(None, None, None, None, Loop(rows=[{"test/return": value} for value in returns]))
        found["stop_without_improvement"](run, patience=2, min_epochs=3)
        ended.append(run.loop.stopped)
    assert ended == [True, False, False]
