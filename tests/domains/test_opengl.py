"""How MuJoCo is told to draw where there is no screen."""

import ctypes.util

import pytest

from offpcc.domains import opengl
from offpcc.domains.opengl import choose_opengl


@pytest.mark.parametrize(
    ("environ", "has_egl", "libraries", "chosen"),
    [
        ({}, True, {"OSMesa"}, "egl"),
        ({}, False, {"OSMesa"}, "osmesa"),
        ({}, False, set(), "disable"),
        ({"DISPLAY": ":0"}, True, {"OSMesa"}, None),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True, {"OSMesa"}, None),
        ({"MUJOCO_GL": "glfw"}, True, {"OSMesa"}, "glfw"),
    ],
)
def test_opengl_is_chosen_where_nobody_did(monkeypatch, environ, has_egl, libraries, chosen):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.environ", environ)
    monkeypatch.setattr(opengl, "_egl_has_device", lambda: has_egl)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}" if name in libraries else None)
    choose_opengl()
    assert environ.get("MUJOCO_GL") == chosen


def test_no_library_is_no_device(monkeypatch):
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert not opengl._egl_has_device()
