"""How MuJoCo is told to draw where there is no screen."""

import ctypes.util

import gymnasium
import pytest

from offpcc.envs import rendering
from offpcc.envs.rendering import choose_opengl


@pytest.mark.parametrize(
    ("environ", "screen", "has_egl", "libraries", "chosen"),
    [
        ({}, False, True, {"OSMesa"}, "egl"),
        ({}, False, False, {"OSMesa"}, "osmesa"),
        ({}, False, False, set(), "disable"),
        ({}, True, True, {"OSMesa"}, None),
        ({"MUJOCO_GL": "glfw"}, False, True, {"OSMesa"}, "glfw"),
    ],
)
def test_opengl_is_chosen_where_nobody_did(monkeypatch, environ, screen, has_egl, libraries, chosen):
    monkeypatch.setattr(rendering, "has_screen", lambda: screen)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.environ", environ)
    monkeypatch.setattr(rendering, "_egl_has_device", lambda: has_egl)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}" if name in libraries else None)
    choose_opengl()
    assert environ.get("MUJOCO_GL") == chosen


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        ("egl", "EGL"),
        ("osmesa", "OSMesa"),
        ("glfw", "a window system (glfw)"),
        ("", "a window system (glfw)"),
        ("disable", "none"),
        ("off", "none"),
        ("0", "none"),
    ],
)
def test_the_backend_has_a_name(monkeypatch, chosen, name):
    monkeypatch.setattr(rendering, "has_screen", lambda: False)
    monkeypatch.setattr("os.environ", {"MUJOCO_GL": chosen})
    assert rendering.backend() == name


def test_a_screen_is_a_backend(monkeypatch):
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(rendering, "has_screen", lambda: True)
    assert rendering.backend() == "a window system (glfw)"


def test_asking_for_the_backend_chooses_one(monkeypatch):
    environ = {}
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.environ", environ)
    monkeypatch.setattr(rendering, "_egl_has_device", lambda: False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert rendering.backend() == "none"
    assert environ == {"MUJOCO_GL": "disable"}


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("os.environ", {"MUJOCO_GL": "disable"})
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"hopper renders.*libegl1.*libosmesa6"):
        rendering.require_opengl("hopper")
    monkeypatch.setattr("os.environ", {"MUJOCO_GL": "egl"})
    rendering.require_opengl("hopper")


def test_no_library_is_no_device(monkeypatch):
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert not rendering._egl_has_device()
