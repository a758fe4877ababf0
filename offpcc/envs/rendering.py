"""Chooses MuJoCo's OpenGL backend, and tests for a screen."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import re
import socket
import sys
from pathlib import Path

import gymnasium

__all__ = ["backend", "choose_opengl", "has_screen", "require_opengl"]


X_PORT = 6000  # of display 0
SECONDS = 0.5


def has_screen() -> bool:
    """Returns whether a window can be opened.

    On Linux, DISPLAY and WAYLAND_DISPLAY may name what is not there any more, as in a terminal that outlived its
    session; so it is asked.
    """
    if sys.platform != "linux":
        return True
    return _answers_x(os.environ.get("DISPLAY", "")) or _answers_wayland(os.environ.get("WAYLAND_DISPLAY", ""))


def _answers_x(display: str) -> bool:
    match = re.fullmatch(r"(?P<host>.*):(?P<number>\d+)(\.\d+)?", display)
    if match is None:
        return False
    host, number = match["host"], int(match["number"])
    if host in ("", "unix"):
        path = f"/tmp/.X11-unix/X{number}"
        return _answers(socket.AF_UNIX, path) or _answers(socket.AF_UNIX, f"\0{path}")
    return _answers(socket.AF_INET, (host, X_PORT + number))


def _answers_wayland(display: str) -> bool:
    folder = Path(os.environ.get("XDG_RUNTIME_DIR", "/run/user"))
    return bool(display) and _answers(socket.AF_UNIX, str(folder / display))


@functools.cache
def _answers(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as asking:
        asking.settimeout(SECONDS)
        try:
            asking.connect(address)
        except OSError:
            return False
        return True


def choose_opengl() -> None:
    """Lets MuJoCo draw without a screen: by EGL where it has a device, else by OSMesa, else not at all.

    Sets MUJOCO_GL, on Linux, unless it is set or there is a screen. MuJoCo and DM Control read it once, when
    they are imported, and cannot be imported where what it names does not work: so it is set, once checked,
    before that.
    """
    if sys.platform != "linux" or "MUJOCO_GL" in os.environ:
        return
    if has_screen():
        return
    if _egl_has_device():
        os.environ["MUJOCO_GL"] = "egl"
    elif ctypes.util.find_library("OSMesa"):
        os.environ["MUJOCO_GL"] = "osmesa"
    else:
        os.environ["MUJOCO_GL"] = "disable"


def backend() -> str:
    """Returns what MuJoCo draws with: "EGL", "OSMesa", "a window system (glfw)" or "none"."""
    choose_opengl()
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen in ("disable", "disabled", "off", "false", "0"):
        return "none"
    return {"egl": "EGL", "osmesa": "OSMesa"}.get(chosen, "a window system (glfw)")


def require_opengl(environment: str) -> None:
    """Checks that MuJoCo can draw, before an environment has it do so.

    Args:
        environment: Who needs it, for the message.

    Raises:
        gymnasium.error.DependencyNotInstalled: There is neither EGL nor OSMesa nor a screen.
    """
    if backend() == "none":
        raise gymnasium.error.DependencyNotInstalled(
            f"{environment} draws its frames with OpenGL, and there is neither EGL nor OSMesa; "
            "run `apt install libegl1` (or libosmesa6), and unset MUJOCO_GL where it is set"
        )


def _egl_has_device() -> bool:
    library = ctypes.util.find_library("EGL")
    if library is None:
        return False
    egl = ctypes.CDLL(library)
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    if not address:
        return False
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(address)
    num_devices = ctypes.c_int(0)
    return bool(query(0, None, ctypes.byref(num_devices))) and num_devices.value > 0
