"""Whether a window can be opened, which variables alone do not tell."""

import socket

import pytest

from offpcc.envs import rendering
from offpcc.envs.rendering import has_screen


@pytest.fixture
def environ(monkeypatch):
    """The environment's variables, none at first, and nothing known of earlier answers."""
    rendering._answers.cache_clear()
    variables = {}
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.environ", variables)
    yield variables
    rendering._answers.cache_clear()


def test_without_a_display_there_is_no_screen(environ):
    assert not has_screen()


@pytest.mark.parametrize("display", [":94731", "unix:94731", ":94731.0", "nonsense", ":", "localhost:9"])
def test_a_display_that_is_gone_is_no_screen(environ, display):
    environ["DISPLAY"] = display
    assert not has_screen()


def test_a_display_that_answers_is_a_screen(environ):
    with socket.socket(socket.AF_UNIX) as display:
        display.bind("\0/tmp/.X11-unix/X94732")
        display.listen()
        environ["DISPLAY"] = ":94732"
        assert has_screen()


def test_wayland(environ, tmp_path):
    environ |= {"WAYLAND_DISPLAY": "wayland-7", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert not has_screen()
    rendering._answers.cache_clear()
    with socket.socket(socket.AF_UNIX) as display:
        display.bind(str(tmp_path / "wayland-7"))
        display.listen()
        assert has_screen()


def test_other_systems_have_a_screen(environ, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert has_screen()
