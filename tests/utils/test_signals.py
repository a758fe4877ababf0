import os
import signal
import subprocess
import sys
import threading

import pytest

from offpcc.cli import main
from offpcc.utils import signals
from offpcc.utils.signals import Interrupted


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_raises_where_the_program_is(number, code, capsys):
    with signals.handled():
        with pytest.raises(Interrupted) as stop:
            send(number)
        with pytest.raises(Interrupted):  # in case somebody's `except` swallowed it
            signals.poll()
        assert stop.value.report() == code
    assert capsys.readouterr().err == "offpcc: stopped\n"
    signals.poll()


@pytest.mark.parametrize(("number", "code"), [(None, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_that_nobody_told_of_is_told(number, code, capsys, monkeypatch):
    def parse(words):
        with signals.deferred():
            if number:
                send(number)
            raise KeyboardInterrupt

    monkeypatch.setattr(main, "parse", parse)
    assert main.main([]) == code
    assert capsys.readouterr().err == "offpcc: stopped\n"


def test_a_deferred_one_waits():
    reached = []
    with signals.handled():
        with pytest.raises(Interrupted), signals.deferred():
            send(signal.SIGTERM)
            send(signal.SIGTERM)
            reached.append("not yet")
            signals.poll()
            reached.append("too late")
        with pytest.raises(Interrupted), signals.deferred():
            reached.append("begun anew")
    with signals.handled(), pytest.raises(Interrupted), signals.deferred():
        send(signal.SIGINT)
        reached.append("to the end")
    assert reached == ["not yet", "to the end"]


def test_another_error_comes_first():
    with signals.handled():
        with pytest.raises(ValueError, match="first"), signals.deferred():
            send(signal.SIGTERM)
            raise ValueError("first")
        with pytest.raises(Interrupted):
            signals.poll()


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.handled():
            send(signal.SIGINT)
            signals.poll()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_of_the_users_code_stay_on_request():
    def save(number, frame):
        called.append(number)

    called, before = [], signal.signal(signal.SIGTERM, save)
    try:
        with signals.handled(like_python=True):
            send(signal.SIGTERM)
            with pytest.raises(Interrupted):
                send(signal.SIGINT)
        assert called == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) is save
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_arrives_at_once_leaves_no_handler(monkeypatch):
    original, before = signal.signal, [signal.getsignal(number) for number in signals.HANDLED]

    def install(number, handler):
        original(number, handler)
        if handler is signals._handle:
            send(number)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(signal, "signal", install)
        with signals.handled():
            pytest.fail("the signal was lost")
    try:
        assert [signal.getsignal(number) for number in signals.HANDLED] == before
        signals.poll()
    finally:
        for number, handler in zip(signals.HANDLED, before, strict=True):
            original(number, handler)
        signals._received.clear()


def test_handlers_are_put_back_or_ended():
    before = [signal.getsignal(number) for number in signals.HANDLED]
    with pytest.raises(ValueError), signals.handled():
        assert [signal.getsignal(number) for number in signals.HANDLED] != before
        raise ValueError
    assert [signal.getsignal(number) for number in signals.HANDLED] == before
    try:
        with signals.handled(to_the_end=True):
            pass
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        for number, handler in zip(signals.HANDLED, before, strict=True):
            signal.signal(number, handler)


def test_other_threads_are_left_alone():
    faults = []

    def run():
        try:
            with signals.handled(), signals.deferred():
                signals.poll()
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not faults


def test_a_terminals_cursor_is_shown_and_nothing_is_written_elsewhere(monkeypatch, capfd):
    ours, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        signals.show_cursor()
        assert os.read(ours, 100) == signals.SHOW_CURSOR
        monkeypatch.undo()
    os.close(ours)
    signals.show_cursor()
    assert capfd.readouterr().out == ""


def test_a_call_that_has_to_be_ended_shows_it_too():
    code = (
        "import time; from offpcc.envs import faults as watchdog\n"
        "watchdog.show_cursor = lambda: print('shown', flush=True)\n"
        "watchdog.signal.pthread_kill = lambda *given: None\n"
        "with watchdog.Watchdog(0.2, lambda trace: 3): time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "shown\n")
