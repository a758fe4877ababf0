"""No display, logger or picture ends a run: what it raises is reported once."""

import errno
import io
import math
import os
import sys

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress as Bar

import offpcc
from offpcc.data.buffers.base import BufferBase
from offpcc.training import metrics
from offpcc.training.loggers import ConsoleLogger, Loggers, Progress, TensorBoardLogger, report_errors
from offpcc.training.loggers.console import download_bar
from offpcc.training.metrics import Clock, Loop
from offpcc.utils import signals


class Tracker:
    """Stands for Weights & Biases, which the tests do without."""

    def __init__(self, *given, **named):
        pass

    def progress(self, progress):
        pass

    epoch = close = progress

    def artifact(self, kind, file):
        pass


def broken(fault):
    def fail(*given, **named):
        raise fault

    return fail


def test_a_logger_of_a_users_own_ends_no_run(capsys):
    class Mine(Tracker):
        epoch = artifact = broken(ZeroDivisionError("mine"))

    learner = offpcc.build("pendulum-p-v0", "sac", algorithm={"hidden_dims": (8, 8)}, buffer={"batch_size": 4})
    learner.train(Mine(), num_epochs=2, num_steps_per_epoch=20, update_after=10, num_test_episodes_per_epoch=0)
    assert learner.loop.epoch == 2
    told = "offpcc: Mine failed (ZeroDivisionError: mine); the run goes on; further errors of it are not shown\n"
    assert capsys.readouterr().err == told
    learner.close()


def test_a_logger_that_keeps_data_ends_the_run():
    class Mine(Tracker):
        keeps_data = True
        epoch = broken(ZeroDivisionError("mine"))

    with pytest.raises(ZeroDivisionError):
        Loggers([Loggers([Mine()])]).epoch({"step": 1})


def test_a_failing_progress_bar_ends_no_download(monkeypatch, capsys):
    terminal = Console(force_terminal=True, file=io.StringIO(), width=120)
    monkeypatch.setattr(Bar, "update", broken(OSError(errno.EIO, "gone")))
    with download_bar(terminal) as show:
        for done in range(3):
            show(done, None)
    shown = capsys.readouterr().err + terminal.file.getvalue()  # a bar that is up shows what is printed above it
    assert shown.count("the progress bar failed") == 1


# The warning of saturation --------------------------------------------------------------------------------------------


TRAINED = {"num_epochs": 2, "num_steps_per_epoch": 30, "update_after": 10, "num_test_episodes_per_epoch": 0}


def small_learner():
    return offpcc.build("pendulum-p-v0", "sac", algorithm={"hidden_dims": (8, 8)}, buffer={"batch_size": 4})


def train_to_the_end(learner):
    learner.train(Loggers([]), **TRAINED)
    learner.close()
    assert learner.loop.epoch == 2 and learner.loop.num_updates > 0


def test_an_error_in_the_check_for_saturation_ends_no_run(monkeypatch, capsys):
    learner = small_learner()
    monkeypatch.setattr(learner.algorithm, "shares_at_bounds", broken(ZeroDivisionError("my encoder")))
    train_to_the_end(learner)
    told = "the check for saturation failed (ZeroDivisionError: my encoder); the run goes on"
    assert capsys.readouterr().err.count(told) == 1


def test_a_buffer_with_a_sample_of_its_own_alone_is_not_looked_at(monkeypatch, capsys):
    learner = small_learner()
    buffer, draw = learner.buffer, learner.buffer.draw
    monkeypatch.setattr(buffer, "sample", lambda: buffer.batch_of(draw()))
    monkeypatch.setattr(buffer, "draw", lambda: BufferBase.draw(buffer))
    train_to_the_end(learner)
    assert capsys.readouterr() == ("", "")


# The terminal ---------------------------------------------------------------------------------------------------------


def test_a_terminal_that_is_gone_ends_no_run(monkeypatch):
    """Not even the report of it, which the same terminal would show."""

    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(sys, "stderr", Gone())
    for is_terminal in (False, True):
        logger = Loggers([ConsoleLogger("title", console=Console(force_terminal=is_terminal))])
        logger.progress(Progress(1, 10, 1.0, 9.0, None, None, "learning"))
        logger.epoch({"step": 1})
        logger.close()


def test_a_request_to_stop_passes_through():
    with pytest.raises(signals.Interrupted), report_errors("a display"):
        raise signals.Interrupted(15)


def test_a_cut_record_of_tensorboard_is_taken_back(tmp_path):
    """TensorBoard reads nothing behind one."""
    logger = TensorBoardLogger(tmp_path)
    logger.epoch({"step": 1, "a": 1.0})
    file, real = next((tmp_path / "tensorboard").iterdir()), logger._file
    whole = file.read_bytes()

    class Full:
        def __getattr__(self, name):
            return getattr(real, name)

        def write(self, data):
            if len(data) < 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real.write(data[:10])

    logger._file = Full()
    with pytest.raises(OSError, match="No space"):
        logger.epoch({"step": 2, "a": 2.0})
    assert file.read_bytes() == whole
    logger._file = real
    logger.epoch({"step": 3, "a": 3.0})
    assert len(file.read_bytes()) > len(whole)
    logger.close()


# The time that is left ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1e13, 1e15, 1e300, -3.0, 0.0, math.nan])
def test_any_time_left_can_be_shown(seconds):
    logger = ConsoleLogger("title", console=Console(force_terminal=False, file=(told := io.StringIO())))
    logger.progress(Progress(1, 10, 1e-14, seconds, None, None, "learning"))
    logger.epoch({"step": 1})
    shown = "more than 10,000 days left" if seconds > 1e12 else "" if math.isnan(seconds) else "0:00"
    assert shown in told.getvalue() and ("left" in told.getvalue()) is not math.isnan(seconds)


class Shown(Loggers):
    def __init__(self):
        super().__init__([])
        self.progresses = []

    def progress(self, progress):
        self.progresses.append(progress)


@pytest.mark.parametrize("updates_per_step", [0.0, 0.05, 0.1, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("length", [1, 200, 1500])  # of an episode; with 1, the agent is one without memory
@pytest.mark.parametrize(("num_envs", "step_time"), [(1, 0.04), (1, 1.0), (3, 0.001)])
def test_the_time_left_is_that_of_the_work_left(monkeypatch, updates_per_step, length, num_envs, step_time):
    """Of the time that a run truly takes, once it has been learning for some episodes, and at any time of them."""
    now, update_time = 100.0, 0.01
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    loop, logger, num_steps, update_after = Loop(), Shown(), max(6_000, 12 * num_envs * length), 300
    clock, times = Clock(loop, num_steps, updates_per_step, logger), []

    exploring = True

    def report():
        before = len(logger.progresses)
        clock.report(metrics.EXPLORING if exploring else "learning")
        if len(logger.progresses) > before:
            times.append((loop.step, now))

    while loop.step < num_steps:
        now += step_time
        exploring = loop.step < update_after
        loop.step += num_envs
        loop.pending_updates += updates_per_step * num_envs * (not exploring)
        report()
        if loop.step // num_envs % length == 0:
            while loop.pending_updates >= 1.0 - 1e-6:
                loop.pending_updates -= 1.0
                now += update_time
                report()
    assert not clock.failed
    lefts = np.array([progress.seconds_left for progress in logger.progresses])
    true = now - np.array([moment for _, moment in times])
    settled = [step > max(1_500, 4 * num_envs * length) for step, _ in times]
    lefts, true = lefts[settled], true[settled]
    at_once = max(num_envs * length, 1.0 / updates_per_step if updates_per_step else 0.0)  # steps that count together
    margin = 2.0 * at_once * (step_time + updates_per_step * update_time) + 5.0
    assert len(lefts) > 4 and np.isfinite(lefts).all() and (lefts >= 0.0).all()
    assert (lefts < 2.5 * true + margin).all() and (lefts > 0.4 * true - margin).all()


def test_a_rate_of_rounding_errors_is_none(monkeypatch):
    """Resumed within a long episode, the first window holds nothing that was done."""
    now = 0.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    loop, logger = Loop(step=333, pending_updates=0.05 * 133), Shown()
    clock = Clock(loop, 1_200, 0.05, logger)
    for _ in range(300):
        now += 0.3
        loop.step += 1
        loop.pending_updates += 0.05
        clock.report("learning")
    assert {progress.seconds_left for progress in logger.progresses} == {math.inf}
