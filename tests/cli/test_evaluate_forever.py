"""`offpcc evaluate --forever`: it plays until it is asked to stop, and then tells what it saw."""

import itertools
import os
import re
import signal

import numpy as np
import pytest
from collected import agent

from offpcc.cli import commands
from offpcc.training import evaluation
from offpcc.training.interaction import EpisodeResult


@pytest.fixture
def stopping(monkeypatch):
    """Send this process a signal in an episode, counted from 1."""

    def arm(episode, number=signal.SIGINT):
        count, run = itertools.count(1), evaluation.run_episodes

        def counted(algorithm, envs, seeds, **options):
            watch = (lambda _: os.kill(os.getpid(), number)) if next(count) == episode else None
            return run(algorithm, envs, seeds, **options, watch=watch)

        monkeypatch.setattr(evaluation, "run_episodes", counted)

    return arm


def test_ctrl_c_ends_with_statistics_of_whole_episodes(launch, stopping, tmp_path):
    actor = agent(tmp_path / "actor.pt", env="pendulum-v0")
    stopping(4)
    code, out, err = launch("evaluate", actor, "--env", "brief-v0", "--forever", "--device", "cpu", "--seed", "7")
    assert (code, err) == (0, "")
    returns = [float(one) for one in re.findall(r"episode \d: return (\S+), 20 steps", out)]
    assert len(returns) == 3
    told = re.search(r"return: mean (\S+), s.d. (\S+), min (\S+), max (\S+)\n", out).groups()
    expected = [np.mean(returns), np.std(returns), min(returns), max(returns)]
    np.testing.assert_allclose([float(one) for one in told], expected, atol=0.11)
    assert "length: mean 20.0, s.d. 0.0, min 20.0, max 20.0" in out
    with_seed = launch("evaluate", actor, "--env", "brief-v0", "--episodes", "3", "--seed", "7", "--device", "cpu")[1]
    assert f"mean {told[0]}, s.d. {told[1]}" in with_seed


@pytest.mark.slow
def test_without_a_screen_episodes_are_only_played(launch, stopping, tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    actor = agent(tmp_path / "actor.pt", "rsac", env="pendulum-v0")
    stopping(2)
    code, out, _ = launch("evaluate", actor, "--env", "brief-v0", "--forever", "--render", "--device", "cpu")
    assert code == 0
    assert "there is no screen here" in out
    assert "\nepisodes: 1\n" in out


def test_with_a_screen_a_window_is_opened(launch, tmp_path, monkeypatch):
    shown = []

    def endless(actor, make_env, seed, longest, shows):
        shown.append(shows)
        yield EpisodeResult(1.0, 2)
        os.kill(os.getpid(), signal.SIGINT)
        yield EpisodeResult(3.0, 4)

    monkeypatch.setattr(commands, "endless_episodes", endless)
    monkeypatch.setattr(commands, "has_screen", lambda: True)
    actor = agent(tmp_path / "actor.pt", env="pendulum-v0")
    code, out, _ = launch("evaluate", actor, "--env", "brief-v0", "--forever", "--render", "--device", "cpu")
    assert (code, shown) == (0, [True])
    assert "return: mean 2.00, s.d. 1.00, min 1.00, max 3.00" in out


@pytest.mark.slow
def test_a_signal_of_the_system_and_one_before_the_first_end(launch, stopping, tmp_path):
    actor = agent(tmp_path / "actor.pt", env="pendulum-v0")
    stopping(1, signal.SIGTERM)
    code, out, _ = launch("evaluate", actor, "--env", "brief-v0", "--forever", "--device", "cpu")
    assert code == 128 + signal.SIGTERM
    assert "stopped before the first episode ended" in out


def test_options_without_effect_are_refused(launch, tmp_path):
    actor = agent(tmp_path / "actor.pt", env="pendulum-v0")
    for words, message in [
        (("--render",), "--render has no effect without --forever"),
        (("--forever", "--json"), "--json has no effect with --forever"),
        (("--forever", "--episodes", "3"), "--episodes 3 has no effect with --forever"),
        (("--forever", "--num_envs", "7"), "--num_envs 7 has no effect with --forever"),
        (("--forever", "--from_data", "x.hdf5"), "--from_data x.hdf5 has no effect with --forever"),
    ]:
        code, _, err = launch("evaluate", actor, "--env", "brief-v0", *words)
        assert code == 2
        assert message in err
    code, _, err = launch("evaluate", actor, actor, "--env", "brief-v0", "--forever")
    assert (code, "plays one actor" in err) == (2, True)
