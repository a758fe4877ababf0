"""How MuJoCo draws where there is no screen."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys

import gymnasium

from offpcc.domains.screen import has_screen

__all__ = ["backend", "choose_opengl", "require_opengl"]


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
