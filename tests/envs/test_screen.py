"""Whether a window can be opened."""

import pytest

from offpcc.envs.rendering import has_screen


@pytest.fixture
def environ(monkeypatch):
    """The environment's variables, none at first."""
    variables = {}
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.environ", variables)
    return variables


def test_without_a_display_there_is_no_screen(environ):
    assert not has_screen()
    environ |= {"DISPLAY": "", "WAYLAND_DISPLAY": ""}
    assert not has_screen()


@pytest.mark.parametrize("name", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_display_is_a_screen(environ, name):
    environ[name] = "named"
    assert has_screen()


def test_other_systems_have_a_screen(environ, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert has_screen()
