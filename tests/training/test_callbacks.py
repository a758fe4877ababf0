import math

import numpy as np
import pytest
from gymnasium.spaces import Box

from offpcc.algorithms import SAC
from offpcc.config import loading
from offpcc.data import ReplayBuffer
from offpcc.training import checkpoint
from offpcc.training.checkpoint import Checkpoints, read_checkpoint
from offpcc.training.experiment import Experiment
from offpcc.training.metrics import Loop
from offpcc.training.run_dir import RunFolder
from offpcc.training.run_fns import Run
from offpcc.training.spec import RunSpec
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
    checkpoints = Checkpoints(folder, learner, "", last_epoch, **settings)
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


@pytest.mark.parametrize(
    "name, value", [("every", 0), ("every_steps", 0.5), ("every_minutes", 0), ("every_minutes", "1")]
)
def test_what_makes_no_sense_is_refused(tmp_path, name, value):
    with pytest.raises(UserError, match=rf"Checkpoints\.{name} is"):
        watched(tmp_path, **{name: value})


def test_gin_says_how_often(tmp_path):
    loading.load_gin_config(None, ["Checkpoints.every=3", "Checkpoints.every_steps=500", "Checkpoints.every_minutes=2"])
    spec = RunSpec.make("pendulum-p-v0", "sac")
    _, checkpoints = watched(tmp_path, **spec.checkpoints._asdict())
    assert (checkpoints.every, checkpoints.every_steps, checkpoints.every_seconds) == (3, 500, 120.0)
